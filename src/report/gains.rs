//! Answers to what-ifs: gains with their intervals, and why some have none.

use serde::Serialize;

use super::number;
use super::table::{Cell, Table, column};
use crate::analysis::{Gain, Proposal};
use crate::units::Ns;

/// A question with its answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// What was changed.
    pub name: String,
    /// The proposal that the change is, if it is one.
    pub proposal: Option<&'static Proposal>,
    /// The gain, or why there is no answer.
    pub gain: Result<Gain, String>,
}

/// Largest gain first, then those without an answer.
pub fn rank(answers: &mut [Answer]) {
    let gain = |answer: &Answer| {
        answer
            .gain
            .as_ref()
            .map_or(f64::NEG_INFINITY, |g| g.gain_ns.mean)
    };
    answers.sort_by(|a, b| {
        gain(b)
            .total_cmp(&gain(a))
            .then_with(|| a.name.cmp(&b.name))
    });
}

/// Gains for people, those that there are.
pub fn table(answers: &[Answer]) -> Table {
    let mut table = Table::new(&[
        column("change", "change"),
        column("step (ms)", "step_ns"),
        column("gain (ms)", "gain_ns"),
        column("90 % interval", "interval_ns"),
        column("gain (%)", "gain_percent"),
    ]);
    for answer in answers {
        let name = Cell::text(answer.name.clone());
        // Those without an answer are in the notes.
        let Ok(gain) = &answer.gain else { continue };
        let interval = format!(
            "{} to {}",
            number::signed_ms(gain.gain_ns.low),
            number::signed_ms(gain.gain_ns.high)
        );
        table.row([
            name,
            Cell::Ns(gain.changed_ns),
            Cell::Difference(gain.gain_ns.mean),
            Cell::text(interval),
            Cell::Percent(gain.percent().mean),
        ]);
    }
    table
}

/// Why some answers are missing, and before that, unless `brief`, what the proposals among the answers
/// change; a line each.
pub fn notes(answers: &[Answer], brief: bool) -> Vec<String> {
    let changes = answers.iter().filter_map(|answer| {
        let proposal = answer.proposal.filter(|_| answer.gain.is_ok() && !brief)?;
        Some(format!(
            "{} ({}, {}): {}",
            proposal.name, proposal.title, proposal.reference, proposal.changes
        ))
    });
    let missing = answers.iter().filter_map(|answer| {
        let reason = answer.gain.as_ref().err()?;
        Some(format!("no answer for {}: {reason}", answer.name))
    });
    changes.chain(missing).collect()
}

/// An answer in full, for JSON and CSV.
#[derive(Debug, Clone, Serialize)]
pub struct AnswerDocument {
    change: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<&'static str>,
    #[serde(flatten)]
    figures: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_expressible: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Figures {
    base_ns: Ns,
    step_ns: Ns,
    gain_ns: f64,
    gain_low_ns: f64,
    gain_high_ns: f64,
    gain_percent: f64,
    gain_low_percent: f64,
    gain_high_percent: f64,
}

impl AnswerDocument {
    /// An answer in full.
    pub fn new(answer: &Answer) -> Self {
        let figures = |gain: &Gain| {
            let percent = gain.percent();
            Figures {
                base_ns: gain.base_ns,
                step_ns: gain.changed_ns,
                gain_ns: gain.gain_ns.mean,
                gain_low_ns: gain.gain_ns.low,
                gain_high_ns: gain.gain_ns.high,
                gain_percent: percent.mean,
                gain_low_percent: percent.low,
                gain_high_percent: percent.high,
            }
        };
        AnswerDocument {
            change: answer.name.clone(),
            title: answer.proposal.map(|proposal| proposal.title),
            reference: answer.proposal.map(|proposal| proposal.reference),
            changes: answer.proposal.map(|proposal| proposal.changes),
            figures: answer.gain.as_ref().ok().map(figures),
            not_expressible: answer.gain.as_ref().err().cloned(),
        }
    }
}

/// Answers in full as a table for CSV.
pub fn full_table(answers: &[Answer]) -> Table {
    let mut table = Table::new(&[
        column("change", "change"),
        column("base", "base_ns"),
        column("step", "step_ns"),
        column("gain", "gain_ns"),
        column("low", "gain_low_ns"),
        column("high", "gain_high_ns"),
        column("%", "gain_percent"),
        column("why not", "not_expressible"),
    ]);
    for answer in answers {
        let name = Cell::text(answer.name.clone());
        match &answer.gain {
            Ok(gain) => table.row([
                name,
                Cell::Ns(gain.base_ns),
                Cell::Ns(gain.changed_ns),
                Cell::Difference(gain.gain_ns.mean),
                Cell::Difference(gain.gain_ns.low),
                Cell::Difference(gain.gain_ns.high),
                Cell::Percent(gain.percent().mean),
            ]),
            Err(reason) => {
                let empty = std::iter::repeat_n(Cell::Empty, 6);
                let reason = Cell::text(reason.clone());
                table.row(std::iter::once(name).chain(empty).chain([reason]));
            }
        }
    }
    table
}
