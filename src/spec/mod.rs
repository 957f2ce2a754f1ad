//! What the user writes: a TOML spec with the sections `[model]`, `[parallel]`, `[train]`, `[ddp]`,
//! `[optimizer]` and `[run]`, in Megatron's names.
//!
//! A spec is read in three passes, so that every error names its place: the file alone (errors carry
//! line and column), then each `--set section.field=value` (errors name the `--set`), then the
//! combination as a whole ([`Spec::validate`]). Nothing is simulated here; the only arithmetic is
//! the sizes that Megatron derives from the configuration.
//!
//! ```
//! use fsdpsim::spec::{Fsdp, Spec};
//!
//! let spec = Spec::load("dsv3-proxy", &["train.num_microbatches=4"], Some(Fsdp::V2))?;
//! assert_eq!(spec.num_microbatches(), 4);
//! assert_eq!(spec.data_parallel_size(), 8);
//! assert_eq!(spec.fsdp(), Fsdp::V2);
//! # Ok::<(), fsdpsim::spec::SpecError>(())
//! ```

mod ddp;
mod dtype;
mod error;
mod layer_freq;
mod load;
mod model;
mod notes;
mod sections;
mod shipped;
mod suggest;
mod validate;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use ddp::{DdpSpec, Fsdp, FsdpVersion, OuterSharding, ShardingStrategy, V2Build};
pub use dtype::Dtype;
pub use error::{SpecError, Violation};
pub use layer_freq::MoeLayerFreq;
pub use load::{SECTIONS, fields};
pub use model::{
    FlexBackend, LoadBalancing, MlaDims, ModelSpec, Normalization, RouterScore, TokenDispatcher,
};
pub use notes::Note;
pub use sections::{CudaGraph, OptimizerKind, OptimizerSpec, ParallelSpec, RunSpec, TrainSpec};
pub use shipped::{SHIPPED, ShippedSpec};
pub use suggest::closest;

/// A complete configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Shape of the transformer.
    pub model: ModelSpec,
    /// Ranks and how they are split.
    pub parallel: ParallelSpec,
    /// What a step processes.
    pub train: TrainSpec,
    /// Data-parallel implementation.
    #[serde(default)]
    pub ddp: DdpSpec,
    /// Optimizer.
    #[serde(default)]
    pub optimizer: OptimizerSpec,
    /// How the step is run and observed.
    #[serde(default)]
    pub run: RunSpec,
}

impl Spec {
    /// The schedule that `[ddp]` selects.
    pub fn fsdp(&self) -> Fsdp {
        match (self.ddp.use_megatron_fsdp, self.ddp.megatron_fsdp_version) {
            (false, _) => Fsdp::Ddp,
            (true, FsdpVersion::One) => Fsdp::V1,
            (true, FsdpVersion::Two) => Fsdp::V2,
        }
    }

    /// Selects a schedule, as `--fsdp` does.
    pub fn set_fsdp(&mut self, fsdp: Fsdp) {
        self.ddp.use_megatron_fsdp = fsdp != Fsdp::Ddp;
        match fsdp {
            Fsdp::V1 => self.ddp.megatron_fsdp_version = FsdpVersion::One,
            Fsdp::V2 => self.ddp.megatron_fsdp_version = FsdpVersion::Two,
            Fsdp::Ddp => {}
        }
    }

    /// Ranks that hold a copy of the dense parameters: the world, as only data and expert
    /// parallelism are modelled.
    pub fn data_parallel_size(&self) -> u64 {
        self.parallel.world_size
    }

    /// Ranks that hold a copy of one expert: world size over expert parallelism.
    pub fn expert_data_parallel_size(&self) -> u64 {
        self.parallel.world_size / self.parallel.expert_model_parallel_size
    }

    /// Size of the outer data-parallel group of the hybrid mesh; 1 on the plain mesh.
    pub fn outer_size(&self) -> u64 {
        self.ddp.num_distributed_optimizer_instances
    }

    /// Size of the inner data-parallel group.
    pub fn inner_size(&self) -> u64 {
        self.data_parallel_size() / self.outer_size()
    }

    /// Microbatches of a step, from `num_microbatches` or `global_batch_size`.
    pub fn num_microbatches(&self) -> u64 {
        let sequences = self.train.micro_batch_size * self.data_parallel_size();
        match (self.train.num_microbatches, self.train.global_batch_size) {
            (Some(microbatches), _) => microbatches,
            (None, Some(batch)) => batch / sequences.max(1),
            (None, None) => 1,
        }
    }

    /// Sequences of a step over all ranks.
    pub fn global_batch_size(&self) -> u64 {
        self.num_microbatches() * self.train.micro_batch_size * self.data_parallel_size()
    }

    /// Tokens of a microbatch on a rank.
    pub fn tokens(&self) -> u64 {
        self.train.seq_length * self.train.micro_batch_size
    }

    /// Experts of a layer that a rank holds; 0 in a dense model.
    pub fn local_experts(&self) -> u64 {
        self.model.num_moe_experts.unwrap_or(0) / self.parallel.expert_model_parallel_size
    }

    /// Dtype of Megatron-FSDP's main gradients.
    pub fn main_grads_dtype(&self) -> Dtype {
        self.ddp
            .megatron_fsdp_main_grads_dtype
            .unwrap_or(self.model.params_dtype)
    }

    /// The effective configuration as TOML, every default spelled out.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }
}
