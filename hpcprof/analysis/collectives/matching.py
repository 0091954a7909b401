"""Matches the collectives of several ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.collective_operations import POINT_TO_POINT
from hpcprof.profiles.columns.unique import distinct, numbered, numbered_rows, position_in_group
from hpcprof.profiles.timeline import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

NO_COMMUNICATOR = ""
"""Stands for an unknown communicator."""
_MAX_IN_STEP = 1 << 20
"""Maximum number of collectives of one operation in a step."""
_SENTENCES = 3
"""Maximum number of sentences about unmatched operations."""
_INTEGER_COLUMNS = ("rank", "row", "seq", "fused", "part", "start_ns", "end_ns", "exposed_ns", "before")
_COLUMNS = dict.fromkeys(_INTEGER_COLUMNS, np.int64) | dict.fromkeys(
    ("bytes", "comm_ranks", "step"), np.float64
)

_BY_RANK = {
    **{"row": "row", "start": "start_ns", "end": "end_ns", "exposed": "exposed_ns", "before": "before"},
    "step": "step",
}
"""The fields of `MatchedCollectives` of shape (m, n), and the columns that they are from."""


class MatchedCollectives(msgspec.Struct, frozen=True):
    """The m collectives of one operation in one communicator, matched across n ranks."""

    op: str
    comm_id: str | None
    """None if the communicator is unknown."""
    ranks: Ints
    """Shape (n,)."""
    size: int | None
    """The number of ranks of the communicator, profiled or not; None if unknown."""
    seq: Ints
    """Shape (m,), like `fused` and `part`."""
    message: Floats
    """In bytes; NaN if unknown; shape (m,)."""
    fused: Ints
    part: Ints
    row: Ints
    """The position of each in the rows of its rank; shape (m, n)."""
    start: Ints
    end: Ints
    """On each rank's own clock; shape (m, n)."""
    exposed: Ints
    """Shape (m, n)."""
    before: Ints
    """Exposed communication of each rank before, in all communicators, since the capture began, in ns;
    shape (m, n).
    """
    step: Floats
    """NaN outside steps; shape (m, n)."""


class RecordedCollectives(msgspec.Struct, frozen=True):
    """The collectives that some ranks recorded, by communicator and operation."""

    members: dict[str, Ints]
    """The ranks that recorded anything of a communicator; empty text is the unknown one."""
    operations: "dict[tuple[str, str], RecordedOperation]"
    """By communicator and operation."""


@dataclass(frozen=True)
class RecordedOperation:
    """One operation of a communicator, as some of its ranks recorded it."""

    calls: Ints
    """The number of them that each rank made; shape (n,)."""
    seq: Ints
    """Operations whose kernel all of these ranks recorded; shape (m,)."""
    columns: dict[str, NDArray[Any]]
    """Shape (m, n) for values that differ between ranks, else (m,)."""
    by_step: "RecordedOperation | None" = None
    """The same by the numbers of steps, if these ranks recorded different steps; ``seq`` identifies the step
    and the position in it.
    """


def recorded_collectives(rows: "pd.DataFrame", first_step: int = 1) -> RecordedCollectives:
    """Sort the rows of ``rank_collectives`` of some ranks by communicator and operation.

    Two more columns are ``row``, the position among the rows of the rank, and ``before`` (`exposed_before`).
    A step with a number below ``first_step`` may be numbered by its place in the capture.
    """
    import pandas as pd

    comm, names = pd.factorize(rows["comm_id"], sort=True)
    op, ops = pd.factorize(rows["op"], sort=True)
    # Missing names have the number -1 and so select the last element; empty names are unknown too.
    comms = [*names, NO_COMMUNICATOR]
    comm = np.array([-1 if name == NO_COMMUNICATOR else number for number, name in enumerate(comms)])[comm]
    collective_rows = np.flatnonzero(np.array([*(name not in POINT_TO_POINT for name in ops), False])[op])
    columns = {name: rows[name].to_numpy(kind) for name, kind in _COLUMNS.items()}
    pairs, _ = numbered_rows(comm, columns["rank"])
    by_comm = np.split(pairs[:, 1], np.flatnonzero(np.diff(pairs[:, 0])) + 1)
    members = {comms[c]: ranks for c, ranks in zip(distinct(comm).tolist(), by_comm, strict=True)}
    group = (comm * len(ops) + op)[collective_rows]
    order = np.lexsort((columns["rank"][collective_rows], columns["seq"][collective_rows], group))
    columns = {name: values[collective_rows[order]] for name, values in columns.items()}
    groups, times = np.unique(group, return_counts=True)
    ends = np.cumsum(times)
    operations = {}
    for number, low, high in zip(groups.tolist(), ends - times, ends, strict=True):
        c, o = divmod(number, len(ops))
        group_columns = {name: values[low:high] for name, values in columns.items()}
        operations[comms[c], ops[o]] = _operation(group_columns, members[comms[c]], first_step)
    return RecordedCollectives(members, operations)


def _operation(columns: Mapping[str, NDArray[Any]], members: Ints, first_step: int) -> RecordedOperation:
    """Return one operation of a communicator from its rows, which are sorted by ``seq``, then by rank."""
    calls = np.zeros(len(members), np.int64)
    np.maximum.at(calls, np.searchsorted(members, columns["rank"]), columns["seq"] + 1)
    calls_on_all = _on_all(columns, columns["seq"], calls)
    return replace(calls_on_all, by_step=_by_step(columns, calls_on_all, first_step))


def _by_step(
    columns: Mapping[str, NDArray[Any]], in_order: RecordedOperation, first_step: int
) -> RecordedOperation | None:
    """Match by step numbers, if the ranks recorded different steps; None otherwise, or without numbers.

    Only numbers that the program gives its steps are the same on all ranks. A step counts if all ranks have
    equally many collectives in it.
    """
    in_steps = np.flatnonzero(~np.isnan(columns["step"]))
    step, rank = columns["step"][in_steps].astype(np.int64), columns["rank"][in_steps]
    count = len(in_order.calls)
    if count < 2 or not len(step) or step.min() < first_step:
        return None
    steps = in_order.columns["step"]
    differ = np.count_nonzero(np.any(steps != steps[:, :1], axis=1))
    if in_order.calls.min() == in_order.calls.max() and 2 * differ <= len(steps):
        return None
    pairs, pair = numbered_rows(step, rank)
    many = np.bincount(pair)
    numbers, number = numbered(pairs[:, 0])
    least, most = np.full(len(numbers), len(step)), np.zeros(len(numbers), np.int64)
    np.minimum.at(least, number, many)
    np.maximum.at(most, number, many)
    has_equal_counts = (np.bincount(number) == count) & (least == most)
    equal_rows = has_equal_counts[number][pair]
    place = position_in_group(pair)
    comparable = {name: values[in_steps][equal_rows] for name, values in columns.items()}
    key = (step * _MAX_IN_STEP + place)[equal_rows]
    order = np.lexsort((comparable["rank"], key))
    return _on_all({name: values[order] for name, values in comparable.items()}, key[order], in_order.calls)


def _on_all(columns: Mapping[str, NDArray[Any]], seq: Ints, calls: Ints) -> RecordedOperation:
    """Return the operations that all ranks recorded, from rows that are sorted by ``seq``, then by rank."""
    # A collective whose kernel a rank did not record is left out on all ranks.
    seq, place = numbered(seq)
    is_on_all = np.bincount(place) == len(calls)
    in_common = is_on_all[place]
    by_rank = {key: values[in_common].reshape(-1, len(calls)) for key, values in columns.items()}
    message, size = by_rank["bytes"], by_rank["comm_ranks"]
    arrays = {field: by_rank[name] for field, name in _BY_RANK.items()}
    arrays |= {"message": message[:, 0].copy(), "part": by_rank["part"][:, 0].copy()}
    arrays["fused"] = by_rank["fused"].max(axis=1)
    # fmin and fmax ignore NaN, which stands for an unknown value.
    arrays |= {"least": np.fmin.reduce(message, axis=1), "most": np.fmax.reduce(message, axis=1)}
    arrays |= {"fewest": np.fmin.reduce(size, axis=1), "largest": np.fmax.reduce(size, axis=1)}
    return RecordedOperation(calls, seq[is_on_all], arrays)


def match_recorded(
    parts: Sequence[RecordedCollectives], whole_world: bool
) -> tuple[list[MatchedCollectives], list[str]]:
    """Match what ranks recorded by communicator, operation and order.

    If communicators are unknown, all ranks are assumed to share one. An operation of a communicator is
    matched only if its ranks recorded it equally often and with messages of equal size; the second value has
    a sentence for each operation that is not matched. Sends and receives are matched by
    `hpcprof.analysis.collectives.pair_matching.match_pairs`. The time is O(n log n) in the number of rows.
    ``parts`` are the records of consecutive batches of ranks; the function empties the list. ``whole_world``
    tells whether all ranks of the program were profiled.
    """
    matched: list[MatchedCollectives] = []
    problems: list[str] = []
    for comm, op in sorted({key for part in parts for key in part.operations}):
        concerned = [part for part in parts if comm in part.members]
        members = np.concatenate([part.members[comm] for part in concerned])
        operations = [part.operations.pop((comm, op), None) for part in concerned]
        calls = [
            np.zeros(len(part.members[comm]), np.int64) if operation is None else operation.calls
            for part, operation in zip(concerned, operations, strict=True)
        ]
        together = [operation for operation in operations if operation is not None]
        merged = _match_operation((comm, op), together, np.concatenate(calls), members, whole_world)
        if isinstance(merged, str):
            problems.append(merged)
        else:
            matched.append(merged)
    return matched, problems


def exposed_before(columns: Mapping[str, Any]) -> Ints:
    """Return the exposed communication of each row's rank in the rows that begin earlier, in ns."""
    order = np.lexsort((columns["part"], columns["start_ns"], columns["rank"]))
    # Collectives that share a kernel count once.
    exposed = np.where(columns["part"] == 0, columns["exposed_ns"], 0)[order]
    total = np.cumsum(exposed) - exposed
    rank = columns["rank"][order]
    first = np.searchsorted(rank, rank)
    result = np.empty_like(total)
    result[order] = total - total[first]
    return result


def communicator_words(comm_id: str) -> str:
    """Return a communicator in words."""
    return "an unknown communicator" if comm_id == NO_COMMUNICATOR else f"communicator {comm_id}"


def in_few_sentences(problems: list[str]) -> list[str]:
    """Return the first sentences about unmatched operations, and the number of the others."""
    problems = sorted(problems)
    more = len(problems) - _SENTENCES
    summary = [f"{more} more are not matched for similar reasons"] if more > 0 else []
    return problems[:_SENTENCES] + summary


def _match_operation(
    key: tuple[str, str], parts: Sequence[RecordedOperation], calls: Ints, members: Ints, whole_world: bool
) -> MatchedCollectives | str:
    comm_id, op = key
    name = f"{op} of {communicator_words(comm_id)}"
    by_step = [part.by_step for part in parts if part.by_step is not None]
    if by_step and len(by_step) == len(parts):
        parts = by_step
    elif by_step or calls.min() < calls.max():
        few, many = calls.argmin(), calls.argmax()
        return (
            f"{name} is not matched: rank {members[few]} recorded {calls[few]} and rank {members[many]} "
            f"{calls[many]} of them"
        )
    seq, columns = _join_parts(parts)
    message = columns["message"][0]
    # Unknown sizes are NaN, which no comparison finds different.
    if np.any((columns["least"] < message) | (columns["most"] > message)):
        return f"{name} is not matched: the size of its messages differs between ranks"
    fewest, most = columns["fewest"].ravel(), columns["largest"].ravel()
    has_one_size = len(seq) and np.fmin.reduce(fewest) == np.fmax.reduce(most)
    size = int(np.fmin.reduce(fewest)) if has_one_size else None
    if size is None and comm_id != NO_COMMUNICATOR and whole_world:
        size = len(members)
    return MatchedCollectives(
        op=op,
        comm_id=None if comm_id == NO_COMMUNICATOR else comm_id,
        ranks=members,
        size=size,
        seq=np.arange(len(seq)) if by_step else seq,
        message=message,
        fused=columns["fused"].max(axis=0),
        part=columns["part"][0],
        **{field: columns[field] for field in _BY_RANK},
    )


def _join_parts(parts: Sequence[RecordedOperation]) -> tuple[Ints, dict[str, NDArray[Any]]]:
    """Move the columns out of the parts of an operation, and return them for all ranks.

    Values that are the same on all ranks have the shape (parts, m).
    """
    seq = reduce(np.intersect1d, [part.seq for part in parts])
    columns = {}
    for field in [*parts[0].columns]:
        arrays = [part.columns.pop(field) for part in parts]
        if any(len(part.seq) > len(seq) for part in parts):
            arrays = [
                values[np.searchsorted(part.seq, seq)] for part, values in zip(parts, arrays, strict=True)
            ]
        joined = np.concatenate if field in _BY_RANK else np.stack
        columns[field] = joined(arrays, axis=1 if field in _BY_RANK else 0)
    return seq, columns
