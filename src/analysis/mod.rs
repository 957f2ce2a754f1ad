//! Critical path, breakdown, comparison and what-if on timelines of any Program.

mod predict;
mod summary;

pub use predict::{PredictError, Prediction, predict, quantile};
pub use summary::{Summary, summarise};
