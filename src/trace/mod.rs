//! PyTorch profiler traces in, timelines out as Chrome trace JSON.

pub mod error;
pub mod names;
pub mod read;
pub mod record;
pub mod report;
mod write;

pub use error::TraceError;
pub use read::{ReadLimits, ReadOptions, read, read_from, read_with};
pub use record::{Category, Event, NO_ID, TraceFile};
pub use report::{Flaw, ReadReport};
pub use write::chrome_trace;
