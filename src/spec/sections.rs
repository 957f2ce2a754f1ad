//! The short sections: `[parallel]`, `[train]`, `[optimizer]` and `[run]`.

use serde::{Deserialize, Serialize};

use super::dtype::Dtype;
use super::model::choice;

/// `[parallel]`: how many ranks, and how they are split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a section with its keys")]
pub struct ParallelSpec {
    /// Ranks (GPUs).
    pub world_size: u64,
    /// Must be 1: tensor parallelism is not modelled.
    #[serde(default = "one")]
    pub tensor_model_parallel_size: u64,
    /// Must be 1: pipeline parallelism is not modelled.
    #[serde(default = "one")]
    pub pipeline_model_parallel_size: u64,
    /// Must be 1: context parallelism is not modelled.
    #[serde(default = "one")]
    pub context_parallel_size: u64,
    /// Ranks over which the experts of a layer are spread.
    #[serde(default = "one")]
    pub expert_model_parallel_size: u64,
    /// GPUs that NVLink joins.
    #[serde(default = "eight")]
    pub gpus_per_node: u64,
}

/// `[train]`: what a step processes. One of `num_microbatches` and `global_batch_size` is enough.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a section with its keys")]
pub struct TrainSpec {
    /// Tokens of a sequence.
    pub seq_length: u64,
    /// Sequences of a microbatch on a rank.
    #[serde(default = "one")]
    pub micro_batch_size: u64,
    /// Microbatches of a step.
    pub num_microbatches: Option<u64>,
    /// Sequences of a step over all ranks.
    pub global_batch_size: Option<u64>,
}

/// `[optimizer]`: keys and defaults of Megatron's `OptimizerConfig`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a section with its keys")]
pub struct OptimizerSpec {
    /// Kind of optimizer.
    pub optimizer: OptimizerKind,
    /// Largest gradient norm; gradients are not clipped at 0.
    pub clip_grad: f64,
    /// Moments in the dtypes below and gradients in theirs. DDP is modelled without.
    pub use_precision_aware_optimizer: bool,
    /// Dtype of the main gradients that Adam reads.
    pub main_grads_dtype: Dtype,
    /// Dtype of the main weights.
    pub main_params_dtype: Dtype,
    /// Dtype of the first moment.
    pub exp_avg_dtype: Dtype,
    /// Dtype of the second moment.
    pub exp_avg_sq_dtype: Dtype,
}

impl Default for OptimizerSpec {
    fn default() -> Self {
        OptimizerSpec {
            optimizer: OptimizerKind::Adam,
            clip_grad: 1.0,
            use_precision_aware_optimizer: false,
            main_grads_dtype: Dtype::Fp32,
            main_params_dtype: Dtype::Fp32,
            exp_avg_dtype: Dtype::Fp32,
            exp_avg_sq_dtype: Dtype::Fp32,
        }
    }
}

/// `[run]`: how the step is run and observed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a section with its keys")]
pub struct RunSpec {
    /// Steps whose times are reported.
    pub iterations: u64,
    /// Steps before them, simulated but not reported.
    pub warmup_iterations: u64,
    /// Seed of the host's jitter.
    pub seed: u64,
    /// What a CUDA graph captures.
    pub cuda_graph: CudaGraph,
    /// Kernels that may be launched and not yet started before the host blocks.
    pub launch_queue_depth: u64,
    /// `CUDA_DEVICE_MAX_CONNECTIONS`: hardware queues; at 1 streams cannot overtake each other.
    pub cuda_device_max_connections: u64,
}

impl Default for RunSpec {
    fn default() -> Self {
        RunSpec {
            iterations: 20,
            warmup_iterations: 2,
            seed: 0,
            cuda_graph: CudaGraph::None,
            launch_queue_depth: 1024,
            cuda_device_max_connections: 8,
        }
    }
}

choice! {
    /// `optimizer`.
    OptimizerKind {
        /// Adam with decoupled weight decay, Transformer Engine's fused one.
        #[default]
        Adam = "adam",
    }
}

choice! {
    /// `cuda_graph`.
    CudaGraph {
        /// No graph: every kernel is launched by the host.
        #[default]
        None = "none",
        /// The forward and backward of all microbatches.
        FullIteration = "full_iteration",
        /// The optimizer step.
        Optimizer = "optimizer",
    }
}

fn one() -> u64 {
    1
}

fn eight() -> u64 {
    8
}
