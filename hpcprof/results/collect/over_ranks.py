"""The analyses that span the ranks of a run, computed as the registry declares them, with the communication.

Each is a map over parts of the run and a reduction (`Analysis.map`). The tasks read the rows of some ranks
from the files that a collect keeps, so that any process on a machine with these files can run them, and no
process needs the rows of all ranks at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from hpcprof.analysis.collectives.across_ranks import ListedOperations
from hpcprof.analysis.collectives.common_clock import Aligned, RankClock
from hpcprof.analysis.collectives.communication import Communication, communication
from hpcprof.analysis.collectives.matches import matches_of, rank_waits
from hpcprof.analysis.framework.declaration import Part, Policy, Scope
from hpcprof.analysis.framework.outcome import AnalysisTable, Outcome, analyze_run
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.mpi.matching import aligned_by_mpi
from hpcprof.analysis.mpi.run_lists import RunLists
from hpcprof.analysis.telemetry.declarations import DEVICE_METRICS
from hpcprof.common.errors import HpcprofError, StoreError
from hpcprof.common.freed_memory import return_freed_memory
from hpcprof.common.units import counted
from hpcprof.profiles.collective_operations import POINT_TO_POINT
from hpcprof.profiles.event_folders import communication_folder
from hpcprof.profiles.readers.communicators import is_of_one_process
from hpcprof.profiles.readers.declaration import load
from hpcprof.profiles.readers.operations import OPERATIONS
from hpcprof.profiles.timeline import Ints
from hpcprof.profiles.timeline_parquet import RankEvents
from hpcprof.results.collect.executors.interface import Executor, Lost, ResultT, TaskT, serially
from hpcprof.results.collect.same_program import CollectiveCounts, collective_counts
from hpcprof.results.store.mpi_links import LinkWriter
from hpcprof.results.store.rank_tables import MPI_TABLES, has_mpi, kept_table
from hpcprof.results.store.run_communication import (
    PartFile,
    RunCommunication,
    first_steps,
    load_communication,
    read_matches,
    run_clocks,
    write_matches,
)

if TYPE_CHECKING:  # the workers do without
    import pandas as pd

    from hpcprof.results.store.store import Store
    from hpcprof.results.store.tables import ProfileRow
    from hpcprof.runs.directory import Run

_RUN_ANALYSES = [analysis for analysis in ANALYSES.values() if analysis.scope is Scope.RUN]
_RANKS_AT_ONCE = 16
_MAX_METRIC_ROWS = 200_000
_MAX_EAGER_ROWS = 10_000
"""Maximum rows of a lazy list that a collect stores: storing more takes longer than computing them again."""

_UNKNOWN_DIRECTION = "SendRecv"
_COLLECTIVES = "rank_collectives"
_MPI_REGIONS = "mpi_regions"
_CALL_KEY = ("op", "comm_id", "bytes", "world_ranks", "comm_ranks")


@dataclass(frozen=True)
class RankTask:
    """Some ranks of a run, with the files of the run's communication and the clocks for maps over ranks."""

    events: tuple[RankEvents, ...]
    folder: Path
    parts: tuple[PartFile, ...] = ()
    clocks: Mapping[int, RankClock] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        """Return the number of ranks, by which an executor estimates the work."""
        return len(self.events)


@dataclass(frozen=True)
class MatchTask(RankTask):
    """The communicators of some ranks, each in one task only; all communicators if none are named."""

    communicators: frozenset[str] = frozenset()
    exchanging: frozenset[str] = frozenset()
    """See `hpcprof.analysis.collectives.communication.communication`."""
    profiled: int = 0
    """The number of ranks of the run that have a profile."""
    number: int = 0
    """Number of the file that the task writes."""
    shares_clock: bool = False
    """True for the ranks of a table of operations."""


@dataclass(frozen=True)
class RunSurvey:
    """The collectives of the ranks of a run, and the event files that they were read from."""

    events: Mapping[int, RankEvents]
    parts: Sequence[Survey]

    @property
    def calls(self) -> dict[int, CollectiveCounts]:
        """The calls of each rank."""
        return {rank: calls for part in self.parts for rank, calls in part.calls.items()}


class _Matched(NamedTuple):
    """A file of matches, the clocks that they align, and the values of the maps over communicators."""

    file: PartFile
    aligned: list[Aligned]
    values: dict[str, Any]


def survey_ranks(events: Mapping[int, RankEvents], executor: Executor = serially) -> RunSurvey:
    """Survey the collective calls of each rank of a run."""
    chunks = [RankTask(tuple(events[rank] for rank in part), Path()) for part in rank_chunks(sorted(events))]
    return RunSurvey(events, [survey for _, survey in run_tasks(_survey, chunks, executor)])


def analyze_over_ranks(
    run_id: str,
    store: Store,
    executor: Executor = serially,
    run: Run | None = None,
    survey: RunSurvey | None = None,
) -> dict[str, AnalysisTable]:
    """Compute the analyses that span the ranks of a run, and keep its communication.

    Without ``run``, there are no samples of its nodes. A ``survey`` of other profiles is ignored. Lazy
    analyses with many rows are left out (`analyze_lazy_over_ranks`).
    """
    events = store.rank_events(run_id)
    folder = _communication_folder(run_id, events)
    try:
        lists = _mpi_lists(events)
        if survey is None or survey.events != events:
            survey = survey_ranks(events, executor)
        matched, values = _match_run(run_id, store, survey, folder, executor, lists)
        if events:
            matched.save()
        values |= _mapped_over_ranks(events, folder, matched, executor)
        values |= _mapped_over_mpi(run_id, store, events, lists, matched)
        profiled, loss = _profiled_metrics(run_id, store, events)
        values |= mapped_beside_profiles(run, lambda: _captured_steps(run_id, store, events), profiled, loss)
        # The lists of a long run take hundreds of MB.
        del lists
        return_freed_memory()
    except OSError as error:
        raise HpcprofError(f"cannot write to {folder}: {error.strerror or error}.") from error
    tables: dict[str, AnalysisTable] = {}
    last_use = {need: analysis.name for analysis in _RUN_ANALYSES for need in analysis.needs}
    analyses = [
        analysis
        for analysis in _RUN_ANALYSES
        if not (analysis.policy is Policy.LAZY and _has_many_rows(values[analysis.map]))
    ]
    for analysis in analyses:
        for need in analysis.needs:
            if need not in tables:
                stored = store.table(run_id, need)
                # The values of all ranks take less memory in arrays than in lists.
                tables[need] = replace(stored, values=Outcome(stored.frame).arrays())
        tables[analysis.name] = analyze_run(analysis, tables, values.get(analysis.map, ()))
        for need in analysis.needs:
            if last_use[need] == analysis.name and ANALYSES[need].scope is Scope.RANK:
                del tables[need]
    return {analysis.name: tables[analysis.name] for analysis in analyses}


def _has_many_rows(parts: Sequence[ListedOperations]) -> bool:
    return sum(map(len, parts)) > _MAX_EAGER_ROWS


def analyze_lazy_over_ranks(run_id: str, store: Store, names: Sequence[str]) -> dict[str, AnalysisTable]:
    """Compute lazy analyses of scope RUN, which a collect has left out.

    Raises StoreError if the rows of a rank are gone.
    """
    maps = {ANALYSES[name].map: load(ANALYSES[name].map) for name in names}
    values: dict[str, list[Any]] = {name: [] for name in maps}
    survey = survey_ranks(store.rank_events(run_id))
    for task in _match_tasks(survey, store.profiles(run_id), Path()):
        matched = _communication(task)
        for name, function in maps.items() if matched.ranks else ():
            values[name].append(function(matched))
    return {name: analyze_run(ANALYSES[name], {}, values[ANALYSES[name].map]) for name in names}


def run_communication(run: Run, store: Store) -> RunCommunication:
    """Return the communication of a collected run, as a collect kept it; else compute it.

    If the rows of a rank are gone, only the clocks are known, by UTC or the start of the first step.
    """
    events = store.rank_events(run.id)
    folder = _communication_folder(run.id, events)
    loaded = load_communication(folder, events)
    if loaded is not None:
        return loaded
    # A user who cannot write the folder computes it each time.
    temporary = tempfile.TemporaryDirectory(prefix="hpcprof-communication-")
    lost: StoreError | None = None
    for place, goes in ((folder, None), (Path(temporary.name), temporary)):
        try:
            loaded, _ = _match_run(
                run.id, store, survey_ranks(events), place, serially, _mpi_lists(events), goes
            )
            loaded.save()
            return loaded
        except OSError:
            continue
        except StoreError as error:  # The rows of a rank are gone.
            lost = error
            break
    profiles = store.profiles(run.id)
    utc = {rank: profiles[rank].start_utc_ns for rank in events}
    return RunCommunication(folder, [], run_clocks([], events, utc), events, lost=lost)


def _communication_folder(run_id: str, events: Mapping[int, RankEvents]) -> Path:
    folder = next((event.folder for event in events.values()), Path())
    return communication_folder(folder, run_id)


def _match_run(
    run_id: str,
    store: Store,
    survey: RunSurvey,
    folder: Path,
    executor: Executor,
    lists: RunLists,
    temporary: tempfile.TemporaryDirectory[str] | None = None,
) -> tuple[RunCommunication, dict[str, list[Any]]]:
    """Match the operations of the ranks; return them with the values of the maps over communicators."""
    events = survey.events
    profiles = store.profiles(run_id)
    tasks = _match_tasks(survey, profiles, folder)
    results = dict(run_tasks(_match, tasks, executor))
    parts = [results[task] for task in tasks if results[task].values]
    by_mpi: list[Aligned] = []
    if lists.ranks:
        with LinkWriter(folder) as links:
            by_mpi = aligned_by_mpi(
                lists, links.add, _zeros_of_node([profiles[rank] for rank in lists.ranks])
            )
    clocks = run_clocks(
        [group for part in parts for group in part.aligned] + by_mpi,
        events,
        {rank: profiles[rank].start_utc_ns for rank in sorted(events)},
    )
    values = {name: [part.values[name] for part in parts] for name in _maps(Part.COMMUNICATORS)}
    files = [part.file for part in parts]
    mpi = bool(lists.ranks)
    size = max((part.size for part in survey.parts), default=0)
    return RunCommunication(folder, files, clocks, events, size, temporary, mpi=mpi), values


def _zeros_of_node(profiles: Sequence[ProfileRow]) -> dict[int, int] | None:
    """Return the time stamp of one common moment by rank; None if the ranks do not share a clock.

    Ranks share a clock if they ran on one node or are in one archive. Without UTC, their time stamps are
    compared as they are.
    """
    if len(profiles) > 1 and len({(profile.file, profile.kind) for profile in profiles}) == 1:
        return {profile.rank: 0 for profile in profiles}
    starts = {profile.rank: profile.start_utc_ns for profile in profiles if profile.start_utc_ns is not None}
    if (
        len(profiles) < 2
        or 0 < len(starts) < len(profiles)
        or len({profile.host or profile.rank for profile in profiles}) > 1
    ):
        return None
    last = max(starts.values(), default=0)
    return {profile.rank: last - starts.get(profile.rank, last) for profile in profiles}


def _match_tasks(survey: RunSurvey, profiles: Mapping[int, ProfileRow], folder: Path) -> list[MatchTask]:
    """Return tasks for bundles of groups of ranks that share communicators, or one for all ranks."""
    events = survey.events
    shares_clock = all(profiles[rank].kind == OPERATIONS.name for rank in events)
    groups = groups_of_communicators(survey.parts)
    if groups is None:
        groups = [RankGroup(tuple(sorted(events)), frozenset(), frozenset())]
    return [
        MatchTask(
            tuple(events[rank] for rank in ranks),
            folder,
            communicators=names,
            exchanging=exchanging,
            profiled=len(events),
            number=number,
            shares_clock=shares_clock,
        )
        for number, (ranks, names, exchanging) in enumerate(groups)
    ]


def _mapped_over_ranks(
    events: Mapping[int, RankEvents], folder: Path, matched: RunCommunication, executor: Executor
) -> dict[str, list[Any]]:
    tasks = []
    for chunk in rank_chunks(sorted(events)):
        clocks = {rank: matched.clocks.aligned[rank] for rank in chunk if rank in matched.clocks.aligned}
        tasks.append(RankTask(tuple(events[rank] for rank in chunk), folder, matched.parts, clocks))
    results = dict(run_tasks(_map_ranks, tasks, executor))
    return {name: [results[task][name] for task in tasks] for name in _maps(Part.RANKS)}


def _mpi_lists(events: Mapping[int, RankEvents]) -> RunLists:
    lists = RunLists()
    for rank, rank_events in sorted(events.items()):
        if has_mpi(rank_events):
            lists.add(rank, *(_frame([rank_events], name) for name in MPI_TABLES))
    return lists


def _mapped_over_mpi(
    run_id: str, store: Store, events: Mapping[int, RankEvents], lists: RunLists, matched: RunCommunication
) -> dict[str, list[Any]]:
    profiles = store.profiles(run_id) if events else {}
    nodes = {rank: profiles[rank].host for rank in sorted(events)}
    values: dict[str, list[Any]] = {}
    for name in _maps(Part.MPI):
        regions = (_frame([events[rank]], _MPI_REGIONS) for rank in lists.ranks)
        values[name] = [load(name)(lists, regions, matched.clocks.aligned, nodes)]
    return values


def _captured_steps(
    run_id: str, store: Store, events: Mapping[int, RankEvents]
) -> dict[int, tuple[float, Ints, Ints]]:
    """Return the begin of the first step of each rank in seconds since 1970, and its steps.

    The steps are two arrays: numbers and wall times in ns. Ranks whose profile has no UTC are left out.
    """
    begin, profiles = first_steps(events), store.profiles(run_id)
    times = store.table(run_id, "step_times").frame
    return {
        int(rank): ((utc + begin[rank]) / 1e9, *rows[["step", "wall_ns"]].to_numpy(np.int64).T)
        for rank, rows in times.sort_values("step").groupby("rank")
        if rank in begin and (utc := profiles[rank].start_utc_ns) is not None
    }


def _profiled_metrics(
    run_id: str, store: Store, events: Mapping[int, RankEvents]
) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of ``device_metrics`` of all ranks with their nodes, and a clause on omitted ranks."""
    metrics: list[dict[str, Any]] = []
    counts = {rank: event.written_rows().get(DEVICE_METRICS, 0) for rank, event in sorted(events.items())}
    ranks = [rank for rank, count in counts.items() if count]
    profiles = store.profiles(run_id) if ranks else {}
    for place, rank in enumerate(ranks):
        if len(metrics) + counts[rank] > _MAX_METRIC_ROWS:
            omitted = counted(len(ranks) - place, "rank")
            return metrics, f"the metrics in the profiles of {omitted} from rank {rank} on are left out"
        rows = kept_table([events[rank]], DEVICE_METRICS).to_pylist()
        metrics += ({"node": profiles[rank].host, **row} for row in rows)
    return metrics, ""


def mapped_beside_profiles(
    run: Run | None,
    captured: Callable[[], Mapping[int, tuple[float, Ints, Ints]]] = dict,
    profiled: Sequence[dict[str, Any]] = (),
    profiled_loss: str = "",
) -> dict[str, list[Any]]:
    """Return the values of the maps over samples of the nodes of a run, its memory, and its logs of files.

    ``captured`` returns the steps in its profiles, as `_captured_steps` does, and ``profiled`` are rows about
    nodes that its profiles have, as `_profiled_metrics` returns them.
    """
    # Workers do not need these imports.
    from hpcprof.results.collect.darshan_logs import run_logs
    from hpcprof.results.collect.node_samples import run_telemetry
    from hpcprof.results.collect.run_memory import run_memory

    sampled = None if run is None else run_telemetry(run, captured)
    memory = None if run is None else run_memory(run, sampled)
    logs = None if run is None else run_logs(run, captured)
    if profiled:
        from hpcprof.analysis.telemetry.tables import RunTelemetry

        sampled = replace(sampled or RunTelemetry([]), profiled=profiled, profiled_loss=profiled_loss)
    return {
        name: [] if samples is None else [load(name)(samples)]
        for part, samples in ((Part.NODES, sampled), (Part.MEMORY, memory), (Part.LOGS, logs))
        for name in _maps(part)
    }


def _maps(over: Part) -> dict[str, tuple[str, ...]]:
    """Return the maps over these parts, each once, with the tables that they read."""
    return {item.map: item.map_needs for item in _RUN_ANALYSES if item.map and item.map_over is over}


def run_tasks(
    function: Callable[[TaskT], ResultT | None], tasks: Sequence[TaskT], executor: Executor
) -> Iterator[tuple[TaskT, ResultT]]:
    """Yield each task with its result, in any order; this process computes what others could not.

    Raises StoreError or OSError if this process cannot either.
    """
    remaining = dict.fromkeys(tasks)
    for task, result in executor(_NoneOnError(function), tasks):
        if result is not None and not isinstance(result, Lost):
            del remaining[task]
            yield task, result
    for task in remaining:
        part = function(task)
        assert part is not None
        yield task, part


class _NoneOnError(msgspec.Struct, frozen=True):
    """Calls a function on a machine that may lack the files of the run."""

    function: Callable[[Any], Any]

    def __call__(self, task: Any) -> Any:
        """Return the result; None if a file cannot be read or written here."""
        try:
            return self.function(task)
        except (StoreError, OSError, pa.ArrowException):
            return None


def _survey(task: RankTask) -> Survey:
    survey = Survey()
    for rank_events in task.events:
        rows = kept_table([rank_events], _COLLECTIVES, (*_CALL_KEY, "start_ns", "end_ns"))
        grouped = rows.group_by(_CALL_KEY, use_threads=False).aggregate(
            [([], "count_all"), ("start_ns", "min"), ("end_ns", "max")]
        )
        kinds = grouped.to_pylist()
        survey.calls[rank_events.rank] = collective_counts(rank_events.world_size(), kinds)
        for kind in kinds:
            name, world = kind["comm_id"], kind["world_ranks"]
            if name:
                survey.members.setdefault(name, set()).add(rank_events.rank)
            if name and kind["op"] in POINT_TO_POINT:
                survey.exchanging.add(name)
            survey.whole |= not name or kind["op"] == _UNKNOWN_DIRECTION
            survey.worlds.add(world)
            inside = name and is_of_one_process(name)
            survey.size = max(survey.size, world or 0, 0 if inside else kind["comm_ranks"] or 0)
    return survey


def _match(task: MatchTask) -> _Matched:
    """Match some communicators and write the matches; without values if there are none."""
    matched = _communication(task)
    if not matched.ranks:
        return _Matched(PartFile("", ()), [], {})
    file = write_matches(task.folder, task.number, matches_of(matched))
    values = {name: load(name)(matched) for name in _maps(Part.COMMUNICATORS)}
    for name in {analysis.map for analysis in _RUN_ANALYSES if analysis.policy is Policy.LAZY}:
        if _has_many_rows([values[name]]):
            values[name] = replace(values[name], rows={})
    return _Matched(file, matched.aligned, values)


def _communication(task: MatchTask) -> Communication:
    batches = (
        _frame(task.events[at : at + _RANKS_AT_ONCE], _COLLECTIVES)
        for at in range(0, len(task.events), _RANKS_AT_ONCE)
    )
    chosen = (task.communicators, task.exchanging, task.profiled)
    return communication(batches, *chosen, shares_clock=task.shares_clock)


def _frame(events: Sequence[RankEvents], name: str) -> pd.DataFrame:
    rows: pd.DataFrame = kept_table(events, name).to_pandas(use_threads=False)
    return rows


def _map_ranks(task: RankTask) -> dict[str, Any]:
    ranks = [events.rank for events in task.events]
    matches = read_matches(task.folder, task.parts, ranks)
    by_rank = ((rank, matches.take(matches.rank == rank)) for rank in np.unique(matches.rank).tolist())
    waits_of_ranks = ((rank, rank_waits(rank_matches)) for rank, rank_matches in by_rank)
    waits = {rank: rank_wait for rank, rank_wait in waits_of_ranks if rank_wait is not None}
    values = {}
    for name, needs in _maps(Part.RANKS).items():
        tables = {need: _frame(task.events, need) for need in needs}
        values[name] = load(name)(tables, waits, task.clocks)
    return values


RANKS_PER_TASK = 64
"""Approximate ranks of a task that matches: 16 workers share 1,024 ranks, unless communicators are larger."""

RANKS_PER_CHUNK = 32
"""Ranks of a task that reads each rank by itself: 16 workers share 1,024 ranks evenly."""


class Survey(msgspec.Struct):
    """The communicators of some ranks, and other facts of these ranks as a whole.

    ``exchanging`` are the communicators with sends and receives, ``size`` is the largest number of ranks that
    these ranks recorded, and ``whole`` is True if all rows have to be matched at once. ``calls`` counts the
    collective calls of each rank.
    """

    members: dict[str, set[int]] = msgspec.field(default_factory=dict)
    exchanging: set[str] = msgspec.field(default_factory=set)
    worlds: set[int | None] = msgspec.field(default_factory=set)
    size: int = 0
    whole: bool = False
    calls: dict[int, CollectiveCounts] = msgspec.field(default_factory=dict)


class RankGroup(NamedTuple):
    """Ranks, and communicators that only these share; ``exchanging`` are those with sends and receives."""

    ranks: tuple[int, ...]
    communicators: frozenset[str]
    exchanging: frozenset[str]


def rank_chunks(ranks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Divide ranks into those of each task that reads them one by one."""
    for at in range(0, len(ranks), RANKS_PER_CHUNK):
        yield tuple(ranks[at : at + RANKS_PER_CHUNK])


def groups_of_communicators(surveys: Sequence[Survey]) -> list[RankGroup] | None:
    """Divide the communicators of all ranks into groups that can be matched independently.

    They have about `RANKS_PER_TASK` ranks; the result is None if all rows have to be matched at once.
    """
    members: dict[str, set[int]] = {}
    for survey in surveys:
        for name, ranks in survey.members.items():
            members.setdefault(name, set()).update(ranks)
    worlds = set().union(*(survey.worlds for survey in surveys))
    messages = frozenset().union(*(survey.exchanging for survey in surveys))
    if not members or len(worlds) > 1 or any(survey.whole for survey in surveys):
        return None
    groups: dict[tuple[int, ...], set[str]] = {}
    for name, ranks in members.items():
        groups.setdefault(tuple(sorted(ranks)), set()).add(name)
    exchanging = [rank for ranks, names in groups.items() if names & messages for rank in ranks]
    if len(exchanging) > len(set(exchanging)):
        # The clocks of two ranks are aligned by all their messages, in whatever communicator.
        return None
    return [RankGroup(ranks, names, names & messages) for ranks, names in _bundles(sorted(groups.items()))]


def _bundles(
    groups: Sequence[tuple[tuple[int, ...], set[str]]],
) -> Iterator[tuple[tuple[int, ...], frozenset[str]]]:
    """Yield the ranks and communicators of groups of about `RANKS_PER_TASK` ranks together."""
    ranks: set[int] = set()
    names: set[str] = set()
    # Groups of one size are nearly always of one kind, and share few ranks with each other.
    for members, group_names in sorted(_overlapping_groups(groups), key=lambda group: len(group[0])):
        if ranks and len(ranks.union(members)) > RANKS_PER_TASK:
            yield tuple(sorted(ranks)), frozenset(names)
            ranks, names = set(), set()
        ranks.update(members)
        names.update(group_names)
    yield tuple(sorted(ranks)), frozenset(names)


def _overlapping_groups(
    groups: Sequence[tuple[tuple[int, ...], set[str]]],
) -> list[tuple[list[int], set[str]]]:
    """Join small groups that share ranks (connected components), so that their ranks are read once."""
    groups_found: list[tuple[list[int], set[str]]] = []
    number_of_rank: dict[int, int] = {}
    for members, group_names in sorted(groups, key=lambda group: len(group[0])):
        touched = sorted({number_of_rank[rank] for rank in members if rank in number_of_rank})
        ranks = sorted(set(members).union(*(groups_found[number][0] for number in touched)))
        if len(ranks) > RANKS_PER_TASK:
            groups_found.append((list(members), group_names))
            continue
        names = group_names.union(*(groups_found[number][1] for number in touched))
        for number in touched:
            groups_found[number] = ([], set())
        number_of_rank |= dict.fromkeys(ranks, len(groups_found))
        groups_found.append((ranks, names))
    return [group for group in groups_found if group[1]]
