//! Measurements in, calibration file out, with error and hold-out.

mod align;
mod expected;
pub use align::align;
pub use expected::{ExpectedItem, expected_items, is_unrecorded, operator_name};
