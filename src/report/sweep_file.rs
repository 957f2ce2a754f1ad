//! Rows of a sweep as CSV or JSON Lines, and back.
//!
//! Every row says which grid it belongs to (`grid`), how many points that has (`points`) and which
//! one it is (`point`), so that parts can be checked and joined and the files still read as plain
//! tables. A row is written whole; after a stop, at most the last line is incomplete, and the reader
//! drops it.

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::table::quoted;
use crate::sweep::{FIGURES, Row, SweepFile};

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFormat {
    /// A header and rows.
    Csv,
    /// One JSON object a line.
    JsonLines,
}

/// A file that is not of this kind.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SweepFileError {
    /// No rows.
    #[error("the file has no rows of a sweep")]
    Empty,
    /// A line that cannot be read.
    #[error("line {line}: {reason}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

/// Columns before the keys.
const LEAD: [&str; 3] = ["grid", "points", "point"];

impl SweepFile {
    /// The whole file.
    pub fn to_text(&self, format: RowFormat) -> String {
        let mut text = self.header(format);
        for row in &self.rows {
            text.push_str(&self.line(row, format));
        }
        text
    }

    /// The lines before the rows.
    pub fn header(&self, format: RowFormat) -> String {
        if format == RowFormat::JsonLines {
            return String::new();
        }
        let lead = LEAD.iter().copied();
        let keys = self.keys.iter().map(String::as_str);
        let names: Vec<&str> = lead.chain(keys).chain(FIGURES).chain(["error"]).collect();
        format!("{}\n", names.join(","))
    }

    /// One row with its line break.
    pub fn line(&self, row: &Row, format: RowFormat) -> String {
        match format {
            RowFormat::Csv => self.csv(row),
            RowFormat::JsonLines => self.json(row),
        }
    }

    fn csv(&self, row: &Row) -> String {
        let mut cells = vec![
            self.grid.clone(),
            self.points.to_string(),
            row.point.to_string(),
        ];
        cells.extend(row.values.iter().map(|value| quoted(value)));
        match &row.result {
            Ok(figures) => {
                cells.extend(figures.iter().map(u64::to_string));
                cells.push(String::new());
            }
            Err(error) => {
                cells.extend(FIGURES.iter().map(|_| String::new()));
                cells.push(quoted(error));
            }
        }
        format!("{}\n", cells.join(","))
    }

    fn json(&self, row: &Row) -> String {
        let mut object = Map::new();
        object.insert("grid".to_owned(), json!(self.grid));
        object.insert("points".to_owned(), json!(self.points));
        object.insert("point".to_owned(), json!(row.point));
        for (key, value) in self.keys.iter().zip(&row.values) {
            object.insert(key.clone(), typed(value));
        }
        let figures = row.result.as_ref().ok();
        for (index, name) in FIGURES.iter().enumerate() {
            object.insert((*name).to_owned(), json!(figures.map(|f| f[index])));
        }
        object.insert("error".to_owned(), json!(row.result.as_ref().err()));
        format!("{}\n", Value::Object(object))
    }

    /// Reads a file of either format. A last line without its line break was cut off and is dropped.
    ///
    /// # Errors
    /// [`SweepFileError`] names the line.
    pub fn parse(text: &str) -> Result<(Self, RowFormat), SweepFileError> {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let first = whole.lines().next().ok_or(SweepFileError::Empty)?;
        if first.starts_with('{') {
            return Ok((parse_json(whole)?, RowFormat::JsonLines));
        }
        Ok((parse_csv(whole, first)?, RowFormat::Csv))
    }
}

/// A value of an axis as JSON: a number or a truth value if it is one, else words.
fn typed(value: &str) -> Value {
    match serde_json::from_str::<Value>(value) {
        Ok(scalar @ (Value::Number(_) | Value::Bool(_))) => scalar,
        _ => json!(value),
    }
}

fn bad(line: usize, reason: impl Into<String>) -> SweepFileError {
    SweepFileError::Line {
        line,
        reason: reason.into(),
    }
}

/// Adds a row, which has to be of the same grid as those before.
fn push(
    file: &mut Option<SweepFile>,
    line: usize,
    (grid, points, keys): (String, u64, Vec<String>),
    row: Row,
) -> Result<(), SweepFileError> {
    let known = file.get_or_insert_with(|| SweepFile {
        grid: grid.clone(),
        points,
        keys: keys.clone(),
        rows: Vec::new(),
    });
    if (&known.grid, known.points, &known.keys) != (&grid, points, &keys) {
        return Err(bad(line, "the row is of another sweep than those before"));
    }
    known.rows.push(row);
    Ok(())
}

fn parse_csv(text: &str, header: &str) -> Result<SweepFile, SweepFileError> {
    let names = fields(header);
    let tail = FIGURES.len() + 1;
    let is_sweep = names.len() > LEAD.len() + tail
        && names.iter().zip(LEAD).all(|(name, lead)| name == lead)
        && names[names.len() - tail..]
            .iter()
            .zip(FIGURES)
            .all(|(name, figure)| name == figure);
    if !is_sweep {
        return Err(bad(1, "this is not the header of a sweep of this version"));
    }
    let keys = names[LEAD.len()..names.len() - tail].to_vec();
    let mut file = None;
    for (index, line) in text.lines().enumerate().skip(1) {
        let line_number = index + 1;
        let cells = fields(line);
        if cells.len() != names.len() {
            let told = format!("{} fields, expected {}", cells.len(), names.len());
            return Err(bad(line_number, told));
        }
        let number = |cell: &String| {
            let parsed = cell.parse::<u64>();
            parsed.map_err(|_| bad(line_number, format!("`{cell}` is no whole number")))
        };
        let (values, rest) = cells[LEAD.len()..].split_at(keys.len());
        let error = &rest[FIGURES.len()];
        let result = if error.is_empty() {
            let mut figures = [0; FIGURES.len()];
            for (figure, cell) in figures.iter_mut().zip(rest) {
                *figure = number(cell)?;
            }
            Ok(figures)
        } else {
            Err(error.clone())
        };
        let row = Row {
            point: number(&cells[2])?,
            values: values.to_vec(),
            result,
        };
        let head = (cells[0].clone(), number(&cells[1])?, keys.clone());
        push(&mut file, line_number, head, row)?;
    }
    file.ok_or(SweepFileError::Empty)
}

/// Fields of a CSV line.
fn fields(line: &str) -> Vec<String> {
    let (mut quoted, mut fields) = (false, vec![String::new()]);
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                fields.last_mut().into_iter().for_each(|f| f.push('"'));
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => fields.last_mut().into_iter().for_each(|f| f.push(c)),
        }
    }
    fields
}

fn parse_json(text: &str) -> Result<SweepFile, SweepFileError> {
    let mut file = None;
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let value: Value =
            serde_json::from_str(line).map_err(|error| bad(line_number, error.to_string()))?;
        let Value::Object(object) = value else {
            return Err(bad(line_number, "expected a JSON object"));
        };
        let number = |name: &str| {
            let found = object.get(name).and_then(Value::as_u64);
            found.ok_or_else(|| {
                bad(
                    line_number,
                    format!("`{name}` is missing or no whole number"),
                )
            })
        };
        let is_key = |name: &&String| {
            !LEAD.contains(&name.as_str()) && !FIGURES.contains(&name.as_str()) && *name != "error"
        };
        let keys: Vec<String> = object.keys().filter(is_key).cloned().collect();
        let values = keys.iter().map(|key| match &object[key] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        let result = match object.get("error").and_then(Value::as_str) {
            Some(error) => Err(error.to_owned()),
            None => {
                let mut figures = [0; FIGURES.len()];
                for (figure, name) in figures.iter_mut().zip(FIGURES) {
                    *figure = number(name)?;
                }
                Ok(figures)
            }
        };
        let row = Row {
            point: number("point")?,
            values: values.collect(),
            result,
        };
        let grid = object
            .get("grid")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let head = (grid.to_owned(), number("points")?, keys);
        push(&mut file, line_number, head, row)?;
    }
    file.ok_or(SweepFileError::Empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> SweepFile {
        let row = |point, value: &str, result| Row {
            point,
            values: vec![value.to_owned(), "v2".to_owned()],
            result,
        };
        let figures = std::array::from_fn(|index| index as u64 * 10_000_000_019);
        SweepFile {
            grid: "00ff".to_owned(),
            points: 3,
            keys: vec!["model.num_layers".to_owned(), "fsdp".to_owned()],
            rows: vec![
                row(0, "2", Ok(figures)),
                row(2, "8", Err("impossible: \"x\", y".to_owned())),
            ],
        }
    }

    #[test]
    fn both_formats_read_back_as_they_were_and_drop_a_line_cut_off() {
        for format in [RowFormat::Csv, RowFormat::JsonLines] {
            let text = file().to_text(format);
            let (mut back, read) = SweepFile::parse(&text).expect("reads");
            assert_eq!(read, format);
            // JSON objects come back with sorted keys.
            if format == RowFormat::JsonLines {
                back.keys.reverse();
                back.rows.iter_mut().for_each(|row| row.values.reverse());
            }
            assert_eq!(back, file());
            let cut = &text[..text.len() - 5];
            assert_eq!(SweepFile::parse(cut).expect("reads").0.rows.len(), 1);
        }
    }

    #[test]
    fn what_is_no_sweep_is_refused_with_its_line() {
        assert_eq!(SweepFile::parse(""), Err(SweepFileError::Empty));
        assert!(SweepFile::parse("a,b\n1,2\n").is_err());
        let mut text = file().to_text(RowFormat::Csv);
        text.push_str("00ff,3,1,4,v2,x,0,0,0,0,0,0,0,0,0,\n");
        let error = SweepFile::parse(&text).expect_err("refused");
        assert_eq!(error.to_string(), "line 4: `x` is no whole number");
        let other = file()
            .to_text(RowFormat::JsonLines)
            .replacen("00ff", "00fe", 1);
        let error = SweepFile::parse(&other).expect_err("refused");
        assert!(
            error
                .to_string()
                .starts_with("line 2: the row is of another sweep")
        );
    }
}
