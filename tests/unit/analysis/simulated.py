"""Programs on several ranks, played through with exact times, as timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import analyze_rank, data_frame
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.timeline import NO_PEER, UNKNOWN_RANKS, Timeline
from tests.unit.analysis.timelines import COMM, COMP, timeline

TRANSFER = 350_000
JITTER = 2_000
LAG = 13_000
"""The time from the end of a send to the end of its receive."""
MESSAGE = 30_000
"""The time of a send, and of a receive that need not wait."""


@dataclass
class Rank:
    """One rank's own clock, and what its profile records; ``now`` is when its GPU is free."""

    ahead: int = 0
    drift: float = 0.0
    now: int = 1_000_000
    host: int = 0
    work: list[tuple[Any, ...]] = field(default_factory=list)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    steps: list[tuple[Any, ...]] = field(default_factory=list)

    def clock(self, moment: float) -> int:
        """Return what this rank's clock shows at a moment."""
        return round(moment * (1 + self.drift)) + self.ahead

    def launch(self) -> int:
        """Return the next moment at which the host launches something."""
        self.host += 10
        return self.host

    def timeline(self, world: int | None) -> Timeline:
        """Return the profile."""
        return timeline(
            [(self.clock(a), self.clock(b), c, self.clock(m)) for a, b, c, m in self.work],
            [(self.clock(a), self.clock(b), "iteration") for a, b in self.steps],
            [(self.clock(a), self.clock(b), *rest) for a, b, *rest in self.asked],
            world,
        )


class Program:
    """Ranks that compute and communicate.

    An all-to-all collective ends on every rank when the last one has begun and the transfer is done,
    give or take a random jitter.
    """

    def __init__(self, ranks: int, ahead: Sequence[int] = (), drift: Sequence[float] = ()) -> None:
        self.ranks = [Rank() for _ in range(ranks)]
        for rank, value in zip(self.ranks, ahead, strict=False):
            rank.ahead = value
        for rank, rate in zip(self.ranks, drift, strict=False):
            rank.drift = rate
        self.random = np.random.default_rng(0)

    def compute(self, *times: int) -> None:
        """Let each rank compute for its time."""
        for number, time in enumerate(times):
            self.compute_on(number, time)

    def compute_on(self, number: int, time: int) -> None:
        """Let one rank compute."""
        rank = self.ranks[number]
        rank.work.append((rank.now, rank.now + time, COMP, rank.launch()))
        rank.now += time

    def collective(
        self, op: str, message: int = 32 << 20, comm: str | None = "c", members: Sequence[int] = ()
    ) -> None:
        """Let the members wait for each other and communicate, nothing else running."""
        ranks = [self.ranks[i] for i in members] if members else self.ranks
        self.communicate(ranks, [rank.now for rank in ranks], op, message, comm, TRANSFER)

    def communicate(
        self, ranks: list[Rank], begin: Sequence[int], op: str, message: int, comm: str | None, time: int
    ) -> None:
        """Carry out a collective that the ranks begin at given moments."""
        end = max(begin) + time
        for rank, start in zip(ranks, begin, strict=True):
            rank.now = end + int(self.random.integers(0, JITTER))
            moment = rank.launch()
            rank.work.append((start, rank.now, COMM, moment))
            rank.asked.append((moment - 2, moment + 2, op, comm, message))

    def message(
        self, sender: int, receiver: int, *, comm: str | None = "p", size: int = 8 << 20, named: bool = True
    ) -> None:
        """Send a message through a buffer: the receiver waits for the sender, which waits for nobody.

        ``named`` is whether the profiles record the partners.
        """
        a, b = self.ranks[sender], self.ranks[receiver]
        sent = a.now + MESSAGE
        arrived = max(sent + LAG, b.now + MESSAGE) + int(self.random.integers(0, JITTER))
        for rank, end, op, partner in ((a, sent, "Send", receiver), (b, arrived, "Recv", sender)):
            moment = rank.launch()
            rank.work.append((rank.now, end, COMM, moment))
            peer = partner if named else NO_PEER
            rank.asked.append((moment - 2, moment + 2, op, comm, size, 0, UNKNOWN_RANKS, peer))
            rank.now = end

    def begin_step(self) -> list[int]:
        """Open a step on every rank's host."""
        return [rank.launch() for rank in self.ranks]

    def end_step(self, begun: list[int]) -> None:
        """Close it."""
        for rank, start in zip(self.ranks, begun, strict=True):
            rank.steps.append((start, rank.launch()))

    def results(self, without: Sequence[int] = (), world: int | None = -1) -> dict[str, pd.DataFrame]:
        """Return what the analyses over ranks get; the number of ranks is recorded unless it is None."""
        size = len(self.ranks) if world == -1 else world
        tables: dict[str, list[pd.DataFrame]] = {
            name: [] for name in ("rank_collectives", "step_times", "step_parts", "exposed_communication")
        }
        for number, rank in enumerate(self.ranks):
            if number not in without:
                profile = rank.timeline(size)
                for name, parts in tables.items():
                    found = analyze_rank(ANALYSES[name], profile, number)
                    parts.append(data_frame(ANALYSES[name].columns, found.columns))
        return {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}


def sequence_parallel(
    ranks: int,
    late: Sequence[int] = (),
    extra: int = 0,
    steps: int = 40,
    ahead: Sequence[int] = (),
    drift: Sequence[float] = (),
    comm: str | None = "c",
) -> Program:
    """All-gather, product, reduce-scatter; some ranks do extra work in every step."""
    program = Program(ranks, ahead, drift)
    for _ in range(steps):
        begun = program.begin_step()
        program.collective("AllGather", comm=comm)
        program.compute(*(2_000_000 + (extra if i in late else 0) for i in range(ranks)))
        program.collective("ReduceScatter", comm=comm)
        program.end_step(begun)
    return program


def data_parallel(
    ranks: int, backward: Sequence[int], buckets: int = 10, host_sleeps: int = -1, steps: int = 10
) -> Program:
    """A backward pass whose gradients are reduced bucket by bucket beside it.

    ``backward`` is each rank's time of the pass. The host of the rank ``host_sleeps`` sleeps 20 ms at the
    beginning of every step, but launches far ahead of its GPU all the same.
    """
    program = Program(ranks)
    everyone = program.ranks
    for _ in range(steps):
        if host_sleeps >= 0:
            everyone[host_sleeps].host += 20_000_000
        begun = program.begin_step()
        start = [rank.now for rank in everyone]
        program.compute(*backward)
        free = list(start)
        for bucket in range(1, buckets + 1):
            ready = [s + b * bucket // buckets for s, b in zip(start, backward, strict=True)]
            program.communicate(
                everyone,
                [max(a, b) for a, b in zip(ready, free, strict=True)],
                "AllReduce",
                25 << 20,
                "c",
                400_000,
            )
            free = [rank.now for rank in everyone]
        for rank, s, b in zip(everyone, start, backward, strict=True):
            rank.now = max(rank.now, s + b)
        program.compute(*[1_000_000] * ranks)
        program.end_step(begun)
    return program


def pipeline(
    forward: Sequence[int],
    steps: int = 10,
    microbatches: int = 4,
    ahead: Sequence[int] = (),
    drift: Sequence[float] = (),
    comm: str | None = "p",
    named: bool = True,
) -> Program:
    """Stages that pass microbatches on, all forward and then all backward, which takes twice as long.

    ``forward`` is each stage's time for the forward pass of a microbatch.
    """
    program = Program(len(forward), ahead, drift)
    last = len(forward) - 1
    for _ in range(steps):
        begun = program.begin_step()
        for _ in range(microbatches):
            for stage, time in enumerate(forward):
                if stage:
                    program.message(stage - 1, stage, comm=comm, named=named)
                program.compute_on(stage, time)
        for _ in range(microbatches):
            for stage in range(last, -1, -1):
                if stage < last:
                    program.message(stage + 1, stage, comm=comm, named=named)
                program.compute_on(stage, 2 * forward[stage])
        program.end_step(begun)
    return program
