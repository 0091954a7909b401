"""Tells whether the ranks in a folder that hpcprof did not make are of one program.

All ranks of a program have the same number of ranks, and what they call together they call alike: the same
collective operations in like proportions, in a communicator of all ranks also of like sizes. Ranks that call
nothing together compute with the same kernels, at least in part. Profiles of two programs in one folder
differ in that, and nothing about them may be averaged.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from hpcprof.common.errors import HpcprofError
from hpcprof.profiles.collective_operations import POINT_TO_POINT
from hpcprof.profiles.timeline import Category

if TYPE_CHECKING:  # the workers do without
    from hpcprof.results.store.store import Store

_MIN_COMMON_SHARE = 0.5
"""Minimum common share of the calls of two ranks of a program."""

_MIN_COMMON_KERNELS = 0.1
"""Minimum common share of their kernel time, without communication, whose time depends on late ranks."""

_MIN_CALLS = 4
"""Minimum number of calls for a comparison."""

_MAX_CLOCK_NS = 60 * 10**9
"""Maximum difference between the clocks of nodes, in ns."""

_UNEQUAL_SIZES = {"AlltoAll", "AlltoAllV", "AllGatherV", "Gather", "Scatter"}
"""Operations whose sizes may differ between ranks."""

_UNIQUE_COMMUNICATOR = re.compile("0x[0-9a-f]{16}")
"""Ids of communicators that are unique; other ids are names, which several programs may use."""


class CollectiveCounts(msgspec.Struct, frozen=True):
    """The operations that a rank called together with others.

    ``operations`` and ``sizes`` count its calls by operation, and by operation and size; ``world_sizes``
    those of communicators of all ranks. ``span_ns`` is from the first to the last, on the clock of the
    profile.
    """

    ranks: int | None = None
    communicators: frozenset[str] = frozenset()
    operations: Mapping[str, int] = msgspec.field(default_factory=dict)
    sizes: Mapping[tuple[str, int], int] = msgspec.field(default_factory=dict)
    world_sizes: Mapping[tuple[str, int], int] = msgspec.field(default_factory=dict)
    span_ns: tuple[int, int] | None = None


def check_same_program(run_id: str, store: "Store", calls: Mapping[int, CollectiveCounts]) -> None:
    """Raise HpcprofError if the ranks of a collected run, with these ``calls``, are of several programs."""
    profiles = store.profiles(run_id)
    starts = {rank: profiles[rank].start_utc_ns for rank in calls}
    # Kernel names differ between profilers.
    kinds = {rank: profiles[rank].kind for rank in calls}
    kernels = _Kernels(run_id, store)
    programs: list[int] = []
    for rank in sorted(calls):
        whys = [
            difference(calls[program], calls[rank], starts[program], starts[rank])
            or (kinds[program] == kinds[rank] and kernels.difference(program, rank, calls))
            for program in programs
        ]
        if all(whys):
            programs.append(rank)
            if len(programs) > 1:
                first, other = (f"rank {number} ({profiles[number].file})" for number in (programs[0], rank))
                raise HpcprofError(
                    f"{other} is of another program than {first}: {whys[0]}. Put the profiles of each "
                    "program into a folder of its own or, if they ran together, name the program with "
                    "--program NAME."
                )


def collective_counts(ranks: int | None, kinds: Iterable[Mapping[str, Any]]) -> CollectiveCounts:
    """Count what a rank calls.

    ``ranks`` is their number as its profile records it. Each of ``kinds`` of calls has ``op``, ``bytes``,
    ``comm_id`` and ``comm_ranks``, how many there are (``count_all``), and the times of the first and the
    last (``start_ns_min``, ``end_ns_max``).
    """
    communicators = set[str]()
    operations, sizes, world_sizes = Counter[str](), Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    spans = []
    for kind in kinds:
        name, size, count = kind["op"], kind["bytes"], kind["count_all"]
        if name in POINT_TO_POINT:
            continue
        operations[name] += count
        spans.append((kind["start_ns_min"], kind["end_ns_max"]))
        if kind["comm_id"] is not None and _UNIQUE_COMMUNICATOR.fullmatch(kind["comm_id"]):
            communicators.add(kind["comm_id"])
        if size is not None and name not in _UNEQUAL_SIZES:
            sizes[name, size] += count
            world_sizes[name, size] += count if kind["comm_ranks"] == ranks else 0
    span = (min(start for start, _ in spans), max(end for _, end in spans)) if spans else None
    return CollectiveCounts(ranks, frozenset(communicators), operations, sizes, +world_sizes, span)


def difference(
    counts: CollectiveCounts, other: CollectiveCounts, start: int | None, other_start: int | None
) -> str:
    """Return the difference in calls that makes two ranks different programs, in words; empty without one."""
    if counts.ranks is not None and other.ranks is not None and counts.ranks != other.ranks:
        return f"it ran on {other.ranks} ranks, the other on {counts.ranks}"
    if not counts.communicators.isdisjoint(other.communicators):
        return ""
    if _common_share(counts.operations, other.operations) < _MIN_COMMON_SHARE:
        commonest, other_commonest = map(_commonest_operations, (counts.operations, other.operations))
        return f"it calls {other_commonest}, the other {commonest}"
    common_share = _common_share(counts.world_sizes, other.world_sizes)
    if _recorded_apart(counts, other, start, other_start):
        common_share = min(common_share, _common_share(counts.sizes, other.sizes))
    return "its collective operations have other sizes" if common_share < _MIN_COMMON_SHARE else ""


def _recorded_apart(
    counts: CollectiveCounts, other: CollectiveCounts, start: int | None, other_start: int | None
) -> bool:
    """Return whether two ranks were certainly recorded at different times."""
    if start is None or other_start is None or counts.span_ns is None or other.span_ns is None:
        return False
    gap = max(start + counts.span_ns[0], other_start + other.span_ns[0]) - min(
        start + counts.span_ns[1], other_start + other.span_ns[1]
    )
    return gap > _MAX_CLOCK_NS


def _common_share(
    counts: Mapping[Any, float], other: Mapping[Any, float], fewest: float = _MIN_CALLS
) -> float:
    """Return the common share of two distributions of counts; 1 if one has too few counts."""
    whole, other_sum = sum(counts.values()), sum(other.values())
    if min(whole, other_sum) < fewest:
        return 1.0
    return sum(min(count / whole, other.get(key, 0) / other_sum) for key, count in counts.items())


def _commonest_operations(operations: Mapping[str, int]) -> str:
    return " and ".join(name for name, _ in Counter(operations).most_common(2))


class _Kernels:
    """The time of each kernel by rank, read when it is asked for."""

    def __init__(self, run_id: str, store: "Store") -> None:
        self._run_id, self._store = run_id, store

    def difference(self, first: int, other: int, calls: Mapping[int, CollectiveCounts]) -> str:
        """Return the difference in kernels that makes two ranks different programs, as `difference`."""
        if not calls[first].communicators.isdisjoint(calls[other].communicators):
            return ""
        if min(sum(calls[rank].world_sizes.values()) for rank in (first, other)) >= _MIN_CALLS:
            return ""  # Their collectives suffice.
        common = _common_share(self._times[first], self._times[other], fewest=1)
        return "they have no kernels in common" if common < _MIN_COMMON_KERNELS else ""

    @cached_property
    def _times(self) -> defaultdict[int, dict[str, float]]:
        times: defaultdict[int, dict[str, float]] = defaultdict(dict)
        columns = ["rank", "name", "total_ns", "class"]
        rows = self._store.table(self._run_id, "kernels", columns).columns
        for rank, name, total, kind in zip(*(rows[column] for column in columns), strict=True):
            if kind != Category.COMM.name.lower():
                times[rank][name] = total
        return times
