//! FSDP semantics: builds a Program from a model. Knows no time.

mod build;
mod ddp;
mod expand;
mod from_spec;
mod hooks;
mod optimizer;
mod plan;
mod step;
mod v1;
mod v2;
mod writer;

pub use build::{ScheduleError, build};
pub use from_spec::plan;
pub use plan::{DdpBuffer, Group, GroupParameter, LayerKind, MeshSizes, Plan};
