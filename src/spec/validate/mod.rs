//! Combinations that cannot run, each with the reason and the remedy.

mod ddp;
mod mesh;
mod model;
mod ranges;

use super::{Spec, Violation};

/// Most layers, microbatches or iterations.
const MAX_COUNT: u64 = 100_000;
/// Most elements in one parameter and most tokens times width in one activation.
const MAX_ELEMENTS: u64 = 1 << 50;

/// Collects violations.
#[derive(Default)]
struct Checks(Vec<Violation>);

impl Checks {
    fn refuse(&mut self, key: &'static str, reason: impl Into<String>, help: impl Into<String>) {
        self.0.push(Violation {
            key,
            reason: reason.into(),
            help: help.into(),
            set: None,
        });
    }

    fn unless(&mut self, holds: bool, key: &'static str, reason: String, help: &str) {
        if !holds {
            self.refuse(key, reason, help);
        }
    }

    fn within(&mut self, key: &'static str, value: u64, low: u64, high: u64) {
        if !(low..=high).contains(&value) {
            self.refuse(
                key,
                format!("{value} is outside {low} to {high}"),
                format!("give `{key}` a value from {low} to {high}"),
            );
        }
    }
}

impl Spec {
    /// Everything that keeps this combination from running.
    pub(in crate::spec) fn violations(&self) -> Vec<Violation> {
        let mut checks = Checks::default();
        self.check_ranges(&mut checks);
        if !checks.0.is_empty() {
            // What follows divides and multiplies.
            return checks.0;
        }
        self.check_sizes(&mut checks);
        self.check_rows(&mut checks);
        self.check_model(&mut checks);
        self.check_moe(&mut checks);
        self.check_mesh(&mut checks);
        self.check_ddp(&mut checks);
        self.check_versions(&mut checks);
        self.check_run(&mut checks);
        checks.0
    }
}
