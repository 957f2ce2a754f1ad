//! Results of a sweep: lines over one key, a heat map over two.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Frame, LABEL, Scale, TITLE, fill, line, put};
use super::{Figure, PlotError, SERIES, draw_error};
use crate::report::number::three_digits;

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points in order of x.
    pub points: Vec<(f64, f64)>,
}

/// Lines over a common axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// Title.
    pub title: String,
    /// Name of the horizontal axis, with unit.
    pub x: String,
    /// Name of the vertical axis, with unit.
    pub y: String,
    /// What the names of the lines are values of; may be empty.
    pub legend: String,
    /// Lines.
    pub series: Vec<Series>,
    /// Whether the vertical axis starts at 0.
    pub from_zero: bool,
}

impl Figure for Lines {
    fn size(&self) -> (u32, u32) {
        (900, 540)
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Result<(), PlotError> {
        let (width, height) = self.size();
        let frame = Frame {
            left: 84,
            right: width as i32 - 40,
            top: 116,
            bottom: height as i32 - 66,
        };
        let all = || self.series.iter().flat_map(|series| &series.points);
        let ends = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
                (low.min(v), high.max(v))
            })
        };
        let (x_range, y_range) = (
            ends(&mut all().map(|point| point.0)),
            ends(&mut all().map(|point| point.1)),
        );
        if !x_range.0.is_finite() || !y_range.0.is_finite() {
            return Err(PlotError::Empty("the sweep has no numbers".to_owned()));
        }
        let margin = 0.08 * (y_range.1 - y_range.0).max(0.02 * y_range.1.abs());
        let low = if self.from_zero {
            0.0
        } else {
            y_range.0 - margin
        };
        let x = Scale::new(x_range, (frame.left + 10, frame.right - 10));
        let x = x.log_if_geometric(&all().map(|point| point.0).collect::<Vec<_>>());
        let y = Scale::new((low, y_range.1 + margin), (frame.bottom, frame.top));
        frame.horizontal(area, &self.title, &x, &self.x)?;
        frame.vertical(area, &y, &self.y)?;
        for (index, series) in self.series.iter().enumerate() {
            let colour = SERIES[index % SERIES.len()];
            let points: Vec<(i32, i32)> = series
                .points
                .iter()
                .map(|&(px, py)| (x.at(px), y.at(py)))
                .collect();
            line(area, points.clone(), colour, 2)?;
            for point in points {
                area.draw(&Circle::new(point, 4, colour.filled()))
                    .map_err(draw_error)?;
            }
        }
        let legend: Vec<(String, RGBColor)> = self
            .series
            .iter()
            .enumerate()
            .filter(|(_, series)| !series.name.is_empty())
            .map(|(index, series)| (series.name.clone(), SERIES[index % SERIES.len()]))
            .collect();
        frame.legend(area, &self.legend, &legend)
    }
}

/// Values over two keys.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatMap {
    /// Title.
    pub title: String,
    /// Name of the columns' key.
    pub x: String,
    /// Name of the rows' key.
    pub y: String,
    /// Columns.
    pub columns: Vec<String>,
    /// Rows, the first at the bottom.
    pub rows: Vec<String>,
    /// `values[row][column]`; absent where there is no point.
    pub values: Vec<Vec<Option<f64>>>,
    /// Unit of the values.
    pub unit: String,
}

/// Width and height of a cell.
const CELL: (i32, i32) = (84, 40);

impl Figure for HeatMap {
    fn size(&self) -> (u32, u32) {
        let (columns, rows) = (self.columns.len() as i32, self.rows.len() as i32);
        let width = (190 + CELL.0 * columns).max(560);
        (width as u32, (180 + CELL.1 * rows) as u32)
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Result<(), PlotError> {
        let all = || self.values.iter().flatten().copied().flatten();
        let (low, high) = all().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v), high.max(v))
        });
        if !low.is_finite() {
            return Err(PlotError::Empty("the sweep has no numbers".to_owned()));
        }
        let (left, top) = (150, 84);
        put(area, &self.title, (16, 14), TITLE, (HPos::Left, VPos::Top))?;
        put(
            area,
            &self.y,
            (16, top - 10),
            LABEL,
            (HPos::Left, VPos::Bottom),
        )?;
        let bottom = top + CELL.1 * self.rows.len() as i32;
        for (row, values) in self.values.iter().enumerate() {
            let y = bottom - CELL.1 * (row as i32 + 1);
            let middle = y + CELL.1 / 2;
            put(
                area,
                &self.rows[row],
                (left - 10, middle),
                LABEL,
                (HPos::Right, VPos::Center),
            )?;
            for (column, value) in values.iter().enumerate() {
                let Some(value) = value else { continue };
                let x = left + CELL.0 * column as i32;
                let share = (value - low) / (high - low).max(1e-12);
                fill(
                    area,
                    (x + 1, y + 1),
                    (x + CELL.0 - 1, y + CELL.1 - 1),
                    heat(share),
                )?;
                let at = (x + CELL.0 / 2, middle);
                put(
                    area,
                    &three_digits(*value),
                    at,
                    LABEL,
                    (HPos::Center, VPos::Center),
                )?;
            }
        }
        for (column, name) in self.columns.iter().enumerate() {
            let at = (left + CELL.0 * column as i32 + CELL.0 / 2, bottom + 8);
            put(area, name, at, LABEL, (HPos::Center, VPos::Top))?;
        }
        let middle = left + CELL.0 * self.columns.len() as i32 / 2;
        put(
            area,
            &self.x,
            (middle, bottom + 34),
            LABEL,
            (HPos::Center, VPos::Top),
        )?;
        let told = format!("in each cell: {}", self.unit);
        put(
            area,
            &told,
            (16, bottom + 64),
            LABEL,
            (HPos::Left, VPos::Top),
        )
    }
}

/// White to orange, pale enough that ink is read on it.
fn heat(share: f64) -> RGBColor {
    let mix = |from: f64, to: f64| (from + (to - from) * share.clamp(0.0, 1.0)).round() as u8;
    RGBColor(mix(247.0, 240.0), mix(250.0, 150.0), mix(252.0, 90.0))
}
