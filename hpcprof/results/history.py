"""A metric of all runs of a program over time, and the runs from which on its level is another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from hpcprof.analysis.comparison.change_points import change_points
from hpcprof.analysis.comparison.compare import OWN_STEP, STEP, has_steps, run_metrics
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.gpu_time.breakdown import PARTS
from hpcprof.common.errors import UsageError, unknown
from hpcprof.results.across_runs import every_run
from hpcprof.results.run_inputs import run_data
from hpcprof.results.store.store import Store
from hpcprof.submit.runs.directory import Run
from hpcprof.submit.runs.tags import read_tags

ANY_STEP = "step_ns"
"""The metric that every run with steps has: that of its own clock, else that of its profiles."""

METRICS = (
    *(ANY_STEP, OWN_STEP, STEP),
    *(f"{part}_per_step_ns" for part in ("span", *PARTS, "kernels")),
    "overlap_pct",
)
"""The metrics that runs of most programs have."""

_ALIKE = ("program", "ranks", "site", "GPU", "profiler")
"""The facts that the runs of a series have in common."""

_LISTED = 20


@dataclass(frozen=True)
class HistoryPoint:
    """A run in a history.

    Attributes
    ----------
    run : str
    time : datetime or None
        When it was submitted or, for other profiles, recorded.
    value : float
        The metric, in the unit of its suffix.
    tags : tuple of str
    commit : str or None
    change_probability : float or None
        The probability that the level changes with this run or one beside it; None if it is not marked.
    change_pct : float or None
        By how much the level is higher from this run on.
    """

    run: str
    time: datetime | None
    value: float
    tags: tuple[str, ...]
    commit: str | None
    change_probability: float | None = None
    change_pct: float | None = None


@dataclass(frozen=True)
class History:
    """The runs of one program on the same number of ranks, site, GPU and profiler, oldest first."""

    metric: str
    setup: str
    points: tuple[HistoryPoint, ...]


def histories(
    store: Store,
    runs_dir: Path,
    program: str | None,
    metric: str = ANY_STEP,
    tags: Sequence[str] = (),
    skipped: list[str] | None = None,
) -> list[History]:
    """Return the histories of a metric, the longest first.

    Parameters
    ----------
    store : Store
    runs_dir : Path
    program : str, optional
        The program; by default that of all runs.
    metric : str
        `ANY_STEP`, or a metric of the analysis ``compare``.
    tags : sequence of str
        Only runs that have one of them; by default all.
    skipped : list of str, optional
        Gets a sentence for each run that cannot be read.

    Raises
    ------
    UsageError
        If no run has the program or the metric, or there are several programs and none is named.
    """
    runs = every_run(store, runs_dir, [] if skipped is None else skipped)
    chosen = [run for run in runs if not tags or not set(tags).isdisjoint(read_tags(run))]
    needs = ACROSS_RUNS["compare"].needs if metric not in (ANY_STEP, STEP, OWN_STEP) else ("steps_summary",)
    every = [(run, run_data(run, store, needs)) for run in chosen]
    named = _of_program(every, program)
    known: set[str] = set()
    groups: dict[str, list[HistoryPoint]] = {}
    for run, data in named:
        values = _values(data, metric)
        known |= set(values)
        if values.get(metric, 0) > 0:
            groups.setdefault(_setup(data), []).append(_point(run, data, values[metric], store))
    if not groups:
        if named and metric not in known:
            raise unknown("metric", metric, {*known, ANY_STEP}, "", _LISTED)
        raise UsageError(f"no run {'matches' if tags or program else f'in {runs_dir} has a step time'}.")
    found = [History(metric, setup, _marked(points)) for setup, points in groups.items()]
    return sorted(found, key=lambda history: (-len(history.points), history.setup))


def _of_program(every: Sequence[tuple[Run, RunData]], program: str | None) -> list[tuple[Run, RunData]]:
    names = {str(data.facts["program"]) for _, data in every if data.facts["program"] is not None}
    if program is None and len(names) > 1:
        raise UsageError(f"there are several programs: name one with --program: {', '.join(sorted(names))}.")
    if program is not None and program not in names:
        raise unknown("program", program, names, "", _LISTED)
    return [one for one in every if program is None or str(one[1].facts["program"]) == program]


def _values(data: RunData, metric: str) -> dict[str, float]:
    """Return the metrics of a run that are at hand; all of them if the metric is not a time of steps."""
    if metric in (ANY_STEP, STEP, OWN_STEP):
        summary = data.tables["steps_summary"]
        found = {STEP: float(summary["p50_ns"].iloc[0])} if len(summary) else {}
        found |= {} if data.own_p50_ns is None else {OWN_STEP: data.own_p50_ns}
    else:
        found = run_metrics(data, has_steps(data))
    if any_step := found.get(OWN_STEP, found.get(STEP)):
        found[ANY_STEP] = any_step
    return found


def _setup(data: RunData) -> str:
    facts = {name: data.facts[name] for name in _ALIKE if data.facts[name] is not None}
    return ", ".join(
        f"{value} rank{'s' if value != 1 else ''}" if name == "ranks" else str(value)
        for name, value in facts.items()
    )


def _point(run: Run, data: RunData, value: float, store: Store) -> HistoryPoint:
    commit = data.facts.get("commit")
    return HistoryPoint(
        run.id,
        data.submitted or _recorded(run, store),
        value,
        tuple(read_tags(run)),
        None if commit is None else str(commit),
    )


def _recorded(run: Run, store: Store) -> datetime | None:
    """Return when the first profile of a run began."""
    profiles = store.profiles(run.id).values() if store.exists() else ()
    starts = [profile.start_utc_ns for profile in profiles if profile.start_utc_ns is not None]
    return datetime.fromtimestamp(min(starts) / 1e9, timezone.utc) if starts else None


def _marked(points: Iterable[HistoryPoint]) -> tuple[HistoryPoint, ...]:
    """Return the points in the order of time, with the changes; those of unknown time come first."""
    earliest = datetime.min.replace(tzinfo=timezone.utc)
    ordered = sorted(points, key=lambda point: (point.time or earliest, point.run))
    for one in change_points([point.value for point in ordered]):
        at = ordered[one.position]
        ordered[one.position] = HistoryPoint(
            *(at.run, at.time, at.value, at.tags, at.commit),
            change_probability=round(one.probability, 3),
            change_pct=round(100 * (one.after / one.before - 1), 2),
        )
    return tuple(ordered)
