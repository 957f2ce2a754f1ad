//! Axes drawn by hand, so that all plots have one look: ticks at round numbers, light grid, labels
//! that do not touch.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{GRID, INK, PlotError, draw_error, text};

/// Size of axis and tick labels.
pub(super) const LABEL: u32 = 15;
/// Size of titles.
pub(super) const TITLE: u32 = 20;

/// A linear map from values to pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    from: i32,
    to: i32,
    log: bool,
}

impl Scale {
    /// Maps `low..high` to `from..to`.
    pub(super) fn new((low, high): (f64, f64), (from, to): (i32, i32)) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Scale {
            low,
            high,
            from,
            to,
            log: false,
        }
    }

    /// The same on a logarithmic axis, if `values` are positive and nearer to a geometric than to an
    /// arithmetic sequence.
    pub(super) fn log_if_geometric(self, values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        let spread = |steps: Vec<f64>| {
            let largest = steps.iter().copied().fold(0.0, f64::max);
            largest / steps.iter().copied().fold(f64::INFINITY, f64::min)
        };
        let gaps = spread(sorted.windows(2).map(|pair| pair[1] - pair[0]).collect());
        let ratios = spread(
            sorted
                .windows(2)
                .map(|pair| (pair[1] / pair[0]).ln())
                .collect(),
        );
        let log = self.low > 0.0 && sorted.len() > 2 && ratios < gaps;
        Scale { log, ..self }
    }

    /// Where a value lies.
    pub(super) fn at(&self, value: f64) -> i32 {
        let place = |v: f64| if self.log { v.max(1e-300).ln() } else { v };
        let share = (place(value) - place(self.low)) / (place(self.high) - place(self.low));
        let pixels = f64::from(self.from) + share * f64::from(self.to - self.from);
        pixels.round().clamp(-1e6, 1e6) as i32
    }

    /// Round values within the axis, some `wanted` of them.
    pub(super) fn ticks(&self, wanted: usize) -> Vec<f64> {
        if self.log {
            let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            let all = |exponent: i32| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(exponent));
            let inside = |v: &f64| (self.low * 0.999..=self.high * 1.001).contains(v);
            let mut ticks: Vec<f64> = decades.flat_map(all).filter(inside).collect();
            if ticks.len() > 2 * wanted {
                ticks.retain(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-9);
            }
            return ticks;
        }
        let step = round_step((self.high - self.low) / wanted.max(1) as f64);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|k| k as f64 * step).collect()
    }
}

/// 1, 2 or 5 times a power of ten, not below `step`.
pub(super) fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.max(1e-12).log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let factor = factors.into_iter().find(|f| f * power >= step * 0.999_999);
    factor.unwrap_or(10.0) * power
}

/// A tick as text: no trailing zeros, thousands as `k`, millions as `M`, billions as `G`.
pub(super) fn tick_text(value: f64) -> String {
    let magnitude = value.abs();
    let (value, suffix) = match magnitude {
        m if m >= 1e9 => (value / 1e9, "G"),
        m if m >= 1e6 => (value / 1e6, "M"),
        m if m >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let rounded = format!("{value:.3}");
    let short = rounded.trim_end_matches('0').trim_end_matches('.');
    format!("{}{suffix}", if short == "-0" { "0" } else { short })
}

/// Draws text with its anchor at a point.
pub(super) fn put<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    words: &str,
    at: (i32, i32),
    size: u32,
    (h, v): (HPos, VPos),
) -> Result<(), PlotError> {
    let style = text(size).pos(Pos::new(h, v));
    area.draw(&Text::new(words.to_owned(), at, style))
        .map_err(draw_error)
}

/// Draws a filled box.
pub(super) fn fill<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    from: (i32, i32),
    to: (i32, i32),
    colour: RGBColor,
) -> Result<(), PlotError> {
    area.draw(&Rectangle::new([from, to], colour.filled()))
        .map_err(draw_error)
}

/// Draws a line.
pub(super) fn line<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    points: Vec<(i32, i32)>,
    colour: RGBColor,
    width: u32,
) -> Result<(), PlotError> {
    area.draw(&PathElement::new(points, colour.stroke_width(width)))
        .map_err(draw_error)
}

/// The inside of a plot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) left: i32,
    pub(super) right: i32,
    pub(super) top: i32,
    pub(super) bottom: i32,
}

impl Frame {
    /// Title above, horizontal axis with grid and name below.
    pub(super) fn horizontal<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        title: &str,
        scale: &Scale,
        name: &str,
    ) -> Result<(), PlotError> {
        put(area, title, (16, 14), TITLE, (HPos::Left, VPos::Top))?;
        for tick in scale.ticks(8) {
            let x = scale.at(tick);
            line(area, vec![(x, self.top), (x, self.bottom)], GRID, 1)?;
            let at = (x, self.bottom + 6);
            put(area, &tick_text(tick), at, LABEL, (HPos::Center, VPos::Top))?;
        }
        line(
            area,
            vec![(self.left, self.bottom), (self.right, self.bottom)],
            INK,
            1,
        )?;
        let at = (i32::midpoint(self.left, self.right), self.bottom + 28);
        put(area, name, at, LABEL, (HPos::Center, VPos::Top))
    }

    /// Vertical axis with grid; its name stands above it, so that nothing has to be turned.
    pub(super) fn vertical<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        scale: &Scale,
        name: &str,
    ) -> Result<(), PlotError> {
        for tick in scale.ticks(6) {
            let y = scale.at(tick);
            line(area, vec![(self.left, y), (self.right, y)], GRID, 1)?;
            let at = (self.left - 8, y);
            put(
                area,
                &tick_text(tick),
                at,
                LABEL,
                (HPos::Right, VPos::Center),
            )?;
        }
        line(
            area,
            vec![(self.left, self.top), (self.left, self.bottom)],
            INK,
            1,
        )?;
        let at = (16, self.top - 12);
        put(area, name, at, LABEL, (HPos::Left, VPos::Bottom))
    }

    /// Coloured boxes with names under the title, over as many lines as they need.
    pub(super) fn legend<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        heading: &str,
        entries: &[(String, RGBColor)],
    ) -> Result<(), PlotError> {
        // Widths are guessed: an SVG is laid out by its viewer.
        let width = |words: &str| 8 * words.chars().count() as i32;
        let (mut x, mut y) = (LEGEND.0, LEGEND.1);
        if !heading.is_empty() {
            put(area, heading, (x, y + 6), LABEL, (HPos::Left, VPos::Center))?;
            x += width(heading) + 16;
        }
        for (words, colour) in entries {
            let wide = width(words) + 40;
            if x + wide > self.right {
                (x, y) = (LEGEND.0, y + 20);
            }
            fill(area, (x, y), (x + 12, y + 12), *colour)?;
            put(
                area,
                words,
                (x + 18, y + 6),
                LABEL,
                (HPos::Left, VPos::Center),
            )?;
            x += wide;
        }
        Ok(())
    }
}

/// Where the legend begins.
const LEGEND: (i32, i32) = (17, 46);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(
            Scale::new((0.0, 252.0), (0, 100)).ticks(6),
            [0.0, 50.0, 100.0, 150.0, 200.0, 250.0]
        );
        assert_eq!(
            Scale::new((183.0, 261.0), (0, 100)).ticks(5),
            [200.0, 220.0, 240.0, 260.0]
        );
        let doubled: Vec<f64> = (0..8).map(|k| f64::from(1 << k)).collect();
        let wide = Scale::new((1.0, 128.0), (0, 100)).log_if_geometric(&doubled);
        assert_eq!(wide.ticks(8), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!((wide.at(1.0), wide.at(128.0)), (0, 100));
        let even: Vec<f64> = (1..=10).map(f64::from).collect();
        let even = Scale::new((1.0, 10.0), (0, 90)).log_if_geometric(&even);
        assert_eq!(even.at(4.0), 30);
    }

    #[test]
    fn ticks_read_well() {
        let told = [0.0, 0.25, 40_000_000.0, 1.5e9, 12_500.0, -2.0].map(tick_text);
        assert_eq!(told, ["0", "0.25", "40M", "1.5G", "12.5k", "-2"]);
    }
}
