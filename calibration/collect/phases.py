"""Phase boundaries of a plain step, by `time.perf_counter` around the calls that Megatron's schedule makes.

A dozen clock reads a step cost a few microseconds, so unlike a profiler these times need no correction.
They are host times: the device is synchronised once, at the end of the step (and wherever the model
itself does), so a phase that waits for the device shows it.
"""

import contextlib
import time


class PhaseClock:
    """Collects spans while `on`; `take()` returns milliseconds by label and resets."""

    def __init__(self):
        self.on, self.spans, self._count = False, {}, {}

    @contextlib.contextmanager
    def span(self, label):
        if not self.on:
            yield
            return
        t = time.perf_counter()
        try:
            yield
        finally:
            self.spans[label] = self.spans.get(label, 0.0) + (time.perf_counter() - t) * 1e3

    def numbered(self, label):
        """`forward.0`, `forward.1`, ... in order of the calls within one step."""
        i = self._count.get(label, 0)
        self._count[label] = i + 1
        return f"{label}.{i}"

    def take(self):
        out, self.spans, self._count = self.spans, {}, {}
        return out


class _NoClock:
    on = False

    def span(self, label):
        return contextlib.nullcontext()


NO_CLOCK = _NoClock()


def _timed(function, clock, label, numbered=False):
    def wrapper(*args, **kwargs):
        if not clock.on:
            return function(*args, **kwargs)
        name = clock.numbered(label) if numbered else label
        t = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            clock.spans[name] = clock.spans.get(name, 0.0) + (time.perf_counter() - t) * 1e3
    wrapper.__wrapped__ = function
    return wrapper


def install(clock):
    """Wrap the schedule's forward and backward and the optimizer module's clipping, once per process."""
    from megatron.core.optimizer import optimizer as megatron_optimizer
    from megatron.core.pipeline_parallel import schedules
    schedules.forward_step = _timed(schedules.forward_step, clock, "forward", numbered=True)
    schedules.backward_step = _timed(schedules.backward_step, clock, "backward", numbered=True)
    for name, label in (("get_grad_norm_fp32", "optimizer.grad_norm"),
                        ("clip_grad_by_total_norm_fp32", "optimizer.clip")):
        if hasattr(megatron_optimizer, name):
            setattr(megatron_optimizer, name, _timed(getattr(megatron_optimizer, name), clock, label))


def attach(trainer, clock):
    """Wrap what belongs to one model: finalize, and the parts of the optimizer step."""
    if trainer.config.finalize_model_grads_func is not None:
        trainer.config.finalize_model_grads_func = _timed(trainer.config.finalize_model_grads_func, clock, "finalize")
    outer = trainer.optimizer
    parts = list(getattr(outer, "chained_optimizers", None) or [outer])
    # Chained optimizers delegate to their parts, so only the parts are wrapped; the labels then add up once.
    for part in parts:
        for name, label in (("prepare_grads", "optimizer.prepare_grads"),
                            ("_copy_main_params_to_model_params", "optimizer.copy_params")):
            if hasattr(part, name):
                setattr(part, name, _timed(getattr(part, name), clock, label))
        inner = getattr(part, "optimizer", None)
        if inner is not None and hasattr(inner, "step"):
            inner.step = _timed(inner.step, clock, "optimizer.adam")
        if hasattr(part, "start_param_sync_for_bucket_group_subset"):  # DDP
            part.start_param_sync_for_bucket_group_subset = _timed(
                part.start_param_sync_for_bucket_group_subset, clock, "optimizer.param_sync")
    if trainer.version == "v1":
        trainer.model.start_param_sync = _timed(trainer.model.start_param_sync, clock, "optimizer.param_sync")
