"""Slurm, by sbatch, squeue, sacct and scancel."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hpcprof.schedulers.batch import BatchScheduler
from hpcprof.schedulers.command import call
from hpcprof.schedulers.slurm_parse import (
    SACCT_FIELDS,
    SQUEUE_FORMAT,
    parse_sacct,
    parse_sbatch,
    parse_scancel,
    parse_squeue,
)
from hpcprof.schedulers.verdict import Record


class SlurmScheduler(BatchScheduler):
    """Speaks to the Slurm of this machine, and to the clusters that sbatch handed jobs to."""

    def hand_over(self, script: Path, directory: Path, after: Sequence[str]) -> str:
        """Submit by ``sbatch --parsable``; the job id is ``123``, or ``123;cluster`` on another cluster."""
        depends = []
        if after:
            numbers = ":".join(job_id.partition(";")[0] for job_id in after)
            # Without the second option a job whose dependency fails stays in the queue for ever.
            depends = [f"--dependency=afterok:{numbers}", "--kill-on-invalid-dep=yes"]
        done = call(["sbatch", "--parsable", *depends, str(script)], directory)
        return parse_sbatch(done.code, done.stdout, done.stderr)

    def records(self, job_ids: Sequence[str], since: datetime) -> Mapping[str, Record]:
        """Ask squeue once for each cluster's jobs, then sacct once for those that it no longer has."""
        clusters: dict[str, list[str]] = {}
        for job_id in job_ids:
            clusters.setdefault(job_id.partition(";")[2], []).append(job_id)
        found: dict[str, Record] = {}
        for cluster, ids in clusters.items():
            numbers = {job_id.partition(";")[0]: job_id for job_id in ids}
            known = dict(_squeue(list(numbers), cluster))
            missing = [number for number in numbers if number not in known]
            if missing:
                known.update(_sacct(missing, cluster, since))
            found.update({numbers[number]: record for number, record in known.items() if number in numbers})
        return found

    def delete(self, job_id: str) -> None:
        """Cancel the job; scancel succeeds even for one that it does not know."""
        number, _, cluster = job_id.partition(";")
        done = call(["scancel", *_of(cluster), number])
        parse_scancel(done.code, done.stdout, done.stderr)


def _squeue(numbers: Sequence[str], cluster: str) -> Mapping[str, Record]:
    # --states=all shows ended jobs too, from the controller's memory, for MinJobAge (300 s by default):
    # what scontrol shows, but of many jobs at once.
    done = call(
        [
            "squeue",
            "--noheader",
            "--states=all",
            f"--jobs={','.join(numbers)}",
            f"--Format={SQUEUE_FORMAT}",
            *_of(cluster),
        ]
    )
    return parse_squeue(done.code, done.stdout, done.stderr, time.time())


def _sacct(numbers: Sequence[str], cluster: str, since: datetime) -> Mapping[str, Record]:
    # The default window starts at midnight, and sacct takes local time.
    start = since.astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    done = call(
        [
            "sacct",
            "--parsable2",
            "--noheader",
            "--allocations",
            f"--jobs={','.join(numbers)}",
            f"--starttime={start}",
            f"--format={','.join(SACCT_FIELDS)}",
            *_of(cluster),
        ]
    )
    return parse_sacct(done.code, done.stdout, done.stderr, time.time())


def _of(cluster: str) -> list[str]:
    return [f"--clusters={cluster}"] if cluster else []
