"""The changes that a what-if makes to a run, as users write them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

from hpcprof.common.errors import UsageError, unknown
from hpcprof.common.notebook import InNotebooks
from hpcprof.common.patterns import matches

ChangeKind = Literal["range", "gpu", "kernel", "comm", "copy", "api", "mpi", "rank", "bandwidth", "ideal"]

FORMS: dict[str, str] = {
    "range:NAME*0": "the host time of a range",
    "range:NAME+40ms": "more host time in a range",
    "gpu:NAME*0.5": "the kernels that a range launches",
    "gpu:NAME+12ms": "more work on the GPU in a range",
    "kernel:REGEX*0.5": "the kernels and collectives whose name matches",
    "comm*0": "all communication",
    "copy*0": "all copies",
    "api:REGEX*0": "the API calls whose name matches",
    "mpi:REGEX*0.5": "the transfer of the MPI calls whose name matches",
    "rank:2=median": "a rank that is like the others",
    "bandwidth*2": "the bandwidth of the network",
    "ideal": "all operations of a table, which take what is typical of their names",
    "ideal@stage:3": "those of a rank, a stage, a replica or a name (name:REGEX)",
    "ideal!stage:3": "all others",
}
"""Possible changes: an example of each form, and its subject."""

_KINDS: tuple[ChangeKind, ...] = get_args(ChangeKind)
_RANGES = ("range", "gpu")
_NAMED_TARGETS = (*_RANGES, "kernel", "api", "mpi")
_ONE_RANK = (*_NAMED_TARGETS, "copy")
_SCALED_TIME = re.compile(r"(?P<target>.*)\*(?P<factor>[^*@]*)(?:@(?P<rank>\d+))?", re.DOTALL)
_ADDED_TIME = re.compile(
    r"(?P<target>.*)\+(?P<time>[\d.]+)(?P<unit>ns|us|µs|ms|s)(?:@(?P<rank>\d+))?", re.DOTALL
)
_IDEAL = re.compile(r"ideal(?:(?P<but>[@!])(?P<which>(?:rank|stage|replica):\d+|name:.+))?", re.DOTALL)
_MEDIAN = re.compile(r"rank:(\d+)=median")
_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


class Change(msgspec.Struct, frozen=True):
    """A change of the times of a run."""

    kind: ChangeKind
    """The kind of what changes."""
    pattern: str
    """The name of the range, or a regular expression that the names of the kernels or API calls match
    somewhere; empty for the other kinds.
    """
    factor: float
    """The times are multiplied by it, or the bandwidth."""
    add_ns: int = 0
    """The time that is added in each step to the host time of the range, or to its work on the GPU."""
    rank: int | None = None
    """The only rank that changes; None for all."""
    median: bool = False
    """True if the times of the rank become the median of those of the other ranks."""


@dataclass(frozen=True)
class Prediction(InNotebooks):
    """The step of a changed run, as a replay predicts it; times in ns."""

    wall_p50_ns: int
    """The median wall time that the replay predicts."""
    low_ns: int
    high_ns: int
    """Its interval."""
    measured_p50_ns: int
    """The median wall time as it was measured, without the changes."""
    replay_error_pct: float | None
    """The difference of the median of the unchanged replay from the measured one, in percent; None if the
    account of the steps predicts, without a replay.
    """
    steps: int
    """The number of steps that were replayed."""
    elapsed_ns: int
    measured_elapsed_ns: int
    """The elapsed time per step, predicted and measured: the mean from front to front of the run."""
    has_profiler_share: bool = False
    """True if all times contain a share of the profiler that an explanation leaves out."""
    is_capture: bool = False
    """True if no step was found, so that the step is all judged work."""


def parse_changes(texts: Sequence[str]) -> list[Change]:
    """Return the changes that a user wrote, each as one of `FORMS`.

    Raises UsageError if one of them is something else.
    """
    return [_parse_change(text) for text in texts]


def _parse_change(text: str) -> Change:
    kind = _kind(text)
    if kind == "ideal" and (ideal := _IDEAL.fullmatch(text)):
        return Change(kind, ideal["which"] or "", float(ideal["but"] == "!"))
    if kind == "rank" and (like := _MEDIAN.fullmatch(text)):
        return Change(kind, "", 1.0, rank=int(like[1]), median=True)
    if kind in _RANGES and (added := _ADDED_TIME.fullmatch(text)):
        name, rank = _name(text, kind, added["target"]), added["rank"]
        return Change(kind, name, 1.0, _nanoseconds(text, added), int(rank) if rank else None)
    scaled = _SCALED_TIME.fullmatch(text)
    if scaled is None or kind in ("ideal", "rank"):
        raise UsageError(f"{text!r} does not say what changes: write it as in {_examples(kind)}.")
    if scaled["rank"] and kind not in _ONE_RANK:
        raise UsageError(f"{text!r}: {kind} changes on all ranks, so leave out @{scaled['rank']}.")
    name, rank = _name(text, kind, scaled["target"]), scaled["rank"]
    return Change(kind, name, _factor(text, kind, scaled["factor"]), rank=int(rank) if rank else None)


def _kind(text: str) -> ChangeKind:
    word = re.split(r"[:*+=@!]", text, maxsplit=1)[0]
    for kind in _KINDS:
        if word == kind:
            return kind
    raise unknown("change", word, _KINDS, f" in {text!r}" if word != text else "")


def _name(text: str, kind: ChangeKind, target: str) -> str:
    """Return the name or the pattern after the colon; the kinds that are about all have none."""
    _, colon, name = target.partition(":")
    if kind not in _NAMED_TARGETS:
        if colon:
            raise UsageError(f"{text!r}: {kind} takes no name; write it as in {_examples(kind)}.")
        return ""
    if not name:
        raise UsageError(f"{text!r} has no name: write it as in {_examples(kind)}.")
    if kind not in _RANGES:
        try:
            matches(name, [])
        except ValueError as error:
            raise UsageError(f"{text!r}: {name!r} is not a regular expression: {error}.") from None
    return name


def _factor(text: str, kind: ChangeKind, written: str) -> float:
    try:
        factor = float(written)
    except ValueError:
        factor = math.nan
    least = "above 0" if kind == "bandwidth" else "of at least 0"
    if not math.isfinite(factor) or factor < 0 or (kind == "bandwidth" and factor == 0):
        raise UsageError(f"{text!r}: {written!r} after * must be a number {least}, such as 0.5.")
    return factor


def _nanoseconds(text: str, added: re.Match[str]) -> int:
    try:
        return round(float(added["time"]) * _NS[added["unit"]])
    except ValueError:
        raise UsageError(f"{text!r}: {added['time']!r} after + must be a number, such as 40.") from None


def _examples(kind: ChangeKind) -> str:
    return " or ".join(form for form in FORMS if re.match(rf"{kind}\b", form))
