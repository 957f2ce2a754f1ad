//! From one step time to another, cause by cause.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Frame, LABEL, Scale, fill, line, put, round_step};
use super::{Figure, INK, NEUTRAL, PlotError, SERIES};
use crate::analysis::Comparison;
use crate::report::number;
use crate::units::{NS_PER_MS, Ns};

/// Bars of causes that are shown one by one.
const SHOWN: usize = 14;
/// Height of a bar with its distance to the next.
const ROW: i32 = 30;

/// A difference with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Name.
    pub name: String,
    /// Difference: positive is longer.
    pub ns: i64,
}

/// A waterfall between two totals.
#[derive(Debug, Clone, PartialEq)]
pub struct Waterfall {
    /// Title.
    pub title: String,
    /// Name and step time of the start.
    pub start: (String, Ns),
    /// Name and step time of the end.
    pub end: (String, Ns),
    /// Differences; with `start` they add up to `end`.
    pub bars: Vec<Bar>,
}

impl Waterfall {
    /// The waterfall of a comparison: the largest differences one by one, first what makes the right
    /// step longer, the others together, then what is not explained.
    pub fn of(comparison: &Comparison, left: &str, right: &str) -> Self {
        let mut largest: Vec<_> = comparison.contributions.iter().collect();
        largest.sort_by_key(|c| (std::cmp::Reverse(c.ns.unsigned_abs()), c.cause.clone()));
        let (shown, others) = largest.split_at(SHOWN.min(largest.len()));
        let mut bars: Vec<Bar> = shown
            .iter()
            .map(|c| Bar {
                name: c.cause.clone(),
                ns: c.ns,
            })
            .collect();
        bars.sort_by_key(|bar| std::cmp::Reverse(bar.ns));
        if !others.is_empty() {
            bars.push(Bar {
                name: format!("{} other causes", others.len()),
                ns: others.iter().map(|c| c.ns).sum(),
            });
        }
        bars.push(Bar {
            name: "not explained".to_owned(),
            ns: comparison.unexplained_ns(),
        });
        Waterfall {
            title: format!("Step time from {left} to {right}, by cause"),
            start: (left.to_owned(), comparison.left_ns),
            end: (right.to_owned(), comparison.right_ns),
            bars,
        }
    }

    /// Ends of every bar in nanoseconds.
    fn levels(&self) -> Vec<(i64, i64)> {
        let mut at = self.start.1 as i64;
        self.bars
            .iter()
            .map(|bar| {
                let from = at;
                at += bar.ns;
                (from, at)
            })
            .collect()
    }

    /// The axis: from a round value below everything, so that differences are seen.
    fn range_ms(&self) -> (f64, f64) {
        let ends = self.levels().into_iter().flat_map(|(from, to)| [from, to]);
        let all: Vec<f64> = ends
            .chain([self.start.1 as i64, self.end.1 as i64])
            .map(|ns| ns as f64 / NS_PER_MS)
            .collect();
        let low = all.iter().copied().fold(f64::INFINITY, f64::min);
        let high = all.iter().copied().fold(0.0, f64::max);
        let margin = ((high - low) * 0.25).max(high * 0.01);
        let step = round_step(margin);
        (
            (((low - margin) / step).floor() * step).max(0.0),
            high + 0.6 * margin,
        )
    }
}

impl Figure for Waterfall {
    fn size(&self) -> (u32, u32) {
        (960, (130 + ROW * (self.bars.len() as i32 + 2)) as u32)
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Result<(), PlotError> {
        let (width, height) = self.size();
        let frame = Frame {
            left: 240,
            right: width as i32 - 90,
            top: 56,
            bottom: height as i32 - 62,
        };
        let range = self.range_ms();
        let scale = Scale::new(range, (frame.left, frame.right));
        let axis = if range.0 > 0.0 {
            "step time (ms); the axis does not start at 0"
        } else {
            "step time (ms)"
        };
        frame.horizontal(area, &self.title, &scale, axis)?;
        let at = |ns: i64| scale.at(ns as f64 / NS_PER_MS);
        let bar = |row: usize, name: &str, from: i32, to: i32, colour, told: &str| {
            let y = frame.top + ROW * row as i32;
            let middle = y + ROW / 2;
            put(
                area,
                name,
                (frame.left - 10, middle),
                LABEL,
                (HPos::Right, VPos::Center),
            )?;
            let (low, high) = (from.min(to), from.max(to).max(from.min(to) + 1));
            fill(area, (low, y + 4), (high, y + ROW - 4), colour)?;
            put(
                area,
                told,
                (high + 6, middle),
                LABEL,
                (HPos::Left, VPos::Center),
            )
        };
        let total = |ns: Ns| format!("{} ms", number::ms(ns));
        let (start, end) = (&self.start, &self.end);
        bar(
            0,
            &start.0,
            frame.left,
            at(start.1 as i64),
            NEUTRAL,
            &total(start.1),
        )?;
        for (row, (shown, (from, to))) in self.bars.iter().zip(self.levels()).enumerate() {
            let colour = if shown.ns > 0 { SERIES[1] } else { SERIES[2] };
            let told = number::signed_ms(shown.ns as f64);
            bar(row + 1, &shown.name, at(from), at(to), colour, &told)?;
            let y = frame.top + ROW * (row as i32 + 1);
            line(area, vec![(at(from), y - 4), (at(from), y + 4)], INK, 1)?;
        }
        let last = self.bars.len() + 1;
        bar(
            last,
            &end.0,
            frame.left,
            at(end.1 as i64),
            NEUTRAL,
            &total(end.1),
        )
    }
}
