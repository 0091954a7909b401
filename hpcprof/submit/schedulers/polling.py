"""Polling and cancelling runs, whichever schedulers they were submitted to."""

import math
import time
from collections.abc import Sequence

from hpcprof.common.errors import HpcprofError
from hpcprof.common.logs import left_out_if_damaged
from hpcprof.common.masking import masked
from hpcprof.runs.directory import Run
from hpcprof.submit.remote.mirror import host_of, update
from hpcprof.submit.schedulers import command
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.run_state import read_final_status, status_now
from hpcprof.submit.schedulers.scheduler import Scheduler
from hpcprof.submit.sites.model import Site, recorded_site


def _by_scheduler(runs: Sequence[Run]) -> list[list[Run]]:
    """Return submitted runs in groups that share a scheduler, and a host if they are on one."""
    groups: dict[object, list[Run]] = {}
    for run in runs:
        if run.manifest is not None:
            host = host_of(run)
            place = (host, run.path.parent) if host else None
            groups.setdefault((run.submission.site.scheduler, place), []).append(run)
    return list(groups.values())


LISTING_SECONDS = 3.5
"""Maximum wait of a command for all schedulers together, in seconds, so that it answers within 5 s."""

_SILENT_SECONDS = 5.0
"""For how long a scheduler that was silent is not asked again by a command that is to answer soon."""

_TRANSFER_SECONDS = 3600.0
"""Maximum time to fetch the changed files of a run on a host, in seconds."""

_silent_schedulers: dict[str, tuple[float, str]] = {}
"""The times at which schedulers did not answer, and the sentences about that."""


def check_answers(scheduler: Scheduler, site: Site, otherwise: str) -> None:
    """Raise `Unreachable` if a scheduler does not answer for a site; the message ends with ``otherwise``."""
    question = scheduler.question(site)
    if not question:
        return
    remote = command.remote_runs.get()
    name = remote[0].name if remote else scheduler.name
    try:
        _check_silence(name)
        with command.answer_time_limit(LISTING_SECONDS):
            result = command.run_scheduler_command(question)
    except command.Unreachable as error:
        _silent_schedulers[name] = time.monotonic(), str(error)
        reason = str(error).rstrip(".")
    else:
        if result.exit_code == 0:
            return
        output = masked(result.stderr.strip() or result.stdout.partition("\n")[0])
        reason = command.refused_question(question, scheduler.title, output)
        reason = reason or f"{scheduler.title} did not answer: {command.complaint(output)}"
    raise command.Unreachable(f"{reason}; {otherwise}.")


def _check_silence(scheduler: str) -> None:
    """Raise `Unreachable` if a scheduler has let the time for all answers pass a short while ago."""
    when, words = _silent_schedulers.get(scheduler, (-math.inf, ""))
    if time.monotonic() - when < _SILENT_SECONDS:
        raise command.Unreachable(words)


def poll(runs: Sequence[Run], seconds: float | None = None) -> dict[str, JobStatus]:
    """Return the status of each submitted run by run id; adopted folders are left out.

    The schedulers are asked only about runs without a final status, which is then kept in the run
    (`hpcprof.submit.schedulers.run_state.status_now`). With ``seconds``, a run about which its scheduler
    has not answered in this time is unknown.
    """
    states: dict[str, JobStatus] = {}
    still_open: list[Run] = []
    for run in runs:
        final = read_final_status(run)
        if final is None:
            still_open.append(run)
        elif run.manifest is not None:
            states[run.id] = final
    with command.answer_time_limit(seconds):
        for group in _by_scheduler(still_open):
            answers = _ask(group, seconds)
            for run in group:
                damage: list[str] = []
                with left_out_if_damaged(run.id, damage):
                    states[run.id] = status_now(run, answers[run.id])
                states.setdefault(run.id, JobStatus(JobState.UNKNOWN, "".join(damage)))
    return states


def _ask(group: Sequence[Run], seconds: float | None) -> dict[str, JobStatus]:
    """Ask a scheduler about runs; if the time is limited, not again shortly after it was silent."""
    host, began = host_of(group[0]), time.monotonic()
    name = host.name if host else group[0].submission.site.scheduler
    try:
        if seconds is not None:
            _check_silence(name)
        for run in group:
            if host is not None:
                limit = _TRANSFER_SECONDS if seconds is None else command.seconds_left("ssh", seconds)
                update(run, host, limit)
    except HpcprofError as error:
        return {run.id: JobStatus(JobState.UNKNOWN, str(error)) for run in group}
    with command.on_host(host, group[0].path.parent):
        answers = find_scheduler(group[0].submission.site.scheduler).client().poll(group)
    if seconds is None:
        return answers
    first = answers[group[0].id]
    if first.state is JobState.UNKNOWN and time.monotonic() - began > 0.9 * seconds:
        _silent_schedulers[name] = time.monotonic(), first.reason
    return answers


def cancel(runs: Sequence[Run]) -> None:
    """End the jobs of submitted runs with all their processes; jobs that have ended are left as they are."""
    for group in _by_scheduler([run for run in runs if run.submission and read_final_status(run) is None]):
        scheduler = find_scheduler(group[0].submission.site.scheduler)
        with command.on_host(host_of(group[0]), group[0].path.parent):
            check_answers(scheduler, recorded_site(group[0].submission), f"{group[0].id} was not cancelled")
            scheduler.client().cancel(*group)
