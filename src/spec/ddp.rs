//! `[ddp]`: which data-parallel implementation runs, and its knobs.

use serde::{Deserialize, Serialize};

use super::dtype::Dtype;
use super::model::choice;

/// `[ddp]`. Keys and defaults are those of Megatron's `DistributedDataParallelConfig`, apart from
/// the `v2_*` ones, which choose among builds of version 2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a section with its keys")]
pub struct DdpSpec {
    /// Megatron-FSDP instead of plain DDP.
    pub use_megatron_fsdp: bool,
    /// 1 or 2.
    pub megatron_fsdp_version: FsdpVersion,
    /// What Megatron-FSDP shards over the (inner) data-parallel group. DDP does not read it.
    pub data_parallel_sharding_strategy: ShardingStrategy,
    /// DDP: shard the optimizer state (ZeRO-1). Megatron-FSDP always does.
    pub use_distributed_optimizer: bool,
    /// Copies of the sharded optimizer: the outer size of the hybrid mesh.
    pub num_distributed_optimizer_instances: u64,
    /// What Megatron-FSDP shards over the outer data-parallel group.
    pub outer_dp_sharding_strategy: OuterSharding,
    /// DDP: reduce gradients while backward runs. Version 1 with `optim_grads_params` always does.
    pub overlap_grad_reduce: bool,
    /// DDP: gather parameters while forward runs. Version 1 with `optim_grads_params` always does.
    pub overlap_param_gather: bool,
    /// DDP: keep and reduce gradients in fp32.
    pub grad_reduce_in_fp32: bool,
    /// Average in the collective instead of scaling before it. Version 2 always does.
    pub average_in_collective: bool,
    /// Scale inside the reduction kernel where NCCL can (version 1).
    pub gradient_reduce_div_fusion: bool,
    /// Elements in a bucket. DDP: all buckets; version 1: parameters outside FSDP units; version 2
    /// has no buckets. Absent: DDP and version 1 use one bucket unless communication overlaps.
    pub bucket_size: Option<u64>,
    /// Version 1: elements that may be in flight in reduce-scatters; half as many are prefetched.
    pub suggested_communication_unit_size: Option<u64>,
    /// Version 1: two persistent buffers instead of storage that is resized.
    pub fsdp_double_buffer: bool,
    /// Version 1: start gathering the next step's parameters at the end of this one.
    pub fsdp_all_gather_in_start_param_sync: bool,
    /// Version 1: a process group of its own for all-gathers (not on a hybrid mesh).
    pub create_all_gather_group: bool,
    /// Register communication buffers with NCCL; version 2 takes them from symmetric memory.
    pub nccl_ub: bool,
    /// Weight-gradient GEMMs accumulate into the main gradient (version 1 and DDP).
    pub gradient_accumulation_fusion: bool,
    /// Dtype of Megatron-FSDP's main weights.
    pub megatron_fsdp_main_params_dtype: Dtype,
    /// Dtype of Megatron-FSDP's main gradients; that of the parameters if absent.
    pub megatron_fsdp_main_grads_dtype: Option<Dtype>,
    /// Version 1: dtype of gradients on the wire; that of the main gradients if absent.
    pub megatron_fsdp_grad_comm_dtype: Option<Dtype>,
    /// Version 2: which build; see [`V2Build`].
    pub v2_build: V2Build,
    /// Version 2: all-gathers and reduce-scatters share one stream (pull request 6563).
    pub v2_unify_communication_stream: bool,
    /// Version 2 `sep`: elements to prefetch ahead in forward (pull request 6905); one module if
    /// absent, none at 0.
    pub v2_forward_prefetch_elements: Option<u64>,
    /// Version 2 `sep`: elements to prefetch ahead in backward; one module if absent, none at 0.
    pub v2_backward_prefetch_elements: Option<u64>,
    /// Version 2 on the hybrid mesh: reduce over the outer group after every microbatch, as builds
    /// before pull request 7186 did.
    pub v2_outer_rs_every_microbatch: bool,
}

impl Default for DdpSpec {
    fn default() -> Self {
        DdpSpec {
            use_megatron_fsdp: false,
            megatron_fsdp_version: FsdpVersion::One,
            data_parallel_sharding_strategy: ShardingStrategy::NoShard,
            use_distributed_optimizer: false,
            num_distributed_optimizer_instances: 1,
            outer_dp_sharding_strategy: OuterSharding::NoShard,
            overlap_grad_reduce: false,
            overlap_param_gather: false,
            grad_reduce_in_fp32: false,
            average_in_collective: false,
            gradient_reduce_div_fusion: true,
            bucket_size: None,
            suggested_communication_unit_size: None,
            fsdp_double_buffer: false,
            fsdp_all_gather_in_start_param_sync: true,
            create_all_gather_group: false,
            nccl_ub: false,
            gradient_accumulation_fusion: false,
            megatron_fsdp_main_params_dtype: Dtype::Fp32,
            megatron_fsdp_main_grads_dtype: None,
            megatron_fsdp_grad_comm_dtype: None,
            v2_build: V2Build::Aug,
            v2_unify_communication_stream: false,
            v2_forward_prefetch_elements: None,
            v2_backward_prefetch_elements: None,
            v2_outer_rs_every_microbatch: false,
        }
    }
}

/// `megatron_fsdp_version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub enum FsdpVersion {
    /// Buckets and per-parameter hooks (`megatron_fsdp.py`).
    #[default]
    One,
    /// Modules and DTensors (`experimental/`).
    Two,
}

impl TryFrom<u64> for FsdpVersion {
    type Error = String;

    fn try_from(version: u64) -> Result<Self, String> {
        match version {
            1 => Ok(FsdpVersion::One),
            2 => Ok(FsdpVersion::Two),
            other => Err(format!("Megatron-FSDP has versions 1 and 2, not {other}")),
        }
    }
}

impl From<FsdpVersion> for u64 {
    fn from(version: FsdpVersion) -> u64 {
        match version {
            FsdpVersion::One => 1,
            FsdpVersion::Two => 2,
        }
    }
}

choice! {
    /// The schedule to simulate: what `--fsdp` selects.
    Fsdp {
        /// Megatron-FSDP version 1.
        #[default]
        V1 = "v1",
        /// Megatron-FSDP version 2.
        V2 = "v2",
        /// Plain distributed data parallelism.
        Ddp = "ddp",
    }
}

choice! {
    /// `data_parallel_sharding_strategy`.
    ShardingStrategy {
        /// Nothing.
        #[default]
        NoShard = "no_shard",
        /// Optimizer state (ZeRO-1).
        Optim = "optim",
        /// Optimizer state and gradients (ZeRO-2).
        OptimGrads = "optim_grads",
        /// Optimizer state, gradients and parameters (ZeRO-3).
        OptimGradsParams = "optim_grads_params",
    }
}

choice! {
    /// `outer_dp_sharding_strategy`.
    OuterSharding {
        /// Replicate over the outer group.
        #[default]
        NoShard = "no_shard",
        /// Shard the optimizer state over the outer group.
        Optim = "optim",
    }
}

choice! {
    /// The build of Megatron-FSDP version 2.
    V2Build {
        /// Commit d98e8a64 of 2026-08-22, plain data-parallel mesh only: what the shipped H200
        /// traces were measured with.
        #[default]
        Aug = "aug",
        /// The build of the public report of 2026-09-11, with the hybrid mesh.
        Sep = "sep",
    }
}
