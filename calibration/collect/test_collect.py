"""CPU-only tests of the pure functions: `python3 -m unittest` in this folder."""

import random
import unittest

import collect
import stats
import steps_plan


class Order(unittest.TestCase):
    def test_each_round_has_every_item_once(self):
        for r in range(9):
            self.assertEqual(sorted(stats.round_order("abcd", r)), list("abcd"))

    def test_direction_alternates_and_the_start_moves(self):
        self.assertEqual(stats.round_order("abc", 0), ["a", "b", "c"])
        self.assertEqual(stats.round_order("abc", 1), ["c", "b", "a"])
        self.assertEqual(stats.round_order("abc", 2), ["b", "c", "a"])

    def test_nothing_to_order(self):
        self.assertEqual(stats.round_order([], 3), [])


class Intervals(unittest.TestCase):
    def test_interval_holds_the_median_and_narrows(self):
        rng = random.Random(3)
        few = [rng.gauss(1.2, 0.07) for _ in range(20)]
        many = few + [rng.gauss(1.2, 0.07) for _ in range(180)]
        low, median, high = stats.median_interval(few)
        self.assertTrue(low <= median <= high)
        low2, _, high2 = stats.median_interval(many)
        self.assertLess(high2 - low2, high - low)

    def test_interval_covers_about_its_level(self):
        rng, hits = random.Random(5), 0
        for seed in range(60):
            low, _, high = stats.median_interval([rng.gauss(1.0, 0.1) for _ in range(40)], resamples=200, seed=seed)
            hits += low <= 1.0 <= high
        self.assertGreaterEqual(hits, 46)

    def test_too_few_values(self):
        self.assertIsNone(stats.median_interval([1.0]))
        self.assertIsNone(stats.ratio_summary([1.0, None], [None, 2.0]))

    def test_precise_enough(self):
        self.assertTrue(stats.precise_enough([{"low": 1.17, "high": 1.189}], 2.0))
        self.assertFalse(stats.precise_enough([{"low": 1.15, "high": 1.19}], 2.0))
        self.assertFalse(stats.precise_enough([None], 2.0))
        self.assertFalse(stats.precise_enough([], 2.0))


class Rows(unittest.TestCase):
    CONFIG = dict(layers=4, dense=1, experts=32, seq=512, mb=2, ep=2, world=8, outer=1)

    def row(self):
        series = {v: {"step_ms": [100.0 * f, None, 110.0 * f, 105.0 * f], "cpu_ms": [1.0, None, 2.0, 3.0]}
                  for v, f in (("ddp", 1.0), ("v1", 1.5), ("v2", 1.8), ("v2_all", 1.6))}
        return stats.paired_row(self.CONFIG, "m", "base", "base-1", series, {"x": "failed"})

    def test_schema(self):
        self.assertEqual(stats.check_row(self.row()), [])
        broken = self.row()
        broken["variants"]["v1"]["step_ms"].pop()
        del broken["group"]
        self.assertEqual(len(stats.check_row(broken)), 2)

    def test_ratios(self):
        row = self.row()
        self.assertAlmostEqual(row["ratios"]["v2/v1"]["median"], 1.2, places=4)
        self.assertAlmostEqual(row["ratios"]["v1/ddp"]["median"], 1.5, places=4)
        self.assertAlmostEqual(row["ratios"]["v2_all/v2"]["median"], 1.6 / 1.8, places=4)
        self.assertEqual(row["ratios"]["v2/v1"]["n"], 3)
        self.assertEqual(row["errors"], {"x": "failed"})

    def test_base_of(self):
        self.assertEqual([stats.base_of(v) for v in ("v1", "v2", "v2_all", "v1_onezero", "fsdp2")],
                         ["ddp", "v1", "v2", "v1", "v1"])


class Plan(unittest.TestCase):
    def test_skips_what_needs_megatron(self):
        args = collect.arguments(["--out", "x"])
        jobs, skipped = collect.plan(args, {"megatron.core": "absent"})
        self.assertEqual(set(skipped), {"steps", "instrument", "memory"})
        self.assertEqual([j for j, _ in jobs], ["environment", "host", "kernels", "collectives"])

    def test_time_is_shared_out(self):
        args = collect.arguments(["--out", "x", "--minutes", "10"])
        jobs, _ = collect.plan(args, {})
        self.assertLessEqual(sum(s for _, s in jobs), 601)
        self.assertEqual(sum(j.startswith("steps:") for j, _ in jobs), len(steps_plan.SHARES))

    def test_quick(self):
        args = collect.arguments(["--out", "x", "--quick"])
        self.assertEqual(args.minutes, 3)
        jobs, _ = collect.plan(args, {})
        self.assertEqual([j for j, _ in jobs if j.startswith("steps")], ["steps:base"])

    def test_unknown_names(self):
        self.assertRaises(SystemExit, collect.plan, collect.arguments(["--out", "x", "--parts", "nonsense"]), {})
        self.assertRaises(SystemExit, steps_plan.group_shares, "nonsense", False)

    def test_uneven_splits_agree_between_ranks(self):
        try:
            from collectives import uneven_splits
        except ImportError:
            self.skipTest("PyTorch is not installed")
        n, w = 4096, 4
        rows = [uneven_splits(n, w, r) for r in range(w)]
        for r in range(w):
            self.assertEqual(sum(rows[r][0]), n)
            for d in range(w):
                self.assertEqual(rows[r][0][d], rows[d][1][r])


if __name__ == "__main__":
    unittest.main()
