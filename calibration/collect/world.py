"""Several GPUs: `torchrun --nproc-per-node N calibration/collect/collect.py --world-run --out DIR`, ten minutes.

Collectives over the real world first, then paired steps of ddp, v1 and v2 with real NCCL, then one trace
per rank and version. Rank 0 writes to DIR, rank r to DIR/rank-r, so that skew between ranks can be read.
"""

import os

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

from common import Deadline, missing_modules, quiet, say


def main(args):
    quiet()
    missing = missing_modules()  # first of all: see collect.one
    import torch
    import torch.distributed as dist
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29518")
    whole = Deadline(args.minutes * 60)
    out = args.out if rank == 0 else os.path.join(args.out, f"rank-{rank}")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl", rank=rank, world_size=size)
    if rank == 0:
        import environment
        environment.record(out, args.machine, "start")
    import collectives
    bench = collectives.Bench(args.out, args.machine, "nvlink" if size > 1 else "none", Deadline(args.minutes * 60 * 0.35))
    bench.sweep(collectives.SIZES[::3] if args.quick else collectives.SIZES, 5 if args.quick else 12)
    if rank == 0:
        say(f"  collectives done, {whole.left():.0f} s left")
    if missing:
        if rank == 0:
            say(f"skipping steps: needs {missing}")
    else:
        _steps(args, out, rank, size, whole)
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


def _steps(args, out, rank, size, whole):
    import torch
    import torch.distributed as dist
    import steps
    from proxy import Shape, Trainer, init_parallel
    from rounds import Group
    torch._dynamo.config.recompile_limit = 256
    ep = 2 if size % 2 == 0 else 1
    init_parallel(size, ep, 1)

    def agree(stop):
        flag = torch.tensor([1.0 if stop else 0.0], device="cuda")
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())
    # Rank 0's opinion of precision would differ from the others', hence the vote above; time is kept for traces.
    group = Group("world", out, args.machine, Deadline(max(20.0, whole.left() - 60)), args.interval_points,
                  max_rounds=4 if args.quick else 300, agree=agree)
    shape = Shape(ep=ep, world=size)
    trainers = steps._add(group, shape, (2,) if args.quick else (1, 2), "world")
    group.run()
    from instrument import export
    from torch.profiler import ProfilerActivity, profile, record_function
    for version, trainer in trainers.items():
        trainer.step(2)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
            for i in range(2):
                with record_function(f"ProfilerStep#{i}"):
                    trainer.step(2)
                    torch.cuda.synchronize()
        export(prof, os.path.join(out, "traces"), f"{version}-rank{rank}")
    if rank == 0:
        say(f"  traces of {size} ranks done")
