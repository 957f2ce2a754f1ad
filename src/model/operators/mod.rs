//! The operators of each layer, forward and backward, with their kernels, flops and bytes.
//!
//! Order and names are those that the PyTorch profiler records for Megatron-core with Transformer
//! Engine (`calibration/data/h200-1gpu/traces`); `tests/it/recipes.rs` compares the counts.

mod attention;
mod gqa;
mod head;
mod mlp;
mod moe;

pub use attention::{mla_backward, mla_forward};
pub use gqa::{gqa_backward, gqa_forward};
pub use head::{
    embedding_backward, embedding_forward, head_backward, head_forward, loss_backward, loss_forward,
};
pub use mlp::{bias_dropout_add, bias_dropout_add_backward, dense_mlp_backward, dense_mlp_forward};
pub use moe::{
    combine_backward, combine_forward, dispatch_backward, dispatch_forward, experts_backward,
    experts_forward, router_backward, router_forward, shared_expert_backward,
    shared_expert_forward,
};
