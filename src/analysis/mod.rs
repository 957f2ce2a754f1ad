//! Critical path, breakdown, comparison and what-if on timelines of any Program.
//!
//! Every answer is a simulation, never a subtraction: removing work may only expose a wait.

mod breakdown;
mod compare;
mod critical_path;
mod edit;
mod interval;
mod lanes;
mod merge;
mod predict;
mod proposals;
mod scenario;
mod slack;
mod summary;
mod what_if;

#[cfg(test)]
mod hard_input_tests;
#[cfg(test)]
mod test_programs;
#[cfg(test)]
mod timeline_tests;

pub use breakdown::{Breakdown, Part, Segment};
pub use compare::{Comparison, Contribution, compare};
pub use critical_path::{Link, PathStep, critical_path};
pub use edit::{Edit, EditError, Selector};
pub use interval::{Interval, mean_interval};
pub use predict::{PredictError, Prediction, predict, quantile};
pub use proposals::{PROPOSALS, Proposal, removable_causes};
pub use scenario::Scenario;
pub use slack::{Slack, slack};
pub use summary::{Summary, summarise};
pub use what_if::{Change, Gain, Question, WhatIfError, gain};
