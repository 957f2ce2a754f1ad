"""The proxy model of NVIDIA/Megatron-LM issue 7264 under plain DDP, Megatron-FSDP v1 and v2, and one training step of it.

Several models live side by side in one process, so nothing here is global except Megatron's own parallel
state: the world size, the expert-parallel size and the number of optimizer instances are fixed per
process, everything else belongs to a `Shape`.
"""

import dataclasses
import os

os.environ.setdefault("NVTE_CUTEDSL_FUSED_GROUPED_MLP", "0")

import torch
import torch.nn.functional as F

VOCAB = 32000


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a measured row says about its model; `mb` is not here because it is an argument of the step."""
    layers: int = 4
    dense: int = 1
    experts: int = 32
    seq: int = 512
    ep: int = 2
    world: int = 8
    outer: int = 1

    def row(self, mb):
        return {**dataclasses.asdict(self), "mb": mb}

    @property
    def moe(self):
        return self.dense < self.layers


def init_parallel(world, ep, outer):
    """Megatron's groups for this process; the default process group must exist."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    parallel_state.initialize_model_parallel(1, 1, expert_model_parallel_size=ep,
                                             num_distributed_optimizer_instances=outer,
                                             create_gloo_process_groups=False)
    model_parallel_cuda_manual_seed(1234)


def model_config(shape):
    from megatron.core.transformer.transformer_config import MLATransformerConfig
    moe = dict(
        num_moe_experts=shape.experts, moe_ffn_hidden_size=512, moe_shared_expert_intermediate_size=512,
        moe_router_topk=8, moe_layer_freq=[0] * shape.dense + [1] * (shape.layers - shape.dense),
        moe_grouped_gemm=True, moe_token_dispatcher_type="alltoall",
        moe_router_load_balancing_type="seq_aux_loss", moe_aux_loss_coeff=1e-4,
        moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True, moe_router_pre_softmax=True,
        moe_router_dtype="fp32", moe_permute_fusion=True, expert_model_parallel_size=shape.ep,
    ) if shape.moe else {}
    return MLATransformerConfig(
        num_layers=shape.layers, hidden_size=1024, ffn_hidden_size=2816, num_attention_heads=8,
        multi_latent_attention=True, q_lora_rank=512, kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64,
        v_head_dim=128, qk_layernorm=True, bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
        normalization="RMSNorm", activation_func=F.silu, gated_linear_unit=True, add_bias_linear=False,
        rope_type="rope", rotary_base=10000, apply_rope_fusion=False, attention_dropout=0.0, hidden_dropout=0.0,
        attention_softmax_in_fp32=False, bias_activation_fusion=True, bias_dropout_fusion=True,
        masked_softmax_fusion=True, persist_layer_norm=True, gradient_accumulation_fusion=False,
        layernorm_epsilon=1e-5, init_method_std=0.02, **moe)


def bare_model(shape, config=None):
    """The unsharded model on the GPU in bf16, and its configuration."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (get_gpt_decoder_block_spec,
                                                          get_gpt_layer_with_transformer_engine_spec)
    config = config or model_config(shape)
    if shape.moe:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=True)
    else:
        spec = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=True, multi_latent_attention=True)
    model = GPTModel(config=config, transformer_layer_spec=spec, vocab_size=VOCAB, max_sequence_length=shape.seq,
                     position_embedding_type="rope", share_embeddings_and_output_weights=False).cuda().bfloat16()
    for module in model.modules():
        if hasattr(module, "_maintain_float32_expert_bias"):
            module._maintain_float32_expert_bias()
    return model, config


class Trainer:
    """One model with its optimizer. `step(mb, clock)` runs one training step of `mb` microbatches."""

    def __init__(self, version, shape, **options):
        self.version, self.shape = version, shape
        self.zero_grad_twice = True
        self.raw, self.config = bare_model(shape)
        self.model = self._wrap(options)
        self.optimizer = self._optimizer()
        self._install_functions()
        self.batches = _batches(shape.seq)
        self.position = torch.arange(shape.seq, device="cuda").unsqueeze(0)
        self.mask = torch.ones(shape.seq, device="cuda")

    def _wrap(self, options):
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel
        from megatron.core.process_groups_config import ProcessGroupCollection
        shape = self.shape
        common = dict(overlap_grad_reduce=False, overlap_param_gather=False, average_in_collective=False,
                      num_distributed_optimizer_instances=shape.outer)
        if self.version == "ddp":
            return DistributedDataParallel(
                self.config, DistributedDataParallelConfig(use_distributed_optimizer=True, **common, **options), self.raw)
        common.update(use_megatron_fsdp=True, data_parallel_sharding_strategy="optim_grads_params")
        if self.version == "v1":
            outer = "optim" if shape.outer > 1 else "no_shard"
            dcfg = DistributedDataParallelConfig(
                megatron_fsdp_version=1, use_distributed_optimizer=True, megatron_fsdp_use_decoupled_grad=True,
                outer_dp_sharding_strategy=outer, **common, **options)
            return FullyShardedDataParallel(config=self.config, ddp_config=dcfg, module=self.raw)
        # The adapter of d98e8a64 refuses an outer mesh for v2: it shards over the whole data-parallel group.
        common["num_distributed_optimizer_instances"] = 1
        dcfg = DistributedDataParallelConfig(
            megatron_fsdp_version=2, use_distributed_optimizer=False, fsdp_all_gather_in_start_param_sync=False,
            **common, **options)
        return FullyShardedDataParallel(config=self.config, ddp_config=dcfg, module=self.raw,
                                        pg_collection=ProcessGroupCollection.use_mpu_process_groups())

    def _optimizer(self):
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        config = OptimizerConfig(
            optimizer="adam", lr=1e-4, min_lr=1e-5, weight_decay=0.01, adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8,
            bf16=True, params_dtype=torch.bfloat16, clip_grad=1.0, use_distributed_optimizer=(self.version != "v2"),
            use_precision_aware_optimizer=(self.version != "ddp"))
        return get_megatron_optimizer(config, [self.model], use_gloo_process_groups=False)

    def _install_functions(self):
        from megatron.core.distributed import finalize_model_grads
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.grad_scale_func = self.optimizer.scale_loss
        if self.version != "v2":  # v2 of d98e8a64 has no no_sync of its own (schedules, section 0.2)
            self.config.no_sync_func = self.model.no_sync

    def forward_step(self, data, model):
        tokens, labels = next(data)
        out = model(tokens, self.position, None, labels=labels)

        def loss(output):
            flat = output.float().view(-1)
            value = (flat * self.mask).sum() / self.mask.sum()
            return value, {"lm loss": value.detach()}
        return out, loss

    def step(self, mb, clock=None):
        """One step; returns the loss. `clock` (phases.PhaseClock) notes phase boundaries when given."""
        from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining
        from phases import NO_CLOCK
        clock = clock or NO_CLOCK
        self._own_metrics()
        with clock.span("zero_grad"):
            if hasattr(self.model, "zero_grad_buffer") and self.zero_grad_twice:
                self.model.zero_grad_buffer()
            self.optimizer.zero_grad()
        with clock.span("forward_backward"):
            losses = forward_backward_no_pipelining(
                forward_step_func=self.forward_step, data_iterator=self.batches, model=self.model,
                num_microbatches=mb, seq_length=self.shape.seq, micro_batch_size=1,
                decoder_seq_length=self.shape.seq, forward_only=False)
        with clock.span("optimizer"):
            self.optimizer.step()
        with clock.span("loss_item"):
            return float(sum(x["lm loss"] for x in losses) / len(losses))

    def _own_metrics(self):
        """Give this model its own tracker of router losses: Megatron's is global and sized by the first model's layers."""
        try:
            from megatron.core.transformer.moe import moe_logging
        except ImportError:
            return
        if not hasattr(self, "_metrics"):
            self._metrics = moe_logging.MoEMetricsTracker()
        moe_logging.set_moe_metrics_tracker(self._metrics)


def _batches(seq):
    generator = torch.Generator(device="cuda").manual_seed(1)
    while True:
        t = torch.randint(0, VOCAB, (1, seq + 1), generator=generator, device="cuda")
        yield t[:, :-1].contiguous(), t[:, 1:].contiguous()
