"""The tables about the memory of a run, from step lines, snapshots of PyTorch and samples of nodes.

Growth on the host counts as far as it is beyond chance.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, no_rows, outcome_of_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.memory.contents import (
    FRAGMENTATION,
    KINDS,
    OUTSIDE,
    Held,
    MemoryInUse,
    Purpose,
    contents_of,
    differences,
    line_of,
)
from hpcprof.analysis.memory.declarations import NO_HOST_SAMPLES, NO_LINES, NO_SNAPSHOTS
from hpcprof.analysis.memory.findings import MIN_GROWTH_BYTES, MIN_GROWTH_SAMPLES
from hpcprof.analysis.statistics.student import student_quantile
from hpcprof.analysis.telemetry.tables import RunTelemetry
from hpcprof.common.grouping import grouped
from hpcprof.common.units import counted
from hpcprof.profiles.readers.memory_snapshot import DeviceMemory, MemorySnapshot
from hpcprof.profiles.readers.telemetry import NodeTelemetry, Series
from hpcprof.profiles.timeline import Floats, Ints
from hpcprof.runs.live_steps import StepLine, StepMark

_MAX_BLOCKS, _MIN_BLOCK_SAMPLES = 12, 2
"""Maximum number of blocks of samples, and minimum samples in each, whose medians give the growth."""

_GROWTH_QUANTILE = 0.995
"""The quantile of the ends of the interval of a growth: 99 % lie between both."""

_MIN_LATER_RATIO = 0.5
"""Minimum growth of the second half of the time for a growth that goes on, as a share of the first half's."""

_MAX_FALL_SHARE = 0.5
"""Maximum fall of a level that grows, as a share of its growth: more is the tooth of a saw."""

_SETTLING_QUANTILE = 0.99
"""The quantile of the slope of a growth that becomes smaller: by chance, one in a hundred seems to settle."""


class Growth(NamedTuple):
    """The growth of a level by second or step, with an interval of 99 %; ``grows`` if that is no chance."""

    rate: float
    low: float
    high: float
    grows: bool


def growth(times: Floats, values: Floats) -> Growth | None:
    """Return the growth of a level over time, or over the steps until then; None with too few samples.

    1. Leave out the first third: programs fill caches and import modules.
    2. Divide the rest into equal times. The differences of their medians are taken for independent, as they
       are in a random walk; noise around a steady level makes the interval wider.
    3. A level that settles, or falls at times, does not grow.
    """
    if len(times) < 2:
        return None
    fall = _largest_fall(values)
    late = times >= times[0] + (times[-1] - times[0]) / 3
    times, values = times[late], values[late]
    blocks = min(_MAX_BLOCKS, len(times) // _MIN_BLOCK_SAMPLES)
    span = float(times[-1] - times[0]) if len(times) else 0.0
    if len(times) < MIN_GROWTH_SAMPLES or span <= 0:
        return None
    at = np.minimum(((times - times[0]) / span * blocks).astype(np.int64), blocks - 1)
    if len(np.unique(at)) < blocks:
        return None
    levels, middles = (
        np.array([of(samples[at == block]) for block in range(blocks)])
        for of, samples in ((np.median, values), (np.mean, times))
    )
    steps = np.diff(levels) / np.diff(middles)
    error = float(np.std(steps, ddof=1)) / len(steps) ** 0.5
    wide = float(student_quantile(len(steps) - 1, _GROWTH_QUANTILE)) * error
    mean = float(steps.mean())
    half = len(steps) // 2
    first, second = float(steps[:half].mean()), float(steps[-half:].mean())
    goes_on = second >= _MIN_LATER_RATIO * first and not _settles(steps)
    grown = float(levels[-1] - levels[0])
    grows = mean - wide > 0 and goes_on and grown >= max(MIN_GROWTH_BYTES, fall / _MAX_FALL_SHARE)
    return Growth(mean, mean - wide, mean + wide, bool(grows))


def _largest_fall(values: Floats) -> float:
    """Return the largest fall of a level below an earlier value; single samples do not count."""
    if len(values) < 3:
        return 0.0
    level = np.median(np.lib.stride_tricks.sliding_window_view(values, 3), axis=1)
    return float((np.maximum.accumulate(level) - level).max())


def _settles(rates: Floats) -> bool:
    """Return whether rates that follow each other become smaller, beyond chance: the slope of their line."""
    places = np.arange(len(rates)) - (len(rates) - 1) / 2
    slope = float(places @ rates / (places @ places))
    residuals = rates - rates.mean() - slope * places
    error = float(np.sqrt(residuals @ residuals / (len(rates) - 2) / (places @ places)))
    return slope < -float(student_quantile(len(rates) - 2, _SETTLING_QUANTILE)) * error


def host_rows(run: RunTelemetry) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``host_memory``."""
    for node in run.nodes:
        parts = [
            (rank, series, run.steps.get(rank, ()))
            for rank in sorted(node.ranks)
            if (series := node.series.get((f"rank{rank}", "resident_bytes"))) is not None
            # The first sample may be of the shell that starts the program.
            and np.count_nonzero(series.values) > 1
        ]
        grown = [_growth(series, marks) for _, series, marks in parts]
        growing = [rate for rate in grown if rate.grows]
        by_s, by_step = (
            sum(growth_of_rank.rate for each in growing if (growth_of_rank := each[at]) is not None)
            for at in (0, 1)
        )
        free = _free_bytes(node)
        for (rank, series, marks), rate in zip(parts, grown, strict=True):
            yield _row(node, rank, series, marks, rate, free, (by_s, by_step))


class _Grown(NamedTuple):
    """The growth of a rank by second and by step: steps need not take equally long."""

    by_s: Growth | None
    by_step: Growth | None

    @property
    def grows(self) -> bool:
        slope = self.by_step or self.by_s
        return slope is not None and slope.grows


def _growth(series: Series, marks: Sequence[StepMark]) -> _Grown:
    times, values = series.times, series.values
    if len(marks) < 2:
        return _Grown(growth(times, values), None)
    inside = (times >= marks[0].time) & (times <= marks[-1].time)
    times, values = times[inside], values[inside]
    steps = np.interp(times, [mark.time for mark in marks], [float(mark.step) for mark in marks])
    return _Grown(growth(times, values), growth(steps, values))


def _free_bytes(node: NodeTelemetry) -> float | None:
    """Return the bytes that the job left free on a node when it used most."""
    limit = node.limits.get("memory_bytes")
    used = node.series.get(("node", "cgroup_memory_bytes")) or node.series.get(("node", "memory_used_bytes"))
    return None if limit is None or used is None else max(0.0, float(limit - used.values.max()))


def _last_value(series: Series, marks: Sequence[StepMark] = ()) -> float:
    """Return the last value up to the last step; without steps, the last one that is not zero.

    It is zero when the processes have ended, and small as long as only the shell that started them is left.
    """
    values = series.values[series.values > 0]
    inside = series.values[(series.values > 0) & (series.times <= marks[-1].time)] if marks else values
    values = inside if len(inside) else values
    return float(values[-1]) if len(values) else 0.0


def _row(
    node: NodeTelemetry,
    rank: int,
    series: Series,
    marks: Sequence[StepMark],
    grown: _Grown,
    free: float | None,
    rates: tuple[float, float],
) -> dict[str, Any]:
    """Return the row of a rank; ``rates`` are those of all ranks of the node, by second and by step."""
    by_step = grown.by_step
    full_in, full_after = (
        free / rate if grown.grows and free is not None and rate > 0 else None for rate in rates
    )
    shared = node.series.get((f"rank{rank}", "proportional_bytes"))
    return {
        "rank": rank,
        "node": node.node,
        "samples": len(series.times),
        "first_step": marks[0].step if marks else None,
        "last_step": marks[-1].step if marks else None,
        "resident_bytes": int(_last_value(series, marks)),
        "proportional_bytes": None if shared is None else int(_last_value(shared)),
        "growth_bytes_per_step": by_step and round(by_step.rate, 1),
        "growth_low_bytes_per_step": by_step and round(by_step.low, 1),
        "growth_high_bytes_per_step": by_step and round(by_step.high, 1),
        "growth_bytes_per_s": grown.by_s and round(grown.by_s.rate, 1),
        "node_free_bytes": None if free is None else int(free),
        "full_in_s": None if full_in is None else round(full_in),
        "full_at_step": None if full_after is None else int(marks[-1].step + full_after),
        "grows": int(grown.grows),
    }


OUT_OF_MEMORY, ASKED = "out_of_memory", "asked"
"""The events of the snapshots of a rank that ran out of memory, and of the others then."""

_MAX_MOMENTS, _MAX_PURPOSES, _MAX_LINES = 400, 2000, 60
"""Maximum rows of a snapshot over time, purposes of its memory with rows of their own, and lines of a
rank."""

REST = "(rest)"
"""The line of what has too little memory for a row of its own."""


class RankSnapshot(NamedTuple):
    """A snapshot of a rank, in a file; None if that is damaged."""

    rank: int
    file: str
    snapshot: MemorySnapshot | None


class RunMemory(msgspec.Struct, frozen=True, eq=False):
    """Facts about the memory of a run."""

    lines: Mapping[int, Sequence[StepLine]]
    """By rank, in the order of time."""
    snapshots: Iterable[RankSnapshot]
    """Each is read when it is asked for."""
    telemetry: RunTelemetry | None = None


class _SnapshotView(msgspec.Struct, frozen=True, eq=False):
    """The tables of a GPU in a snapshot, without its blocks and events."""

    key: dict[str, Any]
    held: dict[Purpose, Held]
    summary: dict[str, Any]
    series: list[dict[str, Any]]

    @property
    def moment(self) -> tuple[str, int | None]:
        """Properties that compared snapshots share; a failure and who was asked are one."""
        event = self.key["event"]
        return (
            (OUT_OF_MEMORY, None)
            if event == ASKED
            else (event, None if event == OUT_OF_MEMORY else self.key["step"])
        )


def memory_tables(run: RunMemory) -> dict[str, Outcome]:
    """Compute the tables about the memory of a run, by their names."""
    views: list[_SnapshotView] = []
    damaged = 0
    for snapshot in run.snapshots:
        if snapshot.snapshot is None:
            damaged += 1
        else:
            views += _snapshot_views(snapshot.rank, snapshot.file, snapshot.snapshot)
    reason = f"{counted(damaged, 'snapshot')} could not be read" if damaged else ""
    lines = [row for rank, rank_lines in sorted(run.lines.items()) for row in _line_rows(rank, rank_lines)]
    host = [*host_rows(run.telemetry)] if run.telemetry is not None else []
    return {
        "memory_use": outcome_of_rows(lines, NO_LINES),
        "memory_snapshots": outcome_of_rows(
            [view.key | view.summary for view in views], NO_SNAPSHOTS, reason
        ),
        "memory": outcome_of_rows([*_purpose_rows(views)], NO_SNAPSHOTS, reason),
        "memory_over_step": outcome_of_rows(
            [row for view in views for row in view.series], NO_SNAPSHOTS, reason
        ),
        "host_memory": outcome_of_rows(host, NO_HOST_SAMPLES),
    }


def _line_rows(rank: int, lines: Sequence[StepLine]) -> Iterator[dict[str, Any]]:
    lines = [line for line in lines if line.reserved_bytes]
    for part in np.array_split(np.arange(len(lines)), min(_MAX_LINES, len(lines))) if lines else ():
        part_lines = [lines[at] for at in part.tolist()]
        yield {
            "rank": rank,
            "first_step": lines[part[0] - 1].step + 1 if part[0] else 0,
            "last_step": part_lines[-1].step,
            "allocated_bytes": max(line.allocated_bytes for line in part_lines),
            "reserved_bytes": max(line.reserved_bytes for line in part_lines),
            "inactive_split_bytes": max(line.inactive_split_bytes for line in part_lines),
        }


def _snapshot_views(rank: int, file: str, snapshot: MemorySnapshot) -> Iterator[_SnapshotView]:
    notes = snapshot.notes
    for memory in snapshot.devices:
        if not memory.reserved_bytes and not memory.blocks:
            continue
        contents = contents_of(snapshot, memory)
        peak, total = contents.peak, contents.by_kind.sum(axis=0)
        in_use, allocated, reserved = contents.held(peak), int(total[peak]), int(contents.reserved[peak])
        in_use[Purpose(FRAGMENTATION, "", "")] = Held(max(0, reserved - allocated), 0)
        failed = notes.asked_bytes is not None and notes.device == memory.device
        outside = None
        if failed and notes.device_bytes is not None and notes.free_bytes is not None:
            outside = max(0, notes.device_bytes - notes.free_bytes - reserved)
            in_use[Purpose(OUTSIDE, "", "")] = Held(outside, 0)
        key = {"rank": rank, "event": notes.event, "step": notes.step, "device": memory.device}
        line = _failed_line(snapshot, memory) if failed else None
        summary = {
            "file": file,
            "time_ns": int(contents.times_us[peak]) * 1000,
            "peak_bytes": allocated,
            "allocated_bytes": int(total[-1]),
            "reserved_bytes": reserved,
            "asked_bytes": notes.asked_bytes if failed else None,
            "free_bytes": notes.free_bytes if failed else None,
            "capacity_bytes": notes.device_bytes if failed else None,
            "outside_bytes": outside,
            "module": notes.module or None,
            "line": line,
            "complete": int(not notes.lost and bool(memory.events)),
        }
        series = [key | row for row in _series_rows(contents, total)]
        yield _SnapshotView(key, in_use, summary, series)


def _failed_line(snapshot: MemorySnapshot, memory: DeviceMemory) -> str | None:
    """Return the line that asked for what was not there; None if it is not recorded."""
    failed = [event for event in memory.events if event.action == "oom"]
    return line_of(snapshot.stacks[failed[-1].stack]) if failed else None


def _series_rows(memory_in_use: MemoryInUse, total: Ints) -> Iterator[dict[str, Any]]:
    """Yield moments of a snapshot with the bytes of each kind: the largest of neighbouring moments."""
    times = memory_in_use.times_us
    span = max(1, int(times[-1] - times[0]))
    group = (times - times[0]) * _MAX_MOMENTS // (span + 1)
    order = np.lexsort((-total, group))
    chosen = np.sort(order[np.unique(group[order], return_index=True)[1]])
    for at in chosen.tolist():
        bytes_by_kind = dict(zip(KINDS, memory_in_use.by_kind[:, at].tolist(), strict=True))
        bytes_by_kind[FRAGMENTATION] = max(0, int(memory_in_use.reserved[at] - total[at]))
        yield {
            "time_ns": int(times[at]) * 1000,
            **{f"{kind}_bytes": size for kind, size in bytes_by_kind.items()},
        }


def _purpose_rows(views: Sequence[_SnapshotView]) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``memory``: what each GPU of each snapshot held at its peak, the most first."""
    by_moment = grouped((view.moment, view) for view in views)
    for view in views:
        rank = view.key["rank"]
        other_ranks = [other.held for other in by_moment[view.moment] if other.key["rank"] != rank]
        differs = differences(view.held, other_ranks)
        total = sum(held.bytes for held in view.held.values()) or 1
        purposes = sorted(
            {*view.held, *differs},
            key=lambda purpose: (-_held_for(view, purpose).bytes, -abs(differs.get(purpose, 0)), purpose),
        )
        largest, smaller = purposes[:_MAX_PURPOSES], purposes[_MAX_PURPOSES:]
        smaller_purposes = grouped((purpose.kind, purpose) for purpose in smaller)
        groups = [[purpose] for purpose in largest] + [*smaller_purposes.values()]
        for group in groups:
            held_in_group = [_held_for(view, purpose) for purpose in group]
            size = sum(held.bytes for held in held_in_group)
            kind, module, line = group[0] if len(group) == 1 else (group[0].kind, "", REST)
            yield view.key | {
                "kind": kind,
                "module": module,
                "line": line,
                "bytes": size,
                "blocks": sum(held.blocks for held in held_in_group),
                "share_pct": round(100 * size / total, 3),
                "difference_bytes": sum(differs[purpose] for purpose in group) if other_ranks else None,
            }


def _held_for(view: _SnapshotView, purpose: Purpose) -> Held:
    return view.held.get(purpose, Held(0, 0))


_KEY = ["event", "kind", "module", "line"]


def memory_difference(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Return what grew in ``runs``, side B.

    A side has the mean over its runs, a run the GPU that held most at a peak.
    """
    sides = [[_fullest(run.tables["memory"]) for run in side] for side in (against, runs)]
    tables = [[table for table in side if table is not None] for side in sides]
    if not all(tables):
        return no_rows("not all sides have snapshots of PyTorch's memory (--memory-history keeps some)")
    joined = pd.concat([_mean(tables[0], "a_bytes"), _mean(tables[1], "b_bytes")], axis=1).fillna(0.0)
    joined["difference_bytes"] = joined["b_bytes"] - joined["a_bytes"]
    rows = joined.reset_index()
    rows = rows[rows["difference_bytes"] != 0]
    if not len(rows):
        return no_rows("the memory at the peak is the same on both sides")
    order = np.argsort(-rows["difference_bytes"].abs().to_numpy(), kind="stable")
    rows = rows.iloc[order].reset_index(drop=True)
    return Outcome(rows.astype(dict.fromkeys(("a_bytes", "b_bytes", "difference_bytes"), np.int64)))


def _fullest(table: pd.DataFrame) -> "pd.Series[Any] | None":
    """Return the bytes by purpose of the rank that holds most in each event; steps are one event."""
    if not len(table):
        return None
    table = table.assign(**{name: table[name].fillna("") for name in _KEY})
    columns = ["event", "rank", "step", "device"]
    whole = table.groupby(columns, dropna=False)["bytes"].sum().reset_index()
    chosen = whole.loc[whole.groupby("event")["bytes"].idxmax(), columns]
    chosen_rows = table.merge(chosen, on=columns)
    sums: pd.Series[Any] = chosen_rows.groupby(_KEY)["bytes"].sum()
    return sums


def _mean(tables: "Sequence[pd.Series[Any]]", name: str) -> "pd.Series[Any]":
    mean: pd.Series[Any] = pd.concat(tables, axis=1).fillna(0.0).mean(axis=1)
    mean.name = name
    return mean
