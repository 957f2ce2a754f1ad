//! Combinations that cannot run, each with the reason and the remedy.

use super::{
    CudaGraph, Dtype, Fsdp, MoeLayerFreq, OuterSharding, ShardingStrategy, Spec, TokenDispatcher,
    V2Build, Violation,
};

/// Largest value of a dimension: far above any model, far below what would overflow a product of
/// three of them.
const MAX_DIMENSION: u64 = 1 << 24;
/// Most layers, microbatches or iterations.
const MAX_COUNT: u64 = 100_000;
/// Most ranks.
const MAX_RANKS: u64 = 1 << 20;
/// Most elements in one parameter and most tokens times width in one activation.
const MAX_ELEMENTS: u64 = 1 << 50;

/// Collects violations.
#[derive(Default)]
struct Checks(Vec<Violation>);

impl Checks {
    fn refuse(&mut self, key: &'static str, reason: impl Into<String>, help: impl Into<String>) {
        self.0.push(Violation {
            key,
            reason: reason.into(),
            help: help.into(),
            set: None,
        });
    }

    fn unless(&mut self, holds: bool, key: &'static str, reason: String, help: &str) {
        if !holds {
            self.refuse(key, reason, help);
        }
    }

    fn within(&mut self, key: &'static str, value: u64, low: u64, high: u64) {
        if !(low..=high).contains(&value) {
            self.refuse(
                key,
                format!("{value} is outside {low} to {high}"),
                format!("give `{key}` a value from {low} to {high}"),
            );
        }
    }
}

impl Spec {
    /// Everything that keeps this combination from running.
    pub(super) fn violations(&self) -> Vec<Violation> {
        let mut checks = Checks::default();
        self.check_ranges(&mut checks);
        if !checks.0.is_empty() {
            // What follows divides and multiplies.
            return checks.0;
        }
        self.check_model(&mut checks);
        self.check_moe(&mut checks);
        self.check_mesh(&mut checks);
        self.check_ddp(&mut checks);
        self.check_versions(&mut checks);
        self.check_run(&mut checks);
        checks.0
    }

    fn check_ranges(&self, checks: &mut Checks) {
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

    fn check_model(&self, checks: &mut Checks) {
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
        self.check_sizes(checks);
    }

    /// No single tensor may be so large that its bytes overflow.
    fn check_sizes(&self, checks: &mut Checks) {
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

    fn check_moe(&self, checks: &mut Checks) {
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

    fn check_mesh(&self, checks: &mut Checks) {
        let parallel = &self.parallel;
        for (key, value, what) in [
            (
                "parallel.tensor_model_parallel_size",
                parallel.tensor_model_parallel_size,
                "tensor",
            ),
            (
                "parallel.pipeline_model_parallel_size",
                parallel.pipeline_model_parallel_size,
                "pipeline",
            ),
            (
                "parallel.context_parallel_size",
                parallel.context_parallel_size,
                "context",
            ),
        ] {
            checks.unless(
                value == 1,
                key,
                format!("{what} parallelism is not modelled"),
                "set it to 1: data and expert parallelism are modelled",
            );
        }
        let (world, ep) = (parallel.world_size, parallel.expert_model_parallel_size);
        let experts = self.model.num_moe_experts;
        if let Some(experts) = experts {
            checks.unless(
                experts.is_multiple_of(ep),
                "parallel.expert_model_parallel_size",
                format!("{experts} experts cannot be spread evenly over {ep} ranks"),
                "choose a divisor of `model.num_moe_experts`",
            );
        }
        checks.unless(
            world.is_multiple_of(ep),
            "parallel.expert_model_parallel_size",
            format!("a world of {world} ranks is not divisible by it ({ep})"),
            "choose a divisor of `parallel.world_size`",
        );
        let instances = self.ddp.num_distributed_optimizer_instances;
        checks.unless(
            world.is_multiple_of(instances),
            "ddp.num_distributed_optimizer_instances",
            format!("a data-parallel size of {world} is not divisible by it ({instances})"),
            "choose a divisor of the data-parallel size",
        );
        let expert_copies = world / ep.max(1);
        checks.unless(
            experts.is_none() || expert_copies.is_multiple_of(instances),
            "ddp.num_distributed_optimizer_instances",
            format!("an expert data-parallel size of {expert_copies} is not divisible by it ({instances})"),
            "choose a divisor of world size / expert_model_parallel_size",
        );
        self.check_batch(checks);
    }

    fn check_batch(&self, checks: &mut Checks) {
        let train = &self.train;
        let sequences = train
            .micro_batch_size
            .saturating_mul(self.data_parallel_size());
        match (train.num_microbatches, train.global_batch_size) {
            (None, None) => checks.refuse(
                "train.num_microbatches",
                "the step has no size",
                "give `num_microbatches` or `global_batch_size` in [train]",
            ),
            (_, Some(batch)) if !batch.is_multiple_of(sequences) => {
                checks.refuse(
                    "train.global_batch_size",
                    format!(
                        "{batch} sequences cannot be split into microbatches of {} on {} ranks",
                        train.micro_batch_size,
                        self.data_parallel_size()
                    ),
                    format!("choose a multiple of {sequences}"),
                );
            }
            (Some(microbatches), Some(batch)) if batch / sequences != microbatches => {
                checks.refuse(
                    "train.global_batch_size",
                    format!(
                        "{batch} sequences are {} microbatches, but `num_microbatches` is {microbatches}",
                        batch / sequences
                    ),
                    "remove one of the two",
                );
            }
            _ => {}
        }
        checks.within(
            "train.num_microbatches",
            self.num_microbatches(),
            1,
            MAX_COUNT,
        );
    }

    fn check_ddp(&self, checks: &mut Checks) {
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
    fn check_versions(&self, checks: &mut Checks) {
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

    fn check_run(&self, checks: &mut Checks) {
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
