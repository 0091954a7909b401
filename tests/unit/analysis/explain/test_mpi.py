"""Programs of MPI without a GPU are replayed: the first finding is the cause, and its price what it costs."""

from __future__ import annotations

import heapq
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.account.step_account import step_parts
from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.changes import parse_changes
from hpcprof.analysis.explain.explain import explain_run
from hpcprof.analysis.explain.explanation import NOT_JOINED, WAITING
from hpcprof.analysis.explain.findings import estimated_finding
from hpcprof.analysis.explain.replayable import Replayable, _without_steps, replayable
from hpcprof.analysis.explain.whatif import predict
from hpcprof.analysis.explain.whole_run import is_held_up, unexplained_in_mpi
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.steps.step_ranges import no_steps
from hpcprof.common.errors import UsageError
from hpcprof.profiles.collective_operations import POINT_TO_POINT
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.timeline import OsCalls
from tests.unit.analysis.explain.mpi_programs import MS, US, Actions, Simulated, allreduce, simulate, work
from tests.unit.analysis.mpi.programs import Program

STEPS, RANKS = 12, 4

Body = Callable[[int, int], Actions]


def uneven(rank: int, step: int) -> float:
    """Return a factor by which work differs a little from rank to rank and step to step."""
    return 1 + 0.002 * ((rank * 7 + step * 3) % 5)


def halo(late: int = -1, extra: float = 0, transfer: int = 20 * US) -> Body:
    def body(rank: int, step: int) -> Actions:
        left, right = (rank - 1) % RANKS, (rank + 1) % RANKS
        yield work(6 * MS * uneven(rank, step) + (extra if rank == late else 0))
        yield ("send", right, 8192)
        yield ("send", left, 8192)
        yield ("recv", left)
        yield ("recv", right)
        yield work(2 * MS)
        yield allreduce(transfer)

    return body


def serial(alone: float) -> Body:
    def body(rank: int, step: int) -> Actions:
        yield work(6 * MS * uneven(rank, step))
        yield allreduce()
        if not rank:
            yield work(alone)
        yield ("all", "MPI_Bcast", "Broadcast", 0, 512, 20 * US)
        yield work(2 * MS)

    return body


def wavefront(late: int = -1, extra: float = 0) -> Body:
    def body(rank: int, step: int) -> Actions:
        for _ in range(8):
            if rank:
                yield ("recv", rank - 1)
            yield work(MS * uneven(rank, step) + (extra / 8 if rank == late else 0))
            if rank < RANKS - 1:
                yield ("send", rank + 1, 4096)
        yield allreduce()

    return body


def sweeps(late: int = -1, extra: float = 0, alone: float = 0) -> Body:
    """A wavefront in one direction, and then one back; the first rank may work alone after that."""

    def body(rank: int, step: int) -> Actions:
        for direction in (1, -1):
            for _ in range(6):
                if 0 <= rank - direction < RANKS:
                    yield ("recv", rank - direction)
                yield work(MS * uneven(rank, step) + (extra / 12 if rank == late else 0))
                if 0 <= rank + direction < RANKS:
                    yield ("send", rank + direction, 4096)
        yield allreduce()
        if not rank:
            yield work(alone)
        yield ("all", "MPI_Bcast", "Broadcast", 0, 512, 20 * US)

    return body


def shift(late: int = -1, extra: float = 0) -> Body:
    """Each rank sends to the next one on a ring."""

    def body(rank: int, step: int) -> Actions:
        yield work(6 * MS * uneven(rank, step) + (extra if rank == late else 0))
        yield ("send", (rank + 1) % RANKS, 8192)
        yield ("recv", (rank - 1) % RANKS)
        yield allreduce()

    return body


def master(service: float) -> Body:
    def body(rank: int, step: int) -> Actions:
        for _ in range(3):
            for worker in range(1, RANKS):
                if rank == worker:
                    yield ("send", 0, 8)
                    yield ("recv", 0)
                    yield work(2 * MS)
                elif not rank:
                    yield ("recv", worker)
                    yield work(service)
                    yield ("send", worker, 8)
        yield allreduce()

    return body


def farm(slow: int = -1, extra: float = 0) -> Body:
    """Workers take one of 60 tasks after another from a master; one of them may be slow."""
    length = {worker: MS + (extra if worker == slow else 0) for worker in range(1, RANKS)}
    free = [(worker * 10.0 * US, worker) for worker in length]
    asks = []
    for _ in range(60):
        moment, worker = heapq.heappop(free)
        asks.append(worker)
        heapq.heappush(free, (moment + length[worker], worker))

    def body(rank: int, step: int) -> Actions:
        for worker in asks:
            if rank == worker:
                yield ("send", 0, 8)
                yield ("recv", 0)
                yield work(length[rank] * uneven(rank, step))
            elif not rank:
                yield ("recv", worker)
                yield work(10 * US)
                yield ("send", worker, 8)
        yield allreduce()

    return body


def rounds(slow: int = -1, extra: float = 0) -> Body:
    """A master gives each worker one task, and takes what they return before the next round."""

    def body(rank: int, step: int) -> Actions:
        for _ in range(4):
            if rank:
                yield ("recv", 0)
                yield work((MS + (extra if rank == slow else 0)) * uneven(rank, step))
                yield ("send", 0, 8)
            else:
                yield from (("send", worker, 8) for worker in range(1, RANKS))
                yield from (("recv", worker) for worker in range(1, RANKS))
        yield allreduce()

    return body


def pieces(messages: int) -> Body:
    def body(rank: int, step: int) -> Actions:
        yield work(4 * MS * uneven(rank, step))
        for _ in range(messages):
            yield ("send", (rank + 1) % RANKS, 64 * 500 // messages)
        for _ in range(messages):
            yield ("recv", (rank - 1) % RANKS)
        yield allreduce()

    return body


def rendezvous(late: float) -> Body:
    def body(rank: int, step: int) -> Actions:
        if rank % 2:
            yield work(3 * MS + late)
            yield ("recv", rank - 1)
            yield work(5 * MS - late)
        else:
            yield work(3 * MS * uneven(rank, step))
            yield ("ssend", rank + 1, 4096)
            yield work(5 * MS)
        yield allreduce()

    return body


def ordered(first: int) -> Body:
    """Pairs exchange two messages, of which the first one or the second is what the receiver needs first."""

    def body(rank: int, step: int) -> Actions:
        if rank % 2:
            for tag in (1, 2):
                yield ("recv", rank - 1, tag)
                yield work(4 * MS * uneven(rank, step))
        else:
            for tag in (first, 3 - first):
                yield work(4 * MS * uneven(rank, step))
                yield ("send", rank + 1, 512, tag)
        yield allreduce()

    return body


def in_turn(extra: float, held: int = 20 * US) -> Body:
    """Each step takes one of the ranks longer, by chance which and how long."""

    def body(rank: int, step: int) -> Actions:
        random = np.random.default_rng(step)
        late, time = random.integers(RANKS), extra * random.uniform(0.5, 1.5)
        yield work(6 * MS * uneven(rank, step) + (time if rank == late else 0))
        yield allreduce(held if step % 2 else 20 * US)

    return body


def twice(late: int = -1, extra: float = 0) -> Body:
    """Two reductions of one name in a step; a rank may be late for the first."""

    def body(rank: int, step: int) -> Actions:
        yield work(4 * MS * uneven(rank, step) + (extra if rank == late else 0))
        yield allreduce()
        yield work(4 * MS * uneven(rank, step))
        yield allreduce()

    return body


def scan(late: int = -1, extra: float = 0) -> Body:
    """Each rank needs those before it, and then all meet."""

    def body(rank: int, step: int) -> Actions:
        yield work(6 * MS * uneven(rank, step) + (extra if rank == late else 0))
        yield ("all", "MPI_Scan", "Scan", -1, 8, 20 * US)
        yield allreduce()

    return body


def gather(extra: float = 0) -> Body:
    """The root of a gather may come late, for which the others wait with their data."""

    def body(rank: int, step: int) -> Actions:
        yield work(6 * MS * uneven(rank, step) + (extra if not rank else 0))
        yield ("all", "MPI_Gather", "Gather", 0, 65536, 20 * US)
        yield allreduce()

    return body


def odd_even(late: int = -1, extra: float = 0) -> Body:
    """Neighbours in a line exchange in pairs, first even and odd ones, then odd and even ones."""

    def body(rank: int, step: int) -> Actions:
        for phase in range(2):
            yield work(4 * MS * uneven(rank, step) + (extra if rank == late and not phase else 0))
            partner = rank + 1 if rank % 2 == phase else rank - 1
            if 0 <= partner < RANKS:
                yield ("exchange", partner, 4096)

    return body


def tree(late: int = -1, extra: float = 0) -> Body:
    """Four ranks send to the next lower power of two, and get the result back the same way."""

    def body(rank: int, step: int) -> Actions:
        yield work(6 * MS * uneven(rank, step) + (extra if rank == late else 0))
        below = {0: (1, 2), 2: (3,)}.get(rank, ())
        for one in below:
            yield ("recv", one)
        if rank:
            yield ("send", rank & (rank - 1), 64)
            yield ("recv", rank & (rank - 1))
        for one in reversed(below):
            yield ("send", one, 64)

    return body


def per_step(body: Body) -> float:
    """Return the time of a step in ns."""
    return simulate(RANKS, STEPS, body).elapsed / STEPS


@pytest.mark.parametrize(
    ("planted", "without", "cause", "ranks", "where"),
    [
        (halo(2, 4 * MS), halo(), Cause.LATE_RANK_HOST, (2,), "between MPI_Allreduce and MPI_Send"),
        (serial(3 * MS), serial(0), Cause.SERIAL_SECTION, (0,), "between MPI_Allreduce and MPI_Bcast"),
        (wavefront(2, 4 * MS), wavefront(), Cause.PIPELINE_BUBBLE, (2,), "between MPI_Recv and MPI_Send"),
        (sweeps(2, 4 * MS), sweeps(), Cause.PIPELINE_BUBBLE, (2,), "between MPI_Recv and MPI_Send"),
        (sweeps(alone=4 * MS), sweeps(), Cause.SERIAL_SECTION, (0,), "between MPI_Allreduce and MPI_Bcast"),
        (shift(2, 4 * MS), shift(), Cause.LATE_RANK_HOST, (2,), "between MPI_Allreduce and MPI_Send"),
        (master(MS), master(0), Cause.SERIAL_SECTION, (0,), "between MPI_Recv and MPI_Send"),
        (pieces(500), pieces(1), Cause.SMALL_MESSAGES, (0, 1, 2, 3), "MPI_Recv"),
        (rendezvous(3 * MS), rendezvous(0), Cause.LATE_RECEIVER, (1, 3), "MPI_Ssend"),
        (
            twice(1, 4 * MS),
            twice(),
            Cause.LATE_RANK_HOST,
            (1,),
            "between MPI_Allreduce and MPI_Allreduce",
        ),
        (scan(2, 4 * MS), scan(), Cause.LATE_RANK_HOST, (2,), "between MPI_Allreduce and MPI_Scan"),
        (gather(4 * MS), gather(), Cause.LATE_RANK_HOST, (0,), "between MPI_Allreduce and MPI_Gather"),
        (
            odd_even(2, 4 * MS),
            odd_even(),
            Cause.LATE_RANK_HOST,
            (2,),
            "between MPI_Sendrecv and MPI_Sendrecv",
        ),
        (tree(2, 4 * MS), tree(), Cause.LATE_RANK_HOST, (2,), "between MPI_Send and MPI_Recv"),
        (ordered(2), ordered(1), Cause.WRONG_ORDER, (1, 3), "MPI_Recv"),
        (
            in_turn(4 * MS),
            in_turn(0),
            Cause.LATE_RANK_HOST,
            (0, 1, 2, 3),
            "between MPI_Allreduce and MPI_Allreduce",
        ),
    ],
    ids=[
        *("late rank", "serial section", "slow stage", "slow stage of sweeps", "serial section after sweeps"),
        *("late rank of a ring", "master", "small messages", "late receiver"),
        *(
            "late for one of two",
            "late for a scan",
            "late root",
            "late for exchanges",
            "late for a tree",
            "wrong order",
            "late in turn",
        ),
    ],
)
def test_the_first_finding_is_what_was_planted_at_its_price(
    planted: Body, without: Body, cause: Cause, ranks: tuple[int, ...], where: str
) -> None:
    found = simulate(RANKS, STEPS, planted, ahead=5 * MS).explain().shown()
    first = found[0]
    assert (first.cause, first.ranks, first.where) == (cause, ranks, where)
    cost = per_step(planted) - per_step(without)
    assert first.saving_ns == pytest.approx(cost, rel=0.1)
    assert first.evidence
    assert first.remedy


def test_what_other_ranks_lose_in_one_step_makes_a_late_rank_no_cheaper() -> None:
    """The others may lose their cores once; in all other steps they wait for the late one."""

    def held_up(late: int) -> Body:
        usual = halo(late, 3 * MS)

        def body(rank: int, step: int) -> Actions:
            if rank in (1, 3) and step == 5:
                yield work(26 * MS)
            yield from usual(rank, step)

        return body

    first = simulate(RANKS, 30, held_up(2)).explain().shown()[0]
    assert (first.cause, first.ranks) == (Cause.LATE_RANK_HOST, (2,))
    cost = (simulate(RANKS, 30, held_up(2)).elapsed - simulate(RANKS, 30, held_up(-1)).elapsed) / 30
    assert first.saving_ns == pytest.approx(cost, rel=0.1)


def test_ranks_that_are_late_together_are_named_however_many_they_are() -> None:
    def six_late(extra: float) -> Body:
        def body(rank: int, step: int) -> Actions:
            yield work(6 * MS * uneven(rank, step) + (extra if rank < 6 else 0))
            yield allreduce()

        return body

    first = simulate(16, STEPS, six_late(3 * MS)).explain().shown()[0]
    assert (first.cause, first.ranks) == (Cause.LATE_RANK_HOST, tuple(range(6)))
    cost = (simulate(16, STEPS, six_late(3 * MS)).elapsed - simulate(16, STEPS, six_late(0)).elapsed) / STEPS
    assert first.saving_ns == pytest.approx(cost, rel=0.1)


def test_a_stage_that_is_slower_in_one_direction_is_priced_in_that_one() -> None:
    """The first and the last stage have other calls around their blocks, and tell nothing about those."""

    def both_ways(extra: float) -> Body:
        def body(rank: int, step: int) -> Actions:
            for direction in (1, -1):
                for _ in range(4):
                    if 0 <= rank - direction < RANKS:
                        yield ("recv", rank - direction)
                    slower = extra if rank == 2 and direction == 1 else 0
                    yield work((1 if direction == 1 else 1.5) * MS * uneven(rank, step) + slower)
                    if 0 <= rank + direction < RANKS:
                        yield ("send", rank + direction, 4096)
            yield allreduce()

        return body

    first = simulate(RANKS, STEPS, both_ways(0.7 * MS)).explain().shown()[0]
    assert (first.cause, first.ranks) == (Cause.PIPELINE_BUBBLE, (2,))
    cost = per_step(both_ways(0.7 * MS)) - per_step(both_ways(0))
    assert first.saving_ns == pytest.approx(cost, abs=0.3 * cost)


def writing(ranks: tuple[int, ...], time: int, call: str = "fsync", late: float = 0) -> Body:
    """Some ranks write in each step; the last one may also work longer."""

    def body(rank: int, step: int) -> Actions:
        yield work(4 * MS * uneven(rank, step) + (late if rank == RANKS - 1 else 0))
        if rank in ranks:
            yield ("os", call, time)
        yield allreduce()

    return body


@pytest.mark.parametrize("ranks", [(1,), (0, 1, 2, 3)])
def test_recorded_reads_and_writes_are_told_and_priced(ranks: tuple[int, ...]) -> None:
    first, *others = simulate(RANKS, STEPS, writing(ranks, 2 * MS), ahead=5 * MS).explain().shown()
    assert (first.cause, first.ranks) == (Cause.SLOW_IO, ranks)
    assert first.where == "between MPI_Allreduce and MPI_Allreduce"
    cost = per_step(writing(ranks, 2 * MS)) - per_step(writing(ranks, 0))
    assert first.saving_ns == pytest.approx(cost, rel=0.1)
    assert first.evidence_text[0] == f"rank {ranks[0]}: 2.000 ms of each step in fsync, {STEPS} calls"
    assert others == []


def test_a_late_rank_is_told_what_it_waits_for_if_that_is_no_file() -> None:
    first = simulate(RANKS, STEPS, writing((1,), 2 * MS, "futex")).explain().shown()[0]
    assert (first.cause, first.ranks) == (Cause.LATE_RANK_HOST, (1,))
    assert f"rank 1: 2.000 ms of each step in futex, {STEPS} calls" in first.evidence_text


def test_reads_and_writes_of_all_ranks_do_not_make_one_late() -> None:
    first = simulate(RANKS, STEPS, writing((0, 1, 2, 3), 100 * US, late=2 * MS)).explain().shown()[0]
    assert (first.cause, first.ranks) == (Cause.LATE_RANK_HOST, (3,))


def test_a_single_rank_is_not_late() -> None:
    def body(rank: int, step: int) -> Actions:
        yield work(MS * uneven(rank, step))
        yield allreduce()

    causes = {finding.cause for finding in simulate(1, STEPS, body).explain().shown()}
    assert Cause.LATE_RANK_HOST not in causes


def test_calls_inside_mpi_and_inside_others_do_not_count() -> None:
    program = simulate(2, STEPS, writing((0,), MS)).program
    inside = [(rank, "poll", start, end) for rank, _, start, end in program.calls]
    nested = [(rank, "write", start + 1, end) for rank, _, start, end in program.os_calls]
    program.os_calls += [*inside, *nested]
    rows = analyze_rank(ANALYSES["os_calls"], Simulated(program, 0, 2).inputs().read(0), 0).frame
    expected = {"rank": 0, "call": "fsync", "kind": "files", "calls": STEPS, "total_ns": STEPS * MS}
    assert rows.to_dict("records") == [{**expected, "ns_per_step": MS, "max_ns": MS}]


def test_without_steps_calls_of_the_first_thread_count_in_the_whole_capture() -> None:
    program = Program(1, os_calls=[(0, "write", 10, 30), (0, "read", 40, 45)])
    timeline = program.timeline(0)
    others = OsCalls(*(np.concatenate((getattr(timeline.os_calls, f.name),) * 2) for f in fields(OsCalls)))
    others.thread[2:] = [0, 9]
    timeline = replace(timeline, os_calls=others)
    calls = analyze_rank(ANALYSES["os_calls"], timeline, 0)
    assert calls.reasons[0].endswith("calls are those of its first thread in the whole capture")
    rows = calls.frame
    assert rows[["call", "calls", "total_ns"]].to_numpy().tolist() == [["write", 1, 20], ["read", 1, 5]]
    assert "was recorded" not in no_steps(timeline)
    for kind, advice in (("nsys", "; without a GPU nsys records MPI and NVTX"), ("torch", "")):
        nothing = Program(1).timeline(0)
        nothing = replace(nothing, origin=replace(nothing.origin, kind=kind))
        said = f"no work on a GPU, call or range was recorded on rank 0{advice}"
        assert _without_steps({0: ()}, nothing).startswith(said)


@pytest.mark.parametrize("served", [farm, rounds])
def test_a_slow_worker_costs_what_others_cannot_take_from_it(served: Callable[..., Body]) -> None:
    first, *others = simulate(RANKS, STEPS, served(2, MS)).explain().shown()
    assert (first.cause, first.ranks) == (Cause.LATE_RANK_HOST, (2,))
    assert first.saving_ns == pytest.approx(per_step(served(2, MS)) - per_step(served()), rel=0.1)
    assert others == []


@pytest.mark.parametrize(
    "body",
    [
        *(halo(), serial(0), wavefront(), sweeps(), shift(), master(0), farm(), pieces(1), rendezvous(0)),
        *(ordered(1), in_turn(0)),
    ],
    ids=[
        *("halo", "reductions", "wavefront", "sweeps", "ring", "master", "farm", "pieces", "rendezvous"),
        *("order", "in turn"),
    ],
)
def test_a_balanced_program_has_no_finding(body: Body) -> None:
    found = simulate(RANKS, STEPS, body).explain()
    assert [(one.cause, one.share_pct) for one in found.shown()] == []
    assert found.step.replay_error_pct is not None
    assert found.step.replay_error_pct < 0.1


@pytest.mark.parametrize(
    ("body", "waits"), [(wavefront(), True), (sweeps(), True), (halo(), False)], ids=["one", "two", "halo"]
)
def test_what_ranks_of_a_balanced_wavefront_wait_is_said_without_a_price(body: Body, waits: bool) -> None:
    said = [row.reason for row in simulate(RANKS, STEPS, body).explain().not_judged if row.what == WAITING]
    assert len(said) == waits
    assert all(
        re.match(r"on average a rank waits .* of a step \((27|33) %\) for others", text) for text in said
    )
    assert all("smaller blocks" in text for text in said)


def test_waits_for_a_rank_that_took_long_once_are_none_of_each_step() -> None:
    def body(rank: int, step: int) -> Actions:
        yield work(6 * MS * uneven(rank, step) + (60 * MS if (rank, step) == (1, 5) else 0))
        yield allreduce()

    built = replayable(simulate(RANKS, STEPS, body).inputs())
    assert isinstance(built, Replayable)
    usual = np.ones(built.graph.steps)
    usual[5] = 0
    (all_steps,) = unexplained_in_mpi(built.graph, None, [], 6 * MS)
    assert "No cause that was judged explains most of that (--analysis mpi_delays)" in all_steps.reason
    assert not [*unexplained_in_mpi(built.graph, usual, [], 6 * MS)]


@pytest.mark.parametrize("range_name", ["", "main"])
def test_a_capture_without_steps_is_explained_as_one(range_name: str) -> None:
    simulated = simulate(RANKS, 2, halo(2, 4 * MS))
    if range_name:
        simulated.program.ranges += [(rank, range_name, 0, 2 * simulated.elapsed) for rank in range(RANKS)]
    found = simulated.explain()
    assert (found.step.source, found.step.explained_steps) == ("capture", 1)
    first = found.shown()[0]
    assert (first.cause, first.ranks) == (Cause.LATE_RANK_HOST, (2,))
    assert first.saving_ns == pytest.approx(8 * MS, rel=0.05)


def test_work_that_is_short_beside_the_start_of_mpi_has_no_certain_savings() -> None:
    def body(rank: int, _: int) -> Actions:
        yield work(30 * US + 10 * US * (rank == 2))
        yield allreduce(2 * US)

    found = simulate(RANKS, 1, body).explain()
    assert not found.shown()
    (rest,) = (row.reason for row in found.not_judged if row.what == "rest of the capture")
    assert rest.startswith("MPI_Init takes up to 999.0 µs on a rank")


def test_ranks_that_nothing_joins_are_not_late() -> None:
    simulated = simulate(RANKS, 2, halo(2, 4 * MS))
    simulated.program.operations.clear()
    found = simulated.explain()
    assert not found.shown()
    assert [row.reason for row in found.not_judged] == [NOT_JOINED]


@pytest.mark.parametrize(("late", "named"), [(6 * MS, [(2,)]), (0, [])])
def test_a_rank_that_others_wait_for_in_calls_without_messages_is_late(
    late: int, named: list[tuple[int, ...]]
) -> None:
    def ring(rank: int, step: int) -> Actions:
        yield work(10 * MS + late * (rank == 2))
        for side in (1, -1):
            yield ("exchange", (rank + side * (-1) ** rank) % RANKS, 1024)
        if step % 10 == 9:
            yield allreduce()

    simulated = simulate(RANKS, 40, ring)
    program = simulated.program
    program.operations = [item for item in program.operations if item["op"] not in POINT_TO_POINT]
    inputs = simulated.inputs()
    account = pd.concat(
        step_parts(inputs.read(rank)).rows.assign(rank=rank, wait_for_peer_ns=0) for rank in range(RANKS)
    )
    tables = {**inputs.tables, "step_account": account.assign(kind=0)}
    nothing = pd.DataFrame(columns=["rank", "range", "phase", "name", "p50_ns", "self_host_ns"])
    tables |= dict.fromkeys(("idle_causes", "phases", "operators", "skew_summary"), nothing)
    inputs = replace(inputs, tables=defaultdict(pd.DataFrame, tables))
    assert not [item for item in explain_run(inputs)[0].findings if item.cause == Cause.LATE_RANK_HOST]
    lost = Loss(LossKind.ROW, Subject.MPI_OPERATION, 320, detail="record (SendRecv)")
    inputs = replace(inputs, losses={0: (lost,)})
    findings = [item for item in explain_run(inputs)[0].findings if item.cause == Cause.LATE_RANK_HOST]
    assert [item.ranks for item in findings] == named
    assert [item.saving_ns for item in findings] == [pytest.approx(late, rel=0.02)] * len(named)


@pytest.mark.parametrize("program", [halo, shift, wavefront, farm])
def test_work_that_varies_by_chance_makes_no_rank_late(
    program: Callable[..., Body], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(2):
        random = np.random.default_rng(seed)
        monkeypatch.setattr(sys.modules[__name__], "uneven", lambda *_, r=random: 1 + r.exponential(0.3))
        found = simulate(RANKS, 30, program()).explain().shown()
        assert [(one.cause, one.ranks) for one in found] == []


def test_ranks_in_turn_are_not_late_if_calls_are_held_up_too() -> None:
    """Other processes on the cores hold up what a rank does inside MPI as they do outside."""
    late, held = (simulate(RANKS, 12, in_turn(4 * MS, time)).explain().shown() for time in (20 * US, 4 * MS))
    assert "One rank or another is late" in late[0].remedy
    assert [(one.cause, one.ranks) for one in held] == []


def test_long_steps_are_not_blamed_on_a_program_whose_calls_are_held_up() -> None:
    long = estimated_finding(Cause.STEP_SPIKES, (0, 1), "steps 1, 9, 15", MS, 0.1 * MS, 10 * MS, ())
    assert is_held_up(long, 0.3 * MS)
    assert not is_held_up(long, 0.1 * MS)


def test_a_rank_that_is_late_in_some_steps_only_is_late() -> None:
    usual = halo()

    def body(rank: int, step: int) -> Actions:
        if rank == 1 and step % 5 == 2:
            yield work(10 * MS)
        yield from usual(rank, step)

    first = simulate(RANKS, 30, body).explain().shown()[0]
    assert (first.cause, first.ranks) == (Cause.LATE_RANK_HOST, (1,))
    assert first.saving_ns == pytest.approx(2 * MS, rel=0.1)


def test_transfer_of_large_messages_that_nothing_hides_is_exposed() -> None:
    def body(transfer: int) -> Body:
        def inner(rank: int, step: int) -> Actions:
            yield work(4 * MS * uneven(rank, step))
            yield ("all", "MPI_Alltoall", "AlltoAll", -1, 1 << 22, transfer)

        return inner

    first = simulate(RANKS, STEPS, body(2 * MS)).explain().shown()[0]
    assert (first.cause, first.where) == (Cause.EXPOSED_COMMUNICATION, "MPI_Alltoall")
    assert first.saving_ns == pytest.approx(per_step(body(2 * MS)) - per_step(body(20 * US)), rel=0.1)


def test_collectives_are_judged_by_the_latency_that_the_run_shows() -> None:
    def body(number: int) -> Body:
        def inner(rank: int, step: int) -> Actions:
            yield work(5 * MS * uneven(rank, step))
            for _ in range(number):
                yield ("all", "MPI_Alltoall", "AlltoAll", -1, 1 << 19, 42 * US)
            yield allreduce(4 * US)

        return inner

    (first,) = simulate(RANKS, STEPS, body(8)).explain().shown()
    assert (first.cause, first.where) == (Cause.EXPOSED_COMMUNICATION, "MPI_Alltoall")
    assert first.saving_ns == pytest.approx(8 * 38 * US, rel=0.1)
    assert simulate(RANKS, STEPS, body(1)).explain().shown() == ()


def test_a_range_is_named_instead_of_the_calls_around_it() -> None:
    program = simulate(RANKS, STEPS, halo(2, 4 * MS))
    for rank, _, start, _ in [one for one in program.program.calls if one[1] == "MPI_Allreduce"]:
        program.program.ranges.append((rank, "interior", start + 21 * US, start + 22 * US + 5 * MS))
        if rank == 2:
            program.program.ranges[-1] = (rank, "interior", start + 21 * US, start + 22 * US + 9 * MS)
    assert program.explain().shown()[0].where == "interior"


def test_one_long_step_is_not_blamed_on_the_program() -> None:
    usual = halo()

    def body(rank: int, step: int) -> Actions:
        if step == 5:
            yield work(20 * MS)
        yield from usual(rank, step)

    program = simulate(RANKS, 40, body)
    account = step_account(program)
    found = explain_run(replace(program.inputs(), tables=account))[0]
    assert found.shown() == ()
    assert [one.step for one in found.step.once] == [5]
    assert not found.not_judged


def test_the_account_of_a_step_is_its_time_outside_and_inside_mpi() -> None:
    parts = step_account(simulate(RANKS, STEPS, halo(2, 4 * MS)))["step_account"]
    assert (parts["compute_ns"] + parts["exposed_comm_ns"] == parts["wall_ns"]).all()
    late = parts[parts["rank"] == 2]
    assert late["compute_ns"].median() == pytest.approx(12 * MS, rel=0.01)


def step_account(program: Simulated) -> Mapping[str, pd.DataFrame]:
    """Return the analyses of a program with those of its steps."""
    inputs = program.inputs()
    rows = [step_parts(inputs.read(rank)).rows.assign(rank=rank) for rank in inputs.ranks]
    account = pd.concat(rows, ignore_index=True).assign(wait_for_peer_ns=None)
    times = account[["rank", "step", "wall_ns"]]
    return {**_NO_ROWS, **inputs.tables, "step_account": account, "step_times": times}


_NO_ROWS = {
    name: pd.DataFrame()
    for name in (
        "step_kinds",
        "skew_summary",
        "idle_causes",
        "breakdown",
        "device_breakdown",
        "memops",
        "kernels",
    )
}


def predicted(program: Simulated, change: str) -> float:
    return predict(program.inputs(), parse_changes([change])).elapsed_ns


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ("rank:2=median", halo()),
        ("mpi:MPI_Allreduce*0", halo(2, 4 * MS, transfer=0)),
        ("mpi:MPI_Allreduce*50", halo(2, 4 * MS, transfer=MS)),
        ("range:between MPI_Allreduce and MPI_Send+4ms@1", halo(2, 4 * MS)),
        ("range:between MPI_Allreduce and MPI_Send+8ms@1", halo(1, 8 * MS)),
    ],
)
def test_a_what_if_predicts_the_program_with_these_times(change: str, changed: Body) -> None:
    program = simulate(RANKS, STEPS, halo(2, 4 * MS))
    assert predicted(program, change) == pytest.approx(per_step(changed), rel=0.03)


def test_communication_without_cost_leaves_what_ranks_wait_for_each_other() -> None:
    program = simulate(RANKS, STEPS, halo(2, 4 * MS, transfer=MS))
    assert predicted(program, "comm*0") == pytest.approx(12 * MS, rel=0.02)


def test_a_call_that_the_program_does_not_make_is_refused() -> None:
    program = simulate(RANKS, STEPS, halo())
    with pytest.raises(UsageError, match="no MPI call of the replayed steps has a name that matches"):
        predicted(program, "mpi:MPI_Alltoall*0.5")
