#!/usr/bin/env python3
"""Measures this machine for fsdpsim: `python3 calibration/collect/collect.py --out DIR` on one GPU, or with
`--world-run` under torchrun on several. See README.md beside this file.

Every part runs as a process of its own: a crash or a hang loses that part and no other.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

# (part, share of the time, seconds it may take at most, needs Megatron-core and Transformer Engine)
PARTS = {
    "environment": (0.01, 60, False), "host": (0.04, 90, False), "kernels": (0.08, 120, False),
    "collectives": (0.06, 120, False), "steps": (0.52, 3600, True), "instrument": (0.23, 300, True),
    "memory": (0.06, 120, True),
}
QUICK_SECONDS = {"environment": 10, "host": 12, "kernels": 12, "collectives": 15, "instrument": 30, "memory": 20}
MEMORY_VERSIONS = ("ddp", "v1", "v2", "v1-hybrid", "fsdp2")


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, help="folder to write to; rows are appended to what is there")
    p.add_argument("--quick", action="store_true", help="under 3 minutes, for a first look; intervals are wide")
    p.add_argument("--parts", default=None, help=f"comma-separated; default: {','.join(PARTS)} (--quick leaves memory out)")
    p.add_argument("--groups", default="", help="groups of the steps part, default all; see steps.py")
    p.add_argument("--instruments", default="timers,traces,profiler,depth", help="what the instrument part runs; default: %(default)s")
    p.add_argument("--minutes", type=float, default=None, help="limit for everything (default 20, with --quick 3)")
    p.add_argument("--interval-points", type=float, default=2.0,
                   help="stop stepping a group once the 90 %% interval of every ratio is this many points wide")
    p.add_argument("--machine", default="here", help="name of this machine in the rows; rows of one name are one machine")
    p.add_argument("--world-run", action="store_true", help="under torchrun: real NCCL over all ranks")
    p.add_argument("--one", default="", help=argparse.SUPPRESS)
    p.add_argument("--seconds", type=float, default=0, help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    if args.parts is None:
        args.parts = ",".join(p for p in PARTS if not (args.quick and p == "memory"))
    args.minutes = args.minutes or (3 if args.quick else 10 if args.world_run else 20)
    return args


def plan(args, missing):
    """(label, seconds) in the order in which to run, and what is skipped with the reason."""
    from steps_plan import group_shares
    wanted = [p for p in args.parts.split(",") if p]
    unknown = [p for p in wanted if p not in PARTS]
    if unknown:
        raise SystemExit(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    skipped = {p: "needs " + "; ".join(f"{k} ({v})" for k, v in missing.items()) for p in wanted if PARTS[p][2] and missing}
    wanted = [p for p in wanted if p not in skipped]
    total = sum(PARTS[p][0] for p in wanted)
    jobs = []
    for part in wanted:
        seconds = min(PARTS[part][1], args.minutes * 60 * PARTS[part][0] / total)
        if args.quick and part in QUICK_SECONDS:
            seconds = QUICK_SECONDS[part]
        if part == "steps":
            seconds = 60 if args.quick else seconds
            for group, share in group_shares(args.groups, args.quick):
                jobs.append((f"steps:{group}", seconds * share))
        elif part == "memory":
            jobs.append(("memory", seconds))
        else:
            jobs.append((part, seconds))
    return jobs, skipped


def child(args, label, seconds):
    argv = [sys.executable, os.path.abspath(__file__), "--out", args.out, "--one", label, "--seconds", f"{seconds:.0f}",
            "--machine", args.machine, "--interval-points", str(args.interval_points),
            "--instruments", args.instruments]
    return subprocess.Popen(argv + (["--quick"] if args.quick else []), cwd=HERE)


def run_jobs(args, jobs):
    from common import Writer, say
    log, start, limit = Writer(args.out, "parts.jsonl"), time.monotonic(), args.minutes * 60
    for i, (label, seconds) in enumerate(jobs):
        left = limit - (time.monotonic() - start)
        later = sum(s for _, s in jobs[i + 1:])
        # Time that earlier parts did not use goes to the parts that follow, in proportion.
        seconds *= max(0.2, left / (seconds + later)) if seconds + later > left or label.startswith("steps") else 1.0
        seconds = min(seconds, left)
        say(f"[{i + 1}/{len(jobs)}] {label}: up to {seconds:.0f} s; {left:.0f} s left in all")
        if seconds < 8 and label != "environment":
            log.row(machine=args.machine, part=label, status="skipped", reason="no time left")
            say("  skipped: no time left")
            continue
        t = time.monotonic()
        processes = [child(args, label, seconds)] if label != "memory" else [
            child(args, f"memory:{v}", seconds) for v in (MEMORY_VERSIONS[:3] if args.quick else MEMORY_VERSIONS)]
        codes = []
        for process in processes:  # memory does not depend on time, so its versions share the GPU
            try:
                codes.append(process.wait(timeout=max(5.0, seconds * 1.15 + 25 - (time.monotonic() - t))))
            except subprocess.TimeoutExpired:
                process.terminate()  # the steps part writes its rounds on this
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                codes.append("killed: over its time")
        bad = [c for c in codes if c != 0]
        log.row(machine=args.machine, part=label, status="ok" if not bad else "failed", codes=[str(c) for c in codes],
                seconds=round(time.monotonic() - t, 1))
        say(f"  {label} {'done' if not bad else f'failed ({bad})'} in {time.monotonic() - t:.0f} s")


def one(args):
    """What a child process runs."""
    from common import Deadline, missing_modules, quiet
    quiet()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    deadline = Deadline(args.seconds)
    part, _, name = args.one.partition(":")
    # Transformer Engine must be loaded before anything makes PyTorch load its own cuDNN, or where two
    # copies of cuDNN are installed the second one to be loaded finds half of the first.
    missing_modules()
    if part == "environment":
        import environment
        environment.record(args.out, args.machine, name or "start")
    elif part == "steps":
        import steps
        steps.main(name, args.out, args.machine, deadline, args.interval_points, args.quick)
    elif part == "memory":
        import memory
        import steps
        from proxy import Shape
        steps.start(Shape(ep=4, world=16, outer=4) if name == "v1-hybrid" else Shape())
        memory.main(args.out, args.machine, name, args.quick)
    elif part == "instrument":
        import instrument
        import steps
        from proxy import Shape
        steps.start(Shape())
        instrument.main(args.out, args.machine, deadline, args.quick, args.instruments.split(","))
    else:
        module = __import__({"host": "hostops"}.get(part, part))
        module.main(args.out, args.machine, deadline, args.quick)


def main():
    args = arguments()
    args.out = os.path.abspath(args.out)
    os.makedirs(args.out, exist_ok=True)
    if args.one:
        return one(args)
    if args.world_run:
        import world
        return world.main(args)
    from common import missing_modules, quiet, say
    quiet()
    try:
        import torch
    except ImportError:
        raise SystemExit("PyTorch is not installed here; nothing can be measured")
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no CUDA device; nothing can be measured")
    probe = subprocess.run([sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import json, common; common.quiet(); "
                            "print(json.dumps(common.missing_modules()))", HERE], capture_output=True, text=True)
    lines = probe.stdout.strip().splitlines()
    missing = json.loads(lines[-1]) if lines else {"megatron.core": "cannot be imported"}
    jobs, skipped = plan(args, missing)
    for part, reason in skipped.items():
        say(f"skipping {part}: {reason}")
    run_jobs(args, jobs)
    if "environment" in args.parts and not args.quick:
        child(args, "environment:end", 30).wait()
    say(f"done: {args.out}")


if __name__ == "__main__":
    main()
