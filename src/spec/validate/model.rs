//! Shapes that no transformer has, and those that are not modelled.

use super::super::{Dtype, MoeLayerFreq, Spec, TokenDispatcher};
use super::Checks;

impl Spec {
    pub(super) fn check_model(&self, checks: &mut Checks) {
        let model = &self.model;
        let heads = model.num_attention_heads;
        if model.multi_latent_attention {
            checks.unless(
                model.kv_lora_rank.is_some(),
                "model.kv_lora_rank",
                "multi-head latent attention needs the rank of its key-value projection".to_owned(),
                "add `kv_lora_rank` to [model] (512 in DeepSeek-V3)",
            );
            for (key, value) in [
                ("model.num_query_groups", model.num_query_groups),
                ("model.kv_channels", model.kv_channels),
            ] {
                checks.unless(
                    value.is_none(),
                    key,
                    "multi-head latent attention does not read it".to_owned(),
                    "remove it, or set `multi_latent_attention = false`",
                );
            }
        } else {
            let groups = model.query_groups();
            checks.unless(
                heads.is_multiple_of(groups),
                "model.num_query_groups",
                format!("{heads} attention heads cannot be split over {groups} groups"),
                "choose a divisor of `model.num_attention_heads`",
            );
            checks.unless(
                model.kv_channels.is_some() || model.hidden_size.is_multiple_of(heads),
                "model.num_attention_heads",
                format!(
                    "hidden size {} is not divisible by {heads} heads",
                    model.hidden_size
                ),
                "choose a divisor, or set `model.kv_channels`",
            );
            for (key, value) in [
                ("model.q_lora_rank", model.q_lora_rank),
                ("model.kv_lora_rank", model.kv_lora_rank),
                ("model.qk_head_dim", model.qk_head_dim),
                ("model.qk_pos_emb_head_dim", model.qk_pos_emb_head_dim),
                ("model.v_head_dim", model.v_head_dim),
            ] {
                checks.unless(
                    value.is_none(),
                    key,
                    "only multi-head latent attention reads it".to_owned(),
                    "set `multi_latent_attention = true`, or remove it",
                );
            }
        }
        checks.unless(
            model.params_dtype == Dtype::Bf16,
            "model.params_dtype",
            format!("{} is not modelled", model.params_dtype),
            "use bf16",
        );
    }

    pub(super) fn check_moe(&self, checks: &mut Checks) {
        let model = &self.model;
        let Some(experts) = model.num_moe_experts else {
            for (key, given) in [
                ("model.moe_layer_freq", model.moe_layer_freq.is_some()),
                (
                    "model.moe_ffn_hidden_size",
                    model.moe_ffn_hidden_size.is_some(),
                ),
                (
                    "model.moe_shared_expert_intermediate_size",
                    model.moe_shared_expert_intermediate_size.is_some(),
                ),
                (
                    "parallel.expert_model_parallel_size",
                    self.parallel.expert_model_parallel_size != 1,
                ),
            ] {
                checks.unless(
                    !given,
                    key,
                    "the model has no experts".to_owned(),
                    "add `num_moe_experts` to [model], or remove the key",
                );
            }
            return;
        };
        let topk = model.moe_router_topk;
        checks.unless(
            topk <= experts,
            "model.moe_router_topk",
            format!("a token cannot go to {topk} of {experts} experts"),
            "choose at most `model.num_moe_experts`",
        );
        checks.unless(
            model.moe_layer_freq.is_none() || model.first_k_dense_replace.is_none(),
            "model.first_k_dense_replace",
            "`moe_layer_freq` says which layers hold experts already".to_owned(),
            "remove one of the two",
        );
        match &model.moe_layer_freq {
            Some(MoeLayerFreq::Pattern(flags)) => {
                checks.unless(
                    flags.len() as u64 == model.num_layers,
                    "model.moe_layer_freq",
                    format!("{} flags for {} layers", flags.len(), model.num_layers),
                    "give one flag a layer, or use `first_k_dense_replace`",
                );
                checks.unless(
                    flags.iter().all(|&flag| flag <= 1),
                    "model.moe_layer_freq",
                    "a flag is 0 (dense) or 1 (experts)".to_owned(),
                    "use 0 and 1 only",
                );
            }
            Some(MoeLayerFreq::Every(0)) => checks.refuse(
                "model.moe_layer_freq",
                "no layer is the 0th one",
                "use 1 for experts in every layer",
            ),
            _ => {}
        }
        self.check_router(checks, experts);
        self.check_dispatcher(checks);
    }

    fn check_router(&self, checks: &mut Checks, experts: u64) {
        let model = &self.model;
        if let Some(dtype) = model.moe_router_dtype {
            checks.unless(
                matches!(dtype, Dtype::Fp32 | Dtype::Fp64),
                "model.moe_router_dtype",
                format!("the router computes in fp32 or fp64, not {dtype}"),
                "use fp32, or remove it for the dtype of the activations",
            );
        }
        checks.unless(
            model.moe_aux_loss_coeff.is_finite() && model.moe_aux_loss_coeff >= 0.0,
            "model.moe_aux_loss_coeff",
            format!("{} is no weight of a loss", model.moe_aux_loss_coeff),
            "use 0 or a small positive number",
        );
        match (model.moe_router_num_groups, model.moe_router_group_topk) {
            (None, None) => {}
            (Some(groups), Some(chosen)) if groups > 0 => {
                checks.unless(
                    experts.is_multiple_of(groups) && chosen <= groups,
                    "model.moe_router_num_groups",
                    format!("{experts} experts in {groups} groups, of which {chosen} are chosen"),
                    "use a divisor of `num_moe_experts`, and at most as many chosen groups",
                );
            }
            _ => checks.refuse(
                "model.moe_router_num_groups",
                "group-limited routing needs the number of groups and how many are chosen",
                "give both `moe_router_num_groups` and `moe_router_group_topk`, or neither",
            ),
        }
    }

    fn check_dispatcher(&self, checks: &mut Checks) {
        let model = &self.model;
        checks.unless(
            model.moe_token_dispatcher_type != TokenDispatcher::AllGather,
            "model.moe_token_dispatcher_type",
            "the allgather dispatcher is not modelled".to_owned(),
            "use \"alltoall\" or \"flex\"",
        );
        checks.unless(
            model.moe_grouped_gemm,
            "model.moe_grouped_gemm",
            "experts without grouped GEMM are not modelled".to_owned(),
            "set `moe_grouped_gemm = true`",
        );
        checks.unless(
            model.moe_flex_dispatcher_backend.is_none()
                || model.moe_token_dispatcher_type == TokenDispatcher::Flex,
            "model.moe_flex_dispatcher_backend",
            "only the flex dispatcher reads it".to_owned(),
            "set `moe_token_dispatcher_type = \"flex\"`, or remove it",
        );
        let capacity = model.moe_expert_capacity_factor;
        checks.unless(
            capacity.is_none_or(|factor| factor.is_finite() && factor > 0.0 && factor <= 1e6),
            "model.moe_expert_capacity_factor",
            format!(
                "{} is no multiple of the mean load",
                capacity.unwrap_or(0.0)
            ),
            "use a positive number such as 1.25, or remove it to drop no token",
        );
        checks.unless(
            !model.moe_pad_expert_input_to_capacity || capacity.is_some(),
            "model.moe_pad_expert_input_to_capacity",
            "there is no capacity to pad to".to_owned(),
            "give `moe_expert_capacity_factor`",
        );
    }
}
