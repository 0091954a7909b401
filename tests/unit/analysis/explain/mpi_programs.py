"""MPI programs that a small simulation runs, so that the cost of what they do is known exactly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from hpcprof.analysis.collectives.common_clock import RankClock
from hpcprof.analysis.collectives.matches import Matches
from hpcprof.analysis.explain.explain import explain_run
from hpcprof.analysis.explain.explanation import Explanation
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.steps.step_detection import common_step_range, step_candidates
from hpcprof.profiles.timeline import StepRange, Timeline
from tests.unit.analysis.explain.programs import whole_run
from tests.unit.analysis.mpi.programs import Program

US, MS = 1_000, 1_000_000
LATENCY, PER_KB = 3 * US, 1 * US

Action = tuple[Any, ...]
Actions = Iterator[Action]
"""The actions of a rank: ("work", ns), ("os", call, ns), ("send", peer, bytes[, tag]),
("ssend", peer, bytes), ("exchange", peer, bytes), ("recv", peer[, tag]) or
("all", call, operation, root, bytes, ns of transfer)."""


def work(time: float) -> Action:
    """Work outside MPI."""
    return ("work", round(time))


def allreduce(transfer: int = 20 * US) -> Action:
    """A reduction of all ranks."""
    return ("all", "MPI_Allreduce", "AllReduce", -1, 8, transfer)


@dataclass
class Simulated:
    """A program and how long it takes, in ns, from the first step to the end."""

    program: Program
    elapsed: int
    ranks: int

    def inputs(self) -> ExplainInputs:
        """Return what an explanation reads."""
        timelines = {
            rank: replace(self.program.timeline(rank), step_range=None) for rank in range(self.ranks)
        }
        name = common_step_range({rank: step_candidates(one) for rank, one in timelines.items()})
        timelines = {rank: replace(one, step_range=StepRange(name)) for rank, one in timelines.items()}
        return explain_inputs(timelines, self.program)

    def explain(self) -> Explanation:
        """Explain the program."""
        return explain_run(self.inputs())[0]


def explain_inputs(timelines: dict[int, Timeline], program: Program) -> ExplainInputs:
    """Return the inputs of a run with these timelines, on the clock of the program."""
    lists = program.lists()
    computed = program.tables(lists=lists)
    tables = defaultdict(pd.DataFrame, lists)
    tables |= {name: computed[name].rows for name in ("mpi_waits", "mpi_calls")}
    tables["os_calls"] = pd.concat(
        analyze_rank(ANALYSES["os_calls"], timeline, rank).frame for rank, timeline in timelines.items()
    )
    clocks = {rank: RankClock.shifted(program.ahead.get(rank, 0)) for rank in timelines}
    return ExplainInputs(
        ranks=tuple(timelines),
        read=timelines.__getitem__,
        window=lambda rank, *_: timelines[rank],
        mpi=lambda _: whole_run(tables, clocks),
        tables=tables,
        losses={},
        clocks=clocks,
        aligned=[*clocks],
        matches=lambda _: Matches.concatenate([]),
        arrivals=lambda: [],
        world_size=len(timelines),
        gpus={},
    )


def simulate(ranks: int, steps: int, body: Callable[[int, int], Actions], ahead: int = 0) -> Simulated:
    """Run a program: ``body(rank, step)`` yields what a rank does in a step.

    Messages arrive a latency and the time of their bytes after they are sent; a synchronous send, and each
    collective, ends after both or all sides have come.
    """
    program = Program(ranks, ahead={rank: rank * ahead for rank in range(ranks)})

    def whole(rank: int) -> Actions:
        yield ("all", "MPI_Barrier", "Barrier", -1, -1, 10 * US)
        for step in range(steps):
            yield from body(rank, step)

    threads = [whole(rank) for rank in range(ranks)]
    now = [MS] * ranks
    for rank in range(ranks):
        program.call(rank, "MPI_Init", 0, MS - 1000)
    pending: list[Action | None] = [next(thread, None) for thread in threads]
    sent: dict[tuple[int, int, int], list[tuple[int, int]]] = {}

    def done(rank: int, call: str, end: int, *operations: dict[str, Any]) -> None:
        program.call(rank, call, now[rank], end, *operations)
        now[rank] = end
        pending[rank] = next(threads[rank], None)

    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            action = pending[rank]
            if action is None:
                continue
            kind = action[0]
            if kind == "work":
                now[rank] += action[1]
                pending[rank] = next(threads[rank], None)
            elif kind == "os":
                program.os_calls.append((rank, action[1], now[rank], now[rank] + action[2]))
                now[rank] += action[2]
                pending[rank] = next(threads[rank], None)
            elif kind == "send":
                (tag,) = action[3:] or (0,)
                sent.setdefault((rank, action[1], tag), []).append((now[rank], action[2]))
                message = {"op": "Send", "peer": action[1], "tag": tag, "bytes": action[2]}
                done(rank, "MPI_Send", now[rank] + US, message)
            elif kind == "ssend":
                partner = pending[action[1]]
                if partner is None or partner[:2] != ("recv", rank):
                    continue
                peer, size = action[1], action[2]
                end = max(now[rank], now[peer]) + LATENCY + PER_KB * size // 1024
                done(rank, "MPI_Ssend", end, {"op": "Send", "peer": peer, "tag": 0, "bytes": size})
                done(peer, "MPI_Recv", end, {"op": "Recv", "peer": rank, "tag": 0, "received": size})
            elif kind == "exchange":
                peer, size = action[1:]
                if pending[peer] != ("exchange", rank, size):
                    continue
                end = max(now[rank], now[peer]) + LATENCY + PER_KB * size // 1024
                for own, other in ((rank, peer), (peer, rank)):
                    both = {"peer": other, "tag": 0}
                    sides = {"op": "Send", "bytes": size, **both}, {"op": "Recv", "received": size, **both}
                    done(own, "MPI_Sendrecv", end, *sides)
            elif kind == "recv":
                (tag,) = action[2:] or (0,)
                waiting = sent.get((action[1], rank, tag))
                if not waiting:
                    continue
                moment, size = waiting.pop(0)
                end = max(now[rank], moment) + LATENCY + PER_KB * size // 1024
                done(rank, "MPI_Recv", end, {"op": "Recv", "peer": action[1], "tag": tag, "received": size})
            else:
                others = [one for one in pending if one is not None and one[:2] == action[:2]]
                if len(others) < ranks:
                    continue
                _collective(program, action, now)
                pending = [next(thread, None) for thread in threads]
            moved = True
    assert not any(pending), "the program hangs"
    for rank in range(ranks):
        program.call(rank, "MPI_Finalize", max(now) + 10, max(now) + 20)
    return Simulated(program, max(now) - MS, ranks)


def _collective(program: Program, action: Action, now: list[int]) -> None:
    _, call, op, root, size, transfer = action
    starts = list(now)
    for rank, start in enumerate(starts):
        # Receivers of a broadcast, and who gives what is not buffered, need the root only, the root of a
        # reduction needs all ranks, and a rank in a scan those before it.
        from_root = op == "Broadcast" or (op == "Gather" and rank != root)
        needed = starts[root] if from_root else max(starts[: rank + 1] if op == "Scan" else starts)
        alone = rank == root if op == "Broadcast" else op == "Reduce" and rank != root
        now[rank] = start + US if alone else max(start, needed) + transfer
        operation = {"op": op, "root": root, "bytes": size, "received": size}
        program.call(rank, call, start, now[rank], operation)
