"""What every part shares: the JSON-lines writer, the clock, the fixed host probe, progress on screen."""

import gc
import json
import os
import time

from stats import SCHEMA_VERSION


def say(text):
    print(time.strftime("%H:%M:%S"), text, flush=True)


class Writer:
    """Appends rows to a JSON-lines file and flushes each, so that a crash or a time limit loses one row at most."""

    def __init__(self, folder, name):
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, name)

    def row(self, **fields):
        fields = {"schema_version": SCHEMA_VERSION, **fields}
        with open(self.path, "a") as f:
            f.write(json.dumps(fields) + "\n")


class Deadline:
    """The seconds that a part may still use."""

    def __init__(self, seconds):
        self.start, self.seconds = time.monotonic(), seconds

    def left(self):
        return self.seconds - (time.monotonic() - self.start)

    def passed(self):
        return self.left() <= 0


class Probe:
    """A fixed piece of host work of about 5 ms, run before every step and recorded with it.

    Host speed drifts by up to a quarter within minutes. The probe's three sections are the three kinds
    of host work that a step consists of: bytecode, operator dispatch without a launch, and launches.
    A step's time over the probe's tells drift from a real difference, also between processes.
    """

    def __init__(self):
        import torch
        self.torch = torch
        self.cpu = torch.zeros(64)
        self.gpu = torch.zeros(64, device="cuda")

    def __call__(self):
        """Microseconds of (bytecode, dispatch, launch); the device must be idle before, and is so after."""
        clock = time.perf_counter
        x, y = self.cpu, self.gpu
        t0 = clock()
        total = 0
        for i in range(30000):
            total += i & 7
        t1 = clock()
        for _ in range(500):
            x.narrow(0, 8, 16).view(4, 4)
        t2 = clock()
        for _ in range(200):
            y.add_(1.0)
        t3 = clock()
        self.torch.cuda.synchronize()
        return (t1 - t0) * 1e6, (t2 - t1) * 1e6, (t3 - t2) * 1e6


class GcClock:
    """Time that Python's garbage collector takes; it strikes steps at random, so it is recorded per step."""

    def __init__(self):
        self.total_ms, self.runs, self._t = 0.0, 0, 0.0
        gc.callbacks.append(self._hook)

    def _hook(self, phase, info):
        if phase == "start":
            self._t = time.perf_counter()
        else:
            self.total_ms += (time.perf_counter() - self._t) * 1e3
            self.runs += 1

    def take(self):
        out = self.total_ms
        self.total_ms = 0.0
        return out


def settle():
    """Move everything alive into the collector's permanent generation.

    A process that holds twenty models would otherwise pay for scanning all of them whenever a full
    collection strikes, which a training process with one model does not.
    """
    gc.collect()
    gc.freeze()


def quiet():
    """Silence the libraries' start-up chatter, which hides the progress lines."""
    import logging
    import warnings
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")


def missing_modules():
    """Which of the optional packages cannot be imported, with the reason."""
    out = {}
    for name in ("megatron.core", "transformer_engine.pytorch"):
        try:
            __import__(name)
        except Exception as e:  # noqa: BLE001 - any failure means "skip these parts, say why"
            out[name] = f"{type(e).__name__}: {e}"[:200]
    return out
