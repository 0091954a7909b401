"""False alarms, coverage and power of the verdicts on late ranks: ``python benchmarks/lateness.py [TRIALS]``.

Programs of 78 ms a step with two all-reduces are made up, and `hpcprof.analysis.collectives.skew` judges
them as a collect does. Each rank's arrival varies from step to step by an autoregressive series of first
order, normal or with a long tail (lognormal), and the ends of a collective differ by some 10 us. In the
first table no rank is late. In the second one rank is, by 2.3 ms in every step, on the noise of profiles of
GPT-2 on two H200 (0.13 % of a step without a cause, 1.2 % beside a planted one) and between them. By
default 200 programs of 2 ranks are judged, and fewer of more ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from hpcprof.analysis.collectives.skew import skew_summary  # noqa: E402

STEP = 78e6
LATE = 2.3e6
PLACES = 2
TRANSFER = 400_000
END_JITTER = 20_000
RANKS = {2: 1.0, 8: 0.5, 64: 0.2}
"""The numbers of ranks, and their shares of the trials."""

NOISES = ((False, 0.0), (False, 0.3), (False, 0.5), (True, 0.3))
"""Whether the noise has a long tail, and the correlation of neighbouring steps."""

STEPS = (5, 10, 40)
NAMED = {"late", "straggler"}

Series = NDArray[np.float64]


def varied(shape: tuple[int, int], correlation: float, tail: bool, draw: np.random.Generator) -> Series:
    """Return series of shape (steps, ranks) with mean 0 and variance 1."""
    # Of a lognormal variable with these parameters the mean is exp(1/2), and the variance e (e - 1).
    new = draw.lognormal(0, 1, shape) if tail else draw.standard_normal(shape)
    if tail:
        new = (new - np.exp(0.5)) / np.sqrt(np.e * (np.e - 1))
    series: Series = new.copy()
    for step in range(1, shape[0]):
        series[step] = correlation * series[step - 1] + np.sqrt(1 - correlation**2) * new[step]
    return series


def program(arrival: Series, draw: np.random.Generator) -> dict[str, pd.DataFrame]:
    """Return the tables of ranks whose arrivals at the first collective, shape (steps, ranks), vary.

    They start the second one a millisecond after the first ends, and nobody computes while it waits.
    """
    steps, ranks = arrival.shape
    moment = STEP * np.arange(steps)[:, None]
    parts = []
    for _ in range(PLACES):
        begin = moment + 40e6 + arrival
        end = begin.max(axis=1, keepdims=True) + TRANSFER + draw.normal(0, END_JITTER / 2, arrival.shape)
        parts.append((begin, end))
        moment, arrival = end - 39e6, draw.normal(0, END_JITTER / 2, arrival.shape)
    begin, end = (np.stack(one, axis=1).round().astype(np.int64) for one in zip(*parts, strict=True))
    step, place, rank = (index.ravel() for index in np.indices(begin.shape))
    rows = pd.DataFrame({"rank": rank, "seq": step * PLACES + place, "step": step})
    constant = {"op": "AllReduce", "comm_id": "0x1", "bytes": 4096, "fused": 1, "part": 0}
    rows = rows.assign(**constant, comm_ranks=ranks, world_ranks=ranks)
    rows["start_ns"], rows["end_ns"] = begin.ravel(), end.ravel()
    rows["exposed_ns"] = rows["end_ns"] - rows["start_ns"]
    step, rank = (index.ravel() for index in np.indices((steps, ranks)))
    times = pd.DataFrame({"rank": rank, "step": step, "wall_ns": int(STEP)})
    return {"rank_collectives": rows, "step_times": times}


def judged(
    ranks: int,
    steps: int,
    correlation: float,
    tail: bool,
    noise: float,
    late: float,
    draw: np.random.Generator,
) -> pd.DataFrame:
    """Return `skew_summary` of a program whose last rank is late; the noise is a share of the step."""
    arrival = noise * STEP * varied((steps, ranks), correlation, tail, draw)
    # A step's work cannot begin before the step.
    arrival = np.maximum(arrival, -38e6)
    arrival[:, -1] += late
    return skew_summary(program(arrival, draw)).rows


def false_alarms(trials: int) -> None:
    """Print how often any rank of a program is called late or a straggler where none is."""
    print("No rank is late; noise 1 % of a step. Share of programs in which a rank is named:")
    print("ranks  noise   correlation  trials" + "".join(f" {steps:5} steps" for steps in STEPS))
    for ranks, share in RANKS.items():
        draw, number = np.random.default_rng(ranks), max(1, round(trials * share))
        for tail, correlation in NOISES:
            line = f"{ranks:5}  {'tail' if tail else 'normal':6} {correlation:12} {number:7}"
            for steps in STEPS:
                tables = [judged(ranks, steps, correlation, tail, 0.01, 0, draw) for _ in range(number)]
                line += (
                    f" {100 * np.mean([NAMED & set(table['verdict']) != set() for table in tables]):9.1f} %"
                )
            print(line, flush=True)


def power(trials: int) -> None:
    """Print how often the late rank is named, and how often its interval has the true lateness."""
    print("One rank is late by 2.3 of 78 ms; correlation 0.3. It is named / its interval is right (%):")
    print("ranks  noise  trials" + "".join(f" {steps:7} steps" for steps in (6, 10, 40)))
    for ranks, share in RANKS.items():
        draw, number = np.random.default_rng(ranks), max(1, round(trials * share / 2))
        for noise in (0.0013, 0.005, 0.012):
            line = f"{ranks:5} {100 * noise:4.2f} % {number:7}"
            for steps in (6, 10, 40):
                last = [judged(ranks, steps, 0.3, False, noise, LATE, draw).iloc[-1] for _ in range(number)]
                named = 100 * np.mean([row["verdict"] in NAMED for row in last])
                right = [row["lateness_low_ns"] <= LATE <= row["lateness_high_ns"] for row in last]
                line += f" {named:5.1f} / {100 * np.mean(right):5.1f}"
            print(line, flush=True)


def main() -> None:
    """Print both tables."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    false_alarms(trials)
    power(trials)


if __name__ == "__main__":
    main()
