//! How step times spread: one row of bars for each sample, over one axis.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Frame, LABEL, Scale, fill, line, put};
use super::{Figure, INK, PlotError, SERIES};
use crate::report::number;
use crate::units::{NS_PER_MS, Ns};

/// Height of a row.
const ROW: i32 = 130;
/// Bins over the axis.
const BINS: usize = 48;

/// Step times of one configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name.
    pub name: String,
    /// Step times.
    pub step_ns: Vec<Ns>,
}

/// Histograms of step times.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// Title.
    pub title: String,
    /// Samples, from top to bottom.
    pub samples: Vec<Sample>,
}

impl Figure for Distribution {
    fn size(&self) -> (u32, u32) {
        (900, (140 + ROW * self.samples.len() as i32) as u32)
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Result<(), PlotError> {
        let (width, height) = self.size();
        let frame = Frame {
            left: 110,
            right: width as i32 - 40,
            top: 62,
            bottom: height as i32 - 66,
        };
        let ms = |ns: Ns| ns as f64 / NS_PER_MS;
        let all = || self.samples.iter().flat_map(|sample| &sample.step_ns);
        let (Some(&low), Some(&high)) = (all().min(), all().max()) else {
            return Err(PlotError::Empty("no step times".to_owned()));
        };
        let margin = 0.04 * (ms(high) - ms(low)).max(0.02 * ms(high));
        let range = (ms(low) - margin, ms(high) + margin);
        let x = Scale::new(range, (frame.left, frame.right));
        frame.horizontal(area, &self.title, &x, "step time (ms)")?;
        for (row, sample) in self.samples.iter().enumerate() {
            let mut bins = [0usize; BINS];
            for &ns in &sample.step_ns {
                let share = (ms(ns) - range.0) / (range.1 - range.0);
                bins[((share * BINS as f64) as usize).min(BINS - 1)] += 1;
            }
            let most = bins.iter().copied().max().unwrap_or(1).max(1);
            let base = frame.top + ROW * (row as i32 + 1) - 8;
            let edge =
                |bin: usize| frame.left + (frame.right - frame.left) * bin as i32 / BINS as i32;
            for (bin, count) in bins.iter().enumerate().filter(|(_, count)| **count > 0) {
                let tall = (ROW - 40) * *count as i32 / most as i32;
                let colour = SERIES[row % SERIES.len()];
                fill(
                    area,
                    (edge(bin) + 1, base - tall),
                    (edge(bin + 1), base),
                    colour,
                )?;
            }
            let median_ns = crate::analysis::quantile(&sample.step_ns, 0.5);
            let at = x.at(ms(median_ns));
            line(area, vec![(at, base - ROW + 32), (at, base)], INK, 2)?;
            let told = format!(
                "median {} of {} steps",
                number::ms(median_ns),
                sample.step_ns.len()
            );
            let anchor = if at > 560 { HPos::Right } else { HPos::Left };
            let beside = at + if at > 560 { -8 } else { 8 };
            put(
                area,
                &told,
                (beside, base - ROW + 34),
                LABEL,
                (anchor, VPos::Center),
            )?;
            let name = (frame.left - 12, base - ROW / 3);
            put(
                area,
                &sample.name,
                name,
                LABEL + 2,
                (HPos::Right, VPos::Center),
            )?;
        }
        Ok(())
    }
}
