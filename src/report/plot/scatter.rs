//! Predicted against measured step times.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Frame, LABEL, Scale, line, put};
use super::{Figure, GRID, INK, PlotError, SERIES, draw_error};

/// A prediction with what was measured, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Name beside the point; may be empty.
    pub name: String,
    /// Which of the groups it belongs to.
    pub group: usize,
    /// Measured.
    pub measured_ms: f64,
    /// Interval of the measurement.
    pub measured_range_ms: Option<(f64, f64)>,
    /// Predicted.
    pub predicted_ms: f64,
    /// Interval of the prediction.
    pub predicted_range_ms: Option<(f64, f64)>,
}

/// A scatter plot with the identity line.
#[derive(Debug, Clone, PartialEq)]
pub struct Scatter {
    /// Title.
    pub title: String,
    /// Names of the groups of points.
    pub groups: Vec<String>,
    /// Points.
    pub points: Vec<Point>,
    /// Width of the band around the identity, in percent.
    pub band_percent: f64,
}

impl Figure for Scatter {
    fn size(&self) -> (u32, u32) {
        (820, 760)
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Result<(), PlotError> {
        let (width, height) = self.size();
        let frame = Frame {
            left: 84,
            right: width as i32 - 40,
            top: 104,
            bottom: height as i32 - 66,
        };
        let all = self.points.iter().flat_map(|point| {
            let ranges = [point.measured_range_ms, point.predicted_range_ms];
            let ends = ranges
                .into_iter()
                .flatten()
                .flat_map(|(low, high)| [low, high]);
            ends.chain([point.measured_ms, point.predicted_ms])
                .collect::<Vec<_>>()
        });
        let (low, high) = all.fold((f64::INFINITY, 0.0f64), |(low, high), v| {
            (low.min(v), high.max(v))
        });
        if !low.is_finite() {
            return Err(PlotError::Empty(
                "no prediction has a measurement".to_owned(),
            ));
        }
        let range = (low * 0.92, high * 1.08);
        let x = Scale::new(range, (frame.left, frame.right));
        let y = Scale::new(range, (frame.bottom, frame.top));
        frame.horizontal(area, &self.title, &x, "measured step time (ms)")?;
        frame.vertical(area, &y, "predicted step time (ms)")?;
        for factor in [
            1.0,
            1.0 + self.band_percent / 100.0,
            1.0 - self.band_percent / 100.0,
        ] {
            let colour = if factor == 1.0 { INK } else { GRID };
            let from = range.0.max(range.0 / factor);
            let to = range.1.min(range.1 / factor);
            let points = vec![
                (x.at(from), y.at(from * factor)),
                (x.at(to), y.at(to * factor)),
            ];
            line(area, points, colour, if factor == 1.0 { 1 } else { 2 })?;
        }
        let mut taken: Vec<(i32, i32)> = Vec::new();
        for point in &self.points {
            self.point(area, point, (&x, &y), &mut taken)?;
        }
        let mut legend: Vec<(String, RGBColor)> = self
            .groups
            .iter()
            .enumerate()
            .map(|(index, name)| (name.clone(), SERIES[index % SERIES.len()]))
            .collect();
        legend.push((format!("± {} %", self.band_percent), GRID));
        frame.legend(area, "", &legend)
    }
}

impl Scatter {
    fn point<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        point: &Point,
        (x, y): (&Scale, &Scale),
        taken: &mut Vec<(i32, i32)>,
    ) -> Result<(), PlotError> {
        let colour = SERIES[point.group % SERIES.len()];
        let at = (x.at(point.measured_ms), y.at(point.predicted_ms));
        if let Some((low, high)) = point.measured_range_ms {
            line(area, vec![(x.at(low), at.1), (x.at(high), at.1)], colour, 1)?;
        }
        if let Some((low, high)) = point.predicted_range_ms {
            line(area, vec![(at.0, y.at(low)), (at.0, y.at(high))], colour, 1)?;
        }
        area.draw(&Circle::new(at, 5, colour.filled()))
            .map_err(draw_error)?;
        // A name that would lie on another is left out; the table has them all.
        let free = |&(tx, ty): &(i32, i32)| (tx - at.0).abs() > 110 || (ty - at.1).abs() > 16;
        if point.name.is_empty() || !taken.iter().all(free) {
            return Ok(());
        }
        taken.push(at);
        let (corner, anchor) = if at.0 > 620 {
            ((at.0 - 10, at.1 - 8), HPos::Right)
        } else {
            ((at.0 + 10, at.1 + 8), HPos::Left)
        };
        put(area, &point.name, corner, LABEL - 2, (anchor, VPos::Center))
    }
}
