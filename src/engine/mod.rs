//! Runs a priced Program over integer nanoseconds. Knows no FSDP.
//!
//! Ordering contract:
//! 1. A host thread runs its actions in program order; the host work of an action comes before what
//!    the action does.
//! 2. A stream runs what was enqueued on it in order, each no earlier than the host enqueued it and
//!    no earlier than what the stream was told to wait for before.
//! 3. An event stands for the tail of its stream when it was recorded last; a record of an earlier
//!    iteration counts until this iteration records again.
//! 4. At most `launch_queue_depth` enqueued kernels may not have started; a host that runs further
//!    ahead waits.
//! 5. Equal inputs and seed give equal bytes: time is integer, every draw is keyed by seed,
//!    iteration, thread and how many actions with host work came before on it, and nothing depends
//!    on insertion order or thread count.

mod jitter;
mod replay;
#[cfg(test)]
mod replay_tests;
mod timeline;

pub use jitter::JitterOptions;
pub use replay::{EngineError, EngineOptions, simulate};
pub use timeline::{Binding, DeviceSpan, HostSpan, Iteration, Timeline, Wait};
