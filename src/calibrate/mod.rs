//! Measurements in, calibration file out, with error and hold-out.

mod align;
mod expected;
mod host_fit;
mod nnls;
mod recorded;
mod samples;

pub use align::align;
pub use expected::{ExpectedItem, expected_items, is_unrecorded, operator_name};
pub use host_fit::{ClassCost, Inflation, TracedStep, fit_classes};
pub use recorded::{Events, HostEvent, RecordedItem, recorded_items};
pub use samples::{Equation, StepSamples, step_samples};
