"""Request that a running job records steps by its hook (`hpcprof.node.on_request`), and await the answers."""

import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePosixPath

import msgspec

from hpcprof.common.decode import from_json
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.units import counted, named_ranks
from hpcprof.node.on_request import (
    ANSWERS,
    LEAD_S,
    MAX_CAPTURE_STEPS,
    REQUEST,
    Request,
    first_step,
    read_request,
    write_request,
)
from hpcprof.runs.directory import Run
from hpcprof.runs.live_steps import LiveSteps, read_live_steps, typical_step_ns
from hpcprof.runs.rank_selection import parse_ranks
from hpcprof.submit.remote.host import Host, complaint_of
from hpcprof.submit.remote.mirror import host_of, update
from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.schedulers.polling import LISTING_SECONDS, poll

_LOCAL_PERIOD_S, _REMOTE_PERIOD_S = 0.5, 2.0
"""Seconds between two checks for answers, in a local folder and on a host."""

_WRITE_SECONDS = 120.0
"""Maximum time in seconds for a rank to write its trace, beyond ten times the time of the steps."""

_ANSWER = re.compile(r"rank(\d{5,9})\.json")


class CaptureAnswer(msgspec.Struct, frozen=True):
    """The answer of a rank: ``accepted``, ``recorded`` or ``failed``, and the reason."""

    number: int
    state: str
    first: int = 0
    last: int = 0
    error: str = ""


def request_capture(run: Run, steps: int, ranks: str = "") -> tuple[Request, list[int]]:
    """Ask a job to record future steps on ``ranks`` (0-7; empty: all); return request and ranks."""
    if not 0 < steps <= MAX_CAPTURE_STEPS:
        raise UsageError(f"--steps {steps}: give a number from 1 to {MAX_CAPTURE_STEPS}.")
    job = run.submission.job
    if job.no_hook:
        raise UsageError(f"{run.id} was submitted with --no-hook, so nothing in its ranks can record.")
    host = host_of(run)
    if host is not None:
        host.connect()
    # This also brings the copy of a run on a host up to date.
    state = poll([run], LISTING_SECONDS)[run.id].state
    if state is not JobState.RUNNING:
        raise HpcprofError(f"{run.id} is {state.value}: only a running job can be captured.")
    if job.profiled_ranks:
        raise UsageError(f"{run.id} runs under {job.profiler} already: wait for its profiles.")
    live = read_live_steps(run)
    if not live:
        able = "programs that use a PyTorch optimizer, or mark their steps, can be captured from then on"
        raise HpcprofError(f"no rank of {run.id} has ended a step yet: {able}.")
    spans = parse_ranks(ranks) if ranks else []
    chosen = [rank for rank in live if not spans or any(low <= rank <= high for low, high in spans)]
    missing = sorted({rank for span in spans for rank in span} - live.keys())
    if missing:
        sentence = f"--ranks {ranks}: {named_ranks(missing)} noted no step; {named_ranks(list(live))} did."
        raise UsageError(sentence)
    try:
        earlier = read_request(run.path / "state" / REQUEST)
    except ValueError as error:
        raise HpcprofError(f"{run.path / 'state' / REQUEST} is not a request of yours: {error}.") from None
    if earlier is not None and not _have_ended(_answers(run, earlier), [*filter(earlier.is_for, live)]):
        last = max(lines[-1].step for lines in live.values())
        if last < earlier.first + earlier.steps:
            span = f"{earlier.first} to {earlier.first + earlier.steps - 1}"
            raise HpcprofError(f"{run.id} already records steps {span}: ask again after them.")
    clock = "" if host is None else host.run(["date", "+%s"]).stdout.strip()
    ended, wall_ns = _progress(live, float(clock) if clock.isdigit() else time.time())
    request = Request((earlier.number if earlier else 0) + 1, first_step(ended, wall_ns), steps, spans)
    if host is None:
        write_request(run.path / "state", request)
    else:
        _write_on_host(host, host.folder(run.id) / "state" / REQUEST, json.dumps(request._asdict()))
    return request, chosen


def _write_on_host(host: Host, path: PurePosixPath, text: str) -> None:
    script = 'printf %s "$2" >"$1.part" && mv -f -- "$1.part" "$1"'
    result = host.run(["sh", "-c", script, "sh", str(path), text])
    if result.exit_code != 0:
        raise HpcprofError(f"cannot write {path} on {host.name}: {complaint_of(result.stderr)}.")


def await_capture(run: Run, request: Request, ranks: list[int]) -> dict[int, CaptureAnswer]:
    """Wait until all ranks have recorded, and return their answers."""
    _, wall_ns = _progress(read_live_steps(run), time.time())
    host = host_of(run)
    limit = time.monotonic() + _WRITE_SECONDS + 10 * (LEAD_S + (request.steps + 3) * wall_ns / 1e9)
    while True:
        if host is not None:
            update(run, host)
        answers, has_ended = _answers(run, request), run.state_file("finished") is not None
        if _have_ended(answers, ranks) or has_ended or time.monotonic() > limit:
            break
        time.sleep(_LOCAL_PERIOD_S if host is None else _REMOTE_PERIOD_S)
    failed = {rank: answer.error for rank, answer in answers.items() if answer.state == "failed"}
    silent = [rank for rank in ranks if rank not in answers or answers[rank].state == "accepted"]
    if silent and not failed:
        reason_text = "its job has ended" if has_ended else "it takes no steps"
        raise HpcprofError(f"{named_ranks(silent)} of {run.id} recorded nothing: {reason_text}.")
    if failed:
        reasons = "; ".join(
            f"{named_ranks([rank for rank in failed if failed[rank] == reason])}: {reason}"
            for reason in dict.fromkeys(failed.values())
        )
        recorded = len(ranks) - len(failed) - len(silent)
        remainder = f" ({counted(recorded, 'other rank')} recorded)" if recorded else ""
        raise HpcprofError(f"not all ranks of {run.id} recorded: {reasons}{remainder}.")
    return answers


def _progress(live: Mapping[int, LiveSteps], now: float) -> tuple[int, float]:
    """Return the steps done by the farthest rank at ``now`` (s since 1970), and the time of a step in ns."""
    wall = typical_step_ns(line for lines in live.values() for line in lines)
    last = max((lines[-1] for lines in live.values()), key=lambda line: line.step)
    since = max(0.0, min(now - last.time, LEAD_S))
    return last.step + 1 + int(since * 1e9 / max(wall, 1)), wall


def _have_ended(answers: Mapping[int, CaptureAnswer], ranks: list[int]) -> bool:
    return all(rank in answers and answers[rank].state != "accepted" for rank in ranks)


def _answers(run: Run, request: Request) -> dict[int, CaptureAnswer]:
    answers = {}
    for path in sorted((run.path / "state" / ANSWERS).glob("rank*.json")):
        with suppress(OSError, msgspec.MsgspecError):
            answer = from_json(path.read_bytes(), CaptureAnswer)
            if (name := _ANSWER.fullmatch(path.name)) and answer.number == request.number:
                answers[int(name[1])] = answer
    return answers
