"""The difference of kernels, collectives and idle time between two sides of runs, by name."""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import msgspec
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.steps.step_detection import LAUNCHES
from hpcprof.profiles.kernel_classification import OTHER, family
from hpcprof.profiles.kernel_names import short_name

CHANGED, NEW, GONE, RENAMED = "changed", "new", "gone", "renamed"


class LaunchSum(NamedTuple):
    """Count of launches in a step and their total time in ns; means over steps."""

    number: float
    time: float

    @property
    def mean(self) -> float:
        """The duration of one of them."""
        return self.time / self.number if self.number else 0.0


Shapes = Mapping[Hashable, LaunchSum]
"""The launches of one kind by their shape: grid and block of a kernel, size of a collective."""

_NOTHING = LaunchSum(0.0, 0.0)


class Effects(msgspec.Struct, frozen=True):
    """The difference between two sides in whole nanoseconds, and its parts.

    ``by_count``, ``by_shape`` and ``by_duration`` add up to ``b - a``.
    """

    a: int
    b: int
    by_count: int
    by_shape: int
    by_duration: int


def total(shapes: Shapes) -> LaunchSum:
    """Return the launches of all shapes together."""
    return LaunchSum(sum(part.number for part in shapes.values()), sum(part.time for part in shapes.values()))


def effects(a: Shapes, b: Shapes) -> Effects:
    """Divide the difference between two sides.

    The count comes first, then the shape, then the duration; that order is part of the definition:

    - count: the change of the count times the mean duration before; the whole time of a new or gone kind.
    - shape: the effect of the new mix of shapes at the durations before. A new shape counts with its own
      duration, so that all of it is this effect.
    - duration: the rest, the longer or shorter launches of the same shape.
    """
    before, after = total(a), total(b)
    time_a, time_b = round(before.time), round(after.time)
    difference = time_b - time_a
    if not before.number or not after.number:
        return Effects(time_a, time_b, difference, 0, 0)
    by_count = round((after.number - before.number) * before.mean)
    if not any(a.get(shape, _NOTHING).number for shape in b):
        return Effects(time_a, time_b, by_count, difference - by_count, 0)
    at_old = sum(launches.number * (a.get(shape) or launches).mean for shape, launches in b.items())
    by_shape = round(at_old - after.number * before.mean)
    return Effects(time_a, time_b, by_count, by_shape, difference - by_count - by_shape)


_COUNT_DIGITS = 3
WHOLE_CAPTURES = (
    "the profiles have no common step, so times and counts are those of whole profiles: means over ranks"
)
"""The reason of an analysis whose figures are not per step."""


def kernel_difference(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Divide the difference of each kernel between ``runs`` (side b) and ``against`` (side a).

    Times and counts are per step and rank, as the mean over all steps, ranks and runs of a side. The effects
    of count, shape (grid and block) and duration add up to the difference of the kernel; see
    `hpcprof.analysis.comparison.kernel_difference.effects`. A kernel that is gone and a new one that resemble
    each other count as one that was renamed; see `find_renamed`.
    Kernels overlap each other and other work, so their differences do not add up to that of the step.
    """
    per_step = _have_steps(*runs, *against)
    a, b = (_by_kind(_kernels(side), _number_of_steps(side, per_step, True)) for side in (against, runs))
    if not a and not b:
        return no_rows("no CUDA kernels on either side")
    if not all(map(_is_recorded, (*runs, *against))):
        return no_rows(_UNRECORDED)
    removed, new = ({k: v for k, v in side.items() if k not in other} for side, other in ((a, b), (b, a)))
    rows = []
    for pair in find_renamed(_as_kernels(removed), _as_kernels(new)):
        row = _row(a.pop(pair.before), b.pop(pair.after)) | {"change": RENAMED}
        rows.append(_row_fields(row, pair.after) | {"was": pair.before[0], "similarity_pct": pair.score_pct})
    rows += [_row_fields(_row(a.get(kind, {}), b.get(kind, {})), kind) for kind in dict.fromkeys((*a, *b))]
    return Outcome(_order_by_size(rows), "" if per_step else WHOLE_CAPTURES)


def collective_difference(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Divide the difference of each collective operation between ``runs`` (side b) and ``against`` (side a).

    As `kernel_difference`, with the size of the message in place of the shape. Collectives that one kernel
    carries out together count once, with the size of the first. ``ranks`` is the size of the communicator.
    The time of a collective includes the waiting for its last rank. ``exposed_difference_ns`` is the change
    of its time outside compute.
    """
    per_step = _have_steps(*runs, *against)
    tables = _with_common_sizes(_collectives(against), _collectives(runs))
    counts = (_number_of_steps(side, per_step) for side in (against, runs))
    sides = [*zip(tables, counts, strict=True)]
    a, b = (_by_kind(_by_size(table), steps) for table, steps in sides)
    if not a and not b:
        return no_rows("no collectives on either side")
    if not all(map(_is_recorded, (*runs, *against))):
        return no_rows(_UNRECORDED)
    exposed: list[Counter[Hashable]] = [Counter(), Counter()]
    for totals, (table, steps) in zip(exposed, sides, strict=True):
        for op, ranks, time in table[["op", "comm_ranks", "exposed_ns"]].itertuples(index=False):
            totals[op, ranks] += time / steps
    rows = []
    for kind in dict.fromkeys((*a, *b)):
        row = _row(a.get(kind, {}), b.get(kind, {}))
        more = round(exposed[1][kind]) - round(exposed[0][kind])
        row |= {"op": kind[0], "ranks": kind[1], "exposed_difference_ns": more}
        rows.append(row | {"size_effect_ns": row["shape_effect_ns"]})
    return Outcome(_order_by_size(rows), "" if per_step else WHOLE_CAPTURES)


def idle_difference(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Compare the idle time of the GPU by cause, range and API call, as the mean over ranks and runs."""
    if not all(len(run.tables["step_times"]) for run in (*runs, *against)):
        return no_rows("the idle time of runs without steps is unknown")
    a, b = (_idle_per_step(side) for side in (against, runs))
    rows = []
    for key in dict.fromkeys((*a, *b)):
        time_a, time_b = round(a[key]), round(b[key])
        values = dict(zip(("cause", "range", "api"), key, strict=True))
        rows.append({**values, "a_ns": time_a, "b_ns": time_b, "difference_ns": time_b - time_a})
    if not rows:
        return no_rows("no idle time inside steps on either side")
    return Outcome(_order_by_size(rows))


_Kind = tuple[Any, Any]
"""The name and class of a kernel, or the operation of a collective and the size of its communicator."""

_Kinds = dict[_Kind, dict[Hashable, LaunchSum]]
"""The launches of each kind by shape, per step and rank."""

_Sum = tuple[_Kind, Hashable, int, int]
"""A kind, a shape, and the number and the time of all its launches."""


_UNRECORDED = "a run without a profile does not tell what it launched"


def _is_recorded(run: RunData) -> bool:
    """Return whether a profile shows what a run launched: one that only noted its steps has no kernels."""
    return any(len(run.tables[name]) for name in ("kernels_by_shape", "step_times"))


def _have_steps(*runs: RunData) -> bool:
    """Return whether every rank with kernels has steps."""
    return all(
        set(run.tables["kernels_by_shape"]["rank"]) <= set(run.tables["step_times"]["rank"]) for run in runs
    )


def _number_of_steps(side: Sequence[RunData], per_step: bool, begun: bool = False) -> int:
    """Return the number of whole or ``begun`` steps of all ranks and runs; without steps, that of ranks."""
    tables = [run.tables for run in side]
    if per_step:
        counts = (begun_steps(run).sum() if begun else len(run["step_times"]) for run in tables)
        return int(sum(counts)) or 1
    return sum(run["kernels_by_shape"]["rank"].nunique() for run in tables) or 1


def begun_steps(tables: Mapping[str, pd.DataFrame]) -> "pd.Series[int]":
    """Return the number of steps that each rank begins, by rank.

    Launches that mark steps do not tell when the last one ends, but its kernels are in the capture.
    """
    steps: pd.Series[int] = tables["step_times"].groupby("rank").size()
    ranges = tables.get("step_ranges")
    if ranges is None or not len(ranges):
        return steps
    by_launches = ranges["rank"][(ranges["chosen"] == 1) & (ranges["source"] == LAUNCHES)]
    return steps + steps.index.isin(by_launches)


def _kernels(side: Sequence[RunData]) -> Iterator[_Sum]:
    names = ("name", "class", "grid", "block", "instances", "total_ns")
    for run in side:
        columns = [run.tables["kernels_by_shape"][name].tolist() for name in names]
        for name, category, grid, block, count, time in zip(*columns, strict=True):
            yield (name, category), (grid, block), count, time


def _collectives(side: Sequence[RunData]) -> pd.DataFrame:
    """Return the collectives of a side inside steps; those that one kernel carries out count once."""
    table = pd.concat([run.tables["rank_collectives"] for run in side], ignore_index=True)
    table = table[(table["part"] == 0) & table["step"].notna()]
    sizes = table[["comm_ranks", "bytes"]].astype(object)
    typed: pd.DataFrame = table.assign(**dict(sizes.where(sizes.notna(), None).items()))
    return typed


def _with_common_sizes(*tables: pd.DataFrame) -> tuple[pd.DataFrame, ...]:
    """Leave out the sizes of messages and communicators of operations for which a side lacks them."""
    for name in ("comm_ranks", "bytes"):
        unknown = {op for table in tables for op in table["op"][table[name].isna()]}
        tables = tuple(
            table.assign(**{name: table[name].where(~table["op"].isin(unknown), None)}) for table in tables
        )
    return tables


def _by_size(table: pd.DataFrame) -> Iterator[_Sum]:
    names = ("op", "comm_ranks", "bytes", "start_ns", "end_ns")
    for op, ranks, size, start, end in zip(*(table[name].tolist() for name in names), strict=True):
        yield (op, ranks), size, 1, end - start


def _by_kind(sums: Iterable[_Sum], steps: int) -> _Kinds:
    sums_by_kind: dict[_Kind, dict[Hashable, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for kind, shape, count, time in sums:
        launches = sums_by_kind[kind][shape]
        launches[0] += count
        launches[1] += time
    return {
        kind: {shape: LaunchSum(count / steps, time / steps) for shape, (count, time) in shapes.items()}
        for kind, shapes in sums_by_kind.items()
    }


def _as_kernels(kinds: _Kinds) -> "list[Kernel]":
    return [Kernel(kind, frozenset(shapes), total(shapes)) for kind, shapes in kinds.items()]


def _idle_per_step(side: Sequence[RunData]) -> Counter[tuple[str | None, ...]]:
    """Return the idle time per step by cause, range and API call, as the mean over all ranks of a side."""
    times: Counter[tuple[str | None, ...]] = Counter()
    ranks = sum(run.tables["step_times"]["rank"].nunique() for run in side) or 1
    names = ("cause", "range", "api", "idle_ns_per_step")
    for run in side:
        for *key, time in zip(*(run.tables["idle_causes"][name].tolist() for name in names), strict=True):
            times[tuple(key)] += time / ranks
    return times


def _row(a: Shapes, b: Shapes) -> dict[str, Any]:
    before, after, effect = total(a), total(b), effects(a, b)
    return {
        "change": CHANGED if before.number and after.number else NEW if after.number else GONE,
        "a_per_step": round(before.number, _COUNT_DIGITS),
        "b_per_step": round(after.number, _COUNT_DIGITS),
        "a_ns": effect.a,
        "b_ns": effect.b,
        "difference_ns": effect.b - effect.a,
        "count_effect_ns": effect.by_count,
        "shape_effect_ns": effect.by_shape,
        "duration_effect_ns": effect.by_duration,
    }


def _row_fields(row: dict[str, Any], kind: _Kind) -> dict[str, Any]:
    return {"name": kind[0], "class": kind[1], "was": None, "similarity_pct": None, **row}


def _order_by_size(rows: list[dict[str, Any]]) -> pd.DataFrame:
    ordered = sorted(rows, key=lambda row: -abs(row["difference_ns"]))
    typed: pd.DataFrame = pd.DataFrame(ordered, dtype=object)
    return typed


MIN_SIMILARITY_PCT = 50.0
"""Minimum similarity of a renamed kernel, in percent; git has the same limit for files."""

_MIN_NAME_SIMILARITY = 0.5
"""Minimum similarity of the names of two kernels without a family."""

_MAX_COMPARED_KERNELS = 64
"""Maximum number of kernels of a family compared per side, longest first: all pairs are compared."""

_WORD = re.compile(r"[A-Za-z]+|\d+")
_NAME_WEIGHT, _COUNT_WEIGHT, _SHAPE_WEIGHT, _DURATION_WEIGHT = 0.4, 0.2, 0.2, 0.2
"""Weights of the similarities of two kernels."""


class Kernel(msgspec.Struct, frozen=True):
    """A kernel: its name and class, its shapes, and its launches in a step."""

    kind: tuple[str, str]
    shapes: frozenset[Hashable]
    launches: LaunchSum


class Renamed(msgspec.Struct, frozen=True):
    """Two kernels that count as one renamed kernel, and their similarity in percent."""

    before: tuple[str, str]
    after: tuple[str, str]
    score_pct: float


def find_renamed(removed: Iterable[Kernel], new: Iterable[Kernel]) -> list[Renamed]:
    """Return the pairs of a kernel that is gone and a new one that took its place, the most similar first.

    Both have the same class and family (matrix product, reduction, …). The score is the similarity of the
    names (40 %), of the counts in a step, of the shapes (grid and block) and of the durations (20 % each). A
    kernel is in one pair at most.
    """
    before, after = _by_family(removed), _by_family(new)
    pairs = [
        (_score(candidate, other), candidate.kind, other.kind)
        for group, kernels in before.items()
        for candidate in kernels
        for other in after.get(group, ())
        if group[1] != OTHER or _alike_names(candidate, other) >= _MIN_NAME_SIMILARITY
    ]
    renamed: list[Renamed] = []
    used: set[tuple[str, tuple[str, str]]] = set()
    for score, kernel, other in sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2])):
        if score < MIN_SIMILARITY_PCT or ("before", kernel) in used or ("after", other) in used:
            continue
        used |= {("before", kernel), ("after", other)}
        renamed.append(Renamed(kernel, other, score))
    return renamed


def _by_family(kernels: Iterable[Kernel]) -> dict[tuple[str, str], Sequence[Kernel]]:
    groups: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in sorted(kernels, key=lambda item: -item.launches.time):
        name, category = kernel.kind
        group = groups.setdefault((category, family(name)), [])
        if len(group) < _MAX_COMPARED_KERNELS:
            group.append(kernel)
    return dict(groups)


def _score(kernel: Kernel, other: Kernel) -> float:
    common = len(kernel.shapes & other.shapes) / len(kernel.shapes | other.shapes)
    score = (
        _NAME_WEIGHT * _alike_names(kernel, other)
        + _COUNT_WEIGHT * _similarity(kernel.launches.number, other.launches.number)
        + _SHAPE_WEIGHT * common
        + _DURATION_WEIGHT * _similarity(kernel.launches.mean, other.launches.mean)
    )
    return round(100 * score, 1)


def _similarity(a: float, b: float) -> float:
    return min(a, b) / max(a, b) if max(a, b) else 1.0


def _alike_names(first: Kernel, other: Kernel) -> float:
    a, b = (_WORD.findall(short_name(kernel.kind[0])) for kernel in (first, other))
    return SequenceMatcher(a=a, b=b, autojunk=False).ratio()
