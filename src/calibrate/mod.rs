//! Measurements in, calibration file out, with error and hold-out.

mod align;
#[cfg(test)]
mod align_tests;
mod bootstrap;
mod expected;
mod host_fit;
mod kernels;
mod manifest;
mod nnls;
#[cfg(test)]
mod nnls_tests;
mod reconcile;
mod recorded;
mod rows;
mod run;
mod samples;
mod targets;
mod trace_file;
mod validate;

pub use align::align;
pub use bootstrap::median_interval;
pub use expected::{ExpectedItem, expected_items, is_unrecorded};
pub use host_fit::{ClassCost, Inflation, TracedStep, fit_classes};
pub use manifest::{DataError, Manifest};
pub use reconcile::Factors;
pub use recorded::{Events, HostEvent, RecordedItem, recorded_items};
pub use rows::{Row, Variant, median, read_rows};
pub use run::{Calibrated, PhaseReport, StepReport, calibrate};
pub use samples::{Equation, StepSamples, step_samples};
pub use targets::{Targets, pooled_ratio, targets};
pub use trace_file::{HostTrace, read_trace};
pub use validate::{RatioCheck, StepCheck, ValidateError, Validation, validate};
