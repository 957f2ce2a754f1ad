"""Host cost of one call by class: operators, allocator, streams and events, autograd, module hooks, nvtx.

Each call is repeated often enough to average the clock and seldom enough that the device's launch
queue never fills, so what is measured is enqueueing, not waiting.
"""

import statistics
import time

import torch
import torch.nn as nn

from common import Probe, Writer, say


class HostTimer:
    def __init__(self, out, machine):
        self.file, self.machine = Writer(out, "host_ops.jsonl"), machine

    def __call__(self, name, call, n=200, reps=7, kind="host", **meta):
        try:
            for _ in range(10):
                call()
            torch.cuda.synchronize()
            samples = []
            for _ in range(reps):
                t = time.perf_counter()
                for _ in range(n):
                    call()
                samples.append((time.perf_counter() - t) / n * 1e6)
                torch.cuda.synchronize()
        except Exception as e:  # noqa: BLE001 - an operator that this PyTorch lacks is a row that says so
            self.file.row(machine=self.machine, kind=kind, name=name, error=f"{e}"[:160], **meta)
            return
        self.file.row(machine=self.machine, kind=kind, name=name, us_min=round(min(samples), 4),
                      us_median=round(statistics.median(samples), 4), us_max=round(max(samples), 4), n=n, reps=reps, **meta)


def operators(host):
    x, y, z = (torch.randn(1024, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    w = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    index = torch.arange(16, device="cuda")
    host("python.call", (lambda f: lambda: f(1, 2))(lambda *a: None), n=3000)
    host("python.setattr", lambda: setattr(host, "scratch", 1), n=3000)
    host("python.getattr_property", lambda: x.is_cuda, n=3000)
    host("tensor.data_ptr", lambda: x.data_ptr(), n=2000)
    pointed = torch.empty_like(x)  # its own tensor: an operand that shares x's storage would make copy_ a no-op
    host("tensor.set_data", lambda: setattr(pointed, "data", x), n=500)
    for name, call in {
        "aten.empty": lambda: torch.empty(1024, device="cuda", dtype=torch.bfloat16),
        "aten.empty_zero_rows": lambda: torch.empty((0, 64), device="cuda", dtype=torch.bfloat16),
        "aten.view": lambda: x.view(32, 32), "aten.narrow": lambda: x.narrow(0, 8, 16), "aten.slice": lambda: x[8:24],
        "aten.narrow_view": lambda: x.narrow(0, 0, 1024).view(32, 32), "aten.detach": lambda: x.detach(),
        "aten.add": lambda: torch.add(x, y), "aten.add_out": lambda: torch.add(x, y, out=z), "aten.add_": lambda: z.add_(x),
        "aten.mul_scalar_": lambda: z.mul_(1.0), "aten.div_": lambda: z.div_(2), "aten.copy_": lambda: z.copy_(x),
        "aten.zero_": lambda: z.zero_(), "aten.to_fp32": lambda: x.float(), "aten.mm": lambda: torch.mm(w, w),
        "aten.softmax": lambda: torch.softmax(w, -1), "aten.cat8": lambda: torch.cat([x] * 8), "aten.sum": lambda: x.sum(),
        "aten.topk": lambda: torch.topk(w, 8), "aten.index_select": lambda: w.index_select(0, index),
        "aten.split": lambda: x.split([512, 512]), "aten.sigmoid": lambda: torch.sigmoid(x), "aten.pow": lambda: x.pow(2),
        "aten.transpose_contiguous": lambda: w.t().contiguous(), "aten.clamp": lambda: x.clamp(max=1.0),
    }.items():
        host(name, call)
    for n in (1, 4, 12, 32, 64, 146):
        src = [torch.randn(1024, device="cuda", dtype=torch.bfloat16) for _ in range(n)]
        dst = [torch.empty_like(t) for t in src]
        host("aten._foreach_copy_", lambda: torch._foreach_copy_(dst, src), n=40, tensors=n)
        host("loop.copy_", lambda: [d.copy_(s) for d, s in zip(dst, src)], n=20, tensors=n)
        host("aten._foreach_norm", lambda: torch._foreach_norm(src), n=30, tensors=n)


def streams_and_memory(host):
    side, other, event = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Event()
    event.record()

    def context():
        with torch.cuda.stream(side):
            pass
    store = torch.empty(1 << 20, device="cuda", dtype=torch.bfloat16)

    def resize():
        store.untyped_storage().resize_(0)
        store.untyped_storage().resize_(2 << 20)
    x = torch.randn(1024, device="cuda")
    for name, call in {
        "cuda.current_stream": torch.cuda.current_stream, "event.record": event.record, "event.wait": event.wait,
        "event.new_record": lambda: torch.cuda.Event().record(), "event.query": event.query,
        "stream.wait_event": lambda: side.wait_event(event), "stream.wait_stream": lambda: side.wait_stream(other),
        "stream.record_event": side.record_event, "stream.context": context, "storage.free_resize": resize,
        "nvtx.push_pop": lambda: (torch.cuda.nvtx.range_push("x"), torch.cuda.nvtx.range_pop()),
        "tensor.record_stream": lambda: x.record_stream(side),
    }.items():
        host(name, call, kind="stream")
    host("item", lambda: x[0].item(), n=100, kind="stream")
    host("cuda.synchronize", torch.cuda.synchronize, n=200, kind="stream")
    for p in (10, 16, 20, 24, 28):
        host("allocator.empty_free", lambda: torch.empty(1 << p, device="cuda", dtype=torch.uint8), kind="allocator", bytes=1 << p)

    def malloc():
        block = torch.empty(64 << 20, device="cuda", dtype=torch.uint8)
        del block  # must be dead, or emptying the cache keeps it and nothing is allocated next time
        torch.cuda.empty_cache()
    host("allocator.cuda_malloc_free", malloc, n=3, reps=3, kind="allocator", bytes=64 << 20)
    pinned, target = torch.zeros(32, dtype=torch.int64).pin_memory(), torch.zeros(32, device="cuda", dtype=torch.int64)
    host("copy.h2d_pinned_async", lambda: target.copy_(pinned, non_blocking=True), kind="stream")
    host("copy.d2h_pinned_async", lambda: pinned.copy_(target, non_blocking=True), kind="stream")
    host("copy.d2h_blocking", lambda: target.cpu(), n=50, kind="stream")

    def annotate():
        with torch.profiler.record_function("x"):
            pass
    host("profiler.record_function_off", annotate, kind="python")


def autograd_and_hooks(host):
    a = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for depth in (10, 100):
        def chain():
            t = a
            for _ in range(depth):
                t = t * 1.0001
            t.sum().backward()

        def forward_only():
            t = a
            for _ in range(depth):
                t = t * 1.0001
        host("autograd.chain_mul", chain, n=8, kind="autograd", depth=depth)
        host("autograd.chain_mul_forward", forward_only, n=8, kind="autograd", depth=depth)

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t.view_as(t)

        @staticmethod
        def backward(ctx, g):
            return g
    host("autograd.function_apply", lambda: Identity.apply(a), kind="autograd")

    def accumulate(n, hook):
        leaves = [torch.zeros(16, device="cuda", requires_grad=True) for _ in range(n)]
        if hook:
            for leaf in leaves:
                leaf.register_post_accumulate_grad_hook(lambda p: None)

        def run():
            torch.stack(leaves).sum().backward()
            for leaf in leaves:
                leaf.grad = None
        return run
    for n in (1, 64):
        host("autograd.accumulate_grad", accumulate(n, False), n=8, kind="autograd", leaves=n)
        host("autograd.accumulate_grad_hook", accumulate(n, True), n=8, kind="autograd", leaves=n)
    hooks = {"plain": lambda m: None,
             "forward": lambda m: (m.register_forward_pre_hook(lambda m, i: None), m.register_forward_hook(lambda m, i, o: None)),
             "backward": lambda m: (m.register_full_backward_pre_hook(lambda m, g: None),
                                    m.register_full_backward_hook(lambda m, gi, go: None))}
    for name, register in hooks.items():
        layer = nn.Linear(64, 64, bias=False, device="cuda", dtype=torch.bfloat16)
        register(layer)
        host("nn.Linear.call", lambda: layer(a), kind="hooks", hooks=name)
        host("nn.Linear.fwd_bwd", lambda: layer(a).sum().backward(), n=40, kind="hooks", hooks=name)
    empty = nn.Identity()
    host("nn.Module.call", lambda: empty(a), n=500, kind="hooks", hooks="plain")


def dtensors(host):
    """Needs a process group, hence the fake one; this is the call that v2 makes per parameter and microbatch."""
    import torch.distributed as dist
    from fakeworld import init_fake
    from torch.distributed.tensor import DTensor, Shard
    init_fake(8)
    mesh = dist.device_mesh.init_device_mesh("cuda", (8,), mesh_dim_names=("dp",))
    local = torch.randn(16, 64, device="cuda")
    make = lambda: DTensor.from_local(local, mesh, (Shard(0),), run_check=False, shape=(128, 64), stride=(64, 1))  # noqa: E731
    d = make()
    p = nn.Parameter(make())
    host("dtensor.from_local", make, kind="dtensor")
    host("dtensor.to_local", d.to_local, kind="dtensor")
    host("dtensor.local_attribute", lambda: d._local_tensor, n=2000, kind="dtensor")
    host("dtensor.data", lambda: p.data, kind="dtensor")
    host("dtensor.set_grad", lambda: setattr(p, "grad", d), kind="dtensor")
    host("dtensor.mul_", lambda: d.mul_(1.0), n=50, kind="dtensor")
    host("mesh.get_group", lambda: mesh.get_group(0), kind="dtensor")
    out, out2, shard = (torch.empty(n, device="cuda") for n in (8192, 8192, 1024))
    host("fake.all_gather_into_tensor", lambda: dist.all_gather_into_tensor(out, shard), n=50, kind="fake_collective", ranks=8)
    host("fake.reduce_scatter_tensor", lambda: dist.reduce_scatter_tensor(shard, out), n=50, kind="fake_collective", ranks=8)
    host("fake.all_reduce", lambda: dist.all_reduce(shard), n=50, kind="fake_collective", ranks=8)
    host("fake.all_to_all_single", lambda: dist.all_to_all_single(out, out2), n=50, kind="fake_collective", ranks=8)


def launch_queue(out, machine):
    """How many launches the host gets ahead of the device before it blocks."""
    tiny = torch.zeros(1, device="cuda")
    cycles = int(5e8)  # about a quarter of a second: the device stands still while the host fills the queue
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda._sleep(cycles)
        stamps = []
        for _ in range(6000):
            tiny.add_(1.0)
            stamps.append(time.perf_counter())
        torch.cuda.synchronize()
    gaps = [(b - a) * 1e6 for a, b in zip(stamps, stamps[1:])]
    usual = statistics.median(gaps[:200])
    blocked = next((i + 1 for i, g in enumerate(gaps) if g > max(2000.0, 100 * usual)), None)
    Writer(out, "launch_queue.jsonl").row(machine=machine, launches_before_block=blocked, launches=len(stamps),
                                          usual_gap_us=round(usual, 3), longest_gap_us=round(max(gaps), 1),
                                          note="kernel launches of one stream behind a kernel that keeps the device busy")


def main(out, machine, deadline, quick):
    host = HostTimer(out, machine)
    probe = Probe()
    parts = (operators, streams_and_memory, autograd_and_hooks, dtensors)
    for part in parts:
        values = [probe() for _ in range(5)]
        host.file.row(machine=machine, kind="probe", name="probe", before=part.__name__,
                      python_us=[round(v[0], 1) for v in values], dispatch_us=[round(v[1], 1) for v in values],
                      launch_us=[round(v[2], 1) for v in values])
        try:
            part(host)
        except Exception as e:  # noqa: BLE001
            host.file.row(machine=machine, kind="error", name=part.__name__, error=f"{e}"[:200])
        say(f"  host {part.__name__}")
    launch_queue(out, machine)
