//! The gap between two steps, split over causes.

use serde::Serialize;

use super::table::{Cell, Table, column};
use crate::analysis::Comparison;
use crate::units::Ns;

/// The gap as a table that fits a pull request: contributions, remainder, sum.
pub fn gap_table(comparison: &Comparison, shown: usize) -> Table {
    let mut table = Table::new(&[
        column("cause", "cause"),
        column("gap (ms)", "gap_ns"),
        column("% of gap", "percent_of_gap"),
        column("between orders", "orders_ns"),
    ]);
    let gap_ns = comparison.gap_ns();
    let share = |ns: i64| match gap_ns {
        0 => Cell::Empty,
        gap_ns => Cell::Percent(100.0 * ns as f64 / gap_ns as f64),
    };
    let signed = |ns: i64| super::number::signed_ms(ns as f64);
    let mut row = |name: String, ns: i64, spread: Option<(i64, i64)>| {
        let spread = spread.map(|(low, high)| format!("{} to {}", signed(low), signed(high)));
        table.row([
            Cell::Text(name),
            Cell::Difference(ns as f64),
            share(ns),
            spread.map_or(Cell::Empty, Cell::Text),
        ]);
    };
    let mut largest: Vec<_> = comparison.contributions.iter().collect();
    largest.sort_by_key(|c| (std::cmp::Reverse(c.ns.unsigned_abs()), c.cause.clone()));
    let (shown, others) = largest.split_at(shown.min(largest.len()));
    let mut shown = shown.to_vec();
    shown.sort_by_key(|c| std::cmp::Reverse(c.ns));
    for c in shown {
        row(c.cause.clone(), c.ns, Some((c.low_ns, c.high_ns)));
    }
    if !others.is_empty() {
        let sum = others.iter().map(|c| c.ns).sum();
        row(format!("{} others", others.len()), sum, None);
    }
    row(
        "not explained".to_owned(),
        comparison.unexplained_ns(),
        None,
    );
    row("gap".to_owned(), gap_ns, None);
    table
}

/// The gap for JSON and CSV, in full.
#[derive(Debug, Clone, Serialize)]
pub struct GapDocument {
    left_ns: Ns,
    right_ns: Ns,
    gap_ns: i64,
    unexplained_ns: i64,
    left_without_causes_ns: Ns,
    right_without_causes_ns: Ns,
    orders: usize,
    all_orders: bool,
    contributions: Vec<ContributionDocument>,
}

#[derive(Debug, Clone, Serialize)]
struct ContributionDocument {
    cause: String,
    gap_ns: i64,
    order_low_ns: i64,
    order_high_ns: i64,
    left_ns: i64,
    right_ns: i64,
}

impl GapDocument {
    /// A comparison in full.
    pub fn new(comparison: &Comparison) -> Self {
        let contributions = comparison.contributions.iter();
        GapDocument {
            left_ns: comparison.left_ns,
            right_ns: comparison.right_ns,
            gap_ns: comparison.gap_ns(),
            unexplained_ns: comparison.unexplained_ns(),
            left_without_causes_ns: comparison.left_rest_ns,
            right_without_causes_ns: comparison.right_rest_ns,
            orders: comparison.orders,
            all_orders: comparison.exact,
            contributions: contributions
                .map(|c| ContributionDocument {
                    cause: c.cause.clone(),
                    gap_ns: c.ns,
                    order_low_ns: c.low_ns,
                    order_high_ns: c.high_ns,
                    left_ns: c.left_ns,
                    right_ns: c.right_ns,
                })
                .collect(),
        }
    }
}
