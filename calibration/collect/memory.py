"""What is alive on the device at the end of a step, one version per process, with the frame that allocated it.

PyTorch's allocator history gives for each live block its size, stream and Python stack. Blocks are
summed by the innermost frames inside Megatron, Transformer Engine or this folder, so that each part of
the persistent memory gets an owner.
"""

import collections
import time

import torch

from common import Writer, say
from proxy import Shape, Trainer

OWN_FRAMES = ("megatron", "transformer_engine", "calibration/collect", "torch/distributed", "torch/optim", "torch/_inductor")


def owner_of(frames):
    """The two innermost frames that say who wanted the block: `file:line function < file:line function`."""
    kept = []
    for f in frames:
        name = f.get("filename", "")
        if any(part in name for part in OWN_FRAMES):
            short = "/".join(name.split("/")[-3:])
            kept.append(f"{short}:{f.get('line')} {f.get('name')}")
            if len(kept) == 3:
                break
    if not kept and frames:
        f = frames[0]
        kept.append(f"{'/'.join(f.get('filename', '?').split('/')[-2:])} {f.get('name')}")
    return " < ".join(kept) if kept else "no frame (allocated by C++ before recording, or a library)"


def live_blocks(snapshot):
    """(size asked for, size taken, stream, frames, segment type) of each live block."""
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                yield (block.get("requested_size", block["size"]), block["size"], segment["stream"],
                       block.get("frames", []), segment["segment_type"])


def measure(out, machine, version, shape, mb, make=None):
    torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=200000)
    file = Writer(out, "memory.jsonl")
    before = torch.cuda.memory_allocated()
    trainer = (make or (lambda: Trainer(version, shape)))()
    after_build = torch.cuda.memory_allocated()
    series = []
    for _ in range(5):
        torch.cuda.reset_peak_memory_stats()
        trainer.step(mb)
        torch.cuda.synchronize()
        series.append([torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()])
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    file.row(kind="summary", machine=machine, version=version, **shape.row(mb), before_build=before,
             after_build=after_build, steps_allocated_peak_reserved=series,
             requested=stats["requested_bytes.all.current"], active=stats["active_bytes.all.current"],
             inactive_split=stats["inactive_split_bytes.all.current"], device_used=total - free)
    owners, streams = collections.defaultdict(lambda: [0, 0, 0, 0]), collections.Counter()
    names = {}
    for asked, taken, stream, frames, _ in live_blocks(snapshot):
        index = names.setdefault(stream, len(names))
        entry = owners[(owner_of(frames), index)]
        entry[0] += 1
        entry[1] += asked
        entry[2] += taken
        entry[3] = max(entry[3], asked)
        streams[index] += taken
    for (owner, stream), (count, asked, taken, largest) in sorted(owners.items(), key=lambda kv: -kv[1][2]):
        if taken >= 4096 or count >= 8:
            file.row(kind="live", machine=machine, version=version, **shape.row(mb), stream=stream,
                     default_stream=None if not names else list(names)[stream] == 0, count=count,
                     requested_bytes=asked, block_bytes=taken, largest_bytes=largest, owner=owner)
    segments = collections.Counter()
    for s in snapshot["segments"]:
        segments[(names.get(s["stream"], -1), s["segment_type"])] += s["total_size"]
    file.row(kind="segments", machine=machine, version=version, **shape.row(mb),
             reserved_by_stream=[[k[0], k[1], v] for k, v in sorted(segments.items())])
    say(f"  memory of {version}: {series[-1][0] / 1e9:.4f} GB at the end of a step")


def main(out, machine, version, quick):
    t = time.monotonic()
    shape = Shape()
    if version == "v1-hybrid":
        shape = Shape(ep=4, world=16, outer=4)
        measure(out, machine, "v1", shape, 2)
    elif version == "fsdp2":
        from fsdp2 import Fsdp2Trainer
        measure(out, machine, "fsdp2", shape, 2, lambda: Fsdp2Trainer(shape))
    else:
        measure(out, machine, version, shape, 2)
    say(f"  {time.monotonic() - t:.0f} s")
