"""The study of slowdown: one program with and without communication, in turns, under Nsight Systems."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hpcprof.common.errors import UsageError
from hpcprof.study.runs import Progress, StudyRuns, without_profiler

if TYPE_CHECKING:  # the command's help needs none of these
    from hpcprof.study.slowdown_record import Arm, SlowdownRecord
    from hpcprof.study.slowdown_tables import PointComparison, SlowdownTables
    from hpcprof.submit.jobs.job import JobSpec


STUDY: Literal["slowdown"] = "slowdown"
"""The name of the study."""


class Alone(Enum):
    """The way a program runs without communication."""

    HOOK = "hook"
    """The same ranks of the workload ddp, with a communication hook that sums no gradients."""
    ONE_RANK = "one-rank"
    """One rank of the same program."""


@dataclass(frozen=True)
class SlowdownStudy:
    """A complete study of slowdown."""

    folder: Path
    """The folder of the study; `resume_slowdown` accepts it."""
    tables: SlowdownTables
    """The results of all runs."""
    comparisons: list[PointComparison]
    """The two arms against each other, one comparison per point of the sweep."""


def run_slowdown(
    request: JobSpec,
    *,
    alone: Alone = Alone.HOOK,
    sweep: Mapping[str, Sequence[str]] | None = None,
    repeats: int = 5,
    db: str | None = None,
    progress: Progress | None = None,
    command_line: Sequence[str] | None = None,
) -> SlowdownStudy:
    """Run a program with and without communication, as ``hpcprof study slowdown`` does.

    Every job is checked before the first is submitted. Ctrl-C and SIGTERM cancel the run that is waited for.

    Parameters
    ----------
    request : JobSpec
        The job; the study sets its profiler and rank selection.
    alone : Alone
        How the program runs without communication.
    sweep : mapping of str to sequence of str, optional
        The values of parameters of the program; the study compares at every combination.
    repeats : int
        The number of runs of each arm at each point of the sweep.
    db : str, optional
        The results database; see `hpcprof.open`.
    progress : callable, optional
        Called with each message of the study; ``print`` will do.
    command_line : sequence of str, optional
        The command that run.json records; by default that of this process.

    Raises
    ------
    UsageError
        If the request or the sweep is wrong; then nothing is submitted.
    hpcprof.study.runs.RunFailed, hpcprof.study.runs.NoProfile, hpcprof.study.runs.StudyInterrupted
        If the study ends early; `resume_slowdown` continues it.
    """
    from hpcprof.study.resumable import begin

    record = _plan(request, alone, sweep or {}, repeats)
    runs = StudyRuns(len(record.runs), request.runs_dir, record.template, db, progress, command_line)
    return begin(record, runs, _compare)


def resume_slowdown(
    folder: str | os.PathLike[str],
    *,
    db: str | None = None,
    progress: Progress | None = None,
    command_line: Sequence[str] | None = None,
) -> SlowdownStudy:
    """Continue a study of slowdown that ended early, as ``hpcprof study slowdown --resume`` does.

    Runs that have succeeded are kept, one that has not ended is waited for, and the others are made.

    Parameters
    ----------
    folder : str or path
        The folder of the study.
    db, progress, command_line
        As for `run_slowdown`.

    Raises
    ------
    UsageError
        If the folder does not belong to a study of slowdown.
    hpcprof.study.runs.RunFailed, hpcprof.study.runs.NoProfile, hpcprof.study.runs.StudyInterrupted
        As `run_slowdown`.
    """
    from hpcprof.study.resumable import resume
    from hpcprof.study.slowdown_record import SlowdownRecord

    return resume(folder, STUDY, SlowdownRecord, _compare, db, progress, command_line)


def _plan(request: JobSpec, alone: Alone, sweep: Mapping[str, Sequence[str]], repeats: int) -> SlowdownRecord:
    """Return the runs that a study needs, with their checked jobs."""
    from hpcprof.study.slowdown_record import SlowdownRecord, StudyRun, plan_runs
    from hpcprof.submit.jobs.request import resolve
    from hpcprof.workloads.sweep import points, program_at

    request = without_profiler(request)
    if alone is Alone.HOOK and request.workload != "ddp" and (request.workload or request.program):
        raise UsageError("--alone hook needs --workload ddp: use --alone one-rank for another program.")
    runs = []
    for planned in plan_runs(points(sweep), repeats):
        program = program_at(planned.point, request.program, request.workload, "--sweep")
        site, job = resolve(_request_of(request, planned.arm, alone, program))
        runs.append(StudyRun(planned.point, planned.arm, planned.repeat, job=job))
    if max(planned.job.ranks for planned in runs) < 2:
        raise UsageError("a single rank does not communicate: give --ranks-per-node 2 or more.")
    template = request.template
    return SlowdownRecord(STUDY, site, runs, str(template.absolute()) if template else None)


def _request_of(request: JobSpec, arm: Arm, alone: Alone, program: Sequence[str]) -> JobSpec:
    from hpcprof.study.slowdown_record import Arm

    profiled = replace(request, profiler="nsys", profile_ranks="all", program=tuple(program))
    if arm is Arm.COMMUNICATING:
        return profiled
    if alone is Alone.ONE_RANK:
        return replace(profiled, nodes=1, ranks_per_node=1)
    return replace(profiled, program=(*program, "--comm-hook", "noop"))


def _compare(record: SlowdownRecord, folder: Path, runs: StudyRuns) -> SlowdownStudy:
    """Compute the tables of all runs."""
    from hpcprof.study.slowdown_tables import compare_arms, slowdown_tables

    comparisons = compare_arms(record.runs, runs.store, runs.runs_dir)
    tables = slowdown_tables(folder.name, record.keys, record.runs, comparisons, runs.store)
    return SlowdownStudy(folder, tables, comparisons)
