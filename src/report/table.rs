//! One table, three ways to write it: aligned for a terminal, Markdown for a pull request, CSV for
//! programs. People get three digits, CSV full precision.

use comfy_table::presets::{ASCII_MARKDOWN, NOTHING};
use comfy_table::{CellAlignment, ContentArrangement};

use crate::units::Ns;

use super::number;

/// What a cell holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A duration: milliseconds for people, nanoseconds in CSV.
    Ns(Ns),
    /// A difference of durations, which may be a mean.
    Difference(f64),
    /// A percentage.
    Percent(f64),
    /// A count.
    Count(u64),
    /// Any other number.
    Number(f64),
    /// Nothing.
    Empty,
}

impl Cell {
    /// Words.
    pub fn text(text: impl Into<String>) -> Self {
        Cell::Text(text.into())
    }

    fn for_people(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Ns(ns) => number::ms(*ns),
            Cell::Difference(ns) => number::signed_ms(*ns),
            Cell::Percent(value) => number::percent(*value),
            Cell::Count(count) => count.to_string(),
            Cell::Number(value) => number::three_digits(*value),
            Cell::Empty => String::new(),
        }
    }

    fn for_programs(&self) -> String {
        match self {
            Cell::Text(text) => quoted(text),
            Cell::Ns(ns) => ns.to_string(),
            Cell::Difference(value) | Cell::Percent(value) | Cell::Number(value) => {
                value.to_string()
            }
            Cell::Count(count) => count.to_string(),
            Cell::Empty => String::new(),
        }
    }

    fn is_number(&self) -> bool {
        !matches!(self, Cell::Text(_))
    }
}

/// A field of CSV (RFC 4180).
pub fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// A column: its heading for people and its name in CSV, which ends in the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Heading.
    pub heading: &'static str,
    /// Name in CSV.
    pub key: &'static str,
}

/// Shorthand for a column.
pub const fn column(heading: &'static str, key: &'static str) -> Column {
    Column { heading, key }
}

/// Rows of cells under columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Columns.
    pub columns: Vec<Column>,
    /// Rows, each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table.
    pub fn new(columns: &[Column]) -> Self {
        Table {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; cells that are missing are empty, cells too many are dropped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let mut row: Vec<Cell> = cells.into_iter().take(self.columns.len()).collect();
        row.resize(self.columns.len(), Cell::Empty);
        self.rows.push(row);
    }

    /// For a terminal.
    pub fn to_text(&self) -> String {
        let mut table = self.rendered(NOTHING, Cell::for_people);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        trimmed(&table.to_string())
    }

    /// For a pull request.
    pub fn to_markdown(&self) -> String {
        let escaped = |cell: &Cell| cell.for_people().replace('|', "\\|");
        let text = self.rendered(ASCII_MARKDOWN, escaped).to_string();
        // The preset does not know alignment: numbers are right, words left.
        let mut lines: Vec<String> = text
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        if let Some(rule) = lines.get_mut(1) {
            let cells: Vec<String> = rule
                .trim_matches('|')
                .split('|')
                .enumerate()
                .map(|(index, cell)| match self.right(index) {
                    true => format!("{}:", &cell[..cell.len() - 1]),
                    false => cell.to_owned(),
                })
                .collect();
            *rule = format!("|{}|", cells.join("|"));
        }
        format!("{}\n", lines.join("\n"))
    }

    /// For programs: a header and rows.
    pub fn to_csv(&self) -> String {
        let header: Vec<&str> = self.columns.iter().map(|column| column.key).collect();
        let mut text = format!("{}\n", header.join(","));
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(Cell::for_programs).collect();
            text.push_str(&cells.join(","));
            text.push('\n');
        }
        text
    }

    /// Whether a column holds numbers.
    fn right(&self, column: usize) -> bool {
        self.rows.iter().any(|row| row[column] != Cell::Empty)
            && self.rows.iter().all(|row| row[column].is_number())
    }

    fn rendered(&self, preset: &str, text: impl Fn(&Cell) -> String) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table
            .load_preset(preset)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(self.columns.iter().map(|column| column.heading));
        for row in &self.rows {
            table.add_row(row.iter().map(&text));
        }
        for (index, column) in table.column_iter_mut().enumerate() {
            if self.right(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

/// Without blanks at the ends of lines, with a final line break.
fn trimmed(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    format!("{}\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[column("cause", "cause"), column("gain (ms)", "gain_ns")]);
        table.row([Cell::text("v2.a|b"), Cell::Difference(1_500_000.0)]);
        table.row([Cell::text("say \"x\", y"), Cell::Ns(20_123_456)]);
        table.row([Cell::text("short")]);
        table
    }

    #[test]
    fn people_get_milliseconds_and_aligned_columns() {
        insta::assert_snapshot!(table().to_text(), @r#"
        cause       gain (ms)
        v2.a|b          +1.50
        say "x", y       20.1
        short
        "#);
    }

    #[test]
    fn markdown_says_which_columns_are_numbers() {
        insta::assert_snapshot!(table().to_markdown(), @r#"
        | cause      | gain (ms) |
        |------------|----------:|
        | v2.a\|b    |     +1.50 |
        | say "x", y |      20.1 |
        | short      |           |
        "#);
    }

    #[test]
    fn programs_get_nanoseconds_and_quoted_fields() {
        assert_eq!(
            table().to_csv(),
            "cause,gain_ns\nv2.a|b,1500000\n\"say \"\"x\"\", y\",20123456\nshort,\n"
        );
    }
}
