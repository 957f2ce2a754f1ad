"""Plain steps of ddp, v1, v2 and FSDP2, interleaved: one function per group, one process per group.

A group is a set of configurations that one process can hold (world size, expert parallelism and the
number of optimizer instances are fixed per process; each sequence length has its own, because a second
one makes TorchDynamo's compiled regions recompile and their caches longer).
"""

import torch

from common import say
from proxy import Shape, Trainer, init_parallel
from rounds import Group
from variants import BUILD_OPTIONS, SWITCHES

VERSIONS = ("ddp", "v1", "v2")


def start(shape):
    from fakeworld import init_fake
    # Twenty models share the compiled functions of one process; with the default limit of 8 the ninth
    # shape would silently fall back to eager code and be measured as something it is not.
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.accumulated_recompile_limit = 4096
    init_fake(shape.world)
    init_parallel(shape.world, shape.ep, shape.outer)


def _add(group, shape, mbs, tag, versions=VERSIONS, every=1):
    """Build each version of one shape and add it at each number of microbatches."""
    trainers = {}
    for version in versions:
        trainer = group.build(f"{tag} {version}", Trainer, version, shape)
        if trainer is None:
            continue
        trainers[version] = trainer
        for mb in mbs:
            group.add(shape, mb, version, trainer, tag, every)
    return trainers


def base(group, quick):
    """Priorities 1 and 5: the proxy at 1, 2 and 4 microbatches, single overheads removed, PyTorch FSDP2."""
    shape = Shape()
    trainers = _add(group, shape, (2,) if quick else (1, 2), "base")
    if not quick:
        for version, trainer in trainers.items():
            group.add(shape, 4, version, trainer, "base", every=2)
    for variant in SWITCHES:
        version = variant.split("_")[0]
        if version in trainers and (not quick or variant in ("v2_dtcache", "v2_all")):
            group.add(shape, 2, variant, trainers[version], "base")
    for variant, options in ({} if quick else BUILD_OPTIONS).items():
        trainer = group.build(variant, Trainer, variant.split("_")[0], shape, **options)
        if trainer is not None:
            group.add(shape, 2, variant, trainer, "base")
    from fsdp2 import Fsdp2Trainer
    trainer = group.build("base fsdp2", Fsdp2Trainer, shape)
    if trainer is not None:
        for mb in (2,) if quick else (1, 2):
            group.add(shape, mb, "fsdp2", trainer, "base")


def shapes(group, quick):
    """Priorities 2 and 3: other numbers of layers and experts, and no experts, with the base as an anchor."""
    _add(group, Shape(), (2,), "anchor")
    _add(group, Shape(layers=2), (1, 2), "layers2")
    _add(group, Shape(experts=64), (2,), "experts64")
    if not quick:
        _add(group, Shape(layers=8), (1, 2), "layers8")
        _add(group, Shape(layers=6), (2,), "layers6")
        _add(group, Shape(experts=16), (2,), "experts16")
        _add(group, Shape(dense=4, ep=1), (1, 2), "dense")


def depth(group, quick):
    """Numbers of layers and microbatches between and beyond those of the other groups, for validation."""
    _add(group, Shape(layers=3), (1,) if quick else (1, 3), "layers3")
    if not quick:
        _add(group, Shape(layers=5), (2,), "layers5")
        _add(group, Shape(layers=10), (1,), "layers10")


def seq4096(group, quick):
    """A long sequence, alone in its process: several lengths in one make every compiled region look
    through several cached versions at each call, which a training job never does."""
    _add(group, Shape(seq=4096), (2,), "seq4096-alone")


def seq8192(group, quick):
    """A longer one, likewise."""
    _add(group, Shape(seq=8192), (2,), "seq8192-alone")


def hybrid(group, quick):
    """Priority 4: v1 on the hybrid mesh (4 optimizer instances, outer_dp_sharding_strategy=optim).

    v2 of d98e8a64 refuses an outer mesh, so its rows here shard over all 16 ranks; DDP has 4 instances
    of its distributed optimizer.
    """
    _add(group, Shape(ep=4, world=16, outer=4), (2,), "hybrid")


def hybrid8(group, quick):
    """The hybrid mesh of the public report: 8 ranks, inner 2, outer 4, expert parallelism 2."""
    _add(group, Shape(outer=4), (2,), "hybrid8", versions=("ddp", "v1"))


def ep4(group, quick):
    """The plain mesh at the same world size and expert parallelism as the hybrid one."""
    _add(group, Shape(ep=4, world=16), (2,), "ep4-world16")


GROUPS = {
    "base": (base, Shape()), "shapes": (shapes, Shape()), "depth": (depth, Shape()), "seq4096": (seq4096, Shape(seq=4096)),
    "seq8192": (seq8192, Shape(seq=8192)),
    "hybrid": (hybrid, Shape(ep=4, world=16, outer=4)), "ep4": (ep4, Shape(ep=4, world=16)),
    "hybrid8": (hybrid8, Shape(outer=4)),
}


def main(name, out, machine, deadline, points, quick):
    build, shape = GROUPS[name]
    start(shape)
    group = Group(name, out, machine, deadline, points, max_rounds=12 if quick else 400)
    build(group, quick)
    say(f"  {name}: {len(group.entries)} entries")
    group.run()
