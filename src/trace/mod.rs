//! Timelines out, as Chrome trace JSON.

mod write;

pub use write::chrome_trace;
