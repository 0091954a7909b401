"""The state of a run, from its job's record and its files; a final state is kept and not judged again."""

import json
import re
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import msgspec

from hpcprof.common.atomic import write_atomically
from hpcprof.common.decode import from_json, parse_count
from hpcprof.common.private import private_mode
from hpcprof.runs.config import group_may_read
from hpcprof.runs.directory import Run
from hpcprof.runs.intent import read_intent
from hpcprof.submit.jobs.walltime import format_walltime
from hpcprof.submit.runs.failure_causes import Where, find_cause
from hpcprof.submit.runs.failures import job_output, unended_ranks
from hpcprof.submit.schedulers.base import CANCELLED_FILE, JobState, JobStatus, Record

GRACE_SECONDS = 30.0
"""Maximum wait for a job's ``finished`` file after its end, in seconds: NFS shows new names late."""

UNRECORDED_SECONDS = 60.0
"""Maximum wait for the ``finished`` file of a job that the scheduler does not list, in seconds."""

SUBMITTING_SECONDS = 150.0
"""Maximum time until the scheduler lists a job that another machine submits, in seconds."""

_UNFINISHED_FILE = "unfinished"
_SEEN_FILE = "seen"


def status_from_record(run: Run, record: Record | None) -> JobStatus:
    """Return a run's status from its record, if the scheduler has one, and its state files."""
    status = _without_record(run) if record is None else _from_record(run, record)
    if status.state is JobState.TIMEOUT:
        note = f"before that {stopped}" if (stopped := _stopped_capture(run)) else _lost_profiles(run)
    elif status.state is JobState.QUEUED:
        note = _failed_dependencies(run)
    else:
        note = capture_note(run) or _failed_dependencies(run)
    refusal = run.state_file("not_requeued")
    stopped = f"it was not queued again: {refusal}" if refusal and status.state.ended else ""
    return replace(status, reason="; ".join(filter(None, (status.reason, note, stopped))))


def _failed_dependencies(run: Run) -> str:
    """Return the runs that a waiting job depends on and that did not succeed, with their states."""
    names = [] if run.state_file("started") is not None else run.submission.job.after
    dependencies = [Run(name, run.path.parent / name) for name in names]
    states = {other.id: read_verdict(other) or status_by_finished_file(other) for other in dependencies}
    failed = [(name, end) for name, end in states.items() if end and end.state is not JobState.COMPLETED]
    return "; ".join(f"{name} is {end}" for name, end in failed)


def capture_note(run: Run) -> str:
    """Return a sentence on the capture if the walltime limit stopped it; else an empty text."""
    stopped = _stopped_capture(run)
    return f"the walltime limit was near: {stopped}" if stopped else ""


def _stopped_capture(run: Run) -> str:
    text = next(filter(None, run.rank_notes("stopped").values()), "")
    return f"the capture was stopped {text}" if text else ""


def _lost_profiles(run: Run) -> str:
    profiled = run.profiled_ranks
    written = {path.name.partition(".")[0] for path in (run.outputs() / "profiles").glob("rank*")}
    lost = [rank for rank in profiled if f"rank{rank:05d}" not in written]
    which = f"rank {lost[0]}" if len(lost) == 1 else f"{len(lost)} of {len(profiled)} profiled ranks"
    return f"{which} left no profile" if lost else ""


def _from_record(run: Run, record: Record) -> JobStatus:
    if not record.state.ended:
        with suppress(OSError):  # it is listed: a later absence is waited for anew
            (run.path / "state" / _UNFINISHED_FILE).unlink(missing_ok=True)
            if record.state is not JobState.UNKNOWN and not records(run, "started"):
                write_atomically(run.path / "state" / _SEEN_FILE, f"{record.state.value}\n")
    if record.preempted:
        return JobStatus(JobState.QUEUED, "preempted by another job; it will run again")
    if record.state is JobState.COMPLETED:
        return _completed_status(run, record)
    if record.state is JobState.FAILED:
        return _failed_status(run, record)
    if record.state is JobState.TIMEOUT:
        written = _end_in_output(run)
        reason = written.reason if written and written.state is JobState.TIMEOUT else _limit_exceeded(run)
        return JobStatus(JobState.TIMEOUT, record.reason or reason, record.exit_code)
    canceller = run.state_file(CANCELLED_FILE)
    if record.state is JobState.CANCELLED:
        return JobStatus(JobState.CANCELLED, record.reason or canceller or "", record.exit_code)
    if record.state is not JobState.UNKNOWN and canceller is not None:
        return JobStatus(record.state, "being cancelled")
    if record.state is JobState.QUEUED and (sentence := _requeued(run, record)):
        return JobStatus(record.state, f"{sentence}; {record.reason}".removesuffix("; "))
    return JobStatus(record.state, record.reason, record.exit_code)


def _end_in_output(run: Run, where: Where = "job_end") -> JobStatus | None:
    """Return the end of a job's last start by the scheduler's words in its output, or None."""
    lines = [line for name in ("job.err", "job.out") for line in job_output(run, name)]
    cause = find_cause(where, "\n".join(lines))
    if cause is None:
        return None
    state = JobState(cause.state)
    return JobStatus(state, _limit_exceeded(run, cause.limit) if state is JobState.TIMEOUT else cause.meaning)


def _limit_exceeded(run: Run, seconds: int | None = None) -> str:
    """Return that a walltime limit was exceeded: the limit at the end of the job, or the requested one."""
    return f"the walltime limit ({format_walltime(seconds or run.submission.job.walltime)}) was exceeded"


def _requeued(run: Run, record: Record) -> str:
    """Return that a job that had started waits again, and why; empty if it has not started yet."""
    for has_ended, end in (
        (record.node_lost, "its node was lost"),
        (run.state_file("warned") is not None, "the signal ahead of its time limit"),
        (run.state_file("resubmitted") is not None, "a stall"),
    ):
        if has_ended:
            return f"queued again after {end}"
    if run.state_file("started") is None:
        return ""
    # Slurm shows such a job as any that waits for its start time. Its output may say why.
    if (output_status := _end_in_output(run)) is not None and output_status.reason:
        return f"queued again: {output_status.reason}"
    return "queued again after its node was lost, or after a requeue"


def _completed_status(run: Run, record: Record) -> JobStatus:
    finished = _finished_status(run, record.ended_seconds)
    if finished is not None:
        return replace(finished, reason=finished.reason or record.reason)
    if record.exit_code == 0 and not records(run, "finished"):
        return JobStatus(JobState.COMPLETED, record.reason, 0)
    if _still_awaited(run, record.ended_seconds):
        return JobStatus(JobState.RUNNING, "the job has ended; its finished file has not arrived yet")
    reason = f"job.sh ended without its finished file{_unseen_folder(run)}"
    return JobStatus(JobState.FAILED, reason, record.exit_code, provisional=True)


def _finished_status(run: Run, ended_seconds: float | None = None) -> JobStatus | None:
    """Return the status by the ``finished`` file, with what the scheduler wrote; None without that file."""
    finished = status_by_finished_file(run)
    if finished is None:
        return None
    written = _end_in_output(run) or (None if finished.exit_code else _end_in_output(run, "job_success"))
    if written is None:
        # MPI's launchers end with the code of MPI_Abort, and with 0 where a rank left before MPI_Finalize.
        if finished.exit_code or not unended_ranks(run):
            return finished
        if _still_awaited(run, ended_seconds):  # those of ranks on other nodes may arrive last
            return JobStatus(JobState.RUNNING, "the job has ended; files of its ranks have not arrived yet")
        reason = "its launcher ended with 0, but not all ranks ended"
        return JobStatus(JobState.FAILED, reason, 0, provisional=True)
    if finished.exit_code == 0 and written.state is not JobState.FAILED:
        # It saved and ended well, as in the grace time of a preemption, or before the limit.
        limited = run.state_file("warned") is not None
        return replace(
            finished, reason="it ended on the signal ahead of its time limit" if limited else written.reason
        )
    # A job that exits with 0 may have lost a process to the limit of its memory.
    return replace(written, exit_code=finished.exit_code)


def _unseen_folder(run: Run) -> str:
    """Return a question to the user if a job has left nothing in its run's folder; else an empty text."""
    began = any(run.state_file(name) is not None for name in ("attempt", "started", _FINISHED_FILE))
    if began or any((run.path / "logs").glob("*")) or not records(run, "started"):
        return ""
    return f"; nothing of it is in {run.path}: do the nodes share it, and may they write there?"


def _failed_status(run: Run, record: Record) -> JobStatus:
    # job.sh's own exit code takes precedence: sacct subtracts 128 from larger ones.
    finished = status_by_finished_file(run)
    code = (finished and finished.exit_code) or record.exit_code
    if not record.reason and (output_status := _end_in_output(run)) is not None:
        return replace(output_status, exit_code=code)
    reason = record.reason or ("it left no exit code" if code is None else f"exit code {code}")
    return JobStatus(JobState.FAILED, f"{reason}{'' if code is None else _unseen_folder(run)}", code)


def _without_record(run: Run) -> JobStatus:
    """Return the status of a job that the scheduler has forgotten or does not list yet, from its files."""
    if (finished := _finished_status(run)) is not None:
        return finished
    if (canceller := run.state_file(CANCELLED_FILE)) is not None:
        return JobStatus(JobState.CANCELLED, canceller)
    if (output_status := _end_in_output(run)) is not None:
        return output_status
    started = run.state_file("started") is not None
    if not started and not run.job_id:
        return status_of_submission(run)
    if not records(run, "finished"):
        state, age = _last_sign(run)
        if age < UNRECORDED_SECONDS:
            return JobStatus(state, "the scheduler does not list it; its record is awaited for a minute")
        return unknown_result("the scheduler no longer lists it")
    signal_name = run.state_file("terminated")
    # The scheduler writes its reason into the output of a job that it ends, which arrives as a whole.
    has_ended = signal_name is not None and (run.path / "logs/job.err").exists()
    if not has_ended and _still_awaited(run, None):
        state = JobState.RUNNING if started else _last_sign(run)[0]
        return JobStatus(state, "the scheduler does not list it; its finished file has not arrived yet")
    if signal_name is not None:
        reason = f"by SIG{signal_name}; the scheduler does not list it"
        return JobStatus(JobState.CANCELLED, reason, provisional=True)
    how = "left no finished file" if started or not records(run, "started") else "never started"
    reason = f"ended without a record: the scheduler does not list it, and it {how}"
    return JobStatus(JobState.FAILED, reason, provisional=True)


def unknown_result(reason_text: str) -> JobStatus:
    """Return the status of a job that has ended in a way that nothing shows."""
    reason = f"result unknown: {reason_text}, and its script records no exit code"
    return JobStatus(JobState.ENDED, reason, provisional=True)


def _last_sign(run: Run) -> tuple[JobState, float]:
    """Return the furthest state of a job that its scheduler or its output has shown, and how long ago."""
    state, last = JobState.QUEUED, datetime.fromisoformat(run.submission.created).timestamp()
    for path in (run.path / "state" / _SEEN_FILE, *(run.path / "logs").glob("*")):
        with suppress(OSError):
            last = max(last, path.stat().st_mtime)
            if path.name != _SEEN_FILE or run.state_file(_SEEN_FILE) == JobState.RUNNING.value:
                state = JobState.RUNNING
    return state, time.time() - last


def status_of_submission(run: Run) -> JobStatus:
    """Return the status of a run that has no job id, and of which the scheduler knows no job."""
    if not run.path.is_dir():
        return JobStatus(JobState.ENDED, "result unknown: its folder was removed")
    intent = read_intent(run)
    if intent is None:
        return JobStatus(JobState.FAILED, "it was not submitted")
    if intent.error:
        return JobStatus(JobState.FAILED, f"it was not submitted: {intent.error}")
    client = f"process {intent.process.pid} on {intent.host}"
    alive = intent.alive()
    if alive or (alive is None and intent.age_seconds() < SUBMITTING_SECONDS):
        return JobStatus(JobState.QUEUED, f"being submitted by {client}; the scheduler does not list it yet")
    reason = f"{client} ended while it submitted the run, and the scheduler has no job of it"
    return JobStatus(JobState.FAILED, reason)


def records(run: Run, fact: str) -> bool:
    """Return whether job.sh writes the state file ``fact``; a script of the user's own may not."""
    text, pattern = run.script, rf"^[^#\n]*(\brecord\s+|state/){fact}\b"
    # If the script is gone, hpcprof made it.
    return text is None or re.search(pattern, text, re.MULTILINE) is not None


def _still_awaited(run: Run, ended_seconds: float | None) -> bool:
    """Return whether to wait longer for the finished file; from the first poll on if the end is unknown."""
    if ended_seconds is not None:
        return ended_seconds < GRACE_SECONDS
    noted = run.state_file(_UNFINISHED_FILE)
    if noted is None:
        with suppress(OSError):
            write_atomically(run.path / "state" / _UNFINISHED_FILE, f"{time.time():.0f}\n")
            return True
        return False  # another user's run: the time cannot be noted
    return time.time() - (parse_count(noted) or 0) < UNRECORDED_SECONDS


_VERDICT_FILE = "verdict"
_FINISHED_FILE = "finished"


def read_verdict(run: Run) -> JobStatus | None:
    """Return the status that a run ended with, which may be provisional; None if none was kept."""
    with suppress(msgspec.MsgspecError):
        return from_json(run.state_file(_VERDICT_FILE) or "", JobStatus)
    return None


def read_final_status(run: Run) -> JobStatus | None:
    """Return the status that a run ended with; None if it is open, or if its end must be judged again."""
    verdict = read_verdict(run)
    return None if verdict is None or verdict.provisional else verdict


def keep_verdict(run: Run, status: JobStatus) -> None:
    """Write the status of an ended run that has a job id to ``state/verdict``, if that can be written."""
    if run.manifest is None or not run.job_id:
        return
    with suppress(OSError):
        if not status.state.ended:
            (run.path / "state" / _VERDICT_FILE).unlink(missing_ok=True)
            return
        fields = {"state": status.state.value, "reason": status.reason, "exit_code": status.exit_code}
        fields |= {"provisional": True} if status.provisional else {}
        mode = private_mode(group_may_read())
        write_atomically(run.path / "state" / _VERDICT_FILE, json.dumps(fields) + "\n", mode)


def status_now(run: Run, answer: JobStatus) -> JobStatus:
    """Return the status of an open run from the scheduler's answer, and keep it if the run has ended.

    While the scheduler does not answer, the run has the status that its ``finished`` file gives, or that it
    had. A run that has ended with an exit code does not go back: a scheduler that was away may still call it
    running.
    """
    verdict = read_verdict(run)
    status = answer
    if answer.state is JobState.UNKNOWN:
        finished = status_by_finished_file(run)
        status = replace(finished, provisional=True) if finished is not None else verdict or answer
    elif not answer.state.ended and verdict is not None and verdict.exit_code is not None:
        status = verdict
    if status != verdict and (status.state.ended or verdict is not None):
        keep_verdict(run, status)
    return status


def status_by_finished_file(run: Run) -> JobStatus | None:
    """Return the status of a run by the exit code in its ``finished`` file; None if it has none."""
    code = parse_count(run.state_file(_FINISHED_FILE) or "")
    if code is None:
        return None
    state, reason = (JobState.FAILED, f"exit code {code}") if code else (JobState.COMPLETED, "")
    return JobStatus(state, reason, code)
