"""Simulated programs that share only the columns of a table of operations with the model of predictions.

Families: a stencil in three dimensions whose blocks exchange faces, edges and corners at once; a solver whose
reductions have two levels (within a node of four ranks, then across nodes); a spectral code on a grid of
processes that transposes in rows and in columns; sharded training that gathers weights two layers ahead on
one stream; pipelines (1F1B on four uneven stages) whose replicas reduce gradients. Each kind of operation has
a noise of its own: ``plain`` is Gaussian, ``drifting`` follows an autoregressive process beside ranks and
steps that are slower as a whole, ``skewed`` is lognormal with a wide tail, and ``rare`` pauses a rank once in
tens of steps. Collectives are the faster of recursive doubling and a ring, with a jitter for each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

NOISES = ("plain", "drifting", "skewed", "rare")
STEPS = 40
NODE = 4
STAGES = 4
COLUMNS = [
    *("rank", "start_ns", "duration_ns", "group", "peer", "step", "name", "kind", "bytes"),
    *("stage", "microbatch", "chunk", "replica"),
]
ALONE = np.array(-1)
Floats = np.ndarray


@dataclass
class Program:
    """The parameters of a random program."""

    family: str
    noise: str
    seed: int

    def __post_init__(self) -> None:
        draw = np.random.default_rng([7, self.seed])
        self.layers = int(draw.integers(3, 9))
        self.work = float(10 ** draw.uniform(6.0, 7.3))
        self.bytes = float(10 ** draw.uniform(4.5, 7.5))
        self.latency = float(10 ** draw.uniform(3.0, 4.0))
        self.rate = float(draw.uniform(8, 40))
        self.jitter = float(draw.uniform(0.005, 0.08))
        self.spread = {kind: float(10 ** draw.uniform(-2.4, -1.3)) for kind in "abc"}
        self.lasting = float(draw.uniform(0.0, 0.04))
        self.chance, self.pause = float(1 / draw.uniform(20, 150)), float(draw.uniform(0.2, 1.5))
        self.uneven = draw.uniform(0.8, 1.25, STAGES)
        self.strong = bool(self.family in ("stencil", "pencils") and draw.random() < 0.5)

    @property
    def base(self) -> int:
        """Ranks of the profile."""
        return {"stencil": 8, "levels": 8, "pencils": 4, "pipeline": 8}.get(
            self.family, 2 + 2 * (self.seed % 2)
        )

    @property
    def keep(self) -> int:
        """Ranks of the group that does not grow."""
        return NODE if self.family == "levels" else 1


class Machine:
    """Ranks with a clock for computing and one for a stream of communication."""

    def __init__(self, program: Program, ranks: int, seed: int, record: bool) -> None:
        self.program, self.ranks, self.record = program, ranks, record
        self.random = np.random.default_rng([11, seed])
        self.now, self.stream = np.zeros(ranks), np.zeros(ranks)
        self.rows: list[tuple[object, ...]] = []
        drifting = program.noise == "drifting"
        self.lasting = np.exp(
            program.lasting * self.random.standard_normal(ranks) if drifting else np.zeros(ranks)
        )
        self.drift, self.weather = np.zeros(ranks), 0.0
        self.step = 0
        self.paused = np.zeros(ranks)

    def begin(self, step: int) -> None:
        """Begin a step: ranks drift, and some will pause in it."""
        self.step = step
        own = self.random.standard_normal(self.ranks)
        self.drift = 0.8 * self.drift + 0.6 * own
        self.weather = 0.7 * self.weather + 0.7 * float(self.random.standard_normal())
        hit = self.random.random(self.ranks) < self.program.chance
        self.paused = np.where(hit, self.program.pause * self.random.exponential(1, self.ranks), 0.0)

    def factor(self, kind: str) -> Floats:
        """Return the factor of an operation's time on each rank."""
        program, size = self.program, self.program.spread[kind]
        normal = self.random.standard_normal(self.ranks)
        if program.noise == "skewed":
            return 1 + size * (np.exp(1.1 * normal) - 1)
        plain = np.maximum(1 + size * normal, 0.1)
        if program.noise == "drifting":
            slow = size * self.drift + 2 * size * self.weather
            return self.lasting * np.exp(slow) * plain
        if program.noise == "rare":
            plain = plain + self.paused
            self.paused = np.zeros(self.ranks)
        return plain

    def note(
        self,
        name: str,
        kind: str,
        start: Floats,
        end: Floats,
        group: Sequence[str] = ("",),
        peer: Floats = ALONE,
        size: float = -1,
        ranks: Floats | None = None,
        batch: int = -1,
    ) -> None:
        """Record an operation of ranks, by default of all; ``batch`` is its microbatch."""
        if not self.record:
            return
        ranks = np.arange(self.ranks) if ranks is None else ranks
        groups, peers = (
            (group if len(group) > 1 else [*group] * len(ranks)),
            np.broadcast_to(peer, len(ranks)),
        )
        for row in zip(
            ranks.tolist(), start.tolist(), (end - start).tolist(), groups, peers.tolist(), strict=True
        ):
            stage = row[0] % STAGES if self.program.family == "pipeline" else -1
            replica = row[0] // STAGES if self.program.family == "pipeline" else -1
            self.rows.append((*row, self.step, name, kind, round(size), stage, batch, -1, replica))

    def computes(self, name: str, kind: str, mean: float, after: Floats | float = 0.0) -> None:
        """Compute on all ranks, not before some moments."""
        start = np.maximum(self.now, after)
        self.now = start + mean * self.factor(kind)
        self.note(name, "compute", start, self.now)

    def takes(self, op: str, size: float, ranks: int) -> float:
        """Return what a collective takes without jitter."""
        one = self.program
        if ranks < 2:
            return 0.0
        doubling, share = np.ceil(np.log2(ranks)), (ranks - 1) / ranks
        twice = 2 if op == "all-reduce" else 1
        if op == "all-to-all":
            return (ranks - 1) * one.latency + share * size / one.rate
        tree = doubling * one.latency * twice + twice * share * size / one.rate
        ring = (ranks - 1) * one.latency * twice + twice * share * size / one.rate / 1.1
        return float(min(tree, ring))

    def collective(
        self, op: str, size: float, groups: Floats, beside: bool = False, name: str = "", of: str = "g"
    ) -> Floats:
        """Communicate within groups of ranks; return the ends."""
        start = np.maximum(self.now, self.stream) if beside else self.now.copy()
        end: Floats = start.copy()
        for group in np.unique(groups):
            members = np.flatnonzero(groups == group)
            noise = np.exp(self.program.jitter * self.random.standard_normal())
            end[members] = start[members].max() + noise * self.takes(op, size, len(members))
        labels = [f"{of}{group}" for group in groups]
        self.note(name or op, "collective", start, end, labels, size=size)
        self.stream = end
        if not beside:
            self.now = end
        return end

    def messages(self, peers: Sequence[tuple[str, Floats, Floats, float]]) -> None:
        """Send to and receive from peers at once (name, receiver, sender, bytes), and wait for all."""
        posted, last = self.now.copy(), self.now.copy()
        for name, receiver, sender, size in peers:
            took = self.program.latency + size / self.program.rate
            came = np.maximum(posted, posted[sender]) + took
            gone = came[receiver]
            self.note(f"{name}-recv", "recv", posted, came, peer=sender, size=size)
            self.note(f"{name}-send", "send", posted, gone, peer=receiver, size=size)
            last = np.maximum(last, np.maximum(came, gone))
        self.now = last

    def table(self) -> pd.DataFrame:
        """Return the recorded operations."""
        table = pd.DataFrame(self.rows, columns=COLUMNS)
        whole = ["start_ns", "duration_ns", "bytes", "peer"]
        table[whole] = table[whole].astype(float).round().astype(np.int64)
        by = ["rank", "step", "start_ns", "duration_ns", "name"]
        ordered: pd.DataFrame = table.sort_values(by, kind="stable", ignore_index=True)
        return ordered


def shape(ranks: int, dimensions: int) -> tuple[int, ...]:
    """Return the most cubic grid of a power of two."""
    bits = round(np.log2(ranks))
    return tuple(2 ** (bits // dimensions + (at < bits % dimensions)) for at in range(dimensions))


def stencil(machine: Machine, smaller: float) -> None:
    """Run a step of a stencil in three dimensions."""
    one = machine.program
    sides = shape(machine.ranks, 3)
    place = np.stack(np.unravel_index(np.arange(machine.ranks), sides))
    peers = []
    for move in product((-1, 0, 1), repeat=3):
        moved = sum(map(abs, move))
        if not moved or any(step and side == 1 for step, side in zip(move, sides, strict=True)):
            continue
        to, come = (
            np.ravel_multi_index((place + sign * np.array(move)[:, None]) % np.array(sides)[:, None], sides)
            for sign in (1, -1)
        )
        size = one.bytes * smaller ** ((3 - moved) / 3) / 30 ** (moved - 1)
        peers.append((str(move), to, come, size))
    machine.computes("inner", "a", one.layers * one.work * smaller)
    machine.messages(peers)
    machine.computes("outer", "b", one.work * smaller)
    machine.collective("all-reduce", 16, np.zeros(machine.ranks, int), name="all-reduce-residual")


def levels(machine: Machine, smaller: float) -> None:
    """Run a step of a solver that reduces within nodes and then across them."""
    one, ranks = machine.program, np.arange(machine.ranks)
    for half in range(2):
        machine.computes(f"part-{half}", "ab"[half], one.layers * one.work / 2)
        machine.collective(
            "reduce-scatter", one.bytes, ranks // NODE, name=f"reduce-scatter-{half}", of="node"
        )
        machine.collective("all-reduce", one.bytes / NODE, ranks % NODE, name=f"all-reduce-{half}", of="rail")
        machine.collective("all-gather", one.bytes, ranks // NODE, name=f"all-gather-{half}", of="node")


def pencils(machine: Machine, smaller: float) -> None:
    """Run a step of a spectral code on a grid of processes."""
    one, ranks = machine.program, np.arange(machine.ranks)
    columns = shape(machine.ranks, 2)[1]
    for at, groups in enumerate((ranks // columns, ranks % columns)):
        machine.computes(f"fft-{at}", "ab"[at], one.layers * one.work / 2 * smaller)
        name = f"all-to-all-{at}"
        machine.collective("all-to-all", one.bytes * smaller, groups, name=name, of=("row", "column")[at])
    machine.computes("multiply", "c", one.work * smaller)


def sharded(machine: Machine, smaller: float) -> None:
    """Run a step of sharded training that gathers two layers ahead."""
    one, world = machine.program, np.zeros(machine.ranks, int)
    weights = [one.bytes * (1 + layer % 3) for layer in range(one.layers)]
    for way, cost, order in (("forward", 1.0, range(one.layers)), ("backward", 2.0, range(one.layers)[::-1])):
        layers = list(order)
        ready: list[Floats] = []
        for at, layer in enumerate(layers):
            while len(ready) < min(at + 3, len(layers)):
                size = weights[layers[len(ready)]]
                ready.append(
                    machine.collective("all-gather", size, world, beside=True, name=f"all-gather-{way}")
                )
            machine.computes(f"{way}", "ab"[cost > 1], cost * one.work * (1 + 0.3 * (layer % 2)), ready[at])
            if way == "backward":
                machine.collective("reduce-scatter", weights[layer], world, beside=True)
    machine.computes("optimizer", "c", 0.4 * one.work, machine.stream)


def pipeline(machine: Machine, smaller: float) -> None:
    """Run a step of 1F1B on uneven stages, whose replicas reduce gradients."""
    one, replicas, batches = machine.program, machine.ranks // STAGES, 8
    stage = np.arange(machine.ranks) % STAGES
    took = one.latency + one.bytes / 8 / one.rate
    ends: dict[tuple[str, int, int], Floats] = {}
    orders = []
    for number in range(STAGES):
        early = min(STAGES - 1 - number, batches)
        order = [("forward", batch) for batch in range(early)]
        for batch in range(batches - early):
            order += [("forward", early + batch), ("backward", batch)]
        orders.append(order + [("backward", batch) for batch in range(batches - early, batches)])
    done = [0] * STAGES
    begin = machine.now
    now = [begin[stage == number].copy() for number in range(STAGES)]

    def note(
        number: int, name: str, kind: str, start: Floats, end: Floats, batch: int, peer: int = -1
    ) -> None:
        ranks = np.arange(replicas) * STAGES
        peers, size = (ranks + peer, one.bytes / 8) if peer >= 0 else (ALONE, -1)
        machine.note(name, kind, start, end, ("",), peers, size, ranks + number, batch)

    while any(done[number] < len(orders[number]) for number in range(STAGES)):
        for number in range(STAGES):
            if done[number] == len(orders[number]):
                continue
            way, batch = orders[number][done[number]]
            source = number - 1 if way == "forward" else number + 1
            inner = 0 <= source < STAGES
            if inner and (way, source, batch) not in ends:
                continue
            if inner:
                sent = ends[way, source, batch]
                came = np.maximum(now[number], sent) + took
                note(number, f"{way}-recv", "recv", now[number], came, batch, source)
                note(source, f"{way}-send", "send", sent, came, batch, number)
                now[number] = came
            factor = machine.factor("ab"[way == "backward"])[stage == number]
            cost = one.work * one.uneven[number] * (2 if way == "backward" else 1)
            end = now[number] + cost * factor
            note(number, way, "compute", now[number], end, batch)
            now[number] = end
            ends[way, number, batch] = end
            done[number] += 1
    for number in range(STAGES):
        machine.now[stage == number] = now[number]
    machine.collective("all-reduce", one.bytes, stage, name="gradients", of="stage")
    machine.computes("optimizer", "c", 0.5 * one.work)


FAMILIES: dict[str, Callable[[Machine, float], None]] = {
    "stencil": stencil,
    "levels": levels,
    "pencils": pencils,
    "sharded": sharded,
    "pipeline": pipeline,
}


def run(program: Program, ranks: int, base: int, seed: int, record: bool) -> tuple[float, pd.DataFrame]:
    """Run a program; return its mean step and the recorded operations."""
    machine = Machine(program, ranks, seed, record)
    smaller = base / ranks if program.strong else 1.0
    for step in range(STEPS):
        machine.begin(step)
        FAMILIES[program.family](machine, smaller)
    whole = float(max(machine.now.max(), machine.stream.max()) / STEPS)
    return whole, machine.table() if record else pd.DataFrame()
