"""Analyses over several runs: what they read is gathered from the store and the runs' directories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.declaration import Analysis, Reads
from hpcprof.analysis.framework.outcome import Outcome, of_pair, of_store, shaped
from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.profiles import timeline_parquet
from hpcprof.profiles.readers.results import read_results
from hpcprof.profiles.timeline import Ints, Timeline
from hpcprof.results.store.store import WHOLE_RUN, Store, Stored
from hpcprof.results.store.tables import ProfileRow
from hpcprof.results.timelines import find_timelines
from hpcprof.submit.runs.directory import Run, all_runs
from hpcprof.workloads.schema import RankResult


def over_pair(analysis: Analysis, runs: Sequence[Run], against: Sequence[Run], store: Store) -> Stored:
    """Run a pair analysis.

    Raises
    ------
    UsageError
        If a run comes twice on one side.
    HpcprofError
        If one of the runs has nothing to be compared.
    """
    return _stored(of_pair(analysis, *_sides(runs, against, store, analysis.needs)))


def slowdown_over_pair(runs: Sequence[Run], against: Sequence[Run], store: Store) -> tuple[Stored, Stored]:
    """Run ``slowdown_pairs`` and ``slowdown_by_overlap`` in one pass: reading timelines takes the time.

    Raises
    ------
    UsageError, HpcprofError
        As `over_pair`.
    """
    # Other analyses do not need what it imports.
    from hpcprof.analysis.slowdown.study_pass import both

    pairs, by_overlap = both(*_sides(runs, against, store, ()))
    return (
        _stored(shaped(pairs, ACROSS_RUNS["slowdown_pairs"])),
        _stored(shaped(by_overlap, ACROSS_RUNS["slowdown_by_overlap"])),
    )


def _sides(
    runs: Sequence[Run], against: Sequence[Run], store: Store, needs: Iterable[str]
) -> tuple[list[RunData], list[RunData]]:
    """Gather what an analysis reads of two sides of runs."""
    for side in (runs, against):
        ids = [run.id for run in side]
        twice = next((run_id for run_id in ids if ids.count(run_id) > 1), None)
        if twice is not None:
            raise UsageError(f"{twice} comes twice on one side: a repeat has to be another run.")
    a, b = ([run_data(run, store, needs) for run in side] for side in (runs, against))
    return a, b


def over_store(analysis: Analysis, runs: Sequence[Run], store: Store) -> Stored:
    """Run a store analysis; runs that have nothing to say are left out."""
    return _stored(of_store(analysis, [_run_data(run, store, analysis.needs) for run in runs]))


def every_run(store: Store, runs_dir: Path, skipped: list[str]) -> list[Run]:
    """Return the runs in a folder, and the collected runs that are elsewhere, by id.

    A sentence for each that cannot be read is added to ``skipped``.
    """
    found = {run.id: run for run in all_runs(runs_dir, skipped)}
    for row in store.runs() if store.exists() else ():
        found.setdefault(row.id, Run(row.id, Path(row.path)))
    return [found[run_id] for run_id in sorted(found)]


def run_data(run: Run, store: Store, needs: Iterable[str]) -> RunData:
    """Gather what an analysis reads of a run.

    Raises
    ------
    HpcprofError
        If the run has neither been collected nor has results of its workload.
    """
    data = _run_data(run, store, needs)
    collected = store.exists() and store.profiles(run.id)
    if not collected and not len(data.own_step_ns):
        raise HpcprofError(f"{run.id} has not been collected: run hpcprof collect {run.path} first.")
    return data


def _run_data(run: Run, store: Store, needs: Iterable[str]) -> RunData:
    exists = store.exists()
    profiles = store.profiles(run.id) if exists else {}
    results = read_results(run.path).ranks
    timelines = {rank: p for rank, p in profiles.items() if Reads.of(p.kind) is Reads.TIMELINE}
    first = results[0] if results else None
    return RunData(
        id=run.id,
        facts=_facts(run, first, profiles, store),
        parameters={**first.parameters, "mode": first.mode} if first else {},
        own_step_ns=_own_steps(results),
        tables={need: _table(store, run.id, need, exists) for need in needs},
        timeline_ranks=tuple(timelines),
        read=partial(_read, run, timelines),
    )


def _facts(
    run: Run, result: RankResult | None, profiles: dict[int, ProfileRow], store: Store
) -> dict[str, str | int | None]:
    job = run.manifest.job if run.manifest else None
    gpus = store.gpus(run.id) if profiles else []
    names = sorted({gpu.name for gpu in gpus})
    clocks = sorted({gpu.clock_hz for gpu in gpus if gpu.clock_hz})
    kinds = sorted({profile.kind for profile in profiles.values()})
    ranks = (result.world_size if result else None) or (job.ranks if job else len(profiles)) or None
    return {
        "workload": (job.workload or job.name) if job else (result.workload if result else None),
        "arguments": " ".join(job.arguments) if job else None,
        "site": job.site if job else None,
        "ranks": ranks,
        "nodes": job.nodes if job else len({profile.host for profile in profiles.values()}) or None,
        "profiler": job.profiler if job else ", ".join(kinds) or (result.profiler if result else None),
        "GPU": ", ".join(names) or (result.device if result else None),
        "GPU clock": ", ".join(f"{hertz / 1e6:.0f} MHz" for hertz in clocks) or None,
    }


def _own_steps(results: list[RankResult]) -> Ints:
    """Return each step's maximum over ranks, of the steps that all have."""
    if not results:
        return np.empty(0, np.int64)
    modes = list(results[0].modes.values())
    latency = modes[0].latency_ns if modes else results[0].latency_ns
    times = [latency] if latency else [result.step_ns for result in results]
    steps = min(map(len, times))
    slowest: Ints = np.array([of_rank[:steps] for of_rank in times], np.int64).max(axis=0)
    return slowest


def _table(store: Store, run_id: str, name: str, exists: bool) -> pd.DataFrame:
    analysis = ANALYSES[name]
    columns = [column.name for column in analysis.columns]
    table: pd.DataFrame = pd.DataFrame(store.read(run_id, name).columns if exists else {}, columns=columns)
    return table


def _read(run: Run, profiles: dict[int, ProfileRow], rank: int) -> Timeline:
    """Read a rank's timeline, from what a collect kept if that is of the same profile.

    Raises
    ------
    HpcprofError
        If neither it nor the profile can be read.
    """
    kept = timeline_parquet.load(run.path / "timeline", rank, profiles[rank].sha256)
    if kept is not None:
        return kept
    found = find_timelines(run)
    if rank not in found.paths:
        raise HpcprofError(f"the profile of rank {rank} is no longer in {run.path}: {profiles[rank].file}.")
    return found.read(rank)


def _stored(outcome: Outcome) -> Stored:
    """Return an outcome as the store would."""
    return Stored(outcome.columns(), {WHOLE_RUN: outcome.reason} if outcome.reason else {})
