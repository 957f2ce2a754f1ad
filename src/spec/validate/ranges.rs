//! Sizes that are absurd or would overflow what follows.

use super::super::Spec;
use super::{Checks, MAX_COUNT, MAX_ELEMENTS};

/// Largest value of a dimension: far above any model, far below what would overflow a product of
/// three of them.
const MAX_DIMENSION: u64 = 1 << 24;
/// Most ranks.
const MAX_RANKS: u64 = 1 << 20;
/// Most parameters of a rank: thousands of times what a device holds, but the optimizer's launches,
/// one for every few million, can still be listed.
const MAX_RANK_ELEMENTS: u64 = 1 << 42;
/// Largest common multiple of row sizes in a flat buffer.
const MAX_CHUNK: u64 = 1 << 36;
/// Most layers times microbatches: a step of some tens of millions of actions.
const MAX_LAYER_PASSES: u64 = 1 << 15;
/// Most parameter tensors times microbatches.
const MAX_TENSOR_PASSES: u64 = 1 << 22;

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
        let elements = self.rank_elements();
        checks.unless(
            elements <= u128::from(MAX_RANK_ELEMENTS),
            "model.hidden_size",
            format!("a rank would hold {elements:.1e} parameters"),
            "check the sizes in [model], or raise `parallel.expert_model_parallel_size`",
        );
        let passes = model.num_layers.saturating_mul(self.num_microbatches());
        let tensors = model
            .num_layers
            .saturating_mul(20 + 2 * self.local_experts())
            .saturating_mul(self.num_microbatches());
        checks.unless(
            passes <= MAX_LAYER_PASSES && tensors <= MAX_TENSOR_PASSES,
            "train.num_microbatches",
            format!(
                "{} microbatches of {} layers with {} experts a rank are more than a step can hold",
                self.num_microbatches(),
                model.num_layers,
                self.local_experts()
            ),
            "use fewer: every further microbatch costs what the last one did",
        );
    }

    /// Roughly, and not too few, the parameters of a rank.
    fn rank_elements(&self) -> u128 {
        let model = &self.model;
        let wide = |value: u64| u128::from(value);
        let hidden = wide(model.hidden_size);
        let attention = match model.mla() {
            Some(mla) => {
                let rank = wide(mla.kv_lora_rank) + wide(mla.q_lora_rank.unwrap_or(0));
                let head = wide(mla.qk_head_dim) + wide(mla.qk_pos_emb_head_dim);
                let width = wide(model.num_attention_heads) * (head + wide(mla.v_head_dim));
                width * (hidden + rank) + hidden * (rank + wide(mla.qk_pos_emb_head_dim))
            }
            None => {
                let heads = 2 * wide(model.num_attention_heads) + 2 * wide(model.query_groups());
                heads * wide(model.head_dim()) * hidden
            }
        };
        let dense = 3 * hidden * wide(model.ffn_hidden_size);
        let shared = model.moe_shared_expert_intermediate_size.unwrap_or(0);
        let local = wide(self.local_experts()) * wide(model.expert_ffn_hidden_size());
        let experts = 3 * hidden * (local + wide(shared));
        let router = hidden * wide(model.num_moe_experts.unwrap_or(0));
        let layer = attention + dense.max(experts + router);
        wide(model.num_layers) * layer + 2 * wide(model.vocab_size) * hidden
    }

    /// Flat buffers are padded to the least common multiple of their tensors' row sizes; rows
    /// without common factors make that absurd, and would overflow it.
    pub(super) fn check_rows(&self, checks: &mut Checks) {
        let model = &self.model;
        let head = model.mla().map_or(model.head_dim(), |mla| mla.v_head_dim);
        let attention = [
            model.hidden_size,
            model.num_attention_heads * head,
            model.q_lora_rank.unwrap_or(1),
            model.kv_lora_rank.unwrap_or(1),
        ];
        let shared = model.moe_shared_expert_intermediate_size.unwrap_or(1);
        let experts = model
            .num_moe_experts
            .map_or(1, |_| model.expert_ffn_hidden_size());
        let groups = [
            ("model.ffn_hidden_size", [model.ffn_hidden_size, 1]),
            ("model.moe_ffn_hidden_size", [shared, experts]),
        ];
        for (key, more) in groups {
            let rows = attention.iter().chain(&more).filter(|&&row| row > 1);
            let multiple = rows.clone().try_fold(1u64, |multiple, &row| {
                let factor = row / gcd(multiple, row);
                multiple.checked_mul(factor).filter(|&m| m <= MAX_CHUNK)
            });
            let rows: Vec<String> = rows.map(u64::to_string).collect();
            checks.unless(
                multiple.is_some(),
                key,
                format!(
                    "rows of {} elements have no small common multiple to align a flat buffer to",
                    rows.join(", ")
                ),
                "choose sizes with large common factors, such as multiples of 64",
            );
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
