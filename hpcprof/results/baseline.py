"""Runs that may be compared, and the earlier runs of a baseline."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hpcprof.analysis.framework.run_data import RunData
from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.job import Job
from hpcprof.submit.runs.directory import Manifest, Run, all_runs

MOST_EARLIER = 20
"""The number of earlier runs that count at most; the latest ones do."""


def check_comparable(runs: Sequence[RunData], force: str) -> None:
    """Check that runs are of one program on one number of ranks, as far as that is known.

    ``force`` is the command that compares them nevertheless.

    Raises
    ------
    UsageError
        If they are not.
    """
    for fact, words in (("program", "different programs"), ("ranks", "different numbers of ranks")):
        values = dict.fromkeys(str(run.facts[fact]) for run in runs if run.facts[fact] is not None)
        if len(values) > 1:
            both = ", ".join(values)
            raise UsageError(f"the runs have {words} ({both}): {force} compares them nevertheless.")


def earlier_runs(baseline: Sequence[Run], candidate: Sequence[Run]) -> list[Run]:
    """Return the runs that repeat the job of the baseline and were submitted before it, oldest first.

    They are looked for beside the runs of the baseline. The jobs have to be equal, and so does the code: the
    commit of the user's repository, without changes, or the version of hpcprof for its own workloads. There
    are none if that is unknown. Runs with a failed rank are left out.
    """
    manifests = [run.manifest for run in baseline if run.manifest is not None]
    jobs = [_repeated(manifest) for manifest in manifests]
    if len(jobs) < len(baseline) or any(job is None or job != jobs[0] for job in jobs):
        return []
    begin = min(run.manifest.created for run in (*baseline, *candidate) if run.manifest is not None)
    named = {run.id for run in (*baseline, *candidate)}
    beside = {run.id: run for folder in {run.path.parent for run in baseline} for run in all_runs(folder, [])}
    found = [
        (run.manifest.created, run.id)
        for run in beside.values()
        if run.id not in named
        and run.manifest is not None
        and run.manifest.created < begin
        and _repeated(run.manifest) == jobs[0]
        and not any(run.rank_exit_codes().values())
    ]
    return [beside[run_id] for _, run_id in sorted(found)[-MOST_EARLIER:]]


def _repeated(manifest: Manifest) -> tuple[Job, str] | None:
    """Return what repeats of a job have in common; None if the code that ran is unknown."""
    job, git = manifest.job, manifest.git
    same = msgspec.structs.replace(job, after=[], walltime=0, account="")
    if job.workload is not None:
        return msgspec.structs.replace(same, directory=""), manifest.hpcprof_version
    if git is None:
        return same, ""
    return None if git.dirty else (same, git.commit)
