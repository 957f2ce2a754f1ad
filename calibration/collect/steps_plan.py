"""How the time of the steps part is shared among its groups; apart from steps.py so that it needs no PyTorch."""

# Shares follow the cost of a round times the number of rounds wanted, in order of priority.
SHARES = {"base": 0.40, "shapes": 0.24, "depth": 0.10, "seq4096": 0.06, "seq8192": 0.05,
          "hybrid": 0.05, "ep4": 0.05, "hybrid8": 0.05}


def group_shares(wanted, quick):
    """[(group, share)] of the groups asked for; shares add up to one."""
    names = [n for n in wanted.split(",") if n] or (["base"] if quick else list(SHARES))
    unknown = [n for n in names if n not in SHARES]
    if unknown:
        raise SystemExit(f"unknown group {', '.join(unknown)}; there are {', '.join(SHARES)}")
    total = sum(SHARES[n] for n in names)
    return [(n, SHARES[n] / total) for n in names]
