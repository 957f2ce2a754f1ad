//! What of a valid spec the simulation does not follow. Better said than silently ignored: the
//! `knobs` integration test changes every key and fails if one neither changes the step nor is
//! named here.

use super::{CudaGraph, Dtype, Fsdp, LoadBalancing, RouterScore, RunSpec, Spec, TokenDispatcher};

/// A setting that would change the real step and does not change the simulated one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// `section.field`.
    pub key: &'static str,
    /// What is simulated instead.
    pub instead: &'static str,
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` is not followed: {}", self.key, self.instead)
    }
}

impl Spec {
    /// Settings that the simulation does not follow, in the order of the sections.
    pub fn notes(&self) -> Vec<Note> {
        let mut notes = self.model_notes();
        notes.extend(match self.fsdp() {
            Fsdp::Ddp => self.ddp_notes(),
            Fsdp::V1 => self.v1_notes(),
            Fsdp::V2 => self.v2_notes(),
        });
        notes.extend(self.optimizer_and_run_notes());
        notes
    }

    fn model_notes(&self) -> Vec<Note> {
        let model = &self.model;
        let router = "the router's kernels are those of the measured one";
        let mut notes = collect([(
            model.apply_rope_fusion && model.multi_latent_attention,
            "model.apply_rope_fusion",
            "the rotary embedding is not fused",
        )]);
        if model.num_moe_experts.is_none() {
            return notes;
        }
        notes.extend(collect([
            (
                model.moe_router_score_function != RouterScore::Sigmoid,
                "model.moe_router_score_function",
                router,
            ),
            (
                model.moe_router_load_balancing_type != LoadBalancing::SeqAuxLoss,
                "model.moe_router_load_balancing_type",
                "the auxiliary loss is the one over each sequence",
            ),
            (
                model.moe_aux_loss_coeff == 0.0,
                "model.moe_aux_loss_coeff",
                "the auxiliary loss is computed",
            ),
            (
                model.moe_router_dtype != Some(Dtype::Fp32),
                "model.moe_router_dtype",
                "the router computes in fp32",
            ),
            (
                !model.moe_router_pre_softmax,
                "model.moe_router_pre_softmax",
                router,
            ),
            (
                model.moe_router_num_groups.is_some(),
                "model.moe_router_num_groups",
                "experts are chosen among all",
            ),
            (
                model.moe_router_topk_scaling_factor.is_some(),
                "model.moe_router_topk_scaling_factor",
                router,
            ),
            (
                model.moe_expert_capacity_factor.is_some()
                    && model.moe_token_dispatcher_type == TokenDispatcher::AllToAll,
                "model.moe_expert_capacity_factor",
                "no token is dropped or padded",
            ),
            (
                !model.moe_permute_fusion,
                "model.moe_permute_fusion",
                "permutations are fused",
            ),
        ]));
        notes
    }

    fn ddp_notes(&self) -> Vec<Note> {
        let ddp = &self.ddp;
        collect([
            (
                !ddp.use_distributed_optimizer,
                "ddp.use_distributed_optimizer",
                "the optimizer state is sharded",
            ),
            (
                ddp.num_distributed_optimizer_instances > 1,
                "ddp.num_distributed_optimizer_instances",
                "DDP does not reduce over the outer group",
            ),
            (
                ddp.overlap_grad_reduce,
                "ddp.overlap_grad_reduce",
                "DDP's buckets are reduced after backward",
            ),
            (
                ddp.overlap_param_gather,
                "ddp.overlap_param_gather",
                "DDP gathers parameters after the optimizer",
            ),
            (
                ddp.grad_reduce_in_fp32,
                "ddp.grad_reduce_in_fp32",
                "DDP reduces gradients in bf16",
            ),
            (
                ddp.average_in_collective,
                "ddp.average_in_collective",
                "DDP scales gradients before it reduces them",
            ),
            (
                ddp.nccl_ub,
                "ddp.nccl_ub",
                "communication buffers are not registered",
            ),
            (
                ddp.gradient_accumulation_fusion,
                "ddp.gradient_accumulation_fusion",
                "DDP adds each gradient with a kernel of its own",
            ),
        ])
    }

    fn v1_notes(&self) -> Vec<Note> {
        let ddp = &self.ddp;
        collect([
            (
                !ddp.gradient_reduce_div_fusion,
                "ddp.gradient_reduce_div_fusion",
                "whether a kernel scales gradients follows from their dtype",
            ),
            (
                !ddp.fsdp_all_gather_in_start_param_sync,
                "ddp.fsdp_all_gather_in_start_param_sync",
                "the next step's parameters are gathered at the end of this one",
            ),
            (
                ddp.nccl_ub,
                "ddp.nccl_ub",
                "communication buffers are not registered",
            ),
            (
                ddp.megatron_fsdp_main_params_dtype != Dtype::Fp32,
                "ddp.megatron_fsdp_main_params_dtype",
                "main weights are fp32",
            ),
            (
                ddp.megatron_fsdp_grad_comm_dtype.is_some(),
                "ddp.megatron_fsdp_grad_comm_dtype",
                "gradients are sent in the dtype of the main gradients",
            ),
        ])
    }

    fn v2_notes(&self) -> Vec<Note> {
        let ddp = &self.ddp;
        collect([
            (
                ddp.nccl_ub,
                "ddp.nccl_ub",
                "communication buffers do not come from symmetric memory",
            ),
            (
                ddp.megatron_fsdp_main_params_dtype != Dtype::Fp32,
                "ddp.megatron_fsdp_main_params_dtype",
                "main weights are fp32",
            ),
            (
                ddp.v2_forward_prefetch_elements.is_some(),
                "ddp.v2_forward_prefetch_elements",
                "one module is gathered ahead",
            ),
            (
                ddp.v2_backward_prefetch_elements.is_some(),
                "ddp.v2_backward_prefetch_elements",
                "one module is gathered ahead",
            ),
        ])
    }

    fn optimizer_and_run_notes(&self) -> Vec<Note> {
        let (optimizer, run) = (&self.optimizer, &self.run);
        let fsdp = self.fsdp() != Fsdp::Ddp;
        let adam = "Adam reads and writes fp32 moments";
        collect([
            (
                fsdp != optimizer.use_precision_aware_optimizer,
                "optimizer.use_precision_aware_optimizer",
                "Megatron-FSDP runs with it and DDP without, as measured",
            ),
            (
                optimizer.main_grads_dtype != Dtype::Fp32,
                "optimizer.main_grads_dtype",
                "the dtype of main gradients is that of [ddp]",
            ),
            (
                optimizer.main_params_dtype != Dtype::Fp32,
                "optimizer.main_params_dtype",
                "main weights are fp32",
            ),
            (
                optimizer.exp_avg_dtype != Dtype::Fp32,
                "optimizer.exp_avg_dtype",
                adam,
            ),
            (
                optimizer.exp_avg_sq_dtype != Dtype::Fp32,
                "optimizer.exp_avg_sq_dtype",
                adam,
            ),
            (
                run.cuda_graph != CudaGraph::None,
                "run.cuda_graph",
                "every kernel is launched by the host",
            ),
            (
                run.cuda_device_max_connections != RunSpec::default().cuda_device_max_connections,
                "run.cuda_device_max_connections",
                "streams do not share hardware queues",
            ),
        ])
    }
}

/// The notes whose condition holds.
fn collect<const N: usize>(candidates: [(bool, &'static str, &'static str); N]) -> Vec<Note> {
    let held = candidates.into_iter().filter(|&(holds, ..)| holds);
    held.map(|(_, key, instead)| Note { key, instead })
        .collect()
}
