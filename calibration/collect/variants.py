"""Single overheads, switched off at run time or at build time, to measure what each of them costs.

A run-time switch patches Megatron's classes just before a step and puts them back after it, so altered
and unaltered steps of one and the same model take turns. `SWITCHES` says what each one removes; the
names are those of facts about the schedules, so that a what-if of the simulator can be checked against
its measured counterpart.
"""

import contextlib

import torch

SWITCHES = {
    "v2_foreach": "one _foreach_copy_ per group packs the gradients, instead of a copy_ per parameter",
    "v2_dtcache": "the gradient DTensors are built once per main-gradient buffer and installed again",
    "v2_views": "local views of persistent buffers are built once (unshard and rebind; packing has a new buffer each time)",
    "v2_nonvtx": "no nvtx push and pop in the module hooks",
    "v2_owner": "the module that owns a parameter is looked up once instead of at each switch",
    "v2_layout": "the global layout is computed once per set of shapes instead of per buffer",
    "v2_all": "all of the above",
    "v1_onezero": "zero_grad_buffer is called once per step instead of twice",
}
# Build-time options of v1; they need a model of their own.
BUILD_OPTIONS = {
    "v1_lazyag": dict(fsdp_all_gather_in_start_param_sync=False),
    "v1_keepfp8": dict(keep_fp8_transpose_cache=True),
}
BUILD_NOTES = {
    "v1_lazyag": "no all-gather at the end of the optimizer step (fsdp_all_gather_in_start_param_sync=False)",
    "v1_keepfp8": "no loops that look for FP8 transpose caches (keep_fp8_transpose_cache=True)",
}


def _v2_classes():
    from megatron.core.distributed.fsdp.src.megatron_fsdp.experimental import dbuffer, layout, parameter_group
    return parameter_group, dbuffer, layout


def _foreach_copy(parameter_group, dbuffer, layout):
    def copy_gradients_to_partial_buffer(self, partial_grad):
        targets = [partial_grad.get_local_tensor(i) for i in range(len(self.fsdp_parameters))]
        torch._foreach_copy_(targets, [p.unsharded.grad for p in self.fsdp_parameters])
        for p in self.fsdp_parameters:
            p.unsharded.grad = None
    return [(parameter_group.FsdpParameterGroup, "copy_gradients_to_partial_buffer", copy_gradients_to_partial_buffer)]


def _cached_dtensors(parameter_group, dbuffer, layout):
    real = dbuffer.DBuffer.get_dtensor

    def get_dtensor(self, index):
        cache = self.__dict__.get("_fsdpsim_dtensors")
        if cache is None or cache[0] is not self.local_buffer:
            cache = self.__dict__["_fsdpsim_dtensors"] = (self.local_buffer, {})
        out = cache[1].get(index)
        if out is None:
            out = cache[1][index] = real(self, index)
        return out
    return [(dbuffer.DBuffer, "get_dtensor", get_dtensor)]


def _cached_views(parameter_group, dbuffer, layout):
    real = dbuffer.DBuffer.get_local_tensor

    def get_local_tensor(self, index):
        # A view shares the storage object, and releasing a buffer resizes that object in place, so a
        # view stays right for as long as the buffer keeps its tensor.
        cache = self.__dict__.get("_fsdpsim_views")
        if cache is None or cache[0] is not self.local_buffer:
            cache = self.__dict__["_fsdpsim_views"] = (self.local_buffer, {})
        out = cache[1].get(index)
        if out is None:
            out = cache[1][index] = real(self, index)
        return out
    return [(dbuffer.DBuffer, "get_local_tensor", get_local_tensor)]


def _no_nvtx(parameter_group, dbuffer, layout):
    return [(torch.cuda.nvtx, "range_push", lambda *a: 0), (torch.cuda.nvtx, "range_pop", lambda *a: 0)]


_OWNERS = {}


def _cached_owner(parameter_group, dbuffer, layout):
    real = parameter_group._get_parameter_owner

    def _get_parameter_owner(module, name):
        out = _OWNERS.get((id(module), name))
        if out is None:
            out = _OWNERS[(id(module), name)] = real(module, name)
        return out
    return [(parameter_group, "_get_parameter_owner", _get_parameter_owner)]


_LAYOUTS = {}


def _cached_layout(parameter_group, dbuffer, layout):
    real = layout.GlobalLayout.build

    def build(shapes, dp_size):
        key = (tuple(shapes), dp_size)
        out = _LAYOUTS.get(key)
        if out is None:
            out = _LAYOUTS[key] = real(*key)
        return out
    return [(layout.GlobalLayout, "build", staticmethod(build))]


_PATCHES = {
    "v2_foreach": (_foreach_copy,), "v2_dtcache": (_cached_dtensors,), "v2_views": (_cached_views,),
    "v2_nonvtx": (_no_nvtx,), "v2_owner": (_cached_owner,), "v2_layout": (_cached_layout,),
    "v2_all": (_foreach_copy, _cached_views, _cached_dtensors, _no_nvtx, _cached_owner, _cached_layout),
}
_PREPARED = {}


@contextlib.contextmanager
def switched(variant, trainer):
    """Run one step of `trainer` with `variant`'s overhead removed."""
    if variant == "v1_onezero":
        trainer.zero_grad_twice = False
        try:
            yield
        finally:
            trainer.zero_grad_twice = True
        return
    if variant not in _PATCHES:
        yield
        return
    if variant not in _PREPARED:
        _PREPARED[variant] = [p for make in _PATCHES[variant] for p in make(*_v2_classes())]
    saved = [(owner, name, owner.__dict__[name]) for owner, name, _ in _PREPARED[variant]]
    for owner, name, value in _PREPARED[variant]:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in saved:
            setattr(owner, name, value)
