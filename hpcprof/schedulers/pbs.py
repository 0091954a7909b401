"""PBS Pro and OpenPBS, by qsub, qstat and qdel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hpcprof.errors import SchedulerError
from hpcprof.schedulers.base import JobState
from hpcprof.schedulers.batch import BatchScheduler
from hpcprof.schedulers.command import Unreachable, call
from hpcprof.schedulers.pbs_parse import parse_qdel, parse_qstat, parse_qsub, same_job
from hpcprof.schedulers.verdict import Record

# -x shows finished jobs too, for as long as the server keeps their history.
_QSTAT = ("qstat", "-x", "-f", "-F", "json")

# Up to so many jobs are asked for one by one; for more, one question for all jobs of the server is less work.
_SINGLY = 8


class PbsScheduler(BatchScheduler):
    """Speaks to this machine's default PBS server."""

    def hand_over(self, script: Path, directory: Path, after: Sequence[str]) -> str:
        """Submit by ``qsub``; the environment stays behind, as exported functions break qstat's JSON."""
        depends = ["-W", f"depend=afterok:{':'.join(after)}"] if after else []
        done = call(["qsub", *depends, str(script)], directory)
        return parse_qsub(done.code, done.stdout, done.stderr)

    def records(self, job_ids: Sequence[str], since: datetime) -> Mapping[str, Record]:
        """Ask for each job, or for all at once where they are many.

        ``qstat -F json`` prints only the first of several ids (seen on OpenPBS 23.06): one, or none.
        """
        if len(job_ids) > _SINGLY:
            try:
                return _pick(_qstat(), job_ids)
            except Unreachable:
                raise
            except SchedulerError:
                pass  # someone's job has made the JSON of all invalid
        found: dict[str, Record] = {}
        for job_id in job_ids:
            try:
                found.update(_pick(_qstat(job_id), [job_id]))
            except Unreachable:
                raise
            except SchedulerError as error:  # of this job alone
                found[job_id] = Record(JobState.UNKNOWN, str(error))
        return found

    def delete(self, job_id: str) -> None:
        """Delete the job; it shows as running for some seconds more."""
        done = call(["qdel", job_id])
        parse_qdel(done.code, done.stdout, done.stderr)


def _qstat(*job_ids: str) -> Mapping[str, Record]:
    done = call([*_QSTAT, *job_ids])
    return parse_qstat(done.code, done.stdout, done.stderr)


def _pick(records: Mapping[str, Record], job_ids: Sequence[str]) -> dict[str, Record]:
    found = {}
    for job_id in job_ids:
        name = job_id if job_id in records else next((n for n in records if same_job(n, job_id)), None)
        if name is not None:
            found[job_id] = records[name]
    return found
