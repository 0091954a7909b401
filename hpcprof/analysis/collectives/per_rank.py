"""The collectives of one rank, each with the kernel that carried it out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.framework.outcome import Outcome, Values, no_rows
from hpcprof.analysis.gpu_time.device_time import category_intervals
from hpcprof.analysis.operators.host_time import host_compute, measured_on_host
from hpcprof.analysis.steps.step_ranges import OUTSIDE, step_numbers
from hpcprof.common.units import counted
from hpcprof.profiles.columns.intervals import coverage
from hpcprof.profiles.columns.joins import launch_pairs, pair_keys
from hpcprof.profiles.columns.unique import (
    distinct,
    name_matches,
    numbered_rows,
    object_array,
    position_in_group,
)
from hpcprof.profiles.kernel_classification import kernel_operation, load
from hpcprof.profiles.readers.nsys import NSYS
from hpcprof.profiles.timeline import (
    AFTER_ALL,
    BEFORE_ALL,
    NO_BYTES,
    NO_NAME,
    NO_PEER,
    UNKNOWN_RANKS,
    Category,
    Collectives,
    Ints,
    Table,
    Timeline,
    concatenate,
)
from hpcprof.profiles.waiting_calls import launches_graph

_NO_ROW = -1


@dataclass(frozen=True)
class _Collectives(Table):
    """Collectives in the order of the host's calls, with their extents on the GPU.

    ``seq`` counts the calls of an operation in its communicator, those of a send or a receive with the same
    partner, including those whose kernel is unknown. ``fused`` is the number of collectives that the same
    kernels carried out, ``part`` the position among them, and ``call`` the time at which the host launched
    the collective.
    """

    operation: NDArray[np.object_]
    communicator: NDArray[np.object_]
    seq: Ints
    bytes: Ints
    ranks: Ints
    peer: Ints
    comm_peer: Ints
    fused: Ints
    part: Ints
    device: Ints
    start: Ints
    end: Ints
    call: Ints


def rank_collectives(timeline: Timeline) -> Outcome:
    """List the collectives of a rank in the order of its calls.

    The communication kernels that were launched inside a call carry out its collective. The call that ends
    a group launches the kernels of the whole group, so all calls of the group share their extent
    (``fused`` > 1). A group over several communicators has several kernels that cannot be told apart, and is
    left out. Without recorded calls, as of other libraries than NCCL and RCCL, the operations come from the
    kernels' names in the order of their start, without communicator and size; kernels in which no rank waits
    for the others are left out.

    ``peer`` is the partner of a send or a receive by its rank in the program, and ``comm_peer`` by its rank
    in the communicator; profilers record one of them or none. ``exposed_ns`` is the part of the extent during
    which no compute kernel ran on the device. ``step`` is the step that contains the launch, or None.

    In a profile without communication kernels, the collectives that the host carries out (gloo) are listed,
    each with its own extent; there operators are compute, and of the collectives that run at the same time
    only the first is exposed.
    """
    calls = timeline.collectives
    reasons: list[str] = []
    if _only_host(timeline):
        calls, collectives = timeline.host_collectives, _from_host(timeline)
    elif len(calls):
        collectives, reasons = _from_calls(timeline)
    else:
        collectives = _from_kernel_names(timeline, carried_out_by_name(timeline))
    if not len(collectives.start):
        return no_rows(_why_none(timeline))
    rows: dict[str, Values] = {
        "op": collectives.operation,
        "comm_id": collectives.communicator,
        "seq": collectives.seq,
        "bytes": _known_or_none(collectives.bytes, NO_BYTES),
        "comm_ranks": _known_or_none(collectives.ranks, UNKNOWN_RANKS),
        "world_ranks": [timeline.origin.world_size] * len(collectives.start),
        "fused": collectives.fused,
        "part": collectives.part,
        "start_ns": collectives.start,
        "end_ns": collectives.end,
        "exposed_ns": collectives.end - collectives.start - _beside_compute(timeline, collectives),
        "step": _known_or_none(step_numbers(timeline, collectives.call), OUTSIDE),
        "peer": _known_or_none(collectives.peer, NO_PEER),
        "comm_peer": _known_or_none(collectives.comm_peer, NO_PEER),
    }
    if None in collectives.communicator:
        reasons.append(_why_unknown(timeline))
    return Outcome(rows, "; ".join(reasons))


def _only_host(timeline: Timeline) -> bool:
    """Return whether the host carries out all collectives."""
    return len(timeline.host_collectives) > 0 and not np.any(timeline.kernels.category == Category.COMM)


def _why_none(timeline: Timeline) -> str:
    file = timeline.origin.path.name
    if np.any(timeline.kernels.category == Category.COMM):
        return f"no communication kernel in {file} belongs to a recorded collective"
    return f"no {'collectives' if measured_on_host(timeline) else 'communication kernels'} in {file}"


def _why_unknown(timeline: Timeline) -> str:
    """Return the reason why communicators are unknown."""
    file = timeline.origin.path.name
    if _only_host(timeline):
        return f"the collectives in {file} do not name their communicator, and there are several"
    if not len(timeline.collectives):
        nsys = timeline.origin.kind == NSYS.name
        without = (
            "has no calls of NCCL (nsys --trace=nvtx records them)"
            if nsys
            else "has no record of its collectives"
        )
        return (
            f"{file} {without}: operations come from the kernels' names, and sizes and communicators are "
            "unknown"
        )
    if np.all(timeline.collectives.bytes == NO_BYTES):
        return (
            f"{file} has no payloads of NCCL's calls (nsys export --include-blobs=true keeps them): sizes "
            "and communicators are unknown"
        )
    if NO_NAME not in timeline.collectives.communicator:
        return f"communicators of kernels in {file} that are not NCCL's are unknown"
    return f"the calls in {file} do not name their communicator"


def _known_or_none(values: Ints, unknown: int) -> NDArray[np.object_]:
    column = values.astype(object)
    column[values == unknown] = None
    return column


def _launches(timeline: Timeline, kernels: Ints) -> tuple[Ints, Ints]:
    """Return pairs of a kernel and its launch: positions in ``kernels``, and rows of the calls."""
    operation, call = launch_pairs(timeline)
    # Kernels come first among the operations.
    place = np.full(timeline.operation_count, _NO_ROW)
    place[kernels] = np.arange(len(kernels))
    place = place[operation]
    has_row = place != _NO_ROW
    return place[has_row], call[has_row]


def _from_calls(timeline: Timeline) -> tuple[_Collectives, list[str]]:
    """Find the kernels of each call of the library; also return sentences about what is left out."""
    file = timeline.origin.path.name
    calls = timeline.collectives
    calls = calls.take(np.argsort(calls.start, kind="stable"))
    kernels = timeline.kernels
    rows = np.flatnonzero(kernels.category == Category.COMM)
    kernel, launch = _launches(timeline, rows)
    launched = timeline.calls.start[launch]
    # A carrier is a call that launches kernels; all collectives of a group have the same one.
    where, launch_where = pair_keys(
        (calls.process, calls.thread), (timeline.calls.process[launch], timeline.calls.thread[launch])
    )
    carriers, carrier = numbered_rows(where, calls.start, calls.end)
    owner = _carrier_at(carriers, launch_where, launched)
    is_owned = owner != _NO_ROW
    kernel, launch, owner = kernel[is_owned], launch[is_owned], owner[is_owned]
    unowned = np.setdiff1d(rows, rows[kernel])
    unrecorded = _from_kernel_names(timeline, carried_out_by_name(timeline, only_unrecorded=True), unowned)
    spare = len(rows) - len(distinct(kernel)) - len(unrecorded.start)
    carrying = rows[kernel]
    first, last = np.full(len(carriers), AFTER_ALL), np.full(len(carriers), BEFORE_ALL)
    np.minimum.at(first, owner, kernels.start[carrying])
    np.maximum.at(last, owner, kernels.end[carrying])
    device = np.zeros(len(carriers), np.int64)
    device[owner] = kernels.device[carrying]
    count = np.bincount(owner, minlength=len(carriers))
    pairs, _ = numbered_rows(carrier, calls.communicator)
    communicators = np.bincount(pairs[:, 0], minlength=len(carriers))
    # Each kernel in a replayed graph carries out a call of its own, in the same order.
    replays = np.zeros(len(carriers), bool)
    replays[owner] = name_matches(timeline, timeline.calls.name[launch], launches_graph)
    replays &= count == np.bincount(carrier, minlength=len(carriers))
    distinguishable = (count > 0) & ((count == 1) | (communicators == 1) | replays)
    owners = np.flatnonzero(distinguishable[carrier])
    carrier = carrier[owners]
    _, kind = numbered_rows(calls.operation, calls.communicator, calls.peer, calls.comm_peer)
    part, replay = position_in_group(carrier), replays[carrier]
    in_order = carrying[np.lexsort((kernels.start[carrying], owner))]
    kernel_of = in_order[(np.cumsum(count) - count)[carrier[replay]] + part[replay]]
    start, end = first[carrier], last[carrier]
    start[replay], end[replay] = kernels.start[kernel_of], kernels.end[kernel_of]
    owned = calls.take(owners)
    collectives = _Collectives(
        **_call_columns(timeline, owned),
        seq=position_in_group(kind)[owners],
        fused=np.where(replay, 1, np.bincount(carrier, minlength=len(carriers))[carrier]),
        part=np.where(replay, 0, part),
        device=device[carrier],
        start=start,
        end=end,
        call=owned.start,
    )
    lost = len(calls) - len(owners)
    reasons = [f"{lost} collectives of {file} have no kernel of their own and are left out"] if lost else []
    if spare:
        subject = f"{counted(spare, 'communication kernel')} of {file}"
        verbs = ("belongs", "is") if spare == 1 else ("belong", "are")
        reasons.append(f"{subject} {verbs[0]} to no recorded collective and {verbs[1]} left out")
    if len(unrecorded):
        collectives = concatenate(_Collectives, (collectives, unrecorded))
        collectives = collectives.take(np.argsort(collectives.call, kind="stable"))
    return collectives, reasons


def _carrier_at(carriers: Ints, group: Ints, moment: Ints) -> Ints:
    """Return the row of the carrier (thread, start, end) that is open at each moment, or `_NO_ROW`.

    Carriers are sorted, and those of one thread do not overlap.
    """
    result = np.full(len(moment), _NO_ROW)
    for thread in np.unique(group):
        rows = np.flatnonzero(group == thread)
        low, high = (np.searchsorted(carriers[:, 0], thread, side) for side in ("left", "right"))
        at = low + np.searchsorted(carriers[low:high, 1], moment[rows], side="right") - 1
        inside = (at >= low) & (moment[rows] <= carriers[np.maximum(at, 0), 2]) if high > low else at < 0
        result[rows[inside]] = at[inside]
    return result


def carried_out_by_name(timeline: Timeline, *, only_unrecorded: bool = False) -> dict[int, str]:
    """Return the operations of the kernels in which ranks wait for each other, by id of the kernel's name.

    ``only_unrecorded`` leaves out the libraries whose calls profilers record.
    """
    kernels, rules = timeline.kernels, load()
    name_ids = distinct(kernels.name[kernels.category == Category.COMM])
    kernels_by_number = {
        number: kernel_operation(name or "", rules)
        for number, name in zip(name_ids.tolist(), timeline.names(name_ids), strict=True)
    }
    return {
        number: kernel.operation
        for number, kernel in kernels_by_number.items()
        if kernel and kernel.waits and not (only_unrecorded and kernel.recorded)
    }


def _from_kernel_names(
    timeline: Timeline, named: Mapping[int, str], rows: Ints | None = None
) -> _Collectives:
    """List communication kernels, optionally of some rows, with an operation by their names, by start."""
    kernels = timeline.kernels
    rows = np.flatnonzero(kernels.category == Category.COMM) if rows is None else rows
    rows = rows[np.isin(kernels.name[rows], [*named])]
    rows = rows[np.argsort(kernels.start[rows], kind="stable")]
    count = len(rows)
    kernel, call = _launches(timeline, rows)
    launched = np.full(count, BEFORE_ALL)
    launched[kernel] = timeline.calls.start[call]
    names = [named[number] for number in kernels.name[rows].tolist()]
    _, group = np.unique(np.array(names, str), return_inverse=True)
    return _Collectives(
        operation=object_array(names),
        communicator=np.full(count, None),
        seq=position_in_group(group),
        bytes=np.full(count, NO_BYTES),
        ranks=np.full(count, UNKNOWN_RANKS),
        peer=np.full(count, NO_PEER),
        comm_peer=np.full(count, NO_PEER),
        fused=np.ones(count, np.int64),
        part=np.zeros(count, np.int64),
        device=kernels.device[rows],
        start=kernels.start[rows],
        end=kernels.end[rows],
        call=launched,
    )


def _from_host(timeline: Timeline) -> _Collectives:
    calls = timeline.host_collectives
    calls = calls.take(np.argsort(calls.start, kind="stable"))
    _, kind = numbered_rows(calls.operation, calls.communicator, calls.peer, calls.comm_peer)
    none = np.zeros(len(calls), np.int64)
    return _Collectives(
        **_call_columns(timeline, calls),
        seq=position_in_group(kind),
        fused=none + 1,
        part=none,
        device=none,
        start=calls.start,
        end=calls.end,
        call=calls.start,
    )


def _call_columns(timeline: Timeline, calls: Collectives) -> dict[str, NDArray[Any]]:
    """Return the columns of calls as they were recorded, with texts for the names."""
    named = {name: getattr(calls, name) for name in ("operation", "communicator")}
    texts = {name: object_array(timeline.names(numbers)) for name, numbers in named.items()}
    return texts | {name: getattr(calls, name) for name in ("bytes", "ranks", "peer", "comm_peer")}


def _beside_operators(timeline: Timeline, collectives: _Collectives) -> Ints:
    """Return the time of operators or an earlier collective during each collective, in ns.

    The exposed time of collectives that run together thus counts once.
    """
    earlier = np.append(BEFORE_ALL, np.maximum.accumulate(collectives.end)[:-1])[: len(collectives.end)]
    alone = np.clip(earlier, collectives.start, collectives.end)
    beside: Ints = alone - collectives.start + coverage(alone, collectives.end, host_compute(timeline))
    return beside


def _beside_compute(timeline: Timeline, collectives: _Collectives) -> Ints:
    """Return the time of compute during each collective, on its device or, without a GPU, on the host."""
    if measured_on_host(timeline):
        return _beside_operators(timeline, collectives)
    result = np.zeros(len(collectives.start), np.int64)
    for device in np.unique(collectives.device).tolist():
        rows = np.flatnonzero(collectives.device == device)
        compute = category_intervals(timeline.kernels, Category.COMP, device)
        result[rows] = coverage(collectives.start[rows], collectives.end[rows], compute)
    return result
