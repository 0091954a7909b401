"""The evidence of each rank of a stalled run, and the verdict on the run with its sentences."""

import itertools
import re
from dataclasses import dataclass
from enum import Enum

import msgspec

from hpcprof.common.units import capitalized, named_ranks
from hpcprof.profiles.readers.flight_recorder import CodeLine, FlightRecord
from hpcprof.profiles.readers.native_stacks import NativeStack

_LIBRARIES = re.compile(
    r"^<|/(?:site|dist)-packages/|/lib(?:64)?/python3|\.zip/|/hook/(?:sitecustomize|hpcprof_)"
)
"""Files that are not the user's own code."""

_WAITING_FILES = re.compile(
    r"/torch/distributed/(?:distributed_c10d|rendezvous|device_mesh|elastic/utils/store)\.py$"
)
"""Files of PyTorch whose functions wait for other ranks."""

_COUNTERPARTS = (
    (re.compile(r"MPI_(?:M?Recv|M?[Pp]robe)|recv"), "sends"),
    (re.compile(r"MPI_[SR]?[Ss]end|send"), "receives"),
)
"""Calls of messages, each with the verb for its counterpart."""


class ProcessState(str, Enum):
    """The state of a rank's process when the evidence was gathered."""

    RUNNING = "running"
    STOPPED = "stopped"
    ENDED = "ended"
    """It has ended with exit code 0."""
    DEAD = "dead"
    UNREACHABLE = "unreachable"


class LastCall(msgspec.Struct, frozen=True):
    """One of the calls of MPI that a rank has ended last, as a profiler recorded it.

    ``group`` is its communicator, empty if it has none. ``ended`` is in UTC, None if unknown.
    """

    rank: int
    name: str
    group: str
    ended: str | None


@dataclass(frozen=True)
class RankEvidence:
    """The evidence of one rank."""

    record: FlightRecord | None = None
    """The collectives that it has entered; None if unknown."""
    stack: tuple[CodeLine, ...] = ()
    """The Python frames of its main thread, the innermost first."""
    state: ProcessState = ProcessState.RUNNING
    last_step: int | None = None
    """The last step that it has ended."""
    steps: int = 0
    """The number of steps that it has ended."""
    file: str = ""
    """The name of the file with the evidence; empty without one."""
    native: NativeStack | None = None
    """The native frame that the program is in; None if unknown."""
    loss: str = ""
    """Unreadable evidence of the rank, as a sentence; empty if all could be read."""
    last_calls: tuple[LastCall, ...] = ()
    """The calls of MPI in its profile that ended last; empty without one."""


class StallKind(str, Enum):
    """The kinds of stalls."""

    NEVER_CAME = "never_came"
    DESYNCHRONIZED = "desynchronized"
    CYCLE = "cycle"
    DEAD = "dead"
    STOPPED = "stopped"
    INSIDE = "inside"


class Place(msgspec.Struct, frozen=True):
    """A line of the user's code in which a rank is."""

    rank: int
    function: str
    file: str
    line: int


class Side(msgspec.Struct, frozen=True):
    """Ranks that entered the same operation under one number."""

    ranks: tuple[int, ...]
    name: str
    sizes: tuple[tuple[int, ...], ...]
    where: Place | None


class WaitedFor(msgspec.Struct, frozen=True):
    """A collective or message in which ranks wait.

    A call of MPI or CUDA that only native stacks show has the number 0 and no group.
    ``sides`` has the operations that ranks entered under its number, if they differ.
    """

    name: str
    number: int
    group: str
    sizes: tuple[tuple[int, ...], ...]
    sides: tuple[Side, ...] = ()


class Stall(msgspec.Struct, frozen=True):
    """The verdict on a stalled run."""

    kind: StallKind
    ranks: tuple[int, ...]
    """The ranks that hold the others up, sorted."""
    waiting: tuple[int, ...]
    """The ranks that wait for them, sorted."""
    collective: WaitedFor | None = None
    where: tuple[Place, ...] = ()
    """The places of the culprits: the innermost frame of the user's code."""
    since: str | None = None
    """The time of the last progress, in UTC."""
    last_step: int | None = None
    """The last step that all ranks have ended."""
    evidence: tuple[str, ...] = ()
    """The names of the files with the evidence."""
    losses: tuple[str, ...] = ()
    """Unreadable evidence, one sentence for each rank."""
    went_on: bool = False
    """True if the run made progress later: it was slow, and did not hang."""
    last_calls: tuple[LastCall, ...] = ()
    """The calls of MPI that each culprit has ended last, where its profile has them."""
    ended: tuple[int, ...] = ()
    """The ranks whose program has ended with exit code 0, sorted."""


def user_frame(stack: tuple[CodeLine, ...] | list[CodeLine]) -> CodeLine | None:
    """Return the innermost frame of the user's code, or of all if there is none; None without frames."""
    user_frames = (frame for frame in stack if not _LIBRARIES.search(frame.file))
    return next(user_frames, stack[0] if stack else None)


def place(rank: int, stack: tuple[CodeLine, ...] | list[CodeLine]) -> Place | None:
    """Return the place of a rank in the user's code; None without frames."""
    frame = user_frame(stack)
    return None if frame is None else Place(rank, frame.function, frame.file, frame.line)


def meeting_call(stack: tuple[CodeLine, ...] | list[CodeLine]) -> str:
    """Return the function of PyTorch that waits for other ranks; empty if the stack has none."""
    library = itertools.takewhile(lambda frame: _LIBRARIES.search(frame.file), stack)
    calls = [frame.function for frame in library if _WAITING_FILES.search(frame.file)]
    return calls[-1] if calls else ""


def counterpart_verb(call: str) -> str:
    """Return the verb for the counterpart of a call (``sends`` for ``MPI_Recv``); empty for most calls."""
    return next((other for calls, other in _COUNTERPARTS if calls.fullmatch(call)), "")


def place_name(place: Place) -> str:
    """Return the name of a place: the function, and the file without its folder, with the line if known."""
    file = place.file.rpartition("/")[2]
    if not place.line:  # of native code without debugging information
        return place.function + f" ({file})" * bool(file)
    return f"{place.function} ({file}:{place.line})"


_MAX_SHOWN = 8
"""Maximum number of losses, and of ranks by their numbers, in a sentence."""


def describe(stall: Stall) -> str:
    """Return the verdict in a few sentences: the culprits, their places, and the operation others wait in."""
    losses, more = stall.losses[:_MAX_SHOWN], len(stall.losses) - _MAX_SHOWN
    lost = f" Not read: {'; '.join(losses)}{f'; and {more} more' if more > 0 else ''}." if losses else ""
    return (
        _verdict_text(stall)
        + _last_calls_text(stall)
        + " Later it went on: it was slow, and did not hang." * stall.went_on
        + lost
    )


def _last_calls_text(stall: Stall) -> str:
    calls = [call for call in stall.last_calls if call.rank == stall.last_calls[0].rank]
    if not calls:
        return ""
    names = ", ".join(f"{call.name} of {call.group}" if call.group else call.name for call in calls)
    moment = f" at {calls[-1].ended}" if calls[-1].ended else ""
    return f" Rank {calls[0].rank} last ended {names}{moment}."


def _verdict_text(stall: Stall) -> str:
    who = capitalized(named_ranks(stall.ranks, most=_MAX_SHOWN))
    single = len(stall.ranks) == 1
    where, waiting, waited = _place_text(stall.where), _waiting_sentence(stall), stall.collective
    if waited is not None and len(waited.sides) > 1:
        sides = "; ".join(map(_side_text, waited.sides))
        if not waited.group:
            return f"The ranks are in different calls: {sides}."
        return f"The ranks entered different operations as {_operation_text(waited)}: {sides}."
    if stall.kind is StallKind.INSIDE and waited is not None:
        all_ranks = "All ranks of the group" if waited.group else "All ranks"
        return (
            f"{all_ranks} are in {_operation_text(waited)}{where}, and it does not go on on "
            f"{named_ranks(stall.ranks, most=_MAX_SHOWN)}: look at the network and the GPUs."
        )
    if stall.kind is StallKind.CYCLE and waited is not None and not waited.group:
        return f"{who} all wait in {waited.name}{where}, and none of them {counterpart_verb(waited.name)}."
    if stall.kind is StallKind.NEVER_CAME and not stall.waiting:
        clause = "" if single else ", and no rank is seen to wait for another"
        if stall.ended:
            has = "has" if len(stall.ended) == 1 else "have"
            clause = f", and {named_ranks(stall.ended, most=_MAX_SHOWN)} {has} ended"
        return f"{who} do{'es' * single} not go on{where}{clause}."
    held = {
        StallKind.DESYNCHRONIZED: "ended and entered fewer operations than the others",
        StallKind.CYCLE: "wait for each other in a cycle of groups",
        StallKind.DEAD: f"{'is' if single else 'are'} gone, and the others have not noticed",
        StallKind.STOPPED: f"{'is' if single else 'are'} stopped, by SIGSTOP, a debugger or the scheduler",
    }.get(stall.kind, f"{'holds' if single else 'hold'} the others up")
    return f"{who} {held}{where}. {waiting}".strip()


def _waiting_sentence(stall: Stall) -> str:
    if not stall.waiting or stall.collective is None:
        return ""
    who = capitalized(named_ranks(stall.waiting, most=_MAX_SHOWN))
    verb = "waits" if len(stall.waiting) == 1 else "wait"
    if stall.kind is StallKind.CYCLE:  # the collective is that of the first in the cycle
        return f"{who} {verb} for them."
    return f"{who} {verb} in {_operation_text(stall.collective)}."


def _operation_text(waited: WaitedFor) -> str:
    if not waited.group:
        return waited.name
    return f"{waited.name}{_sizes_text(waited.sizes)}, number {waited.number} of group {waited.group}"


def _side_text(side: Side) -> str:
    place = place_name(side.where) if side.where is not None else ""
    # Without a known call, the place is its name too.
    name = f" {side.name}{_sizes_text(side.sizes)}" if side.name != place else ""
    return f"{named_ranks(side.ranks, most=_MAX_SHOWN)}{name}{f' in {place}' if place else ''}"


def _sizes_text(shapes: tuple[tuple[int, ...], ...]) -> str:
    sizes = " and ".join("x".join(map(str, shape)) for shape in shapes if shape)
    return f" of {sizes}" if sizes else ""


def _place_text(places: tuple[Place, ...]) -> str:
    names = dict.fromkeys(map(place_name, places))
    return f" in {' and '.join(list(names)[:3])}" if names else ""
