"""False alarms and power of coincidences: ``python benchmarks/coincidences.py [TRIALS] [UNITS,…]``.

Prints in how many percent of runs one of ten metrics that have nothing to do with the steps is said to move
with them, by the nature of the steps and of the metrics (AR(φ): each value resembles the one before), then in
how many percent a metric is named that rises by so many of its standard deviations in the steps. Then in how
many percent of runs of 2 or 8 ranks, whose GPUs differ by 1 % (standard deviation) by nature and vary over
time, one is said to have a lower clock. Then the same for noted steps, of which some take long, and for
ranks that wait for their cores. By default there are 300 runs of each kind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from hpcprof.analysis.telemetry.coincidences import (  # noqa: E402
    LEVEL,
    RunSteps,
    chance,
    coincidences,
    noted_steps,
)
from hpcprof.node import step_lines  # noqa: E402
from hpcprof.node.step_lines import StepLines  # noqa: E402
from hpcprof.profiles.readers.telemetry import NodeTelemetry, RankPlace, Series  # noqa: E402
from hpcprof.runs.live_steps import parsed_line  # noqa: E402

Floats = NDArray[np.float64]
Make = Callable[[int, np.random.Generator], Floats]
METRICS = 10


def correlated(phi: float) -> Make:
    """Return what makes series of which each value resembles the one before."""

    def make(count: int, draw: np.random.Generator) -> Floats:
        spectrum = np.fft.rfft(draw.standard_normal(2 * count))
        turns = np.exp(-2j * np.pi * np.fft.rfftfreq(2 * count))
        found: Floats = np.fft.irfft(spectrum / (1 - phi * turns), 2 * count)[:count]
        return found / max(float(found.std()), 1e-12)

    return make


def _periodic(count: int, draw: np.random.Generator) -> Floats:
    turn = 2 * np.pi * np.arange(count) / draw.uniform(7, 60) + draw.uniform(0, 7)
    return np.asarray(np.sin(turn) + 0.3 * draw.standard_normal(count))


def _bursts(count: int, draw: np.random.Generator) -> Floats:
    return np.asarray((correlated(0.8)(count, draw) > 1.8) * draw.random(count))


def _rising(count: int, draw: np.random.Generator) -> Floats:
    return np.asarray(4 * np.arange(count) / count + draw.standard_normal(count))


SAMPLES: dict[str, Make] = {
    "AR(0)": correlated(0.0),
    "AR(0.9)": correlated(0.9),
    "AR(0.99)": correlated(0.99),
    "walk": lambda count, draw: np.cumsum(draw.standard_normal(count)),
    "periodic": _periodic,
    "bursts": _bursts,
    "rising": _rising,
}
LONG: dict[str, Make] = {
    "at random": lambda count, draw: (draw.random(count) < 0.06).astype(float),
    "every 5th": lambda count, draw: ((np.arange(count) + draw.integers(5)) % 5 == 0).astype(float),
    "clustered": lambda count, draw: (correlated(0.8)(count, draw) > 1.6).astype(float),
    "later more": lambda count, draw: (draw.random(count) < 0.2 * np.arange(count) / count).astype(float),
}
LEVELS: dict[str, Make] = {
    "level": lambda count, draw: (
        (np.arange(count) > draw.uniform(0.2, 0.8) * count) + 0.3 * correlated(0.5)(count, draw)
    ),
    "drift": lambda count, draw: 3 * np.arange(count) / count + correlated(0.5)(count, draw),
    "levels": lambda count, draw: np.sign(correlated(0.95)(count, draw)) + 0.3 * draw.standard_normal(count),
}


def named(steps: Make, samples: Make, count: int, trials: int, local: bool, rise: float = 0.0) -> float:
    """Return in how many percent of the runs a metric is named; with a rise, the first one."""
    draw, found = np.random.default_rng(0), 0
    for _ in range(trials):
        weights = steps(count, draw)
        values = np.array([samples(count, draw) for _ in range(METRICS)])
        values[0] += rise * values[0].std() * (weights - weights.min()) / max(np.ptp(weights), 1e-12)
        chances = chance(weights, values, local)
        found += (chances[0] if rise else chances.min()) <= LEVEL
    return 100 * found / trials


def slow_clocks(ranks: int, trials: int, lower: float = 0.0) -> float:
    """Return in how many percent of the runs a rank is said to have a lower clock; with `lower`, rank 0."""
    draw, found = np.random.default_rng(0), 0
    times = np.arange(0.0, 60.0, 0.5)
    wall = np.full(60, 10**9)
    steps = RunSteps(np.arange(61.0) * 0.98, np.arange(60), np.ones(60, np.int64), wall, wall)
    for _ in range(trials):
        clock = 1755 * (1 + 0.01 * draw.standard_normal(ranks))
        clock[0] *= 1 - lower
        series = {
            (f"gpu{gpu}", "sm_mhz"): Series(times, clock[gpu] + 20 * correlated(0.9)(len(times), draw))
            for gpu in range(ranks)
        }
        places = {rank: RankPlace((), (rank,)) for rank in range(ranks)}
        node = NodeTelemetry("n", series, places, tuple("A" * ranks))
        rows = [row for row in coincidences([node], steps) if row["beyond_chance"]]
        found += any(row["device"] == "gpu0" for row in rows) if lower else bool(rows)
    return 100 * found / trials


def _noted(every: int, long: float, draw: np.random.Generator, usual: float = 0.1) -> tuple[RunSteps, Floats]:
    """Return lines of two minutes about steps, and when the long ones end, each ``every``-th one."""
    wall = usual * (1 + 0.03 * correlated(0.5)(round(120 / usual), draw)).clip(0.5)
    first = draw.integers(every)
    wall[first::every] *= long / usual
    now, ends = [0.0], np.cumsum(wall)
    lines: list[bytes] = []

    def written(file: int, line: bytes) -> int:
        lines.append(line)
        return len(line)

    with (
        mock.patch.object(step_lines, "perf_counter_ns", lambda: int(1e9 * now[0])),
        mock.patch.object(step_lines, "time", lambda: now[0]),
        mock.patch.object(StepLines, "_open", lambda self: -1),
        mock.patch("os.write", written),
    ):
        writer = StepLines(Path(), 0)
        writer.begin()
        for step, now[0] in enumerate(ends[ends < 120.0].tolist()):
            writer.end(step)
    steps = noted_steps([line for line in map(parsed_line, lines) if line is not None])
    assert steps is not None
    return steps, ends[first::every]


def _sampled(make: Make, a_second: int, draw: np.random.Generator) -> Series:
    """Return two minutes of samples, so many a second; of a walk or a level, so many."""
    count = 120 * a_second + 1
    return Series(np.linspace(0.0, 120.0, count), make(count, draw))


def long_steps(
    make: Make,
    every: int,
    long: float,
    trials: int,
    waits: float = 0.0,
    usual: float = 0.1,
    a_second: int = 10,
) -> float:
    """Return in how many percent of runs something moves with long steps; `waits` is how often that is so."""
    draw, found = np.random.default_rng(0), 0
    for _ in range(trials):
        steps, ends = _noted(every, long, draw, usual)
        series = {
            ("rank0", "blocked_pct"): _sampled(
                lambda n, d: np.where(make(n, d) > 1.5, 100.0, 0.0), a_second, draw
            ),
            ("gpu0", "temperature_c"): _sampled(make, a_second, draw),
            ("node", "memory_pressure_s"): _sampled(
                lambda n, d: np.cumsum(abs(make(n, d)), dtype=float), 1, draw
            ),
            ("rank0", "written_bytes"): _sampled(
                lambda n, d: np.cumsum(make(n, d) ** 2, dtype=float), 1, draw
            ),
            ("rank0", "cpu_wait_s"): _sampled(lambda n, d: np.cumsum(abs(make(n, d)), dtype=float), 1, draw),
        }
        times, blocked = series["rank0", "blocked_pct"].times, series["rank0", "blocked_pct"].values
        until = ends[np.minimum(np.searchsorted(ends, times), len(ends) - 1)] - times
        inside = (until >= 0) & (until <= long)
        blocked[inside & (draw.random(len(times)) < waits)] = 100.0
        node = NodeTelemetry("n", series, {0: RankPlace((), (0,))}, ("A",))
        rows = [row for row in coincidences([node], steps) if row["beyond_chance"]]
        found += any(row["subject"] == "spikes" for row in rows)
    return 100 * found / trials


def busy_cores(own: str, others: float, trials: int, ranks: int = 2) -> list[float]:
    """Return how many percent of the runs name each rank for waiting for its core, which others use.

    Each rank has a core of its own, as its use of it ``own`` says. Others use 1 % of each core for daemons
    and the kernel, at times 20 % for some seconds, and in addition ``others`` of the core of rank 1. A rank
    has threads that wait for each other for its core for 0 to 30 % of the time. A second has one sample of
    the cores, in ticks of 10 ms that are counted by whom they hit; the ranks have ten.
    """
    draw, found = np.random.default_rng(0), np.zeros(ranks)
    fine, seconds = 0.05, 90
    for _ in range(trials):
        series, places = {}, {}
        count = round(seconds / fine)
        times: Floats = np.arange(1.0, count + 1.0) * np.float64(fine)
        for rank in range(ranks):
            share = USE[own](count, draw)
            strange = 0.01 * abs(correlated(0.9)(count, draw)) + 0.2 * (correlated(0.98)(count, draw) > 2.3)
            taken = others if rank == 1 else 0.0
            strange = np.minimum(1.0, strange + taken * share)
            used = np.minimum(share, 1.0 - strange) if not taken else share * (1 - taken)
            waits = draw.uniform(0.0, 0.3) * share * (draw.random(count) < 0.7) + np.minimum(share, strange)
            # Ticks hit whoever runs.
            ticks = draw.binomial(5, np.clip(np.array([used, strange]), 0, 1)) * 0.01
            own_s, other_s = np.asarray(np.cumsum(ticks, axis=1), np.float64)
            fast, slow = slice(draw.integers(2), None, 2), slice(draw.integers(20), None, 20)
            series[f"rank{rank}", "cpu_s"] = Series(times[fast], own_s[fast])
            series[f"rank{rank}", "cpu_wait_s"] = Series(
                times[slow], np.asarray(np.cumsum(waits * fine), np.float64)[slow]
            )
            series[f"cpu{rank}", "busy_s"] = Series(times[slow], (own_s + other_s)[slow])
            places[rank] = RankPlace((rank,), ())
        edges = np.arange(2.0, seconds - 2, draw.uniform(1.0, 1.4))
        wall = np.full(len(edges) - 1, 10**8)
        steps = RunSteps(edges, np.arange(len(wall)) * 10, np.full(len(wall), 10), wall, wall)
        rows = coincidences([NodeTelemetry("n", series, places, ())], steps)
        for row in rows:
            if row["subject"] == "cores":
                found[row["rank"]] += 1
    return [*(100 * found / trials)]


def short_memory(kind: str, share: float, trials: int) -> tuple[float, float]:
    """Return in how many percent of the runs a rank waits for memory, and for files.

    ``share`` of its time it waits: for files ("files"), for pages of a file that it maps and reads for the
    first time, while others bring back a tenth as many ("first pages"), for nothing while its group waits for
    memory in bursts of 1 % at most in the mean ("bursts"), or for pages that were taken away ("memory"). What
    it waits for is known of two thirds of these samples.
    """
    draw, found = np.random.default_rng(0), np.zeros(2)
    times = np.linspace(0.0, 60.0, 601)
    wall = np.full(50, 10**8)
    steps = RunSteps(np.linspace(1.0, 59.0, 51), np.arange(50) * 10, np.full(50, 10), wall, wall)
    for _ in range(trials):
        blocked = draw.random(601) < np.clip(share * (1 + correlated(0.9)(601, draw)), 0, 1)
        paging = blocked & (kind in ("first pages", "memory")) & (draw.random(601) < 0.9)
        rates = {
            ("rank0", "major_faults"): abs(50 * (0.02 + paging)),
            ("node", "refaults"): abs(50 * (0.02 + paging)) * (1.0 if kind == "memory" else 0.1),
            ("rank0", "memory_stall_s"): _bursts(601, draw)
            * (0.2 if kind == "bursts" else 0.0)
            * draw.random(),
        }
        series = {name: Series(times, np.cumsum(0.1 * rate)) for name, rate in rates.items()}
        known = ~blocked | (draw.random(601) < 2 / 3)
        series["rank0", "blocked_pct"] = Series(times, np.where(blocked, 100.0, 0.0))
        series["rank0", "paging_pct"] = Series(times[known], np.where(paging[known], 100.0, 0.0))
        rows = coincidences([NodeTelemetry("n", series, {0: RankPlace((0,), ())}, ())], steps)
        subjects = {row["subject"] for row in rows}
        found += ["memory" in subjects, "io" in subjects]
    return 100 * found[0] / trials, 100 * found[1] / trials


USE: dict[str, Make] = {
    "steady, 95 %": lambda count, draw: np.clip(0.95 + 0.03 * correlated(0.5)(count, draw), 0, 1),
    "varied, AR(0.95)": lambda count, draw: np.clip(0.6 + 0.3 * correlated(0.95)(count, draw), 0, 1),
    "waits for seconds": lambda count, draw: (correlated(0.97)(count, draw) > -0.3).astype(float),
    "steps of 1.7 s": lambda count, draw: ((np.arange(count) + draw.integers(34)) % 34 < 20).astype(float),
}


def main() -> None:
    """Print false alarms, then power."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    units = [int(text) for text in sys.argv[2].split(",")] if len(sys.argv) > 2 else [40, 120, 400]
    print("Nothing moves with the steps. Runs in which something is said to, in percent:")
    print(f"{'units':>5} {'long steps':12}" + "".join(f"{name:>10}" for name in SAMPLES))
    for count in units:
        for local, kinds in ((True, LONG), (False, LEVELS)):
            for name, steps in kinds.items():
                rates = [named(steps, one, count, trials, local) for one in SAMPLES.values()]
                print(f"{count:5} {name:12}" + "".join(f"{rate:10.1f}" for rate in rates), flush=True)
    print("A metric (AR(0.9)) rises by standard deviations in long steps. It is named in percent of runs:")
    for count in units:
        for name, steps, local in (
            ("at random", LONG["at random"], True),
            ("every 5th", LONG["every 5th"], True),
            ("levels", LEVELS["levels"], False),
        ):
            rates = [
                named(steps, SAMPLES["AR(0.9)"], count, max(1, trials // 3), local, rise)
                for rise in (1, 2, 4)
            ]
            print(f"{count:5} {name:12}" + "".join(f"{rate:10.0f}" for rate in rates), flush=True)
    for ranks in (2, 8):
        false, right = slow_clocks(ranks, trials), slow_clocks(ranks, max(1, trials // 3), 0.1)
        print(f"{ranks} ranks: a lower clock is claimed in {false:.1f} %, one 10 % lower in {right:.0f} %")
    print("Noted steps: something is said to move with the long ones, in percent of runs:")
    for every, long, usual, a_second in (
        (5, 1.0, 0.1, 10),
        (40, 1.0, 0.1, 10),
        (40, 0.3, 0.1, 10),
        (5, 0.25, 0.05, 10),
        (5, 0.25, 0.05, 3),
    ):
        rates = [
            long_steps(one, every, long, trials, usual=usual, a_second=a_second) for one in SAMPLES.values()
        ]
        power = [
            long_steps(SAMPLES["AR(0.9)"], every, long, max(1, trials // 3), one, usual, a_second)
            for one in (0.5, 1.0)
        ]
        print(
            f"every {every}th of {long} s, {a_second} samples/s" + "".join(f"{x:8.1f}" for x in rates), end=""
        )
        print(f"; waiting in half or all of each: {power[0]:.0f}, {power[1]:.0f} %", flush=True)
    print("Others take shares of the core of rank 1. Ranks named for waiting, rank 0 / rank 1, in percent:")
    for kind in USE:
        named_ranks = [busy_cores(kind, share, trials) for share in (0.0, 0.1, 0.2, 0.5)]
        print(f"{kind:18}" + "".join(f"{a:8.1f} /{b:6.1f}" for a, b in named_ranks), flush=True)
    print("A rank waits for 0, 5, 10, 20 % of the time. It is said to wait for memory / files, in percent:")
    for kind in ("files", "first pages", "bursts", "memory"):
        waits = [short_memory(kind, share, trials) for share in (0.0, 0.05, 0.1, 0.2)]
        print(f"{kind:18}" + "".join(f"{a:8.1f} /{b:6.1f}" for a, b in waits), flush=True)


if __name__ == "__main__":
    main()
