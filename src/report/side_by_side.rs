//! Several predicted steps in columns, with the ratio to the first.

use serde::Serialize;

use super::number;
use crate::analysis::{Prediction, quantile};
use crate::units::Ns;

/// Figures of one step that are compared, in order: name for people, key in files, value.
pub fn figures(prediction: &Prediction) -> Vec<(&'static str, &'static str, Ns)> {
    let (summary, steps) = (&prediction.summary, &prediction.step_ns);
    let mean_ns = steps.iter().sum::<Ns>() / (steps.len().max(1) as Ns);
    vec![
        ("step, median", "step_ns", prediction.median_ns()),
        ("step, mean", "step_mean_ns", mean_ns),
        ("step, min", "step_min_ns", quantile(steps, 0.0)),
        ("step, max", "step_max_ns", quantile(steps, 1.0)),
        ("without jitter", "step_centre_ns", prediction.centre_ns),
        ("  host work", "host_ns", summary.host_ns()),
        ("  launch calls", "launch_ns", summary.launch_ns),
        (
            "  exposed communication",
            "exposed_communication_ns",
            summary.exposed_communication_ns,
        ),
        (
            "  wait for kernels",
            "device_wait_ns",
            summary.device_wait_ns,
        ),
        ("device busy", "device_busy_ns", summary.device_busy_ns),
        ("device idle", "device_idle_ns", summary.device_idle_ns()),
        (
            "hidden communication",
            "hidden_communication_ns",
            summary.hidden_communication_ns(),
        ),
    ]
}

/// One line of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// `step`, `phase` or `cause`.
    pub kind: &'static str,
    /// What is compared.
    pub name: String,
    /// Value of every step.
    pub ns: Vec<Ns>,
}

/// Figures, host work by phase, and the `causes` largest causes of any step.
pub fn lines(predictions: &[Prediction], causes: usize) -> Vec<Line> {
    let all: Vec<_> = predictions.iter().map(figures).collect();
    let mut lines: Vec<Line> = all.first().map_or(Vec::new(), |first| {
        let line = |(index, figure): (usize, &(&'static str, &'static str, Ns))| Line {
            kind: "step",
            name: figure.0.to_owned(),
            ns: all.iter().map(|figures| figures[index].2).collect(),
        };
        first.iter().enumerate().map(line).collect()
    });
    let find = |list: &[(String, Ns)], name: &str| {
        list.iter()
            .find(|entry| entry.0 == name)
            .map_or(0, |entry| entry.1)
    };
    let phases: Vec<Vec<(String, Ns)>> = predictions
        .iter()
        .map(|p| {
            p.summary
                .phases_ns
                .iter()
                .map(|&(name, ns)| (name.to_owned(), ns))
                .collect()
        })
        .collect();
    let by_cause: Vec<Vec<(String, Ns)>> = predictions
        .iter()
        .map(|p| p.summary.causes_ns.clone())
        .collect();
    for (kind, lists, most) in [("phase", phases, usize::MAX), ("cause", by_cause, causes)] {
        let mut names: Vec<&String> = lists.iter().flatten().map(|entry| &entry.0).collect();
        names.sort();
        names.dedup();
        let mut found: Vec<Line> = names
            .into_iter()
            .map(|name| Line {
                kind,
                name: name.clone(),
                ns: lists.iter().map(|list| find(list, name)).collect(),
            })
            .collect();
        found.sort_by_key(|line| std::cmp::Reverse(line.ns.iter().copied().max()));
        lines.extend(found.into_iter().take(most));
    }
    lines
}

/// The lines under the names of the steps, in milliseconds; `markdown` as a table for a pull request.
pub fn text(names: &[&str], lines: &[Line], markdown: bool) -> String {
    let mut rows: Vec<Vec<String>> = vec![];
    let ratio = |line: &Line, index: usize| match line.ns[0] {
        0 => String::new(),
        first => format!("{:.3}", line.ns[index] as f64 / first as f64),
    };
    let mut header = vec!["ms".to_owned()];
    for (index, name) in names.iter().enumerate() {
        header.push((*name).to_owned());
        if index > 0 {
            header.push(format!("/ {}", names[0]));
        }
    }
    rows.push(header);
    let mut kind = "step";
    for line in lines {
        if line.kind != kind && !markdown {
            rows.push(vec![String::new()]);
            rows.push(vec![format!("host work by {}", line.kind)]);
        }
        kind = line.kind;
        let indent = if kind == "step" { "" } else { "  " };
        let mut row = vec![format!("{indent}{}", line.name)];
        for (index, &ns) in line.ns.iter().enumerate() {
            row.push(number::ms(ns));
            if index > 0 {
                row.push(ratio(line, index));
            }
        }
        rows.push(row);
    }
    if markdown {
        as_markdown(&rows)
    } else {
        aligned(&rows)
    }
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            match column {
                0 => line.push_str(&format!("{cell:<width$}")),
                _ => line.push_str(&format!("  {cell:>width$}")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn as_markdown(rows: &[Vec<String>]) -> String {
    let line = |row: &Vec<String>| {
        let cells: Vec<&str> = row.iter().map(|cell| cell.trim()).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = rows.first().map_or(String::new(), line);
    let columns = rows.first().map_or(0, Vec::len);
    text.push_str(&format!(
        "|---|{}\n",
        "---:|".repeat(columns.saturating_sub(1))
    ));
    rows.iter()
        .skip(1)
        .for_each(|row| text.push_str(&line(row)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<Line> {
        let line = |kind, name: &str, ns: [Ns; 2]| Line {
            kind,
            name: name.to_owned(),
            ns: ns.to_vec(),
        };
        vec![
            line("step", "step, median", [214_000_000, 253_000_000]),
            line("cause", "v2.dtensor_rebind", [0, 13_260_000]),
        ]
    }

    #[test]
    fn columns_line_up_and_ratios_are_to_the_first() {
        insta::assert_snapshot!(text(&["v1", "v2"], &lines(), false), @r"
        ms                    v1    v2   / v1
        step, median         214   253  1.182

        host work by cause
          v2.dtensor_rebind    0  13.3
        ");
    }

    #[test]
    fn markdown_is_a_table() {
        insta::assert_snapshot!(text(&["v1", "v2"], &lines(), true), @r"
        | ms | v1 | v2 | / v1 |
        |---|---:|---:|---:|
        | step, median | 214 | 253 | 1.182 |
        | v2.dtensor_rebind | 0 | 13.3 |  |
        ");
    }
}
