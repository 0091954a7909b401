"""PBS Pro and OpenPBS, by qsub, qstat and qdel."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from hpcprof.common.errors import SchedulerError
from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.schedulers.batch import BatchClient
from hpcprof.submit.schedulers.command import Unreachable, ask_again_while_silent, run_scheduler_command
from hpcprof.submit.schedulers.pbs.parse import (
    array_of,
    has_no_history,
    member_of,
    parse_down_nodes,
    parse_job_name,
    parse_largest_array,
    parse_qdel,
    parse_qselect,
    parse_qstat,
    parse_qsub,
    same_job,
    was_submitted_from,
)
from hpcprof.submit.schedulers.run_state import Record

_QSTAT = ("qstat", "-f", "-F", "json")
# Shows finished jobs too, for as long as the server keeps their history.
_QSTAT_HISTORY = ("qstat", "-x", "-f", "-F", "json")

_ALL_SECONDS = 20.0
"""The most seconds for all questions of one poll; jobs that are left are asked for in the next one."""


class PbsClient(BatchClient):
    """Talks to this machine's default PBS server."""

    keeps_history: ClassVar[bool] = True
    """True if the server keeps finished jobs; false for this process once the server has denied it."""

    def unfinished(self, job_ids: Sequence[str]) -> list[str]:
        """Return the subset of ``job_ids`` to wait for; refuse members of arrays."""
        left = super().unfinished(job_ids)
        arrays = [job_id for job_id in left if "[" in job_id]
        if arrays:
            raise SchedulerError(
                f"job {arrays[0]}, which this one must wait for, is a member of an array, and PBS cannot "
                "wait for the success of a member: submit this job when it has ended, or the sweep without "
                "--array."
            )
        return left

    def hand_over(
        self, script: Path, directory: Path, after: Sequence[str], options: Sequence[str] = ()
    ) -> str:
        """Submit by ``qsub``, without the environment: exported functions break qstat's JSON."""
        depends = ["-W", f"depend=afterok:{':'.join(after)}"] if after else []
        done = run_scheduler_command(["qsub", *depends, *options, str(script)], directory)
        return parse_qsub(done.exit_code, done.stdout, done.stderr)

    def log_options(self, out: Path, err: Path) -> list[str]:
        """Return ``-o`` and ``-e``."""
        return ["-o", str(out), "-e", str(err)]

    def records(self, job_ids: Sequence[str], since: datetime) -> Mapping[str, Record]:
        """Ask for each job or whole array by itself, and stop after a while.

        ``qstat -F json`` prints only the first of several ids (seen on OpenPBS 23.06). Without an id it
        prints every job of the server, with its history: a load that sites do not accept.
        """
        groups: dict[str, list[str]] = {}
        for job_id in job_ids:
            groups.setdefault(array_of(job_id), []).append(job_id)
        found: dict[str, Record] = {}
        deadline = time.monotonic() + _ALL_SECONDS
        for count, (asked, group) in enumerate(groups.items()):
            if time.monotonic() > deadline:
                late = f"not asked for: PBS took {_ALL_SECONDS:.0f} s for {count} of {len(groups)} jobs"
                found.update(dict.fromkeys(group, Record(JobState.UNKNOWN, late)))
                continue
            try:
                found.update(_pick(self._qstat(asked), group))
            except Unreachable:
                raise
            except SchedulerError as error:  # of this job alone
                found.update(dict.fromkeys(group, Record(JobState.UNKNOWN, str(error))))
        return _on_dead_nodes(found)

    def submitted_from(self, script: Path, owner: str) -> str:
        """Look for the script among the user's jobs of its name, of which qselect prints the ids alone."""
        try:
            name = parse_job_name(script.read_text(encoding="utf-8", errors="replace")) or script.name
        except OSError:
            return ""
        done = run_scheduler_command(["qselect", "-u", owner, "-N", name])
        for job_id in parse_qselect(done.exit_code, done.stdout, done.stderr):
            asked = run_scheduler_command([*_QSTAT, job_id])
            if was_submitted_from(script, asked.stdout):
                return job_id
        return ""

    def delete(self, job_ids: Sequence[str]) -> None:
        """Delete the jobs; they remain listed as running for some seconds."""
        done = run_scheduler_command(["qdel", *job_ids])
        parse_qdel(done.exit_code, done.stdout, done.stderr)

    def _qstat(self, job_id: str) -> Mapping[str, Record]:
        members = ["-t"] if "[" in job_id else []
        if PbsClient.keeps_history:
            done = run_scheduler_command([*_QSTAT_HISTORY, *members, job_id])
            if not has_no_history(done.stderr):
                return parse_qstat(done.exit_code, done.stdout, done.stderr)
            PbsClient.keeps_history = False
        done = run_scheduler_command([*_QSTAT, *members, job_id])
        return parse_qstat(done.exit_code, done.stdout, done.stderr)

    def member_id(self, array_id: str, index: int) -> str:
        """Return ``123[4].server``."""
        return member_of(array_id, index)

    def largest_array(self) -> int | None:
        """Ask for the server's max_array_size."""
        done = ask_again_while_silent(lambda: run_scheduler_command(["qstat", "-B", "-f", "-F", "json"]))
        return parse_largest_array(done.exit_code, done.stdout, done.stderr)


def _on_dead_nodes(records: Mapping[str, Record]) -> Mapping[str, Record]:
    """Name the dead nodes of jobs that run: PBS calls a job running until its first node is given up."""
    if not any(record.nodes for record in records.values()):
        return records
    try:
        down = parse_down_nodes(run_scheduler_command(["pbsnodes", "-l"]).stdout)
    except SchedulerError:  # the states are known all the same
        return records
    found = {}
    for job_id, record in records.items():
        lost = " and ".join(sorted(record.nodes & down))
        words = f"{lost} {'are' if ' and ' in lost else 'is'} down, so that the job cannot go on"
        found[job_id] = replace(record, reason=words) if lost else record
    return found


def _pick(records: Mapping[str, Record], job_ids: Sequence[str]) -> dict[str, Record]:
    found = {}
    for job_id in job_ids:
        name = job_id if job_id in records else next((n for n in records if same_job(n, job_id)), None)
        if name is not None:
            found[job_id] = records[name]
    return found
