"""The study of kernel metrics: times under Nsight Systems, hardware counters under Nsight Compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcprof.common.errors import UsageError
from hpcprof.common.units import counted
from hpcprof.study.runs import Progress, StudyRuns, without_profiler

if TYPE_CHECKING:  # the command's help needs none of these
    from hpcprof.analysis.framework.outcome import AnalysisTable
    from hpcprof.runs.directory import Run
    from hpcprof.submit.jobs.job import JobSpec

_REPLAYED_LAUNCHES = 100
"""Default number of launches to replay."""


@dataclass(frozen=True)
class KernelMetricsStudy:
    """A complete study of kernel metrics."""

    timed_run: Run
    """The run under Nsight Systems."""
    counted_run: Run
    """The run under Nsight Compute."""
    rank: int
    """The rank whose kernels were measured."""
    profiler_options: Mapping[str, str]
    """The options of Nsight Compute that were used."""
    tables: Mapping[str, AnalysisTable]
    """The analyses ``ncu_kernels`` of the second run, and ``roofline`` with the times of the first."""


def run_kernel_metrics(
    request: JobSpec,
    *,
    top: int = 20,
    db: str | None = None,
    progress: Progress | None = None,
    command_line: Sequence[str] | None = None,
) -> KernelMetricsStudy:
    """Measure the kernels of a program by hardware counters, as ``hpcprof study kernel-metrics`` does.

    The job runs twice: under Nsight Systems for the times of its kernels, and under Nsight Compute for the
    counters of the kernels that take longest. Both jobs are checked before the first is submitted. Ctrl-C and
    SIGTERM cancel the run that is waited for.

    Parameters
    ----------
    request : JobSpec
        The job. Its rank selection chooses one rank, by default 0; its profiler options are those of Nsight
        Compute, and ``kernel`` among them replaces the choice of kernels.
    top : int
        The number of kernels to measure.
    db, progress, command_line
        As for `run_slowdown`.

    Raises
    ------
    UsageError
        If the request is wrong; then nothing is submitted.
    hpcprof.study.runs.RunFailed, hpcprof.study.runs.NoProfile, hpcprof.study.runs.StudyInterrupted
        If the study ends early.
    """
    from hpcprof.analysis.framework.registry import ACROSS_RUNS
    from hpcprof.results.across.across_runs import over_pair
    from hpcprof.submit.jobs.request import resolve

    request = without_profiler(request)
    ranks = "0" if request.profile_ranks is None else request.profile_ranks
    options = dict(request.profiler_options)
    first = resolve(replace(request, profiler="nsys", profile_ranks=ranks, profiler_options={}))
    ncu = replace(request, profiler="ncu", profile_ranks=ranks)
    # The second job is checked now: a mistake in it must not show up after the first has run.
    placeholder = {"kernel": "^checked$", "launch-count": str(_REPLAYED_LAUNCHES), **options}
    _, job = resolve(replace(ncu, profiler_options=placeholder))
    if len(job.profiled_ranks) != 1:
        raise UsageError(f"--profile-ranks {ranks}: choose one rank, whose kernels are to be replayed.")
    (rank,) = job.profiled_ranks
    runs = StudyRuns(2, request.runs_dir, request.template, db, progress, command_line)
    with runs.cancelled_on_interrupt():
        timed = runs.make(1, *first)
        options = _with_kernels(options, timed, rank, top, runs)
        counted = runs.make(2, *resolve(replace(ncu, profiler_options=options)))
    assert counted.manifest is not None
    return KernelMetricsStudy(
        timed,
        counted,
        rank,
        counted.manifest.job.profiler_options,
        {
            "ncu_kernels": runs.store.table(counted.id, "ncu_kernels"),
            "roofline": over_pair(ACROSS_RUNS["roofline"], [counted], [timed], runs.store),
        },
    )


def _with_kernels(
    options: Mapping[str, str], timed: Run, rank: int, top: int, runs: StudyRuns
) -> dict[str, str]:
    """Return the options of Nsight Compute with the kernels to measure, unless they name some."""
    from hpcprof.results.collect.timelines import find_timelines
    from hpcprof.study.kernel_choice import choose_kernels

    if "kernel" in options:
        return {"launch-count": str(_REPLAYED_LAUNCHES), **options}
    launches = int(options.get("launch-count") or _REPLAYED_LAUNCHES)
    choice = choose_kernels(find_timelines(timed).read(rank), top, launches)
    runs.tell(
        f"{counted(len(choice.names), 'kernel')} with {100 * choice.share:.1f} % of the compute time; "
        f"{choice.count} launches of them from number {choice.skip} on"
    )
    return {
        "kernel": choice.pattern,
        "launch-count": str(choice.count),
        "launch-skip": str(choice.skip),
        **options,
    }
