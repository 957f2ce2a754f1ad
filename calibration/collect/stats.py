"""Pure functions behind the measurement: order of rounds, intervals, the rule for stopping, row schema.

Nothing here needs PyTorch, so `python3 -m unittest` in this folder checks it on any machine.
"""

import random
import statistics

SCHEMA_VERSION = 1

# Fields that every row of paired.jsonl has; `fsdpsim calibrate` refuses a row that lacks one.
PAIRED_FIELDS = ("schema_version", "machine", "tag", "group", "layers", "dense", "experts", "seq", "mb", "ep",
                 "world", "outer", "rounds", "round_index", "errors", "variants", "ratios")
VARIANT_FIELDS = ("median", "p25", "min", "max", "mean", "cpu_median", "ratio_to", "ratio_median", "step_ms")


def round_order(items, round_index):
    """Items in the order in which this round steps them.

    A host that warms up or cools down within a round favours whoever comes first, so odd rounds run
    backwards; the start also shifts by one item every two rounds, so that no item always follows the
    same neighbour (a step inherits caches and garbage from the step before it).
    """
    items = list(items)
    if not items:
        return items
    shift = (round_index // 2) % len(items)
    turned = items[shift:] + items[:shift]
    return turned if round_index % 2 == 0 else turned[::-1]


def paired_ratios(numerator, denominator):
    """Step-by-step ratios of two series aligned by round; rounds where either is missing are left out."""
    return [a / b for a, b in zip(numerator, denominator) if a is not None and b is not None and b > 0]


def median_interval(values, level=0.90, resamples=1000, seed=1, block=4):
    """Bootstrap interval of the median: (low, median, high), or None for fewer than two values.

    Neighbouring rounds share the host's mood, so whole blocks of neighbouring rounds are drawn;
    independent draws would claim an interval that is too narrow.
    """
    n = len(values)
    if n < 2:
        return None
    block = max(1, min(block, n // 4 or 1))
    rng = random.Random(seed)
    medians = []
    for _ in range(resamples):
        sample = []
        while len(sample) < n:
            start = rng.randrange(n)
            sample.extend(values[(start + i) % n] for i in range(block))
        medians.append(statistics.median(sample[:n]))
    medians.sort()
    tail = (1.0 - level) / 2
    low = medians[int(tail * (resamples - 1))]
    high = medians[int(round((1.0 - tail) * (resamples - 1)))]
    return low, statistics.median(values), high


def ratio_summary(numerator, denominator, level=0.90):
    """What a row stores about one ratio, or None where it cannot be formed."""
    ratios = paired_ratios(numerator, denominator)
    interval = median_interval(ratios, level)
    if interval is None:
        return None
    low, median, high = interval
    return {"median": round(median, 5), "low": round(low, 5), "high": round(high, 5), "level": level, "n": len(ratios)}


def precise_enough(summaries, points):
    """True when every ratio's interval is at most `points` percentage points wide."""
    return bool(summaries) and all(s is not None and (s["high"] - s["low"]) * 100 <= points for s in summaries)


def present(series):
    return [x for x in series if x is not None]


def series_summary(step_ms, cpu_ms):
    """Medians and spread of one variant; step_ms holds None where the variant sat a round out."""
    times, cpu = sorted(present(step_ms)), present(cpu_ms)
    return {
        "median": round(statistics.median(times), 4), "p25": round(times[len(times) // 4], 4),
        "min": round(times[0], 4), "max": round(times[-1], 4), "mean": round(statistics.mean(times), 4),
        "cpu_median": round(statistics.median(cpu), 4) if cpu else None,
    }


def base_of(variant):
    """The variant that a ratio is taken against: an altered version against its own, v1 against DDP."""
    if "_" in variant:
        return variant.split("_")[0]
    return {"v1": "ddp", "v2": "v1"}.get(variant, "v1")


def paired_row(config, machine, tag, group, series, errors, extra=None):
    """One row of paired.jsonl from `series`: variant -> {step_ms, cpu_ms, probe_us, ...}, aligned by round."""
    rounds = max((len(s["step_ms"]) for s in series.values()), default=0)
    row = {"schema_version": SCHEMA_VERSION, "machine": machine, "tag": tag, "group": group, **config,
           "rounds": rounds, "round_index": [], "errors": errors, "variants": {}, "ratios": {}}
    live = {v: s for v, s in series.items() if len(present(s["step_ms"])) > 0}
    for variant, s in live.items():
        base = base_of(variant)
        out = series_summary(s["step_ms"], s["cpu_ms"])
        ratio = ratio_summary(s["step_ms"], live[base]["step_ms"]) if base in live and base != variant else None
        out["ratio_to"] = base
        out["ratio_median"] = ratio["median"] if ratio else None
        if ratio:
            out["ratio_low"], out["ratio_high"] = ratio["low"], ratio["high"]
            row["ratios"][f"{variant}/{base}"] = ratio
        for key, values in s.items():
            out[key] = [None if x is None else round(x, 3) for x in values]
        row["variants"][variant] = out
    if "v2" in live and "ddp" in live:
        row["ratios"]["v2/ddp"] = ratio_summary(live["v2"]["step_ms"], live["ddp"]["step_ms"])
    row.update(extra or {})
    return row


def check_row(row):
    """Names of what a paired row lacks or has misaligned; empty when the row is sound."""
    faults = [f for f in PAIRED_FIELDS if f not in row]
    for name, v in row.get("variants", {}).items():
        faults += [f"{name}.{f}" for f in VARIANT_FIELDS if f not in v]
        if len(v.get("step_ms", [])) != row.get("rounds"):
            faults.append(f"{name}.step_ms has {len(v.get('step_ms', []))} rounds, not {row.get('rounds')}")
    return faults
