//! Which plot suits a sweep.

use super::number;
use super::plot::{HeatMap, Lines, PlotError, Series};
use crate::sweep::{FIGURES, Row, SweepFile};
use crate::units::NS_PER_MS;

/// Up to this many values of a second key are lines; more are a heat map.
const MOST_LINES: usize = 7;

/// The plot of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub enum SweepFigure {
    /// Over the first key, a line for each value of the others.
    Lines(Lines),
    /// Over two keys.
    HeatMap(HeatMap),
}

/// Chooses a plot: the key with the most numeric values is the axis; the others are lines if they are
/// few, else, with two keys, a heat map.
///
/// # Errors
/// [`PlotError::Empty`] if nothing can be drawn.
pub fn sweep_figure(spec: &str, file: &SweepFile, figure: &str) -> Result<SweepFigure, PlotError> {
    let column = FIGURES.iter().position(|name| *name == figure).unwrap_or(0);
    let time = FIGURES[column].ends_with("_ns");
    let value = |row: &Row| {
        let figure = row.result.as_ref().ok()?[column] as f64;
        Some(if time { figure / NS_PER_MS } else { figure })
    };
    let (name, unit) = match FIGURES[column].strip_suffix("_ns") {
        Some("step") => ("step time".to_owned(), " (ms)"),
        Some(name) => (name.replace('_', " "), " (ms)"),
        None => (FIGURES[column].replace('_', " "), ""),
    };
    let title = format!("{name} of {spec}");
    let y = format!("{name}{unit}");
    let distinct = |key: usize| -> Vec<String> {
        let mut values: Vec<String> = Vec::new();
        for row in &file.rows {
            if !values.contains(&row.values[key]) {
                values.push(row.values[key].clone());
            }
        }
        values
    };
    let numeric = |key: usize| {
        distinct(key)
            .iter()
            .filter(|v| v.parse::<f64>().is_ok())
            .count()
    };
    let axis = (0..file.keys.len())
        .max_by_key(|&key| (numeric(key), std::cmp::Reverse(key)))
        .filter(|&key| numeric(key) > 1)
        .ok_or_else(|| PlotError::Empty("no key has two values that are numbers".to_owned()))?;
    let others: Vec<usize> = (0..file.keys.len()).filter(|&key| key != axis).collect();
    let lines: usize = others.iter().map(|&key| distinct(key).len()).product();
    if lines > MOST_LINES && others.len() == 1 {
        let rows = distinct(others[0]);
        let columns = distinct(axis);
        let cell = |r: &String, c: &String| {
            let found = file.rows.iter();
            let mut found = found.filter(|x| x.values[others[0]] == *r && x.values[axis] == *c);
            found.next().and_then(value)
        };
        return Ok(SweepFigure::HeatMap(HeatMap {
            title,
            x: file.keys[axis].clone(),
            y: file.keys[others[0]].clone(),
            values: rows
                .iter()
                .map(|r| columns.iter().map(|c| cell(r, c)).collect())
                .collect(),
            columns,
            rows,
            unit: y,
        }));
    }
    let mut series: Vec<Series> = Vec::new();
    for row in &file.rows {
        let (Ok(x), Some(y)) = (row.values[axis].parse::<f64>(), value(row)) else {
            continue;
        };
        let label = |key: &str, value: &str| match others.len() {
            1 => value.to_owned(),
            _ => label(key, value),
        };
        let name: Vec<String> = others
            .iter()
            .map(|&key| label(&file.keys[key], &row.values[key]))
            .collect();
        let name = name.join(", ");
        match series.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((x, y)),
            None => series.push(Series {
                name,
                points: vec![(x, y)],
            }),
        }
    }
    for line in &mut series {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    Ok(SweepFigure::Lines(Lines {
        title,
        x: file.keys[axis].clone(),
        y,
        series,
        legend: match others.as_slice() {
            [only] if file.keys[*only] != "fsdp" => file.keys[*only].clone(),
            _ => String::new(),
        },
        from_zero: false,
    }))
}

/// A value with the short name of its key; the implementation speaks for itself.
fn label(key: &str, value: &str) -> String {
    match key {
        "fsdp" => value.to_owned(),
        key => {
            let short = key.rsplit('.').next().unwrap_or(key);
            let value = value
                .parse()
                .map_or_else(|_| value.to_owned(), number::three_digits);
            format!("{short} {value}")
        }
    }
}
