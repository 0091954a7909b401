"""Rank selection: which ranks of a job run under the profiler."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hpcprof.errors import UsageError

_HELP = "all, none, ranks such as 0,4-7, local=0, nodes=0-1, every=16, or several of the last three"
_SPANS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def select(text: str, nodes: int, ranks_per_node: int) -> list[int]:
    """Return the ranks that ``text`` selects, in ascending order.

    Ranks fill one node after the other, as every launcher does that hpcprof writes a command for.
    ``local=0,nodes=0-1`` selects the first rank of the first two nodes: conditions all hold.

    Raises
    ------
    UsageError
        If ``text`` is no selection, names a rank that the job does not have, or is none of its ranks.
    """
    world = nodes * ranks_per_node
    if text == "all":
        return list(range(world))
    if text == "none":
        return []
    if _SPANS.fullmatch(text):
        spans = _spans(text)
        highest = max(last for _, last in spans)
        if highest >= world:
            raise UsageError(
                f"--profile-ranks {text}: there is no rank {highest}; the job has ranks 0 to {world - 1}."
            )
        return [rank for rank in range(world) if _within(rank, spans)]
    conditions = [_condition(part, text, ranks_per_node) for part in _parts(text)]
    chosen = [rank for rank in range(world) if all(holds(rank) for holds in conditions)]
    if not chosen:
        raise UsageError(
            f"--profile-ranks {text}: that is none of the job's ranks; it has {nodes} x {ranks_per_node}."
        )
    return chosen


def compress(ranks: Iterable[int]) -> list[str]:
    """Return ranks as spans: ``[0, 1, 2, 5]`` becomes ``["0-2", "5"]``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return [f"{first}-{last}" if last > first else f"{first}" for first, last in spans]


def _spans(text: str) -> list[tuple[int, int]]:
    spans = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise UsageError(f"--profile-ranks: the span {part} is empty; write the lower number first.")
        spans.append((int(first), int(last or first)))
    return spans


def _within(number: int, spans: Iterable[tuple[int, int]]) -> bool:
    return any(first <= number <= last for first, last in spans)


def _parts(text: str) -> list[str]:
    """Split at the commas that begin a new condition: ``nodes=0,2,local=1`` has two."""
    return re.split(r",(?=[a-z]+=)", text)


def _condition(part: str, text: str, ranks_per_node: int) -> Callable[[int], bool]:
    key, _, value = part.partition("=")
    if key == "every" and value.isdigit() and int(value) > 0:
        return lambda rank: rank % int(value) == 0
    if key in ("local", "nodes") and _SPANS.fullmatch(value):
        spans = _spans(value)
        if key == "local":
            return lambda rank: _within(rank % ranks_per_node, spans)
        return lambda rank: _within(rank // ranks_per_node, spans)
    raise UsageError(f"--profile-ranks {text}: {part!r} is no selection; use {_HELP}.")
