"""What instruments cost and what they see: function timers, the profiler in three strengths, and traces.

Plain and profiled steps of the same models take turns, so that the cost of one recorded event can be
fitted from the difference and the number of events by category.
"""

import contextlib
import gzip
import os
import statistics
import time

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from common import GcClock, Probe, Writer, say, settle
from functimers import FunctionTimers, hook_wrapping, wrap_everything
from proxy import Shape, Trainer
from stats import median_interval, round_order

MODES = ("cpu", "cpu+cuda", "cpu+cuda+shapes+ranges")
MB = 2


class Instruments:
    """ddp, v1 and v2 of the base shape in one process, built through the wrappers of functimers."""

    def __init__(self, out, machine, deadline):
        self.out, self.machine, self.deadline = out, machine, deadline
        self.timers = FunctionTimers()
        wrap_everything(self.timers.wrap_class, self.timers.wrap_name)
        self.trainers, self.errors = {}, {}
        self.probe, self.gc_clock = Probe(), GcClock()

    def build(self, shape=Shape(), versions=("ddp", "v1", "v2")):
        for version in versions:
            context = hook_wrapping(self.timers.wrap) if version == "v1" else contextlib.nullcontext()
            try:
                with context:
                    self.trainers[version] = Trainer(version, shape)
                for _ in range(4):
                    self.trainers[version].step(MB)
            except Exception as e:  # noqa: BLE001
                self.errors[version] = f"{type(e).__name__}: {e}"[:300]
                say(f"  {version}: {self.errors[version]}")
        settle()

    def _step(self, trainer):
        probe = self.probe()
        t = time.perf_counter()
        trainer.step(MB)
        torch.cuda.synchronize()
        return (time.perf_counter() - t) * 1e3, sum(probe)

    def function_timers(self, rounds, seconds):
        """Rounds of plain and timed steps; one row per version and label, one per version for the step times."""
        file = Writer(self.out, "functions.jsonl")
        plain, timed, totals = {v: [] for v in self.trainers}, {v: [] for v in self.trainers}, {v: [] for v in self.trainers}
        until = time.monotonic() + seconds
        for r in range(rounds):
            for version, on in round_order([(v, on) for v in self.trainers for on in (False, True)], r):
                self.timers.on = on
                self.timers.take()
                ms, _ = self._step(self.trainers[version])
                self.timers.on = False
                (timed if on else plain)[version].append(ms)
                if on:
                    totals[version].append(self.timers.take())
            if time.monotonic() > until:
                break
        for version in self.trainers:
            file.row(machine=self.machine, version=version, kind="steps", mb=MB, rounds=len(plain[version]),
                     plain_ms=[round(x, 2) for x in plain[version]], timed_ms=[round(x, 2) for x in timed[version]],
                     plain_median_ms=statistics.median(plain[version]), timed_median_ms=statistics.median(timed[version]))
            labels = {label for t in totals[version] for label in t}
            for label in sorted(labels):
                rows = [t.get(label, [0, 0, 0]) for t in totals[version]]
                calls = statistics.median(r[0] for r in rows)
                if calls:
                    file.row(machine=self.machine, version=version, kind="label", mb=MB, label=label, calls_per_step=calls,
                             total_us_per_step=round(statistics.median(r[1] for r in rows) / 1e3, 2),
                             self_us_per_step=round(statistics.median(r[2] for r in rows) / 1e3, 2),
                             self_us_per_call=round(statistics.median(r[2] / max(r[0], 1) for r in rows) / 1e3, 3))
        say(f"  function timers: {len(plain.get('v2', []))} rounds")

    def _profiled(self, trainer, mode, count):
        """One step under the profiler; its time excludes starting and stopping. Event counts when asked for."""
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if "cuda" in mode else [])
        self.timers.ranges = "ranges" in mode
        with profile(activities=activities, record_shapes="shapes" in mode, acc_events=True) as prof:
            ms = self._step(trainer)[0]
        self.timers.ranges = False
        return ms, count_events(prof) if count else None

    def inflation(self, rounds, seconds, modes):
        """Plain, profiled, plain: what the profiler adds is the middle one less the mean of its neighbours."""
        file = Writer(self.out, "profiler.jsonl")
        keys = [(v, m) for v in self.trainers for m in modes]
        profiled, plain, extra = ({k: [] for k in keys} for _ in range(3))
        counts, until, done = {}, time.monotonic() + seconds, 0
        for r in range(rounds):
            for key in round_order(keys, r):
                trainer = self.trainers[key[0]]
                before = self._step(trainer)[0]
                ms, counted = self._profiled(trainer, key[1], count=r == 0)
                after = self._step(trainer)[0]
                profiled[key].append(ms), plain[key].append((before + after) / 2), extra[key].append(ms - (before + after) / 2)
                if counted:
                    counts[key] = counted
            done += 1
            if time.monotonic() > until:
                break
        for version, mode in keys:
            key = (version, mode)
            events = counts.get(key, {})
            total = sum(events.values())
            file.row(machine=self.machine, version=version, mode=mode, mb=MB, rounds=done, events=events, events_total=total,
                     profiled_ms=[round(x, 2) for x in profiled[key]], plain_ms=[round(x, 2) for x in plain[key]],
                     profiled_median_ms=round(statistics.median(profiled[key]), 3),
                     plain_median_ms=round(statistics.median(plain[key]), 3),
                     extra_median_ms=round(statistics.median(extra[key]), 3), extra_interval_ms=median_interval(extra[key]),
                     ratio_interval=median_interval([a / b for a, b in zip(profiled[key], plain[key])]),
                     extra_us_per_event=round(statistics.median(extra[key]) / total * 1e3, 4) if total else None)
        say(f"  profiled steps: {done} rounds")

    def trace(self, version, name, mode, mb=MB):
        """Two profiled steps as a gzip trace in the layout of the traces that came before."""
        trainer = self.trainers.get(version)
        if trainer is None:
            return
        trainer.step(mb)
        torch.cuda.synchronize()
        self.timers.ranges = "ranges" in mode
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes="shapes" in mode) as prof:
            for i in range(2):
                with record_function(f"ProfilerStep#{i}"):
                    trainer.step(mb, _Ranges() if "ranges" in mode else None)
                    torch.cuda.synchronize()
        self.timers.ranges = False
        export(prof, os.path.join(self.out, "traces"), name)
        say(f"  trace {name}")


class _Ranges:
    on = True

    def span(self, label):
        return record_function(f"fsdpsim::{label}")


def export(prof, folder, name):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name + ".json")
    prof.export_chrome_trace(path)
    with open(path, "rb") as src:
        text = src.read().replace((folder + os.sep).encode(), b"")  # the trace names its own path; nobody needs it
    with gzip.open(path + ".gz", "wb", compresslevel=6) as dst:
        dst.write(text)
    os.remove(path)


def count_events(prof):
    """Recorded events by category, from the profiler's raw result (building Python events takes seconds)."""
    counts = {}
    for e in prof.profiler.kineto_results.events():
        name = e.name()
        if "cuda" in str(e.device_type()).lower():
            kind = "gpu_memory" if name.startswith("Mem") else "gpu_annotation" if "::" in name and "fsdpsim" in name else "kernel"
        elif name.startswith("cuda"):
            kind = "cuda_runtime"
        elif name.startswith("cu"):
            kind = "cuda_driver"
        elif name.startswith(("v1.", "v2.", "ddp.", "optimizer.", "adam.", "fsdpsim::", "ProfilerStep")):
            kind = "annotation"
        else:
            kind = "cpu_op"
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def main(out, machine, deadline, quick, wanted=("timers", "traces", "profiler", "depth")):
    tools = Instruments(out, machine, deadline)
    tools.build()
    if not tools.trainers:
        say(f"  nothing could be built: {tools.errors}")
        return
    if "timers" in wanted:
        tools.function_timers(3 if quick else 30, deadline.left() * 0.2)
    if "traces" in wanted:
        for version in tools.trainers:
            tools.trace(version, version, "cpu+cuda")
            if not quick:
                tools.trace(version, f"{version}-annotated", "cpu+cuda+shapes+ranges")
    deep = "depth" in wanted and not quick
    if "profiler" in wanted:
        tools.inflation(1 if quick else 30, max(5.0, deadline.left() - (30 if deep else 5)), MODES[1:2] if quick else MODES)
    if deep and deadline.left() > 10:
        tools.trainers = {}
        tools.build(Shape(layers=8), versions=("v2",))
        tools.trace("v2", "v2-layers8-mb1", "cpu+cuda", mb=1)
