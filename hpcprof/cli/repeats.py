"""Repeats of ``hpcprof run``: a job several times, in turns with the job of a baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcprof.cli.compare import show_comparison
from hpcprof.cli.conventions import echo
from hpcprof.common.errors import UsageError
from hpcprof.common.units import counted

if TYPE_CHECKING:
    from pathlib import Path

    from hpcprof.results.store.store import Store
    from hpcprof.runs.directory import Run
    from hpcprof.runs.job import Job
    from hpcprof.submit.sites.model import Site

RunJob = Callable[["Site", "Job"], "Run"]
"""Submits a job, waits for it and collects it."""


def repeat(
    count: int, baseline: str | None, site: Site, job: Job, store: Store, runs_dir: Path, run_job: RunJob
) -> None:
    """Run a job ``count`` times, and compare it with a baseline whose job takes turns with it.

    The order is A B B A and so on, so that a drift of the machine meets both sides alike. Raises UsageError
    if the baseline's job would run the same program as this one, or was not submitted by hpcprof.
    """
    if baseline is None:
        ids = [run_job(site, job).id for _ in range(count)]
        echo(f"{counted(len(ids), 'run')}, whose steps hpcprof list shows: {' '.join(ids)}")
        return
    jobs = {"A": _job_of(baseline, job, store, runs_dir), "B": (site, job)}
    sides: dict[str, list[str]] = {"A": [], "B": []}
    for side in in_turns(count):
        echo(f"{side} ({'baseline' if side == 'A' else 'candidate'}), {len(sides[side]) + 1} of {count}:")
        sides[side].append(run_job(*jobs[side]).id)
    from hpcprof.report.comparison import compare_runs
    from hpcprof.results.collect.missing import find_collected_sides

    a, b = find_collected_sides([*sides.values()], store, runs_dir, lambda *_: None)
    compared = compare_runs(a, b, store, force=True)
    show_comparison(compared, store)
    if conclusion := compared.conclusion():
        echo(conclusion, err=True)


def in_turns(count: int) -> str:
    """Return the order of ``count`` runs of each side: A B B A, again and again."""
    return ("ABBA" * count)[: 2 * count]


def _job_of(baseline: str, job: Job, store: Store, runs_dir: Path) -> tuple[Site, Job]:
    from hpcprof.results.across.named_baselines import baseline_runs
    from hpcprof.submit.sites.model import recorded_site

    submission = baseline_runs(baseline, store, runs_dir)[-1].submission
    earlier_job = submission.job
    if (earlier_job.site, earlier_job.directory, earlier_job.words) == (job.site, job.directory, job.words):
        raise UsageError(
            f"--baseline {baseline}: its job has the same command in the same folder, {job.directory}, so "
            "both sides would run what is there now: give this version another folder (git worktree add), or "
            "other options."
        )
    return recorded_site(submission), earlier_job


def check(count: int, baseline: str | None, here: bool) -> None:
    """Check that the options of repeats go together."""
    if baseline is not None and here:
        raise UsageError("--baseline submits the job of the baseline again: leave out --here.")
    if baseline is not None and count < 2:
        raise UsageError("--baseline needs at least two runs of each side: give --repeat 2, or better 5.")
