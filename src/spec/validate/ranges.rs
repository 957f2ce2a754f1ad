//! Sizes that are absurd or would overflow what follows.

use super::super::Spec;
use super::{Checks, MAX_COUNT, MAX_ELEMENTS};

/// Largest value of a dimension: far above any model, far below what would overflow a product of
/// three of them.
const MAX_DIMENSION: u64 = 1 << 24;
/// Most ranks.
const MAX_RANKS: u64 = 1 << 20;
impl Spec {
    pub(super) fn check_ranges(&self, checks: &mut Checks) {
        let (model, parallel, train) = (&self.model, &self.parallel, &self.train);
        checks.within("model.num_layers", model.num_layers, 1, MAX_COUNT);
        checks.within("parallel.world_size", parallel.world_size, 1, MAX_RANKS);
        checks.within("run.iterations", self.run.iterations, 1, MAX_COUNT);
        checks.within(
            "run.warmup_iterations",
            self.run.warmup_iterations,
            0,
            MAX_COUNT,
        );
        checks.within(
            "run.launch_queue_depth",
            self.run.launch_queue_depth,
            1,
            MAX_DIMENSION,
        );
        let connections = self.run.cuda_device_max_connections;
        checks.within("run.cuda_device_max_connections", connections, 1, 32);
        let dimensions = [
            ("model.hidden_size", Some(model.hidden_size)),
            ("model.ffn_hidden_size", Some(model.ffn_hidden_size)),
            ("model.num_attention_heads", Some(model.num_attention_heads)),
            ("model.num_query_groups", model.num_query_groups),
            ("model.kv_channels", model.kv_channels),
            ("model.q_lora_rank", model.q_lora_rank),
            ("model.kv_lora_rank", model.kv_lora_rank),
            ("model.qk_head_dim", model.qk_head_dim),
            ("model.qk_pos_emb_head_dim", model.qk_pos_emb_head_dim),
            ("model.v_head_dim", model.v_head_dim),
            ("model.num_moe_experts", model.num_moe_experts),
            ("model.moe_ffn_hidden_size", model.moe_ffn_hidden_size),
            (
                "model.moe_shared_expert_intermediate_size",
                model.moe_shared_expert_intermediate_size,
            ),
            ("model.moe_router_topk", Some(model.moe_router_topk)),
            ("model.vocab_size", Some(model.vocab_size)),
            ("train.seq_length", Some(train.seq_length)),
            ("train.micro_batch_size", Some(train.micro_batch_size)),
            ("train.num_microbatches", train.num_microbatches),
            ("train.global_batch_size", train.global_batch_size),
            (
                "parallel.expert_model_parallel_size",
                Some(parallel.expert_model_parallel_size),
            ),
            ("parallel.gpus_per_node", Some(parallel.gpus_per_node)),
            (
                "ddp.num_distributed_optimizer_instances",
                Some(self.ddp.num_distributed_optimizer_instances),
            ),
        ];
        for (key, value) in dimensions {
            if let Some(value) = value {
                checks.within(key, value, 1, MAX_DIMENSION);
            }
        }
        let buckets = [
            ("ddp.bucket_size", self.ddp.bucket_size),
            (
                "ddp.suggested_communication_unit_size",
                self.ddp.suggested_communication_unit_size,
            ),
        ];
        for (key, value) in buckets {
            if let Some(value) = value {
                checks.within(key, value, 1, MAX_ELEMENTS);
            }
        }
    }

    /// No single tensor may be so large that its bytes overflow.
    pub(super) fn check_sizes(&self, checks: &mut Checks) {
        let model = &self.model;
        let tokens = u128::from(self.train.seq_length) * u128::from(self.train.micro_batch_size);
        let widest = model
            .hidden_size
            .max(model.ffn_hidden_size)
            .max(model.vocab_size);
        checks.unless(
            tokens * u128::from(widest) <= u128::from(MAX_ELEMENTS),
            "train.seq_length",
            format!("{tokens} tokens of width {widest} are more elements than any device holds"),
            "use a smaller `seq_length` or `micro_batch_size`",
        );
        let heads = u128::from(model.num_attention_heads);
        let head = model
            .qk_head_dim
            .unwrap_or(0)
            .max(model.v_head_dim.unwrap_or(0));
        let largest = u128::from(widest).max(heads * u128::from(head.max(model.head_dim())));
        checks.unless(
            largest * u128::from(model.hidden_size) <= u128::from(MAX_ELEMENTS),
            "model.hidden_size",
            format!(
                "a parameter of {largest} x {} is absurdly large",
                model.hidden_size
            ),
            "check the sizes in [model]",
        );
    }
}
