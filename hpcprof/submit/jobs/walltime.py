"""Walltimes and other times of a job, as people write them and as schedulers read them."""

import re
from collections.abc import Iterable
from signal import Signals

from hpcprof.common.errors import UsageError

_LEAD_SHARE = 0.05
_SHORTEST_LEAD, _LONGEST_LEAD = 30, 300
"""Seconds: enough to write and export a profile, and little of the run."""

_CLOCK = re.compile(r"(?:(?P<days>\d{1,9})-)?(?P<hours>\d{1,9}):(?P<minutes>[0-5]?\d):(?P<seconds>[0-5]?\d)")
_DAYS = re.compile(r"(?P<days>\d{1,9})-(?P<hours>\d{1,9})(?::(?P<minutes>[0-5]?\d))?")
_UNITS = re.compile(
    r"(?=.)(?:(?P<days>\d{1,9})d)?(?:(?P<hours>\d{1,9})h)?(?:(?P<minutes>\d{1,9})m)?(?:(?P<seconds>\d{1,9})s)?"
)
_AMBIGUOUS = re.compile(r"(\d{1,9})(:[0-5]?\d)?")


def parse_walltime(text: str) -> int:
    """Return a walltime in seconds.

    Accepted are ``HH:MM:SS``, units such as ``90m`` or ``1d12h``, and Slurm's ``D-HH``, ``D-HH:MM`` and
    ``D-HH:MM:SS``. A bare number and two numbers are refused: ``90`` is minutes to Slurm and LSF and seconds
    to PBS, and ``30:00`` is minutes and seconds to Slurm and PBS and hours and minutes to LSF.
    """
    # Zero is zero in all units.
    seconds = 0 if text.strip("0") == "" != text else _seconds(text)
    if seconds is None:
        raise UsageError(f"walltime {text!r} {_why_no_time(text)}.")
    if seconds == 0:
        raise UsageError(f"walltime {text!r} is zero: a job needs at least one second.")
    return seconds


def _why_no_time(text: str) -> str:
    match = _AMBIGUOUS.fullmatch(text)
    if match is None:
        return "is not a time: write HH:MM:SS, D-HH:MM:SS, or units such as 90m, 1h30m or 1d12h"
    first, second = match.groups()
    if second is None:
        return f"is minutes to Slurm and LSF and seconds to PBS: write {first}m or {first}s"
    return (
        "is minutes and seconds to Slurm and PBS and hours and minutes to LSF: "
        f"write {first}m{second[1:]}s or {first}h{second[1:]}m"
    )


def _seconds(text: str) -> int | None:
    match = _CLOCK.fullmatch(text) or _DAYS.fullmatch(text) or _UNITS.fullmatch(text)
    if match is None:
        return None
    part = {key: int(value or 0) for key, value in match.groupdict().items()}
    hours = part["days"] * 24 + part["hours"]
    return (hours * 60 + part.get("minutes", 0)) * 60 + part.get("seconds", 0)


AUTO_STALL = "auto"
"""The stall timeout that follows from the time limit."""
_SHORTEST_STALL, _DEFAULT_STALL = 10, 600


def default_stall_timeout(walltime: int) -> int:
    """Return the stall timeout in s of a job with a time limit in s, so that a stall comes before the limit.

    Ranks that poll are looked at for half of the timeout more.
    """
    return max(_SHORTEST_STALL, min(_DEFAULT_STALL, walltime // 2))


def parse_stall_timeout(text: str) -> int:
    """Return the seconds without progress after which a run is stalled; 0 for ``off``."""
    if text in ("off", AUTO_STALL):
        return 0 if text == "off" else _DEFAULT_STALL
    seconds = _seconds(text)
    if seconds is None:
        wrong = "is not a time: write units such as 600s, 10m or 1h, HH:MM:SS, off, or auto"
        raise UsageError(f"--stall-timeout {text!r} {wrong}.")
    if seconds < _SHORTEST_STALL:
        raise UsageError(f"--stall-timeout {text}: the shortest is {_SHORTEST_STALL}s.")
    return seconds


def parse_leftover_grace(text: str) -> int:
    """Return the seconds that processes which a program leaves behind have to end by themselves."""
    seconds = _seconds(text)
    if seconds is None:
        raise UsageError(f"--leftover-grace {text!r} is not a time: write units such as 0s, 30s or 5m.")
    return seconds


SIGNALS = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "XCPU", "CONT")
"""The signals on which a program may save."""

_SIGNAL = re.compile(r"(?:SIG)?(?P<name>[A-Z0-9]+)@(?:(?P<seconds>\d{1,6})|(?P<units>\S+))")
_SIGNAL_DIRECTIVE = re.compile(r"^(?:--sig(?:n|na|nal)?[= ](?:[BR]+:)?|-wa +\W?)(?:SIG)?(\w+)")
DEFAULT_SIGNAL = "TERM@60"


def parse_signal(text: str) -> str:
    """Return a signal and its seconds ahead of the time limit as ``NAME@SECONDS``."""
    match = _SIGNAL.fullmatch(text)
    seconds = (
        (match["seconds"] and int(match["seconds"])) or _seconds(match["units"] or "") if match else None
    )
    if match is None or not seconds or match["name"] not in SIGNALS:
        raise UsageError(
            f"--signal {text}: write NAME@SECONDS, as in USR1@120, with a NAME of {', '.join(SIGNALS)}."
        )
    return f"{match['name']}@{seconds}"


def warning_of(signal: str, on_timeout: str) -> tuple[str, int]:
    """Return the name of a job's signal, and its seconds ahead of the limit; empty and 0 for none."""
    name, _, seconds = (signal or (DEFAULT_SIGNAL if on_timeout == "resubmit" else "@0")).partition("@")
    return name, int(seconds)


def early_signal(signal: str, directives: Iterable[str]) -> str:
    """Return the signal before the limit: of ``--signal``, or of a directive of Slurm, Flux or LSF."""
    names = [
        signal.partition("@")[0],
        *(name for line in directives for name in _SIGNAL_DIRECTIVE.findall(line)),
    ]
    name = next(filter(None, names), "")
    return Signals(int(name)).name[3:] if name.isdigit() and int(name) in {*Signals} else name


def format_walltime(seconds: int) -> str:
    """Return seconds as ``HH:MM:SS``, with at least two digits each."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}"


def capture_lead(walltime: int) -> int | None:
    """Return the seconds before the limit at which profilers stop, None if the walltime is too short."""
    lead = round(min(max(_LEAD_SHARE * walltime, _SHORTEST_LEAD), _LONGEST_LEAD))
    return lead if 2 * lead <= walltime else None
