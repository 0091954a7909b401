"""Running a scheduler's commands, and parsing the output that several of them share."""

import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from hpcprof.common.errors import SchedulerError
from hpcprof.common.masking import masked
from hpcprof.common.paths import absolute_path
from hpcprof.common.processes import CommandNotStarted, CommandTimedOut, Completed, run_command
from hpcprof.common.yaml_file import read_mapping
from hpcprof.submit.remote.request import HostUnreachable
from hpcprof.submit.schedulers.submitting_shell import UNSET_OPTIONS, without_options

if TYPE_CHECKING:
    from hpcprof.submit.remote.host import Host

_COMMAND_SECONDS = 120.0
_PAUSES = (0.5, 1.0, 2.0)
"""Seconds to wait before each further question to a scheduler that did not answer."""

_MAX_RETRY_SECONDS = 8.0

_PLAIN_OUTPUT = {"LC_ALL": "C", "SLURM_BITSTR_LEN": "0", "TZ": "UTC"}
"""Variables that make answers plain: no translation, all indices of an array from sacct, and times in UTC."""

_RANGE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+)(?::(?P<step>\d+))?)?")

AnswerT = TypeVar("AnswerT")
WordsT = TypeVar("WordsT", bound=msgspec.Struct)


class Unreachable(SchedulerError):
    """The scheduler did not answer: no job's state is known, and asking again may help."""


class Refused(SchedulerError):
    """The scheduler did not accept a job: nothing of it is left there."""


def submission_error(command: str, reason: str, *, refused: bool) -> SchedulerError:
    """Return the error of a command that submits: without an answer, the job may have been accepted."""
    if refused:
        return Refused(f"{command} did not accept the job: {reason}.")
    return Unreachable(f"{command} does not say whether it accepted the job: {reason}.")


_limit: ContextVar[tuple[float, float] | None] = ContextVar("limit", default=None)
"""The seconds that all answers may take, and the end of them by `time.monotonic`."""


@contextmanager
def answer_time_limit(seconds: float | None) -> Iterator[None]:
    """Limit the time that all questions in the block take together; None does not limit it."""
    token = _limit.set(None if seconds is None else (seconds, time.monotonic() + seconds))
    try:
        yield
    finally:
        _limit.reset(token)


def seconds_left(program: str, seconds: float) -> float:
    """Return the time limit of a command (s): ``seconds``, or less within `answer_time_limit`."""
    limit = _limit.get()
    if limit is None:
        return seconds
    remaining = limit[1] - time.monotonic()
    if remaining <= 0:
        raise Unreachable(f"{program} was not asked: the {limit[0]:.0f} s for all answers are over.")
    return min(seconds, remaining)


remote_runs: ContextVar[tuple["Host", Path] | None] = ContextVar("remote_runs", default=None)
"""The host of the schedulers' commands and the folder with the copies of its runs; None for this machine."""


@contextmanager
def on_host(host: "Host | None", runs_dir: Path) -> Iterator[None]:
    """Run the schedulers' commands of the block on a host (None: here), whose runs are in ``runs_dir``."""
    token = remote_runs.set((host, runs_dir) if host else None)
    try:
        yield
    finally:
        remote_runs.reset(token)


def _run_on_host(
    words: Sequence[str], directory: Path | None, variables: Mapping[str, str], seconds: float
) -> Completed | None:
    """Run a command as `Host.run` does, with the paths that runs have there; None for this machine."""
    if (remote := remote_runs.get()) is None:
        return None
    host, runs_dir = remote
    copies, folder = f"{absolute_path(runs_dir)}/", f"{host.folder('.')}/"
    # Slurm's options for logs double the per cent sign.
    doubled, doubled_folder = copies.replace("%", "%%"), folder.replace("%", "%%")
    words = [word.replace(copies, folder).replace(doubled, doubled_folder) for word in words]
    result = host.run(words, str(directory or ""), variables, UNSET_OPTIONS, seconds)
    output, errors = (text.replace(folder, copies) for text in (result.stdout, result.stderr))
    return replace(result, stdout=output, stderr=errors)


def run_scheduler_command(
    arguments: Sequence[str],
    directory: Path | None = None,
    seconds: float = _COMMAND_SECONDS,
    added: Mapping[str, str] = _PLAIN_OUTPUT,
) -> Completed:
    """Run a command of the scheduler in a neutral environment; `Unreachable` if it exceeds ``seconds``."""
    program = arguments[0]
    seconds = seconds_left(program, seconds)
    try:
        if (answer := _run_on_host(arguments, directory, added, seconds)) is not None:
            return answer
        environment = {**without_options(os.environ), **added}
        return run_command(arguments, timeout=seconds, directory=directory, environment=environment)
    except HostUnreachable as error:
        raise Unreachable(str(error)) from None
    except CommandTimedOut:
        raise Unreachable(f"{program} did not answer within {round(seconds, 1):g} s.") from None
    except CommandNotStarted as error:
        advice = "." if remote_runs.get() or shutil.which(program) else "; is this a login node of the site?"
        raise SchedulerError(f"cannot start {program}: {error.reason}{advice}") from None


submission_message: ContextVar[str] = ContextVar("submission_message", default="")
"""The standard error of the last command that submitted a job; empty if it failed."""


def run_submission(arguments: Sequence[str], directory: Path) -> Completed:
    """Run the command that submits a job: its environment becomes the job's, so nothing is added to it."""
    submission = run_scheduler_command(arguments, directory, added={})
    submission_message.set("" if submission.exit_code else masked(submission.stderr.strip()))
    return submission


def ask_again_while_silent(ask: Callable[[], AnswerT]) -> AnswerT:
    """Return the answer to a question that changes nothing; ask again while the scheduler is silent.

    Slurm's commands retry for 9 to 18 seconds before they give up (seen on 22.05), so they are not run again.
    Where the time for all answers ends during a further question, what the scheduler said before is raised.
    """
    began = time.monotonic()
    before: Unreachable | None = None
    pauses = iter(_PAUSES)
    while True:
        try:
            return ask()
        except Unreachable as error:
            now, pause = time.monotonic(), next(pauses, None)
            _, ends = _limit.get() or (0.0, math.inf)
            if before is not None and now >= ends:
                raise before from None
            slow = now - began > _MAX_RETRY_SECONDS
            if pause is None or slow or now + pause > ends:
                raise
            before = error
            time.sleep(pause)


def read_words(module: str, model: type[WordsT], kind: str = "words") -> WordsT:
    """Return the words of a scheduler with their meanings, from ``NAME_words.yaml`` beside its module."""
    file = Path(f"{module.removesuffix('.py')}_{kind}.yaml")
    return msgspec.convert(read_mapping(file, "file of words"), model)


class OptionWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a command that submits; the files explain the keys."""

    own: dict[str, str]
    long_names: dict[str, str] = {}
    exclusive: dict[str, str] = {}


def read_options(module: str) -> OptionWords:
    """Return the options of a scheduler, from ``NAME_options.yaml`` beside its module."""
    return read_words(module, OptionWords, "options")


def run_file_suffix(path: Path) -> str:
    """Return the end of a path that tells a run's file from all others, whatever links lead to the runs."""
    return f"/{path.parent.name}/{path.name}"


def ids_by_place(job_ids: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group ids ``NUMBER;PLACE`` by their cluster or instance, empty for none, and there by number."""
    places: dict[str, dict[str, str]] = {}
    for job_id in job_ids:
        number, _, place = job_id.partition(";")
        places.setdefault(place, {})[number] = job_id
    return places


def complaint(text: str) -> str:
    """Return the error that a command printed as the end of a sentence, without the command's usage."""
    lines = [line.strip() for line in text.partition("\nusage:")[0].splitlines() if line.strip()]
    return " ".join(lines).rstrip(".") or "it gave no reason"


def refused_question(question: Sequence[str], title: str, output: str) -> str:
    """Return that a command that refuses its options is another scheduler's; empty if it refuses none."""
    if not re.search(r"(?i)(?:invalid|unknown|unrecogni[sz]ed|illegal) option", output):
        return ""
    owner = f"another batch system, such as Grid Engine or Torque, or to an old {title}"
    return f"{question[0]} refuses {' '.join(question[1:])} ({complaint(output)}), so it belongs to {owner}"


def seconds_since(moment: str, layout: str, now: float | None) -> float | None:
    """Return the seconds from a time in UTC, as `datetime.strptime` reads it, to ``now`` (s since 1970).

    None if either is unknown: schedulers write N/A, Unknown or nothing.
    """
    with suppress(ValueError):
        if now is not None:
            return now - datetime.strptime(f"{moment} Z", f"{layout} %z").timestamp()
    return None


def parse_array_indices(text: str) -> list[int]:
    """Return the indices in a text such as ``0-3,7,8-12:2%4``, as both Slurm and PBS print it.

    ``%4`` is how many members run at once. Parts that are not indices are passed over: the ``-`` that PBS
    prints for none, and the ``...`` at the end of a text that Slurm has cut.
    """
    indices: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(part)
        if match:
            first = int(match["first"])
            indices += range(first, int(match["last"] or first) + 1, int(match["step"] or 1))
    return indices
