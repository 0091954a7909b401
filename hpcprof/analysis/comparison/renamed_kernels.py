"""Pairs of a kernel that is gone and the new one in its place, found as git finds renamed files."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from hpcprof.analysis.comparison.launch_effects import Launches
from hpcprof.profiles.kernel_classification import OTHER, family
from hpcprof.profiles.kernel_names import short_name

LEAST_PCT = 50.0
"""Kernels that are less alike are not grouped; git has the same limit."""

_LEAST_NAME = 0.5
"""So much alike are the names of kernels without a family at least."""

_MOST = 64
"""So many kernels of a family are looked at on each side, those with most time: all pairs are compared."""

_WORD = re.compile(r"[A-Za-z]+|\d+")
_NAME, _COUNT, _SHAPE, _DURATION = 0.4, 0.2, 0.2, 0.2
"""The weights of what two kernels may have in common."""


@dataclass(frozen=True)
class Kernel:
    """A kernel: its name and class, its shapes, and its launches in a step."""

    kind: tuple[str, str]
    shapes: frozenset[Hashable]
    launches: Launches


@dataclass(frozen=True)
class Renamed:
    """Two kernels that are taken to be one, and how much alike they are, in percent."""

    before: tuple[str, str]
    after: tuple[str, str]
    score_pct: float


def find_renamed(gone: Iterable[Kernel], new: Iterable[Kernel]) -> list[Renamed]:
    """Return the pairs of a kernel that is gone and a new one that took its place, the most alike first.

    Both have the same class and family (matrix product, reduction, …). The score is 40 % likeness of the
    names, 20 % of the counts in a step, 20 % of the shapes (grid and block), 20 % of the durations. A kernel
    is in one pair at most.
    """
    before, after = _by_family(gone), _by_family(new)
    pairs = [
        (_score(one, other), one.kind, other.kind)
        for group, kernels in before.items()
        for one in kernels
        for other in after.get(group, ())
        if group[1] != OTHER or _alike_names(one, other) >= _LEAST_NAME
    ]
    found: list[Renamed] = []
    used: set[tuple[str, tuple[str, str]]] = set()
    for score, one, other in sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2])):
        if score < LEAST_PCT or ("before", one) in used or ("after", other) in used:
            continue
        used |= {("before", one), ("after", other)}
        found.append(Renamed(one, other, score))
    return found


def _by_family(kernels: Iterable[Kernel]) -> dict[tuple[str, str], Sequence[Kernel]]:
    found: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in sorted(kernels, key=lambda one: -one.launches.time):
        name, category = kernel.kind
        group = found.setdefault((category, family(name)), [])
        if len(group) < _MOST:
            group.append(kernel)
    return dict(found)


def _score(one: Kernel, other: Kernel) -> float:
    common = len(one.shapes & other.shapes) / len(one.shapes | other.shapes)
    score = (
        _NAME * _alike_names(one, other)
        + _COUNT * _alike(one.launches.number, other.launches.number)
        + _SHAPE * common
        + _DURATION * _alike(one.launches.mean, other.launches.mean)
    )
    return round(100 * score, 1)


def _alike(a: float, b: float) -> float:
    return min(a, b) / max(a, b) if max(a, b) else 1.0


def _alike_names(one: Kernel, other: Kernel) -> float:
    a, b = (_WORD.findall(short_name(kernel.kind[0])) for kernel in (one, other))
    return SequenceMatcher(a=a, b=b, autojunk=False).ratio()
