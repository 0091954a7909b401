"""Scaling series among the runs of a program: of strong or of weak scaling."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from itertools import chain, combinations

import msgspec

from hpcprof.workloads.catalogue import Size
from hpcprof.workloads.schema import Scalar

# A parameter does not change the step time if its name has a neutral word and no others than filler words:
# max_train_steps, log_dir. gradient_accumulation_steps has others.
_NEUTRAL_WORDS = {
    *("steps", "iters", "iterations", "epoch", "epochs", "warmup", "timeout", "seed", "lr", "learning"),
    *("output", "out", "log", "save", "checkpoint", "ckpt", "port", "name", "capture"),
}
_FILLER_WORDS = {
    *("n", "num", "number", "of", "min", "max", "total", "global", "train", "training", "measured", "per"),
    "step",
    *("random", "rate", "dir", "path", "file", "folder", "every", "interval", "freq", "master", "run", "job"),
}
_PLACEMENT = ("cuda_visible_devices", "world_size")
"""Parameters of the placement of ranks, which do not change the problem."""

_TOTAL = re.compile(r"global|total")
_PER_RANK = re.compile(r"micro|local|per_(rank|device|gpu|accelerator|process|proc|worker|core|node)")
"""Names of sizes in frameworks: global_batch_size, micro_batch_size, per_device_train_batch_size."""


class ScalingKind(Enum):
    """The kind of scaling: the size of the whole problem is constant, or the size per rank."""

    STRONG = "strong"
    WEAK = "weak"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ScalingSetup:
    """The number of ranks of a run, and its `relevant_parameters`."""

    ranks: int
    nodes: int | None
    parameters: Mapping[str, Scalar]


class ScalingSeries(msgspec.Struct, frozen=True):
    """Runs with equal parameters, except those that scale with the ranks."""

    kind: ScalingKind
    runs: tuple[int, ...]
    """The positions of the runs."""
    size: str
    """The parameters that make up the size, and the size that stays the same; empty if unknown."""
    others: Mapping[str, Scalar]


class _Change(Enum):
    """The change of a series' parameters as ranks are added."""

    GROW = "grow"
    SHRINK = "shrink"
    STAY = "stay"


class _Pattern(msgspec.Struct, frozen=True):
    """The parameters whose product grows or shrinks as the ranks grow; all others stay."""

    change: _Change
    names: frozenset[str] = frozenset()

    def size(self, setup: ScalingSetup) -> Fraction:
        """Return the size that is the same in all runs of a series."""
        product = Fraction(math.prod(int(str(setup.parameters[name])) for name in self.names))
        if self.change is _Change.STAY:
            return product
        return product / setup.ranks if self.change is _Change.GROW else product * setup.ranks


def relevant_parameters(parameters: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the parameters that may change the time of a step."""
    return {name: value for name, value in parameters.items() if not _is_irrelevant(_plain_text(name))}


def find_series(setups: Sequence[ScalingSetup], size: Size | None = None) -> list[ScalingSeries]:
    """Return the series among runs of one program, each with two or more numbers of ranks.

    A parameter, or the product of several, may grow in proportion to the ranks (weak scaling) or shrink
    (strong scaling): it is the size per rank. If all parameters stay the same, ``size`` or their names decide
    (``global_batch_size``), or another series where the same parameter scales. ``size`` is the size that the
    program declares. No other parameter may scale.
    """
    setups = _without_layout(setups, size)
    distinct: dict[tuple[int, frozenset[tuple[str, Scalar]]], list[int]] = {}
    for position, setup in enumerate(setups):
        distinct.setdefault((setup.ranks, frozenset(setup.parameters.items())), []).append(position)
    positions = list(distinct.values())
    distinct_setups = [setups[first] for first, *_ in positions]
    patterns = _unambiguous(_patterns(distinct_setups, size), distinct_setups, size)
    all_groups = [set(members) for members_of_pattern in patterns.values() for members in members_of_pattern]
    return [
        _series(
            pattern,
            [distinct_setups[i] for i in members],
            [*chain.from_iterable(positions[i] for i in members)],
            size,
            patterns,
        )
        for pattern, members_of_pattern in patterns.items()
        for members in members_of_pattern
        if not any(set(members) < other for other in all_groups)
    ]


def _plain_text(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _is_irrelevant(name: str) -> bool:
    words = set(name.split("_"))
    return name in _PLACEMENT or (bool(words & _NEUTRAL_WORDS) and words <= _NEUTRAL_WORDS | _FILLER_WORDS)


def _is_count(value: Scalar) -> bool:
    """Return whether a value can be a size: a whole number above 0, also as a text."""
    return not isinstance(value, bool) and bool(re.fullmatch(r"0*[1-9]\d*", str(value)))


def _role(name: str, size: Size | None) -> ScalingKind | None:
    """Return the scaling of a series in which this parameter stays the same; None if unknown."""
    if size is not None:
        return (ScalingKind.WEAK if size.per_rank else ScalingKind.STRONG) if name == size.parameter else None
    if _TOTAL.search(_plain_text(name)):
        return ScalingKind.STRONG
    return ScalingKind.WEAK if _PER_RANK.search(_plain_text(name)) else None


def _without_layout(setups: Sequence[ScalingSetup], size: Size | None) -> list[ScalingSetup]:
    """Leave out the parameters that are the number of ranks or nodes in every run, such as ``--nproc 4``."""
    names = {name for setup in setups for name in setup.parameters if _role(name, size) is None}
    layout = {
        name
        for name in names
        if any(
            all(
                str(setup.parameters.get(name)) == str(number)
                for setup, number in zip(setups, numbers, strict=True)
            )
            for numbers in ([setup.ranks for setup in setups], [setup.nodes for setup in setups])
        )
    }
    return [
        replace(run, parameters={name: value for name, value in run.parameters.items() if name not in layout})
        for run in setups
    ]


def _patterns(setups: Sequence[ScalingSetup], size: Size | None) -> set[_Pattern]:
    """Return the patterns of all pairs of runs with different numbers of ranks."""
    ordered = sorted(setups, key=lambda setup: setup.ranks)
    pairs = (_pattern(few, many) for few, many in combinations(ordered, 2) if few.ranks < many.ranks)
    return {
        pattern
        for pattern in pairs
        if pattern is not None and (size is None or pattern.names <= {size.parameter})
    }


def _pattern(few: ScalingSetup, many: ScalingSetup) -> _Pattern | None:
    """Return the pattern of two runs; None if their parameters do not change in proportion to the ranks."""
    before, after = few.parameters, many.parameters
    if before.keys() != after.keys():
        return None
    names = frozenset(name for name in before if before[name] != after[name])
    if not names:
        return _Pattern(_Change.STAY)
    if not all(_is_count(value) for name in names for value in (before[name], after[name])):
        return None
    grows = [int(str(after[name])) > int(str(before[name])) for name in names]
    pattern = _Pattern(_Change.GROW if all(grows) else _Change.SHRINK, names)
    return pattern if len(set(grows)) == 1 and pattern.size(few) == pattern.size(many) else None


def _unambiguous(
    patterns: Iterable[_Pattern], setups: Sequence[ScalingSetup], size: Size | None
) -> dict[_Pattern, list[list[int]]]:
    """Return the series of each pattern that contradicts neither a parameter's role nor another pattern.

    If a parameter grows in one pattern and shrinks in another, only the longer series is kept.
    """
    contradiction = {_Change.GROW: ScalingKind.WEAK, _Change.SHRINK: ScalingKind.STRONG, _Change.STAY: None}
    ordered = sorted(patterns, key=lambda item: (len(item.names), item.change.value, sorted(item.names)))
    candidates = {
        pattern: [members for members in _members(pattern, setups) if len(members) > 1]
        for pattern in ordered
        if contradiction[pattern.change] not in {_role(name, size) for name in pattern.names} - {None}
    }
    longest: dict[tuple[_Change, str], int] = {}
    for pattern, groups in candidates.items():
        for name in pattern.names:
            key = (pattern.change, name)
            longest[key] = max([longest.get(key, 0), *map(len, groups)])
    opposite = {_Change.GROW: _Change.SHRINK, _Change.SHRINK: _Change.GROW, _Change.STAY: _Change.STAY}
    return {
        pattern: groups
        for pattern, groups in candidates.items()
        if all(
            longest[pattern.change, name] > longest.get((opposite[pattern.change], name), 0)
            for name in pattern.names
        )
    }


def _names(patterns: Iterable[_Pattern], change: _Change) -> set[str]:
    return {name for pattern in patterns if pattern.change is change for name in pattern.names}


def _members(pattern: _Pattern, setups: Sequence[ScalingSetup]) -> Iterator[list[int]]:
    """Yield the runs that have the size and all other parameters in common.

    A group with two runs of one number of ranks is left out: they divide the same size in different ways.
    """
    groups: dict[object, list[int]] = {}
    for i, setup in enumerate(setups):
        if not all(_is_count(setup.parameters.get(name)) for name in pattern.names):
            continue
        fixed_parameters = frozenset(
            item for item in setup.parameters.items() if item[0] not in pattern.names
        )
        groups.setdefault((fixed_parameters, pattern.size(setup)), []).append(i)
    for members in groups.values():
        if len({setups[i].ranks for i in members}) == len(members):
            yield members


def _series(
    pattern: _Pattern,
    setups: Sequence[ScalingSetup],
    runs: Sequence[int],
    size: Size | None,
    patterns: Iterable[_Pattern],
) -> ScalingSeries:
    parameters = setups[0].parameters
    kind, names = _kind_and_sizes(pattern, parameters, size, patterns)
    if pattern.change is _Change.STAY:
        size_text = " ".join(f"{name}={parameters[name]}" for name in names)
    else:
        size_text = f"{' x '.join(names)}={float(pattern.size(setups[0])):.10g}"
    return ScalingSeries(
        kind=kind,
        runs=tuple(runs),
        size=f"{size_text} {'in all' if kind is ScalingKind.STRONG else 'a rank'}" if names else "",
        others={name: value for name, value in parameters.items() if name not in names},
    )


def _kind_and_sizes(
    pattern: _Pattern, parameters: Mapping[str, Scalar], size: Size | None, patterns: Iterable[_Pattern]
) -> tuple[ScalingKind, list[str]]:
    """Return the kind of scaling of a series, and the parameters that make up its size."""
    if pattern.change is not _Change.STAY:
        return ScalingKind.WEAK if pattern.change is _Change.GROW else ScalingKind.STRONG, sorted(
            pattern.names
        )
    sizes = {name for name, value in parameters.items() if _is_count(value)}
    for kind in (ScalingKind.STRONG, ScalingKind.WEAK):
        if role_names := sorted(name for name in sizes if _role(name, size) is kind):
            return kind, role_names
    totals, parts = (sizes & _names(patterns, change) for change in (_Change.GROW, _Change.SHRINK))
    if bool(totals) == bool(parts):
        return ScalingKind.UNKNOWN, []
    return (ScalingKind.STRONG, sorted(totals)) if totals else (ScalingKind.WEAK, sorted(parts))
