"""The same proxy under PyTorch's own FSDP2 (`fully_shard` per layer) and PyTorch's AdamW.

Experts are sharded over the expert-data-parallel group and the rest over all ranks, as Megatron-FSDP v2
does, so the two differ in how they manage parameters and not in what they shard. The expert-parallel
all-to-all, the kernels and the schedule of microbatches are Megatron's in both.
"""

import torch

from proxy import Trainer, bare_model


class Fsdp2Trainer(Trainer):
    """Steps like a `Trainer`: forward, backward, clip, AdamW, loss."""

    def __init__(self, shape):
        self.version, self.shape, self.zero_grad_twice = "fsdp2", shape, False
        self.raw, self.config = bare_model(shape)
        self.model = self._shard(self.raw)
        self.optimizer = _AdamW(self.model)
        self.config.finalize_model_grads_func = None
        self.config.grad_scale_func = None
        self.config.no_sync_func = None
        from proxy import _batches
        self.batches = _batches(shape.seq)
        self.position = torch.arange(shape.seq, device="cuda").unsqueeze(0)
        self.mask = torch.ones(shape.seq, device="cuda")

    def _shard(self, model):
        from megatron.core import parallel_state
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        model.float()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
        mesh = DeviceMesh.from_group(parallel_state.get_data_parallel_group(with_context_parallel=True), "cuda",
                                     mesh_dim_names=("dp",))
        expert_mesh = DeviceMesh.from_group(parallel_state.get_expert_data_parallel_group(), "cuda",
                                            mesh_dim_names=("expert_dp",))
        for layer in model.decoder.layers:
            experts = getattr(layer.mlp, "experts", None)
            if experts is not None:
                fully_shard(experts, mesh=expert_mesh, mp_policy=policy, reshard_after_forward=True)
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        return model


class _AdamW:
    """PyTorch's fused AdamW with clipping over both meshes, behind the interface of Megatron's optimizer."""

    def __init__(self, model):
        params = list(model.parameters())
        by_mesh = {}
        for p in params:
            by_mesh.setdefault(id(p.device_mesh), []).append(p)
        self.groups = list(by_mesh.values())
        # A fused step refuses a list over two meshes, hence one optimizer per mesh.
        self.parts = [torch.optim.AdamW(g, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01, fused=True)
                      for g in self.groups]

    def zero_grad(self):
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def scale_loss(self, loss):
        return loss

    def step(self):
        norms = []
        for params in self.groups:
            norm = torch.nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])
            norms.append(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        total = torch.linalg.vector_norm(torch.stack(norms))
        for params in self.groups:
            torch.nn.utils.clip_grads_with_norm_(params, 1.0, total)
        for part in self.parts:
            part.step()
