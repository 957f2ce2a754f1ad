//! Why a trace file is refused.

use thiserror::Error;

use super::report::Place;

/// A trace that cannot be used. Messages name the file, the place and what to do.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file cannot be opened or read.
    #[error("cannot read `{path}`")]
    Unreadable {
        /// File.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is something else.
    #[error("`{path}` is not a profiler trace: {reason} ({place})")]
    NotATrace {
        /// File.
        path: String,
        /// Where that shows.
        place: Place,
        /// What was expected and what is there.
        reason: String,
    },
    /// A limit that protects the machine was reached.
    #[error("`{path}`: {what} is larger than the limit of {limit} ({place})")]
    Limit {
        /// File.
        path: String,
        /// What is too large.
        what: String,
        /// The limit, with its unit.
        limit: String,
        /// Where it was reached.
        place: Place,
    },
    /// The file is so broken that looking for the next event costs more than reading it.
    #[error(
        "`{path}` is too damaged to read: {events} events and {skipped} broken stretches up to {place}"
    )]
    TooDamaged {
        /// File.
        path: String,
        /// Events understood so far.
        events: u64,
        /// Stretches skipped so far.
        skipped: u64,
        /// Where the reader gave up.
        place: Place,
    },
    /// The file holds no event with a start and a duration.
    #[error("`{path}` holds no event with a start and a duration ({read}){flaws}")]
    NoEvents {
        /// File.
        path: String,
        /// How much was read.
        read: String,
        /// What was dropped, as `: ...`, blank if nothing.
        flaws: String,
    },
    /// The trace does not hold what was asked for.
    #[error("`{path}`: {what}")]
    Missing {
        /// File.
        path: String,
        /// What is missing, and what there is instead.
        what: String,
    },
}

impl TraceError {
    /// What to do about it.
    pub fn help(&self) -> &'static str {
        match self {
            TraceError::Unreadable { .. } => "check the path and that the file is readable",
            TraceError::NotATrace { .. } => {
                "expected the JSON of torch.profiler's `export_chrome_trace`, plain or gzip"
            }
            TraceError::Limit { .. } => {
                "if the file is what it should be, raise the limit with --max-bytes"
            }
            TraceError::TooDamaged { .. } => "export the trace again",
            TraceError::NoEvents { .. } => {
                "record at least one step with ProfilerActivity.CPU and ProfilerActivity.CUDA"
            }
            TraceError::Missing { .. } => "`fsdpsim trace stats FILE` lists what the file holds",
        }
    }
}
