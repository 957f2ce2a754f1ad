"""NCCL collectives by size: host time to enqueue, device time, and wait for the slowest rank, kept apart.

Under torchrun the real world is measured. Alone on one GPU, two ranks share it (told apart by
NCCL_HOSTID, over the loopback network): then only the host columns mean anything, and rows say so by
`transport: "loopback"`. NVLink multicast stays off unless the caller's environment says otherwise.
"""

import os
import statistics
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist

from common import Deadline, Writer, say

SIZES = [8, 64, 512, 4096, 32768, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30]


class Bench:
    def __init__(self, out, machine, transport, deadline):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.file = Writer(out, "collectives.jsonl") if self.rank == 0 else None
        self.machine, self.transport, self.deadline = machine, transport, deadline

    def _write(self, **fields):
        if self.file:
            self.file.row(machine=self.machine, ranks=self.world, transport=self.transport,
                          nvls=os.environ.get("NCCL_NVLS_ENABLE"), **fields)

    def _stop(self):
        """All ranks must agree to stop, or one would wait for the others for ever."""
        flag = torch.tensor([1.0 if self.deadline.passed() else 0.0], device="cuda")
        dist.all_reduce(flag)
        return bool(flag.item())

    def measure(self, name, make, size, reps, **meta):
        """`make()` returns a call that takes async_op; one row with host, device and slowest-rank figures."""
        call = make()
        for _ in range(3):
            call(False)
        torch.cuda.synchronize()
        host, wait, device = [], [], []
        for _ in range(reps):
            dist.barrier()
            torch.cuda.synchronize()
            t = time.perf_counter()
            work = call(True)
            host.append((time.perf_counter() - t) * 1e6)
            t = time.perf_counter()
            if work is not None:
                work.wait()
            wait.append((time.perf_counter() - t) * 1e6)
            torch.cuda.synchronize()
        inner = 10 if size <= 16 << 20 else 3
        for _ in range(max(3, reps // 3)):
            dist.barrier()
            torch.cuda.synchronize()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(inner):
                call(False)
            end.record()
            torch.cuda.synchronize()
            device.append(start.elapsed_time(end) / inner * 1e3)
        own = torch.tensor([statistics.median(device), min(device)], device="cuda", dtype=torch.float64)
        fastest, slowest = own.clone(), own.clone()
        dist.all_reduce(fastest, op=dist.ReduceOp.MIN)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        graph = self._graph(call, size)
        self._write(name=name, bytes=size, host_us_min=round(min(host), 2), host_us_median=round(statistics.median(host), 2),
                    wait_call_us_median=round(statistics.median(wait), 2), back_to_back_us_fastest_rank=round(fastest[0].item(), 2),
                    back_to_back_us_slowest_rank=round(slowest[0].item(), 2), graph_us=graph, reps=reps, **meta)

    def _graph(self, call, size):
        """Microseconds per collective inside a replayed CUDA graph, which has no host time in it; None if it cannot be captured."""
        if self.transport == "loopback":
            return None
        copies = 10 if size <= 16 << 20 else 2
        try:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(copies):
                    call(False)
            graph.replay()
            torch.cuda.synchronize()
            samples = []
            for _ in range(5):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record(), graph.replay(), end.record()
                torch.cuda.synchronize()
                samples.append(start.elapsed_time(end) / copies * 1e3)
            return round(statistics.median(samples), 2)
        except Exception:  # noqa: BLE001
            return None

    def sweep(self, sizes, reps):
        w = self.world
        for size in sizes:
            if self._stop():
                say("  collectives: time is up")
                return
            n = max(w, size // 2 // w * w)  # bf16 elements in the full buffer
            full, full2 = torch.zeros(n, device="cuda", dtype=torch.bfloat16), torch.zeros(n, device="cuda", dtype=torch.bfloat16)
            part = torch.zeros(n // w, device="cuda", dtype=torch.bfloat16)
            self.measure("all_gather", lambda: lambda a: dist.all_gather_into_tensor(full, part, async_op=a), size, reps)
            self.measure("reduce_scatter", lambda: lambda a: dist.reduce_scatter_tensor(part, full, async_op=a), size, reps)
            self.measure("all_reduce", lambda: lambda a: dist.all_reduce(full, async_op=a), size, reps)
            self.measure("all_to_all", lambda: lambda a: dist.all_to_all_single(full2, full, async_op=a), size, reps, split="even")
            if n >= 4 * w:
                sends, receives = uneven_splits(n, w, self.rank)
                out = torch.zeros(sum(receives), device="cuda", dtype=torch.bfloat16)
                self.measure("all_to_all", lambda: lambda a: dist.all_to_all_single(out, full, receives, sends, async_op=a),
                             size, reps, split="uneven")
            if size <= 1 << 20:
                self._coalesced(full, part, size, reps)

    def _coalesced(self, full, part, size, reps):
        for count in (1, 2, 4):
            def call(asynchronous):
                with dist._coalescing_manager(device=torch.device("cuda", torch.cuda.current_device()), async_ops=True) as cm:
                    for _ in range(count):
                        dist.all_gather_into_tensor(full, part)
                if not asynchronous:
                    cm.wait()
                    return None
                return cm
            self.measure("all_gather_coalesced", lambda: call, size, reps, count=count)


def uneven_splits(n, world, rank):
    """Elements this rank sends to and receives from each rank, skewed as a router skews tokens; rows sum to n."""
    def sends(r):
        weights = [1.0 + ((r + 2 * d) % world) / world for d in range(world)]
        counts = [int(n * x / sum(weights)) for x in weights]
        counts[-1] += n - sum(counts)
        return counts
    return sends(rank), [sends(r)[rank] for r in range(world)]


def worker(rank, world, out, machine, seconds, quick, loopback):
    if loopback:
        os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1", MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=os.environ.get("FSDPSIM_PORT", "29517"), RANK=str(rank), WORLD_SIZE=str(world))
    torch.cuda.set_device(0 if loopback else int(os.environ.get("LOCAL_RANK", rank)))
    dist.init_process_group("nccl", rank=rank, world_size=world)
    sizes = [s for s in SIZES if s <= (4096 if quick else 1 << 20)] if loopback else (SIZES[::3] if quick else SIZES)
    bench = Bench(out, machine, "loopback" if loopback else ("nvlink" if world > 1 else "none"), Deadline(seconds))
    bench.sweep(sizes, 5 if quick else 15)
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


def main(out, machine, deadline, quick):
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        worker(int(os.environ["RANK"]), world, out, machine, deadline.left() - 5, quick, False)
        return
    import torch.multiprocessing as mp
    mp.spawn(worker, args=(2, out, machine, deadline.left() - 10, quick, True), nprocs=2)
    say("  collectives: host cost only, two ranks on one device")
