"""Late ranks: the others wait for one or few, whose host or GPU takes longer, in each step or in turn."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce

import numpy as np

from hpcprof.analysis.account.places import NONE
from hpcprof.analysis.explain.annotations import Scene, Times
from hpcprof.analysis.explain.cause import (
    Candidate,
    CauseDeclaration,
    Figures,
    PlaceRemedy,
    Remove,
    Trait,
    delays,
    idle,
)
from hpcprof.analysis.explain.causes.pipeline_bubble import PIPELINE_BUBBLE
from hpcprof.analysis.explain.edge_kinds import EdgeKind
from hpcprof.analysis.explain.removals import peers, stage_medians
from hpcprof.analysis.statistics.grouped import quotient, summarize, sums_by
from hpcprof.profiles.collective_operations import COMBINE, DISPATCH, POINT_TO_POINT
from hpcprof.profiles.columns.unique import numbered, numbered_rows, position_in_group
from hpcprof.profiles.timeline import Floats, Ints

INPUT = ("data", "load", "batch", "input", "fetch")
"""Words in the names of places that prepare the input of a step."""

_MAX_LATE_RANKS, _MAX_NAMED_PLACES = 4, 3
"""Maximum number of single ranks that are judged, and of places in the name of a group of ranks."""

_MIN_COMMON_LATENESS = 0.5
"""Minimum ratio of the lateness of a rank of a late group to that of the latest rank."""

_MAX_REGAINED_SHARE = 0.25
"""Maximum share of its excess time that a late rank may win back in other steps."""

_MIN_SPREAD_SHARE = 0.5
"""Minimum share of its excess time that a slower host has outside long pauses."""

_MIN_SLOWDOWN = 1.1
"""Minimum ratio of host times to those of the other ranks for a host that is slower."""

_MIN_EXCHANGED_SHARE = 0.75
"""Minimum share of a rank's excess compute that lies between exchanges, for an imbalance of experts."""

_EXCHANGES = frozenset({DISPATCH, COMBINE, "AlltoAll", "AlltoAllV"})

MAX_HELD_UP_RATIO = 0.25
"""Maximum ratio of the time that calls are held up to the lateness of ranks: above it, the machine may be
why."""


def _late_by_host(scene: Scene) -> Iterator[Candidate]:
    if scene.graph.is_of_host:
        yield from _in_mpi(scene)
    else:
        yield from _late_ranks(scene, LATE_RANK_HOST, scene.removals.late_host)


def _late_by_gpu(scene: Scene) -> Iterator[Candidate]:
    return _late_ranks(scene, LATE_RANK_GPU, scene.removals.late_gpu)


def _late_ranks(
    scene: Scene, cause: CauseDeclaration, late: Callable[[Times, int | None], Times]
) -> Iterator[Candidate]:
    if len(scene.ranks) < 2 or not scene.graph.is_coupled:
        return
    measured, on_host = scene.replay.measured, cause is LATE_RANK_HOST
    changed = {rank: late(measured, rank) for rank in _possibly_late_ranks(scene, on_host)}
    excess = {rank: _saved_time(scene, times) for rank, times in changed.items()}
    rows, _ = _places_and_ranks(scene, on_host)

    def longer(rank: int | None) -> Floats:
        if on_host:
            return np.concatenate(scene.removals.host_excess(measured, rank))
        return measured.alone - late(measured, rank).alone

    for ranks in late_groups(excess, len(scene.ranks)):
        least = min(ranks, key=lambda rank: excess[rank])
        slower = _host_slowdown(scene, least) if on_host else 0.0
        latest = sorted(ranks, key=lambda rank: -excess[rank])
        places = dict.fromkeys(scene.mostly(rows, longer(rank)) for rank in latest)
        place = ", ".join([*places][:_MAX_NAMED_PLACES])
        more = measured.alone - changed[least].alone
        exchanged = more[scene.once(_exchange_before) != NONE]
        if not on_host and float(exchanged.sum()) >= _MIN_EXCHANGED_SHARE * float(more.sum()) > 0:
            yield Candidate(EXPERT_IMBALANCE, place, ranks, partial(_balance_ranks, scene), excess[least])
        else:
            yield Candidate(cause, place, ranks, on_each_rank(late, ranks), excess[least], slower=slower)
    yield from _late_in_turn(scene, cause, lambda times: late(times, None), longer(None))


def _exchange_before(scene: Scene) -> Ints:
    """Return the exchange before each kernel between two exchanges, such as dispatch and combine.

    It is the exchange's position in its rank's communication of the step, and `NONE` for other operations.
    """
    graph, work = scene.graph, scene.graph.work
    exchanges = np.zeros(len(work), bool)
    for coupling in graph.couplings:
        if coupling.op in _EXCHANGES or (coupling.op in POINT_TO_POINT and not graph.is_pipeline):
            exchanges[coupling.work] = True
    before = np.full(len(work), NONE)
    for rank in scene.ranks:
        is_own = graph.work_rank == rank
        talks = np.flatnonzero(is_own & work.is_communication)
        talks = talks[np.argsort(work.start[talks], kind="stable")]
        computes = np.flatnonzero(is_own & work.is_compute)
        at = np.searchsorted(work.start[talks], work.start[computes])
        flags = np.concatenate(([False], exchanges[talks], [False]))
        place = np.append(NONE, position_in_group(numbered(work.step[talks])[1]))
        before[computes] = np.where(flags[at] & flags[at + 1], place[at], NONE)
    return before


def _balance_ranks(scene: Scene, times: Times) -> Times:
    """Give all ranks the mean compute between two exchanges."""
    work, before = scene.graph.work, scene.once(_exchange_before)
    rows = np.flatnonzero(before != NONE)
    keys, group = numbered_rows(work.step[rows], before[rows])
    shape = len(keys), len(scene.ranks)
    total = sums_by(shape, (group, scene.graph.work_rank[rows]), times.alone[rows])
    ratio = quotient(total.mean(axis=1, keepdims=True), total, 1.0)
    return times.scale_alone(rows, ratio[group, scene.graph.work_rank[rows]])


def late_groups(excess: Mapping[int, float], ranks: int) -> list[tuple[int, ...]]:
    """Return the latest ranks, each by itself, and the group that is late together, if at most half."""
    latest = sorted(excess, key=lambda rank: -excess[rank])
    several = tuple(
        sorted(rank for rank in latest if excess[rank] >= _MIN_COMMON_LATENESS * excess[latest[0]] > 0)
    )
    alone = [(rank,) for rank in latest[:_MAX_LATE_RANKS]]
    return [*alone, *([several] if 1 < len(several) <= ranks // 2 else [])]


def on_each_rank(late: Callable[[Times, int], Times], ranks: tuple[int, ...]) -> Remove:
    """Return a function that removes a lateness from each of these ranks."""
    return lambda times: reduce(late, ranks, times)


def _late_in_turn(
    scene: Scene, cause: CauseDeclaration, remove: Remove, excess: Floats
) -> Iterator[Candidate]:
    """Yield the ranks that are late in turn, each in single steps."""
    time, (place, rank) = excess.clip(min=0), _places_and_ranks(scene, cause is LATE_RANK_HOST)
    where = scene.mostly(place, time)
    time = np.where(scene.removals.inside(where)[place], time, 0)
    per_rank = np.bincount(rank, time, len(scene.ranks)) / scene.graph.steps
    ranks = scene.ranks_of_most(rank, time)
    if len(ranks) > 1 and per_rank.any():
        yield Candidate(cause, where, ranks, remove, float(per_rank.max()))


def _possibly_late_ranks(scene: Scene, on_host: bool) -> list[int]:
    """Return the ranks that may be late, those with most excess time over ranks with the same work first.

    A rank that regains much of its excess in other steps is at most late in turn with others.
    """
    graph, measured = scene.graph, scene.replay.measured
    if on_host:
        rows = graph.edges.of(EdgeKind.HOST, EdgeKind.CALL)
        call = graph.edges.row[rows]
        rank, step, time = graph.call_rank[call], graph.calls.step[call], measured.lag[rows].astype(float)
    else:
        compute = graph.work.is_compute
        rank, step, time = graph.work_rank[compute], graph.work.step[compute], measured.alone[compute]
    _, number = numbered(step)
    total = sums_by((int(number.max(initial=-1)) + 1, len(scene.ranks)), (number, rank), time)
    excess = np.zeros_like(total)
    for position in scene.ranks:
        excess[:, position] = total[:, position] - np.median(total[:, peers(position, graph.stage)], axis=1)
    in_turn = -excess.clip(max=0).sum(axis=0) > _MAX_REGAINED_SHARE * excess.clip(min=0).sum(axis=0)
    whole = total.sum(axis=0)
    longest = np.argsort(stage_medians(whole, graph.stage)[graph.stage] - whole, kind="stable").tolist()
    alone = np.bincount(graph.stage)[graph.stage] == 1
    return [rank for rank in longest if not alone[rank] and not in_turn[rank]][: 2 * _MAX_LATE_RANKS]


def _places_and_ranks(scene: Scene, on_host: bool) -> tuple[Ints, Ints]:
    """Return the place and the rank of each call and piece of host time, or of each operation."""
    graph, tables = scene.graph, (scene.graph.calls, scene.graph.pieces)
    if not on_host:
        return graph.work.place, graph.work_rank
    ranks = graph.call_rank, graph.call_rank[graph.pieces.call]
    return np.concatenate([table.place for table in tables]), np.concatenate(ranks)


def _saved_time(scene: Scene, changed: Times) -> float:
    """Return the time per step in ns by which changed times are shorter than the measured ones."""
    measured = scene.replay.measured
    edges = np.flatnonzero(changed.lag != measured.lag)
    lag = (measured.lag[edges] - changed.lag[edges]).sum()
    return float(lag + (measured.alone - changed.alone).sum()) / scene.graph.steps


def _host_slowdown(scene: Scene, rank: int) -> float:
    """Return the ratio of a rank's time in and between calls to that of the other ranks.

    1. Most of the excess lies outside long pauses: the ratio over all such times, or 1 if the rank is slower
       in few places only.
    2. Most of it lies in long pauses, but a slower host explains it: the ratio in the median place.
    3. Otherwise the rank is late by single pauses: 0.
    """
    pieces, removals, measured = scene.graph.pieces, scene.removals, scene.replay.measured
    calls, between = removals.host_excess(measured, rank)
    short, short_call = ~removals.long_gap[pieces.call], ~removals.long_call
    least = _MIN_SPREAD_SHARE * float(calls.sum() + between.sum())
    excess = float(calls[short_call].sum() + between[short].sum())
    usual = _place_ratio(scene, rank)
    is_own = scene.graph.call_rank[pieces.call] == rank
    if excess >= least:
        lag = measured.lag[removals.edge_of_call[EdgeKind.CALL]]
        time = float(lag[short_call & (calls > 0)].sum() + pieces.length[short & (between > 0)].sum())
        # In other places it may be as quick, or quicker.
        return time / max(time - excess, 1.0) if usual > _MIN_SLOWDOWN else 1.0
    return usual if usual > 1 and pieces.length[is_own].sum() * (1 - 1 / usual) >= least else 0.0


def _place_ratio(scene: Scene, rank: int) -> float:
    """Return the median over places, weighted by time, of the ratio of a rank's host time to the others'.

    Long pauses do not count as weight: those of a single place say nothing about the other places.
    """
    graph = scene.graph
    pieces, peer_ranks = graph.pieces, peers(rank, graph.stage)
    long = scene.removals.long_gap[pieces.call]
    keys = long.astype(np.int64), pieces.place, graph.call_rank[pieces.call]
    total = sums_by((2, len(graph.places) + 1, len(scene.ranks)), keys, pieces.length)
    usual = np.median(total.sum(axis=0)[:, peer_ranks], axis=1)
    rank_time = total.sum(axis=0)[:, rank]
    ratio = quotient(rank_time, usual, 1.0)
    # One long pause in each step makes a whole place take longer, and its pieces no slower.
    ratio = np.minimum(ratio, _piece_ratio(scene, rank, peer_ranks))
    order = np.argsort(ratio)
    cumulative = np.cumsum(np.median(total[0][:, peer_ranks], axis=1)[order])
    if not cumulative[-1]:
        return 1.0
    return float(ratio[order][np.searchsorted(cumulative, 0.5 * cumulative[-1])])


def _piece_ratio(scene: Scene, rank: int, peer_ranks: Ints) -> Floats:
    """Return the ratio of a rank's median piece of host time to that of the others; shape (places + 1,)."""
    pieces, ranks = scene.graph.pieces, len(scene.ranks)
    by_place = summarize(pieces.place * ranks + scene.graph.call_rank[pieces.call], pieces.length)
    # `NONE` is -1 and so selects the last row.
    medians = np.zeros((len(scene.graph.places) + 1, ranks))
    medians[by_place.group // ranks, by_place.group % ranks] = by_place.median
    usual = np.median(medians[:, peer_ranks], axis=1)
    return quotient(medians[:, rank], usual, 1.0)


def _in_mpi(scene: Scene) -> Iterator[Candidate]:
    """Yield the ranks with more work outside MPI than the others, in each step and in turn."""
    mpi = scene.mpi
    if mpi is None:
        return
    excess = {rank: mpi.host_excess(rank)[0] for rank in scene.ranks if mpi.is_late(rank)}
    for ranks in late_groups(excess, len(scene.ranks)) if len(scene.ranks) > 1 and excess else ():
        least = min(ranks, key=lambda rank: excess[rank])
        where = scene.mostly_outside_mpi(mpi.host_times[:, least] * mpi.host_excess(least)[1])
        cause = PIPELINE_BUBBLE if mpi.part.is_pipeline else LATE_RANK_HOST
        yield Candidate(cause, where, ranks, on_each_rank(mpi.late_host, ranks), excess[least])
    late = mpi.late_by_chance
    if mpi.part.server != NONE or mpi.part.is_pipeline or not mpi.stand_out:
        return
    # Where calls of MPI are held up too, other processes on the machine may be the reason.
    if mpi.held_up > MAX_HELD_UP_RATIO * float(late.mean()):
        return
    yield Candidate(
        LATE_RANK_HOST,
        scene.mostly_outside_mpi(np.where(mpi.serial, 0.0, mpi.host_times).sum(axis=1)),
        scene.ranks,
        mpi.without_chance,
        float(late.max(axis=1).mean()),
    )


_TRAITS = frozenset({Trait.ALL_RANKS, Trait.LATE_RANK, Trait.DELAYS_OTHERS})

LATE_RANK_HOST = CauseDeclaration(
    name="late_rank_host",
    title="extra host time",
    meaning="the other ranks wait for a rank whose host is late",
    about="one or few ranks come late to collectives because of their host, in each step or in turn; "
    "`where` is the range that makes them late",
    remedy="Look for work of {ranks} in {where} that the others do not have: input of another size, "
    "logging or checkpoints on one rank, cores shared with other processes (check --cpu-bind).",
    place_remedies=(
        PlaceRemedy(
            ("mpi_",),
            "Balance the work of {where}: {ranks} took longer for it than the others. There is more of it, "
            "or cores are slower (check --cpu-bind, other processes on them, and the clocks of nodes).",
        ),
        PlaceRemedy(
            INPUT,
            "The input of {ranks} is slower: balance the samples over the ranks, and load ahead of the step "
            "(DataLoader(num_workers=…, prefetch_factor=…)).",
        ),
        PlaceRemedy(
            INPUT,
            "The input of {ranks} is slower: balance the samples over the processes, and load ahead of the "
            "step (workers of the loader, and jax.device_put of the next batch while this step runs).",
            jax=True,
        ),
    ),
    remedy_in_turn="One rank or another is late in {where}, in each step by chance: look for work whose "
    "length varies there (iterations, input, memory), deal it out as ranks become free, or wait for each "
    "other less often.",
    candidates=_late_by_host,
    figures=(
        Figures("mpi_waits", "wait_ns", delays),
        Figures("os_calls", "ns_per_step"),
        Figures("skew_summary", "lateness_p50_ns"),
        Figures("idle_causes", "idle_ns_per_step", idle("host")),
        Figures("step_account", "idle_ns"),
    ),
    traits=_TRAITS | {Trait.MAY_BE_WAITING},
    column="idle_ns",
    meanwhile="rank",
)

LATE_RANK_GPU = CauseDeclaration(
    name="late_rank_gpu",
    title="extra GPU time",
    meaning="the other ranks wait for a rank whose GPU has more work, or is slower",
    about="the same because of more or slower GPU work",
    remedy="Give {ranks} as much work as the others: batches of equal length, equal shards or experts; if "
    "its work is equal, check clocks and temperature of its GPU.",
    candidates=_late_by_gpu,
    figures=(Figures("skew_summary", "lateness_p50_ns"), Figures("step_account", "compute_ns")),
    traits=_TRAITS | {Trait.ON_GPU},
    spread=0.2,
    column="compute_ns",
    operations="compute",
    meanwhile="rank",
)

LATE_RANK_COMPUTE = CauseDeclaration(
    name="late_rank_compute",
    title="extra compute",
    meaning="the other ranks wait for a rank that has more to compute, or computes slower",
    about="the same in a table of operations, which does not tell what computes",
    remedy="Give {ranks} as much work as the others (batches of equal length, equal shards); if its work is "
    "equal, check the clocks and the temperature of what computes.",
    traits=_TRAITS,
    column="compute_ns",
)

EXPERT_IMBALANCE = CauseDeclaration(
    name="expert_imbalance",
    title="imbalance of experts",
    meaning="ranks wait in dispatch and combine for one whose experts have more tokens",
    about="ranks wait in dispatch and combine, or another exchange of all, for a rank whose experts compute "
    "longer; the saving is that of equal work between the exchanges, since the tokens stay as many",
    remedy="Balance the tokens of the experts on {ranks}: an auxiliary loss or a bias of the router, a "
    "capacity factor, or busy experts replicated or moved to other ranks.",
    figures=(Figures("skew_summary", "lateness_p50_ns"), Figures("step_account", "compute_ns")),
    traits=_TRAITS,
    spread=0.3,
    column="compute_ns",
    operations="compute",
    meanwhile="rank",
)
