"""Slurm, by sbatch, squeue, sacct and scancel."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hpcprof.submit.schedulers.batch import BatchClient
from hpcprof.submit.schedulers.command import ask_again_while_silent, run_scheduler_command
from hpcprof.submit.schedulers.run_state import Record
from hpcprof.submit.schedulers.slurm.parse import (
    SACCT_FIELDS,
    SCRIPTS_FORMAT,
    SQUEUE_FORMAT,
    parse_largest_array,
    parse_sacct,
    parse_sbatch,
    parse_scancel,
    parse_scripts,
    parse_squeue,
)


class SlurmClient(BatchClient):
    """Talks to the Slurm of this machine, and to the clusters that sbatch passed jobs on to."""

    def hand_over(
        self, script: Path, directory: Path, after: Sequence[str], options: Sequence[str] = ()
    ) -> str:
        """Submit by ``sbatch --parsable``; the job id is ``123``, or ``123;cluster`` on another cluster."""
        depends = []
        if after:
            numbers = ":".join(job_id.partition(";")[0] for job_id in after)
            # Without the second option a job whose dependency fails stays in the queue.
            depends = [f"--dependency=afterok:{numbers}", "--kill-on-invalid-dep=yes"]
        done = run_scheduler_command(["sbatch", "--parsable", *depends, *options, str(script)], directory)
        return parse_sbatch(done.exit_code, done.stdout, done.stderr)

    def log_options(self, out: Path, err: Path) -> list[str]:
        """Return ``--output`` and ``--error``, in which % would begin a pattern."""
        return [
            f"--output={str(out).replace('%', '%%')}",
            f"--error={str(err).replace('%', '%%')}",
        ]

    def records(self, job_ids: Sequence[str], since: datetime) -> Mapping[str, Record]:
        """Ask squeue once for each cluster's jobs, then sacct once for those that squeue no longer lists."""
        clusters: dict[str, list[str]] = {}
        for job_id in job_ids:
            clusters.setdefault(job_id.partition(";")[2], []).append(job_id)
        found: dict[str, Record] = {}
        for cluster, ids in clusters.items():
            numbers = {job_id.partition(";")[0]: job_id for job_id in ids}
            known = _of_members(_squeue(_whole(numbers), cluster), numbers)
            missing = [number for number in numbers if number not in known]
            if missing:
                known.update(_of_members(_sacct(_whole(missing), cluster, since), missing))
            found.update({numbers[number]: record for number, record in known.items()})
        return found

    def submitted_from(self, script: Path, owner: str) -> str:
        """Look for the script among the user's jobs; ended ones are listed for a while."""
        done = run_scheduler_command(
            ["squeue", "--noheader", "--states=all", f"--user={owner}", f"--format={SCRIPTS_FORMAT}"]
        )
        return parse_scripts(done.exit_code, done.stdout, done.stderr).get(str(script), "")

    def delete(self, job_ids: Sequence[str]) -> None:
        """Cancel the jobs; scancel succeeds even for unknown jobs."""
        clusters: dict[str, list[str]] = {}
        for job_id in job_ids:
            number, _, cluster = job_id.partition(";")
            clusters.setdefault(cluster, []).append(number)
        for cluster, numbers in clusters.items():
            members = [number for number in numbers if "_" in number]
            if members:
                # A waiting member that is cancelled leaves no record, and jobs that wait for its success then
                # start (seen on 22.05); a hold makes a separate job of it first. For members that already
                # run the hold fails, which does no harm.
                run_scheduler_command(["scontrol", *_of(cluster), "hold", ",".join(members)])
            done = run_scheduler_command(["scancel", *_of(cluster), *numbers])
            parse_scancel(done.exit_code, done.stdout, done.stderr)

    def member_id(self, array_id: str, index: int) -> str:
        """Return ``123_4``, or ``123_4;cluster``."""
        number, separator, cluster = array_id.partition(";")
        return f"{number}_{index}{separator}{cluster}"

    def largest_array(self) -> int | None:
        """Ask for Slurm's MaxArraySize."""
        done = ask_again_while_silent(lambda: run_scheduler_command(["scontrol", "show", "config"]))
        return parse_largest_array(done.exit_code, done.stdout, done.stderr)


def _whole(numbers: Iterable[str]) -> list[str]:
    """Return the jobs to ask for: an array once, for all its members."""
    return list(dict.fromkeys(number.partition("_")[0] for number in numbers))


def _of_members(records: Mapping[str, Record], numbers: Iterable[str]) -> dict[str, Record]:
    """Return the records of jobs; a member without a record has that of its array.

    For a while Slurm lists an array whose waiting members were all cancelled under its plain id.
    """
    found = {}
    for number in numbers:
        record = records.get(number) or records.get(number.partition("_")[0])
        if record is not None:
            found[number] = record
    return found


def _squeue(numbers: Sequence[str], cluster: str) -> Mapping[str, Record]:
    # --states=all lists ended jobs too, from the controller's memory, for MinJobAge (300 s by default), as
    # scontrol does, but many jobs at once.
    done = run_scheduler_command(
        [
            "squeue",
            "--noheader",
            "--states=all",
            "--array",  # one line per member, waiting ones included
            f"--jobs={','.join(numbers)}",
            f"--Format={SQUEUE_FORMAT}",
            *_of(cluster),
        ]
    )
    return parse_squeue(done.exit_code, done.stdout, done.stderr, time.time())


def _sacct(numbers: Sequence[str], cluster: str, since: datetime) -> Mapping[str, Record]:
    # The default window starts at midnight, and sacct takes local time.
    start = since.astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    done = run_scheduler_command(
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
    return parse_sacct(done.exit_code, done.stdout, done.stderr, time.time())


def _of(cluster: str) -> list[str]:
    return [f"--clusters={cluster}"] if cluster else []
