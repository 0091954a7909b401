"""Verdicts on stalls in words."""

from __future__ import annotations

from hpcprof.analysis.stalls.evidence import Place, Side, Stall, StallKind, WaitedFor, lacking, place_name
from hpcprof.common.units import named_ranks

_SHOWN = 8


def describe(stall: Stall) -> str:
    """Return the verdict in a few sentences: who holds the others up, where, and what these wait in."""
    shown, more = stall.losses[:_SHOWN], len(stall.losses) - _SHOWN
    lost = f" Not read: {'; '.join(shown)}{f'; and {more} more' if more > 0 else ''}." if shown else ""
    return (
        _verdict(stall)
        + _last_calls(stall)
        + " Later it went on: it was slow, and did not hang." * stall.went_on
        + lost
    )


def _last_calls(stall: Stall) -> str:
    """Return the last calls of MPI of the first culprit that has some in its profile."""
    of_rank = [call for call in stall.last_calls if call.rank == stall.last_calls[0].rank]
    if not of_rank:
        return ""
    told = ", ".join(f"{call.name} of {call.group}" if call.group else call.name for call in of_rank)
    moment = f" at {of_rank[-1].ended}" if of_rank[-1].ended else ""
    return f" Rank {of_rank[0].rank} last ended {told}{moment}."


def _verdict(stall: Stall) -> str:
    who = _capital(named_ranks(stall.ranks, shown=_SHOWN))
    one = len(stall.ranks) == 1
    where, waiting, waited = _where(stall.where), _waiting(stall), stall.collective
    if waited is not None and len(waited.sides) > 1:
        sides = "; ".join(map(_side, waited.sides))
        if not waited.group:
            return f"The ranks are in different calls: {sides}."
        return f"The ranks entered different operations as {_numbered(waited)}: {sides}."
    if stall.kind is StallKind.INSIDE and waited is not None:
        all_ranks = "All ranks of the group" if waited.group else "All ranks"
        return (
            f"{all_ranks} are in {_numbered(waited)}{where}, and it does not go on on "
            f"{named_ranks(stall.ranks, shown=_SHOWN)}: look at the network and the GPUs."
        )
    if stall.kind is StallKind.CYCLE and waited is not None and not waited.group:
        return f"{who} all wait in {waited.name}{where}, and none of them {lacking(waited.name)}."
    if stall.kind is StallKind.NEVER_CAME and not stall.waiting:
        return f"{who} {'does' if one else 'do'} not go on{where}, and no rank is seen to wait for another."
    held = {
        StallKind.DESYNCHRONIZED: "ended and entered fewer operations than the others",
        StallKind.CYCLE: "wait for each other in a cycle of groups",
        StallKind.DEAD: f"{'is' if one else 'are'} gone, and the others have not noticed",
        StallKind.STOPPED: f"{'is' if one else 'are'} stopped, by SIGSTOP, a debugger or the scheduler",
    }.get(stall.kind, f"{'holds' if one else 'hold'} the others up")
    return f"{who} {held}{where}. {waiting}".strip()


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _waiting(stall: Stall) -> str:
    if not stall.waiting or stall.collective is None:
        return ""
    who = _capital(named_ranks(stall.waiting, shown=_SHOWN))
    verb = "waits" if len(stall.waiting) == 1 else "wait"
    if stall.kind is StallKind.CYCLE:  # the collective is that of the first in the cycle
        return f"{who} {verb} for them."
    return f"{who} {verb} in {_numbered(stall.collective)}."


def _numbered(waited: WaitedFor) -> str:
    if not waited.group:
        return waited.name
    return f"{waited.name}{_sizes(waited.sizes)}, number {waited.number} of group {waited.group}"


def _side(side: Side) -> str:
    where = f" in {place_name(side.where)}" if side.where is not None else ""
    return f"{named_ranks(side.ranks, shown=_SHOWN)} {side.name}{_sizes(side.sizes)}{where}"


def _sizes(shapes: tuple[tuple[int, ...], ...]) -> str:
    told = " and ".join("x".join(map(str, shape)) for shape in shapes if shape)
    return f" of {told}" if told else ""


def _where(places: tuple[Place, ...]) -> str:
    told = dict.fromkeys(map(place_name, places))
    return f" in {' and '.join(list(told)[:3])}" if told else ""
