//! Knobs that a data-parallel implementation refuses, and what a CUDA graph cannot capture.

use super::super::{
    CudaGraph, Dtype, Fsdp, OuterSharding, ShardingStrategy, Spec, TokenDispatcher, V2Build,
};
use super::Checks;

impl Spec {
    pub(super) fn check_ddp(&self, checks: &mut Checks) {
        let ddp = &self.ddp;
        let hybrid = ddp.num_distributed_optimizer_instances > 1;
        if self.fsdp() != Fsdp::Ddp {
            checks.unless(
                ddp.data_parallel_sharding_strategy == ShardingStrategy::OptimGradsParams,
                "ddp.data_parallel_sharding_strategy",
                format!(
                    "Megatron-FSDP is modelled with optim_grads_params, not {}",
                    ddp.data_parallel_sharding_strategy
                ),
                "use \"optim_grads_params\"",
            );
            checks.unless(
                !hybrid || ddp.outer_dp_sharding_strategy == OuterSharding::Optim,
                "ddp.outer_dp_sharding_strategy",
                "a hybrid mesh that replicates over the outer group is not modelled".to_owned(),
                "use \"optim\", or 1 for `num_distributed_optimizer_instances`",
            );
        }
        checks.unless(
            hybrid || ddp.outer_dp_sharding_strategy == OuterSharding::NoShard,
            "ddp.outer_dp_sharding_strategy",
            "there is no outer group on the plain mesh".to_owned(),
            "set `num_distributed_optimizer_instances` above 1, or use \"no_shard\"",
        );
        for (key, dtype) in [
            (
                "ddp.megatron_fsdp_main_params_dtype",
                ddp.megatron_fsdp_main_params_dtype,
            ),
            (
                "ddp.megatron_fsdp_main_grads_dtype",
                self.main_grads_dtype(),
            ),
        ] {
            checks.unless(
                matches!(dtype, Dtype::Fp32 | Dtype::Bf16),
                key,
                format!("{dtype} main buffers are not modelled"),
                "use fp32 or bf16",
            );
        }
    }

    /// Knobs that one version of Megatron-FSDP refuses.
    pub(super) fn check_versions(&self, checks: &mut Checks) {
        let ddp = &self.ddp;
        let fsdp = self.fsdp();
        let hybrid = ddp.num_distributed_optimizer_instances > 1;
        let v1_only = [
            (
                "ddp.suggested_communication_unit_size",
                ddp.suggested_communication_unit_size.is_some(),
                "remove it, or use `v2_forward_prefetch_elements` and `v2_backward_prefetch_elements`",
            ),
            (
                "ddp.fsdp_double_buffer",
                ddp.fsdp_double_buffer,
                "remove it",
            ),
            (
                "ddp.create_all_gather_group",
                ddp.create_all_gather_group,
                "remove it",
            ),
            (
                "ddp.gradient_accumulation_fusion",
                ddp.gradient_accumulation_fusion,
                "set it to false",
            ),
            (
                "ddp.megatron_fsdp_grad_comm_dtype",
                ddp.megatron_fsdp_grad_comm_dtype.is_some(),
                "remove it: version 2 sends gradients in their own dtype",
            ),
        ];
        for (key, given, help) in v1_only {
            checks.unless(
                fsdp != Fsdp::V2 || !given,
                key,
                "Megatron-FSDP version 2 does not support it".to_owned(),
                help,
            );
        }
        checks.unless(
            fsdp != Fsdp::V1 || !ddp.create_all_gather_group || !hybrid,
            "ddp.create_all_gather_group",
            "version 1 uses it on the plain mesh only".to_owned(),
            "remove it, or set `num_distributed_optimizer_instances` to 1",
        );
        if fsdp != Fsdp::V2 {
            return;
        }
        let september = [
            (
                "ddp.num_distributed_optimizer_instances",
                hybrid,
                "the hybrid mesh",
            ),
            (
                "ddp.v2_forward_prefetch_elements",
                ddp.v2_forward_prefetch_elements.is_some(),
                "a prefetch budget",
            ),
            (
                "ddp.v2_backward_prefetch_elements",
                ddp.v2_backward_prefetch_elements.is_some(),
                "a prefetch budget",
            ),
        ];
        for (key, given, what) in september {
            checks.unless(
                ddp.v2_build == V2Build::Sep || !given,
                key,
                format!("the August build of version 2 does not have {what}"),
                "set `ddp.v2_build` to \"sep\"",
            );
        }
    }

    pub(super) fn check_run(&self, checks: &mut Checks) {
        let (model, run) = (&self.model, &self.run);
        let moe = model.num_moe_experts.is_some() && model.moe_layers() > 0;
        if run.cuda_graph == CudaGraph::FullIteration && moe {
            checks.unless(
                model.moe_token_dispatcher_type == TokenDispatcher::Flex,
                "run.cuda_graph",
                "the alltoall dispatcher copies sizes to the host, and a graph cannot capture a \
                 device-to-host synchronisation"
                    .to_owned(),
                "set `model.moe_token_dispatcher_type` to \"flex\" with a capacity factor, or \
                 `run.cuda_graph` to \"none\"",
            );
            checks.unless(
                model.moe_expert_capacity_factor.is_some(),
                "run.cuda_graph",
                "expert sizes that depend on the data cannot be captured".to_owned(),
                "give `model.moe_expert_capacity_factor`",
            );
        }
        checks.unless(
            self.optimizer.clip_grad.is_finite() && self.optimizer.clip_grad >= 0.0,
            "optimizer.clip_grad",
            format!("{} is no gradient norm", self.optimizer.clip_grad),
            "use 0 (no clipping) or a positive number",
        );
        checks.unless(
            self.optimizer.use_precision_aware_optimizer
                || (self.optimizer.exp_avg_dtype == Dtype::Fp32
                    && self.optimizer.exp_avg_sq_dtype == Dtype::Fp32),
            "optimizer.exp_avg_dtype",
            "moments are fp32 without the precision-aware optimizer".to_owned(),
            "set `use_precision_aware_optimizer = true`, or use fp32",
        );
    }
}
