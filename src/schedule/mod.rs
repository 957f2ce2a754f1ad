//! FSDP semantics: builds a Program from a model. Knows no time.

mod ddp;
mod hooks;
mod optimizer;
mod plan;
mod step;
mod v1;
mod v2;
mod writer;

pub use plan::{Group, GroupParameter, LayerKind, MeshSizes, Plan};
