"""Steps many configurations in turn in one process, and writes rows whose series are aligned by round."""

import gc
import os
import statistics
import time

import torch

import phases
import variants
from common import GcClock, Probe, Writer, say, settle
from stats import paired_row, precise_enough, ratio_summary, round_order

WARM_UP = 2


class Entry:
    """One thing to step: a trainer, a number of microbatches, and the overhead to remove, if any."""

    def __init__(self, config_key, variant, trainer, mb, every=1):
        self.key, self.variant, self.trainer, self.mb, self.every = config_key, variant, trainer, mb, every
        self.dead = False  # it failed once: a step that broke off leaves its model in no state to go on
        self.series = {"step_ms": [], "cpu_ms": [], "gc_ms": [], "probe_python_us": [], "probe_dispatch_us": [],
                       "probe_launch_us": []}
        self.phase_rounds = []


class Group:
    """The interleaved entries of one process."""

    def __init__(self, name, out, machine, deadline, points, max_rounds=400, agree=lambda stop: stop):
        # `agree` lets the ranks of a real world stop after the same round, or one would wait for ever.
        self.agree = agree
        self.name, self.machine, self.deadline, self.points = f"{name}-{os.getpid()}", machine, deadline, points
        self.short, self.max_rounds = name, max_rounds
        self.paired, self.phase_file = Writer(out, "paired.jsonl"), Writer(out, "phases.jsonl")
        self.log = Writer(out, "groups.jsonl")
        self.entries, self.configs, self.errors = [], {}, {}
        self.clock = phases.PhaseClock()
        self.gc_clock, self.probe = GcClock(), Probe()
        self.done = 0
        phases.install(self.clock)

    def add(self, shape, mb, variant, trainer, tag, every=1):
        key = (tag, mb)
        self.configs[key] = (shape, mb)
        self.entries.append(Entry(key, variant, trainer, mb, every))

    def build(self, label, make, *args, **kwargs):
        """A trainer with its phases wrapped, or None (and the reason on record) when it cannot be built."""
        t = time.monotonic()
        try:
            trainer = make(*args, **kwargs)
            if hasattr(trainer, "config"):
                phases.attach(trainer, self.clock)
        except Exception as e:  # noqa: BLE001 - one model that fails must not lose the others
            self.errors[label] = f"{type(e).__name__}: {e}"[:400]
            say(f"  {label} cannot be built: {self.errors[label][:160]}")
            return None
        say(f"  built {label} in {time.monotonic() - t:.1f} s, {torch.cuda.memory_allocated() / 1e9:.1f} GB in all")
        return trainer

    def _once(self, entry, record):
        probe = self.probe()
        self.gc_clock.take()
        with variants.switched(entry.variant, entry.trainer):
            torch.cuda.synchronize()
            cpu, t = time.process_time(), time.perf_counter()
            entry.trainer.step(entry.mb, self.clock)
            torch.cuda.synchronize()
            wall, cpu = (time.perf_counter() - t) * 1e3, (time.process_time() - cpu) * 1e3
        spans = self.clock.take()
        if record:
            s = entry.series
            s["step_ms"].append(wall), s["cpu_ms"].append(cpu), s["gc_ms"].append(self.gc_clock.take())
            for name, value in zip(("python", "dispatch", "launch"), probe):
                s[f"probe_{name}_us"].append(value)
            entry.phase_rounds.append(spans)

    def _skip(self, entry):
        for values in entry.series.values():
            values.append(None)
        entry.phase_rounds.append(None)

    def _drop(self, entry, error):
        self.errors[f"{entry.key[0]} mb{entry.key[1]} {entry.variant}"] = f"{type(error).__name__}: {error}"[:400]
        say(f"  {entry.key} {entry.variant} dropped: {error!r:.200}")
        entry.dead = True

    def warm_up(self):
        """Compiles, allocates, and lets every model see all its shapes before anything is recorded."""
        for i in range(WARM_UP):
            for entry in self.entries:
                if entry.dead:
                    continue
                try:
                    self._once(entry, record=False)
                except Exception as e:  # noqa: BLE001
                    self._drop(entry, e)
        settle()
        say(f"  {self.short}: warm after {self.deadline.seconds - self.deadline.left():.0f} s, "
            f"{len(self.entries)} entries, {torch.cuda.memory_allocated() / 1e9:.1f} GB")

    def run(self):
        """Rounds until every ratio is precise enough or the time is up; what there is gets written in any case."""
        self.warm_up()
        self.clock.on = True
        try:
            self._rounds(time.monotonic())
        finally:
            self.clock.on = False
            self.write()
            gc.unfreeze()

    def _rounds(self, start):
        while self.done < self.max_rounds and not all(e.dead for e in self.entries):
            for entry in round_order(self.entries, self.done):
                if entry.dead or self.done % entry.every:
                    self._skip(entry)
                    continue
                try:
                    self._once(entry, record=True)
                except Exception as e:  # noqa: BLE001
                    self._drop(entry, e)
                    self._skip(entry)
            self.done += 1
            per_round = (time.monotonic() - start) / self.done
            stop = self.deadline.left() < per_round * 1.2
            if self.done % 10 == 0:
                say(f"  {self.short}: round {self.done}, {per_round:.2f} s each, {self.deadline.left():.0f} s left")
                stop = stop or (self.done >= 30 and self._precise())
            if self.agree(stop):
                break

    def _rows(self):
        for key, (shape, mb) in self.configs.items():
            yield key, shape, mb, {e.variant: e for e in self.entries if e.key == key}

    def _precise(self):
        sums = []
        for _, _, _, entries in self._rows():
            for a, b in (("v2", "v1"), ("v1", "ddp")):
                if a in entries and b in entries:
                    sums.append(ratio_summary(entries[a].series["step_ms"], entries[b].series["step_ms"]))
        return precise_enough(sums, self.points)

    def write(self):
        for entry in self.entries:  # a round that was interrupted is no round
            for values in entry.series.values():
                del values[self.done:]
            del entry.phase_rounds[self.done:]
        if not self.done:
            return
        for (tag, _), shape, mb, entries in self._rows():
            row = paired_row(shape.row(mb), self.machine, tag, self.name,
                             {v: e.series for v, e in entries.items()}, dict(self.errors))
            row["round_index"] = list(range(self.done))
            self.paired.row(**row)
            for variant, e in entries.items():
                self._write_phases(tag, shape, mb, variant, e)
        self.log.row(machine=self.machine, group=self.name, rounds=self.done, errors=self.errors, dynamo=dynamo_counts(),
                     entries=len(self.entries), mem_allocated=torch.cuda.memory_allocated(),
                     mem_max_allocated=torch.cuda.max_memory_allocated(), gc_runs=self.gc_clock.runs)

    def _write_phases(self, tag, shape, mb, variant, entry):
        labels = []
        for spans in entry.phase_rounds:
            labels += [label for label in (spans or {}) if label not in labels]
        if not labels:
            return
        series = {label: [None if spans is None else round(spans.get(label, 0.0), 3) for spans in entry.phase_rounds]
                  for label in labels}
        medians = {k: round(statistics.median([x for x in v if x is not None]), 4) for k, v in series.items()}
        self.phase_file.row(machine=self.machine, group=self.name, tag=tag, **shape.row(mb), variant=variant,
                            median_ms=medians, phase_ms=series)


def dynamo_counts():
    """How often TorchDynamo compiled and recompiled: a cache with many entries costs host time at each call."""
    try:
        from torch._dynamo.utils import counters
        return {k: dict(v) for k, v in counters.items() if k in ("stats", "frames", "unimplemented", "recompile_limit")}
    except Exception:  # noqa: BLE001
        return {}
