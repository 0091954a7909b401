"""A metric of all runs of a program over time, with its change points."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from hpcprof.analysis.comparison.change_points import change_points
from hpcprof.analysis.comparison.compare import (
    ELAPSED,
    GATES,
    MATERIAL_PCT,
    NOT_MEASURED,
    OWN_ELAPSED,
    OWN_STEP,
    STEP,
    clocks_of,
    has_steps,
    other_clocks,
    run_metrics,
    step_metrics,
    steps_behind,
)
from hpcprof.analysis.comparison.scaling_series import relevant_parameters
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.gpu_time.breakdown import PARTS
from hpcprof.common.errors import UsageError, unknown
from hpcprof.common.logs import left_out_if_damaged
from hpcprof.results.across.across_runs import every_run
from hpcprof.results.ask.run_inputs import run_data
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run
from hpcprof.runs.tags import read_tags

ANY_STEP = "step_ns"
"""The elapsed time per step, which every run with steps has: by its own clock, else in its profiles."""

_STEP_METRICS = (ANY_STEP, ELAPSED, OWN_ELAPSED, STEP, OWN_STEP)

METRICS = (
    *_STEP_METRICS,
    *(f"{part}_per_step_ns" for part in ("span", *PARTS, "kernels")),
    "overlap_pct",
    *(name for names in GATES.values() for name in names),
)
"""The metrics that runs of most programs have."""

_COMMON_FACTS = ("program", "ranks", "site", "GPU", "profiler")
"""The facts that the runs of a series have in common, besides the arguments that may change a step."""

_MODE = "mode"
_NOT_GIVEN_TEXT = "not given"

_MAX_LISTED_RUNS = 40


@dataclass(frozen=True)
class HistoryPoint:
    """A run in a history."""

    run: str
    time: datetime | None
    """When it was submitted or, for other profiles, recorded."""
    value: float
    """The metric, in the unit of its suffix."""
    tags: tuple[str, ...]
    commit: str | None
    change_probability: float | None = None
    """The probability that the level changes with this run or one beside it; None if it is not marked."""
    change_pct: float | None = None
    """Change of the level from this run on, in percent."""
    source: str = ""
    """The steps behind a time, such as ``19 of 20 profiled steps`` or ``212 steps of the program``."""
    clocks: str = ""
    """Difference between the clocks of the runs from this one on and those before; empty without one."""


@dataclass(frozen=True)
class History:
    """A series: runs of one program with like arguments, ranks, site, GPU and profiler, oldest first."""

    metric: str
    setup: str
    """Facts that the runs share, with those arguments whose values differ between series."""
    points: tuple[HistoryPoint, ...]
    apart: Mapping[str, str] = field(default_factory=dict)
    """Facts and arguments that differ from those of other series, by name."""
    program_known: bool = True
    """False if the program is unknown: the run is alone, with its id as the program."""

    @property
    def regressed(self) -> bool:
        """True if the last change of the level is a rise by `MATERIAL_PCT` or more."""
        changes = [point.change_pct for point in self.points if point.change_pct is not None]
        return bool(changes) and changes[-1] >= MATERIAL_PCT


def histories(
    store: Store,
    runs_dir: Path,
    program: str | None,
    metric: str = ANY_STEP,
    tags: Sequence[str] = (),
    skipped: list[str] | None = None,
    without: list[str] | None = None,
) -> list[History]:
    """Return the histories of a metric, the longest first.

    ``program`` defaults to the only program of all runs; ``metric`` is `ANY_STEP` or a metric of the analysis
    ``compare``. With ``tags``, only runs with one of them count. ``skipped`` gets a sentence for each run
    that cannot be read, and ``without`` the ids of the program's runs that lack the metric. Raises UsageError
    if no run has the program or the metric, or there are several programs and none is named.
    """
    skipped = [] if skipped is None else skipped
    all_data = []
    for run in every_run(store, runs_dir, skipped):
        with left_out_if_damaged(run.id, skipped):
            if not tags or not set(tags).isdisjoint(read_tags(run, runs_dir)):
                all_data.append((run, run_data(run, store)))
    named = _select_program(all_data, program)
    names: set[str] = set()
    groups: dict[_Setup, list[HistoryPoint]] = {}
    for run, data in named:
        with left_out_if_damaged(run.id, skipped):
            values = _metric_values(data, metric)
            names |= set(values)
            if values.get(metric, 0) > 0:
                point = _history_point(run, data, values[metric], store, runs_dir)
                any_step = OWN_ELAPSED if OWN_ELAPSED in values else ELAPSED
                source = steps_behind(data, any_step if metric == ANY_STEP else metric)
                groups.setdefault(_setup(data), []).append(replace(point, source=source))
            elif without is not None:
                without.append(run.id)
    if not groups:
        if named and metric in METRICS:
            which = f"of {program}" if program else f"in {runs_dir}"
            has = f"{metric}: they have {', '.join(sorted(names))}" if names else "a step time"
            raise UsageError(f"no run {which} has {has}.")
        if named and metric not in names:
            raise unknown("metric", metric, {*names, *METRICS}, "", _MAX_LISTED_RUNS)
        raise UsageError(f"no run {'matches' if tags or program else f'in {runs_dir} has a step time'}.")
    differences, by_id = _distinct_facts(list(groups)), {run.id: run for run, _ in all_data}
    series = [
        History(
            metric,
            _description(setup, apart),
            _mark_clock_changes(points, store, by_id),
            apart,
            setup.program_known,
        )
        for (setup, points), apart in zip(groups.items(), differences, strict=True)
    ]
    return sorted(series, key=lambda history: (-len(history.points), history.setup))


def gated_histories(
    gates: Sequence[str], store: Store, runs_dir: Path, program: str | None, tags: Sequence[str] = ()
) -> tuple[list[History], list[str]]:
    """Return the histories of the metrics of some `GATES`, and a sentence for each gate that no run has."""
    series: list[History] = []
    unjudged = []
    for gate in dict.fromkeys(gates):
        had = len(series)
        for metric in GATES[gate]:
            with suppress(UsageError):
                series += histories(store, runs_dir, program, metric, tags)
        if len(series) == had:
            unjudged.append(f"Not judged: {NOT_MEASURED}{gate} of its steps.")
    return series, unjudged


def may_be_gated(metric: str) -> bool:
    """Return whether a higher value of a metric is worse: of a time, or of one of `GATES`."""
    return metric.endswith("_ns") or any(metric in names for names in GATES.values())


def regressions(series: Sequence[History]) -> list[History]:
    """Return, of the history with the newest run of each metric, those whose last change is a rise."""
    newest: dict[str, History] = {}
    earliest = datetime.min.replace(tzinfo=timezone.utc)
    for history in sorted(series, key=lambda item: max(point.time or earliest for point in item.points)):
        newest[history.metric] = history
    return [item for item in newest.values() if may_be_gated(item.metric) and item.regressed]


def _select_program(
    all_data: Sequence[tuple[Run, RunData]], program: str | None
) -> list[tuple[Run, RunData]]:
    names = {str(data.facts["program"]) for _, data in all_data if data.facts["program"] is not None}
    if program is None and len(names) > 1:
        raise UsageError(f"there are several programs: name one with --program: {', '.join(sorted(names))}.")
    if program is not None and program not in names:
        raise unknown("program", program, names, "", _MAX_LISTED_RUNS)
    return [entry for entry in all_data if program is None or str(entry[1].facts["program"]) == program]


def _metric_values(data: RunData, metric: str) -> dict[str, float]:
    values = step_metrics(data) if metric in _STEP_METRICS else run_metrics(data, has_steps(data))
    if any_step := values.get(OWN_ELAPSED, values.get(ELAPSED)):
        values[ANY_STEP] = any_step
    return values


class _Setup(msgspec.Struct, frozen=True):
    facts: tuple[tuple[str, str], ...]
    arguments: frozenset[tuple[str, str]]
    program_known: bool


def _setup(data: RunData) -> _Setup:
    """Return the key of the series of a run; a run of an unknown program is alone.

    Arguments come from the program's own record, which has defaults too, or else from its command.
    """
    has_program = data.facts["program"] is not None
    described = data.facts if has_program else {**data.facts, "program": data.id}
    facts = tuple((name, str(described[name])) for name in _COMMON_FACTS if described[name] is not None)
    recorded = {name: value for name, value in data.parameters.items() if name != _MODE}
    arguments = relevant_parameters(recorded or data.options)
    if _MODE in data.parameters:
        arguments[_MODE] = data.parameters[_MODE]
    # A program may have arguments with the names of facts.
    named = {
        f"argument {name}" if name in _COMMON_FACTS else name: value for name, value in arguments.items()
    }
    return _Setup(facts, frozenset((name, str(value)) for name, value in named.items()), has_program)


def _distinct_facts(setups: Sequence[_Setup]) -> list[dict[str, str]]:
    distinct_facts: list[dict[str, str]] = [{} for _ in setups]
    for described in ([dict(setup.facts) for setup in setups], [dict(setup.arguments) for setup in setups]):
        for name in sorted({name for facts in described for name in facts}, key=_fact_order):
            values = [facts.get(name, _NOT_GIVEN_TEXT) for facts in described]
            if len(set(values)) > 1:
                for differing, value in zip(distinct_facts, values, strict=True):
                    differing[name] = value
    return distinct_facts


def _fact_order(name: str) -> tuple[int, str]:
    return (_COMMON_FACTS.index(name) if name in _COMMON_FACTS else len(_COMMON_FACTS), name)


def _description(setup: _Setup, apart: Mapping[str, str]) -> str:
    words = [
        f"{value} rank{'s' if value != '1' else ''}" if name == "ranks" else value
        for name, value in setup.facts
    ]
    facts = dict(setup.facts)
    words += [f"{name} {value}" for name, value in apart.items() if name not in facts]
    return ", ".join(words)


def _history_point(run: Run, data: RunData, value: float, store: Store, runs_dir: Path) -> HistoryPoint:
    commit = data.facts.get("commit")
    profiles = () if data.submitted or not store.exists() else store.profiles(run.id).values()
    # The clock of a PyTorch trace may begin three months before the trace.
    starts = [row.start_utc_ns for row in profiles if row.start_utc_ns is not None and row.kind != "torch"]
    recorded = datetime.fromtimestamp(min(starts) / 1e9, timezone.utc) if starts else None
    return HistoryPoint(
        run.id,
        data.submitted or recorded,
        value,
        tuple(read_tags(run, runs_dir)),
        None if commit is None else str(commit),
    )


def _mark_clock_changes(
    points: Iterable[HistoryPoint], store: Store, runs: Mapping[str, Run]
) -> tuple[HistoryPoint, ...]:
    """Mark the changes in a series, and name other clocks of the runs after each change."""
    marked = [*_mark_changes(points)]
    at = [place for place, point in enumerate(marked) if point.change_pct is not None]
    if not at:
        return tuple(marked)
    clocks = [clocks_of(run_data(runs[point.run], store).tables) for point in marked]
    for before, place, after in zip([0, *at], at, [*at[1:], len(marked)], strict=False):
        sides = [
            {name: [clock[name] for clock in side if name in clock] for name in set().union(*side)}
            for side in (clocks[before:place], clocks[place:after])
        ]
        changed = {name: (sides[0][name], sides[1][name]) for name in sides[0].keys() & sides[1].keys()}
        marked[place] = replace(marked[place], clocks=other_clocks(changed, "since then", "before"))
    return tuple(marked)


def _mark_changes(points: Iterable[HistoryPoint]) -> tuple[HistoryPoint, ...]:
    earliest = datetime.min.replace(tzinfo=timezone.utc)
    ordered = sorted(points, key=lambda point: (point.time or earliest, point.run))
    for change_point in change_points([point.value for point in ordered]):
        ordered[change_point.position] = replace(
            ordered[change_point.position],
            change_probability=round(change_point.probability, 3),
            change_pct=round(100 * (change_point.after / change_point.before - 1), 2),
        )
    return tuple(ordered)
