"""Host time per FSDP function in otherwise plain steps: calls, total and own nanoseconds by label.

A profiler adds microseconds to every operator below a hook; two clock reads per call add a tenth of
that. What they add is measured all the same, because the timed model is stepped in turn with an
untimed one. The stack is kept per thread: backward hooks run on autograd's thread.
"""

import functools
import threading
import time


class FunctionTimers:
    def __init__(self):
        self.on, self.ranges = False, False  # time the calls; mark them for the profiler
        self.totals, self._stacks = {}, threading.local()

    def wrap(self, function, label):
        from torch.profiler import record_function
        clock, totals, stacks = time.perf_counter_ns, self.totals, self._stacks

        @functools.wraps(function)
        def timed(*args, **kwargs):
            if not self.on:
                if not self.ranges:
                    return function(*args, **kwargs)
                with record_function(label):
                    return function(*args, **kwargs)
            stack = getattr(stacks, "stack", None)
            if stack is None:
                stack = stacks.stack = []
            stack.append(0)
            t = clock()
            try:
                return function(*args, **kwargs)
            finally:
                spent = clock() - t
                inner = stack.pop()
                if stack:
                    stack[-1] += spent
                entry = totals.get(label)
                if entry is None:
                    entry = totals[label] = [0, 0, 0]
                entry[0] += 1
                entry[1] += spent
                entry[2] += spent - inner
        return timed

    def take(self):
        out = {label: list(v) for label, v in self.totals.items()}
        self.totals.clear()
        return out

    def wrap_class(self, cls, prefix, skip=()):
        """Wrap every plain method (and class or static method) that `cls` itself defines."""
        for name, value in list(cls.__dict__.items()):
            if name.startswith("__") or name in skip:
                continue
            label = f"{prefix}.{cls.__name__}.{name}"
            if isinstance(value, staticmethod):
                setattr(cls, name, staticmethod(self.wrap(value.__func__, label)))
            elif isinstance(value, classmethod):
                setattr(cls, name, classmethod(self.wrap(value.__func__, label)))
            elif callable(value) and not isinstance(value, type):
                setattr(cls, name, self.wrap(value, label))

    def wrap_name(self, owner, name, label):
        if hasattr(owner, name):
            setattr(owner, name, self.wrap(getattr(owner, name), label))


def hook_wrapping(wrap):
    """A context in which v1 builds its hooks through `wrap(function, label)`.

    v1's hooks are functions nested in one method, out of reach of a patch of the class. All of them pass
    through `torch.compiler.disable` when they are made, so that is where they are caught.
    """
    import contextlib

    import torch

    @contextlib.contextmanager
    def context():
        real = torch.compiler.disable

        def disable(fn=None, *args, **kwargs):
            out = real(fn, *args, **kwargs) if fn is not None else real(*args, **kwargs)
            if fn is None or not hasattr(fn, "__name__"):
                return out
            return wrap(out, f"v1.hook.{fn.__name__}")
        torch.compiler.disable = disable
        try:
            yield
        finally:
            torch.compiler.disable = real
    return context()


def wrap_everything(wrap_class, wrap_name):
    """Apply the two wrappers to v1, v2, DDP and the optimizer; shared by these timers and the profiler's ranges."""
    from megatron.core.distributed import distributed_data_parallel as ddp, param_and_grad_buffer as ddp_buffer
    from megatron.core.distributed.fsdp.src.megatron_fsdp import megatron_fsdp as v1, param_and_grad_buffer as v1_buffer
    from megatron.core.distributed.fsdp.src.megatron_fsdp.experimental import dbuffer, layout, module, parameter_group
    from megatron.core.optimizer import clip_grads, distrib_optimizer, fully_sharded_optimizer, optimizer
    for cls in (v1_buffer.AllGatherPipeline, v1_buffer.GradReducePipeline, v1_buffer.ParamAndGradBuffer,
                v1_buffer.DataParallelBuffer, v1_buffer.StorageResizeBasedBucketAllocator,
                v1_buffer.TemporaryBucketAllocator):
        wrap_class(cls, "v1", skip=("num_buckets", "get_bucket_key", "get_fsdp_buffer"))
    wrap_class(v1.MegatronFSDP, "v1", skip=("forward",))
    wrap_class(v1.RegisterFSDPBackwardFunction, "v1", skip=("forward", "backward"))
    wrap_class(module.FsdpModule, "v2", skip=("Phase", "phase", "name", "is_root", "context", "_nvtx_label"))
    wrap_class(module.FsdpContext, "v2", skip=("current_stream", "ensure_finalized"))
    wrap_class(parameter_group.FsdpParameterGroup, "v2", skip=("_set_module_parameter", "_symmetric_memory_context"))
    wrap_class(dbuffer.DBuffer, "v2", skip=("dtype", "device", "is_symmetric_memory", "_get_owned_range",
                                            "_create_or_validate_out", "_resize_storage"))
    wrap_class(layout.GlobalLayout, "v2", skip=("get_local_range",))
    wrap_name(parameter_group, "_get_parameter_owner", "v2._get_parameter_owner")
    wrap_class(ddp.DistributedDataParallel, "ddp", skip=("forward",))
    for name in ("_ParamAndGradBucketGroup", "_ParamAndGradBuffer"):
        if hasattr(ddp_buffer, name):
            wrap_class(getattr(ddp_buffer, name), "ddp")
    for cls in (optimizer.MixedPrecisionOptimizer, distrib_optimizer.DistributedOptimizer,
                fully_sharded_optimizer.FullyShardedOptimizer, optimizer.MegatronOptimizer):
        wrap_class(cls, "optimizer", skip=("get_parameters", "get_loss_scale", "scale_loss", "param_groups", "state",
                                           "_get_state", "_set_state", "_get_param_groups", "_set_param_groups",
                                           "get_grad_stats_parallel_group", "_param_name"))
    for name in ("get_grad_norm_fp32", "clip_grad_by_total_norm_fp32"):
        wrap_name(optimizer, name, f"optimizer.{name}")
    try:
        from transformer_engine.pytorch.optimizers import FusedAdam
        wrap_class(FusedAdam, "adam", skip=("get_unscaled_state", "set_scaled_state", "_initialize_state"))
    except ImportError:
        pass
