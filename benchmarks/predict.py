"""The error of predictions for simulated programs.

``python benchmarks/predict.py [FIRST [LAST [RANKS [other]]]]``

Each program (seeds FIRST to LAST) runs on 2 or 4 ranks for 40 steps, whose operations are the profile, and
three times on 8 to 256 ranks, whose mean step is the truth. Programs: data parallel with buckets, sharded
(FSDP), a halo exchange in one dimension, and transposes. Noise: independent, correlated (ranks that are
always slower, steps that are slower on all ranks) and heavy-tailed. Networks: trees or rings, with and
without a break point of sizes. No two runs draw from the same seed.
Prints for each family the median error, the cover of the interval of 90 %, and how the prediction compares
with the closer baseline: it wins if its error is smaller; the two tie if their errors differ by less than
the means of the profiled and of the true steps do by chance (1.96 standard errors of their difference).
With ``other`` the programs are those of ``predict_programs.py``, which were written without the model.
The model was chosen on seeds 0 to 11; the documentation reports seeds 12 to 23.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.predict.scale import Predictor

OTHER: Any = import_module("predict_programs")
NOISES = ("independent", "correlated", "heavy")
RANKS = (8, 16, 32, 64, 128, 256)
STEPS = 40
Floats = np.ndarray


@dataclass
class Program:
    """A random program, the noise of its ranks and its network."""

    family: str
    noise: str
    seed: int
    strong: bool = False
    generator: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        self.layers = int(draw.integers(4, 12))
        self.compute = float(draw.uniform(1e6, 1e7))
        self.bytes = float(10 ** draw.uniform(5, 7.7))
        self.latency = float(10 ** draw.uniform(3.3, 4.3))
        self.per_byte = float(1 / draw.uniform(5, 50))
        self.ring = bool(draw.random() < 0.2)
        self.knee = bool(draw.random() < 0.3)
        self.sigma = float(draw.uniform(0.005, 0.05))

    def transfer(self, op: str, size: float, ranks: int) -> float:
        """Return what communication takes in ns."""
        once = ranks - 1 if self.ring else np.ceil(np.log2(max(ranks, 2)))
        share = (ranks - 1) / ranks
        steps, sent = {
            "all-reduce": (2 * once, 2 * share),
            "all-gather": (once, share),
            "reduce-scatter": (once, share),
            "all-to-all": (ranks - 1, share),
            "send": (1, 1),
        }[op]
        latency, rate = self.latency, self.per_byte
        if self.knee and size < 65536:
            latency, rate = latency / 2, 2 * rate
        return float(latency * steps + size * sent * rate)


class Machine:
    """Ranks that compute with noise and communicate; records operations if asked to."""

    def __init__(self, program: Program, ranks: int, seed: int, record: bool) -> None:
        self.program, self.ranks, self.record = program, ranks, record
        self.generator = np.random.default_rng(seed)
        self.work, self.network = np.zeros(ranks), np.zeros(ranks)
        self.rows: list[tuple[object, ...]] = []
        noise, sigma = program.noise, program.sigma
        self.persistent = 1 + (sigma * self.generator.standard_normal(ranks) if noise == "correlated" else 0)
        self.step = 0
        self.common = 1.0

    def begin(self, step: int) -> None:
        """Begin a step."""
        self.step = step
        correlated = self.program.noise == "correlated"
        self.common = 1 + (
            2 * self.program.sigma * abs(self.generator.standard_normal()) if correlated else 0
        )

    def computes(self, name: str, mean: float, after: Floats | None = None, stage: int = -1) -> None:
        """Compute on all ranks."""
        start = self.work if after is None else np.maximum(self.work, after)
        program = self.program
        factor = np.exp(program.sigma * self.generator.standard_normal(self.ranks))
        if program.noise == "heavy":
            factor = factor + program.sigma * self.generator.pareto(2.5, self.ranks)
        time_ = mean * self.persistent * self.common * factor
        self.note(name, "compute", start, time_)
        self.work = start + time_

    def note(
        self,
        name: str,
        kind: str,
        start: Floats,
        time_: Floats,
        group: str = "",
        size: float = -1,
        peer: object = -1,
    ) -> None:
        """Record an operation of all ranks."""
        if self.record:
            for rank in range(self.ranks):
                other = peer[rank] if isinstance(peer, np.ndarray) else peer
                if other is not None:
                    self.rows.append(
                        (rank, self.step, name, kind, start[rank], time_[rank], group, other, size)
                    )

    def collective(self, op: str, size: float, *, beside: bool = True, name: str = "") -> Floats:
        """Communicate on all ranks, beside computing or instead of it; return the ends."""
        start = np.maximum(self.work, self.network) if beside else self.work
        took = self.program.transfer(op, size, self.ranks) * np.exp(0.01 * self.generator.standard_normal())
        end = np.full(self.ranks, start.max() + took)
        self.note(name or op, "collective", start, end - start, "world", size)
        self.network = end
        if not beside:
            self.work = end
        return end

    def exchange(self, size: float) -> None:
        """Exchange messages with both neighbours on a ring."""
        took = self.program.transfer("send", size, 2)
        for name, offset in (("right", 1), ("left", -1)):
            start = self.work
            both = np.maximum(start, np.roll(start, offset))  # receives from rank - offset
            ends = both + took
            sent = np.roll(ends, -offset)
            ranks = np.arange(self.ranks)
            self.note(f"{name}-recv", "recv", start, ends - start, "", size, (ranks - offset) % self.ranks)
            self.note(f"{name}-send", "send", start, sent - start, "", size, (ranks + offset) % self.ranks)
            self.work = np.maximum(ends, sent)


def ddp(machine: Machine, factor: float) -> None:
    """Run a step of data parallel training: all-reduces of buckets beside the backward pass."""
    one = machine.program
    machine.computes("forward", one.layers * one.compute * factor)
    for layer in range(one.layers):
        machine.computes("backward", 2 * one.compute * factor)
        machine.collective("all-reduce", one.bytes * (0.3 if layer == 0 else 1))
    machine.computes("optimizer", 0.5 * one.compute, machine.network)


def fsdp(machine: Machine, factor: float) -> None:
    """Run a step of sharded training: weights are gathered a layer ahead."""
    one = machine.program
    ready = machine.collective("all-gather", one.bytes)
    for way, cost in (("forward", 1), ("backward", 2)):
        for layer in range(one.layers):
            ahead = machine.collective("all-gather", one.bytes * (1 if layer % 2 else 0.5))
            machine.computes(way, cost * one.compute * factor, ready)
            ready = ahead
            if way == "backward":
                machine.collective("reduce-scatter", one.bytes)
    machine.computes("optimizer", 0.3 * one.compute, machine.network)


def halo(machine: Machine, factor: float) -> None:
    """Run a step of a stencil: neighbours exchange borders, and all reduce a residual."""
    one = machine.program
    machine.computes("sweep", one.layers * one.compute * factor)
    machine.exchange(one.bytes / 10)
    machine.computes("border", one.compute * factor)
    machine.collective("all-reduce", 8, beside=False)


def transposes(machine: Machine, factor: float) -> None:
    """Run a step of a spectral code: two transposes between computing."""
    one = machine.program
    for name in ("rows", "columns"):
        machine.computes(name, one.layers * one.compute * factor)
        machine.collective("all-to-all", one.bytes * factor, beside=False, name=f"all-to-all-{name}")


FAMILIES: dict[str, Callable[[Machine, float], None]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "halo": halo,
    "transposes": transposes,
}
COLUMNS = ["rank", "step", "name", "kind", "start_ns", "duration_ns", "group", "peer", "bytes"]


def run(program: Program, ranks: int, base: int, seed: int, record: bool) -> tuple[float, pd.DataFrame]:
    """Run a program; return its mean step and the recorded operations."""
    machine = Machine(program, ranks, seed, record)
    factor = base / ranks if program.strong else 1.0
    for step in range(STEPS):
        machine.begin(step)
        FAMILIES[program.family](machine, factor)
    table = pd.DataFrame(machine.rows, columns=COLUMNS)
    if len(table):
        table = table.assign(stage=-1, microbatch=-1, chunk=-1, replica=-1)
        whole = ["start_ns", "duration_ns", "bytes", "peer"]
        table[whole] = table[whole].astype(float).round().astype(np.int64)
        by = ["rank", "step", "start_ns", "duration_ns", "name"]
        table = table.sort_values(by, kind="stable", ignore_index=True)
    return float(max(machine.work.max(), machine.network.max()) / STEPS), table


def results(seeds: range, ranks: tuple[int, ...] = RANKS, other: bool = False) -> Iterator[dict[str, object]]:
    """Yield a row for each prediction, of the other programs if wanted."""
    families, noises = (OTHER.FAMILIES, OTHER.NOISES) if other else (FAMILIES, NOISES)
    first = len(families) * len(noises) * seeds.start
    for number, (seed, family, noise) in enumerate(product(seeds, families, noises), first):
        program: Any
        execute: Any
        if other:
            program, execute = OTHER.Program(family, noise, seed), OTHER.run
            base, keep = program.base, program.keep
        else:
            program = Program(family, noise, seed, strong=family in ("halo", "transposes") and seed % 2 == 1)
            base, keep, execute = 2 if seed % 3 == 0 else 4, 1, run
        _, table = execute(program, base, base, 10_000 + number, True)
        predictor = Predictor(table, keep=keep)
        steps = predictor.unit.step_ns
        for count in ranks:
            truths = [execute(program, count, base, 100_000 + 10 * number + s, False)[0] for s in range(3)]
            truth = float(np.mean(truths))
            prediction = predictor.predict(count, "strong" if program.strong else "weak")
            step, lines = prediction.step, prediction.baselines
            error = step.value / truth - 1
            closer = min(abs(line / truth - 1) for line in lines.values())
            chance = np.hypot(np.std(steps, ddof=1) / len(steps) ** 0.5, np.std(truths, ddof=1) / 3**0.5)
            yield {
                "family": family,
                "noise": noise,
                "base": base,
                "ring": not other and program.ring,
                "strong": program.strong,
                "seed": seed,
                "ranks": count,
                "error": error,
                "inside": step.low <= truth <= step.high,
                "half": (step.high - step.low) / 2 / truth,
                "wins": abs(error) < closer,
                "loses": abs(error) - closer > 1.96 * chance / truth,
            }


def main() -> None:
    """Print the table."""
    begin = time.perf_counter()
    first, last = (int(sys.argv[at]) if len(sys.argv) > at else default for at, default in ((1, 12), (2, 23)))
    ranks = tuple(map(int, sys.argv[3].split(","))) if len(sys.argv) > 3 else RANKS
    table = pd.DataFrame(results(range(first, last + 1), ranks, "other" in sys.argv[4:]))
    table["size"] = table["error"].abs()
    for by in (["family"], ["noise"], ["noise", "base"], ["ring"], ["base"], ["ranks"], ["strong"]):
        print(
            table.groupby(by).agg(
                n=("size", "size"),
                median_pct=("size", lambda e: round(100 * e.median(), 2)),
                p90_pct=("size", lambda e: round(100 * e.quantile(0.9), 2)),
                cover_pct=("inside", lambda e: round(100 * e.mean(), 1)),
                half_pct=("half", lambda e: round(100 * e.median(), 2)),
                wins_pct=("wins", lambda e: round(100 * e.mean(), 1)),
                loses_pct=("loses", lambda e: round(100 * e.mean(), 1)),
            )
        )
    median = 100 * table["size"].median()
    inside, wins, loses = (100 * table[name].mean() for name in ("inside", "wins", "loses"))
    print(
        f"{len(table)} predictions: median error {median:.2f} %, cover {inside:.1f} %, better than both "
        f"baselines {wins:.1f} %, worse {loses:.1f} %, {time.perf_counter() - begin:.0f} s"
    )


if __name__ == "__main__":
    main()
