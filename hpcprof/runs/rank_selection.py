"""Rank selection: which ranks of a job run under the profiler."""

import re
from collections.abc import Callable, Iterable

from hpcprof.common.errors import UsageError

_HELP = "all, none, ranks such as 0,4-7, or a combination of local=0, nodes=0-1 and every=16"
_NUMBER = r"[0-9]{1,18}"
_SPAN = f"{_NUMBER}(-{_NUMBER})?"
_SPANS = re.compile(f"{_SPAN}(,{_SPAN})*")


def select_ranks(text: str, nodes: int, ranks_per_node: int) -> list[int]:
    """Return the ranks that ``text`` selects, in ascending order.

    Several conditions select the ranks that meet all of them: ``local=0,nodes=0-1`` selects the first rank on
    each of the first two nodes. ``local`` and ``nodes`` refer to the usual layout, in which
    ranks fill one node after the other; the wrapper decides by the place of the rank (`place_conditions`).
    """
    world = nodes * ranks_per_node
    if text == "all":
        return list(range(world))
    if text == "none":
        return []
    if _SPANS.fullmatch(text):
        chosen = _numbers(text, world)
        highest = max(map(int, re.findall(_NUMBER, text)))
        if highest >= world:
            valid = f"ranks 0 to {world - 1}" if world > 1 else "rank 0 alone"
            raise UsageError(f"--profile-ranks {text}: there is no rank {highest}; the job has {valid}.")
        return sorted(chosen)
    conditions = [_condition(part, text, nodes, ranks_per_node) for part in _parts(text)]
    ranks = [rank for rank in range(world) if all(holds(rank) for holds in conditions)]
    if not ranks:
        sentence = f"--profile-ranks {text} selects none of the job's {nodes} x {ranks_per_node} ranks."
        raise UsageError(sentence)
    return ranks


def place_conditions(text: str) -> dict[str, list[str]]:
    """Return the conditions on places, as in ``{"local": ["0"]}``; empty if a selection names ranks only."""
    if "local=" not in text and "nodes=" not in text:
        return {}
    return {key: value.split(",") for key, _, value in (part.partition("=") for part in _parts(text))}


def _parts(text: str) -> list[str]:
    return re.split(r",(?=[a-z]+=)", text)


def rank_spans(ranks: Iterable[int]) -> list[str]:
    """Return ranks as spans: ``[0, 1, 2, 5]`` becomes ``["0-2", "5"]``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return [f"{first}-{last}" if last > first else f"{first}" for first, last in spans]


def parse_ranks(text: str, option: str = "--ranks") -> list[tuple[int, int]]:
    """Return the spans of a list of ranks such as ``0,4-7``, each with its last rank."""
    if not _SPANS.fullmatch(text):
        raise UsageError(f"{option} {text}: give ranks such as 0,4-7.")
    parts = (part.partition("-") for part in text.split(","))
    spans = [(int(first), int(last or first)) for first, _, last in parts]
    for low, high in spans:
        if high < low:
            raise UsageError(f"{option}: the span {low}-{high} is empty; write the lower number first.")
    return spans


def _numbers(text: str, limit: int) -> set[int]:
    spans = parse_ranks(text, "--profile-ranks")
    return {number for low, high in spans for number in range(low, min(high + 1, limit))}


def _condition(part: str, text: str, nodes: int, ranks_per_node: int) -> Callable[[int], bool]:
    key, _, value = part.partition("=")
    if key == "every" and re.fullmatch(_NUMBER, value) and int(value) > 0:
        return lambda rank: rank % int(value) == 0
    if key == "local" and _SPANS.fullmatch(value):
        local_ranks = _numbers(value, ranks_per_node)
        return lambda rank: rank % ranks_per_node in local_ranks
    if key == "nodes" and _SPANS.fullmatch(value):
        chosen = _numbers(value, nodes)
        return lambda rank: rank // ranks_per_node in chosen
    raise UsageError(f"--profile-ranks {text}: {part!r} is not a rank selection; use {_HELP}.")
