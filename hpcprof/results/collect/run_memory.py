"""The memory of a run, from its step lines, snapshots of PyTorch's memory and samples of its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcprof.analysis.memory.findings import MIN_GROWTH_BYTES, MIN_GROWTH_SAMPLES, TABLES
from hpcprof.common.errors import DamagedInput
from hpcprof.node.hooks.memory_history import FOLDER
from hpcprof.node.telemetry import FOLDER as SAMPLES
from hpcprof.profiles.readers.declaration import rank_from_name
from hpcprof.profiles.readers.discovery import reading_profile
from hpcprof.profiles.readers.memory_snapshot import (
    find_memory_snapshots,
    is_memory_snapshot,
    read_memory_snapshot,
)
from hpcprof.profiles.readers.telemetry import resident_points
from hpcprof.runs.directory import Run
from hpcprof.runs.live_steps import step_lines

if TYPE_CHECKING:  # runs without any of it do without
    from hpcprof.analysis.memory.tables import RankSnapshot, RunMemory
    from hpcprof.analysis.telemetry.tables import RunTelemetry
    from hpcprof.results.store.store import Store


_MAX_SNAPSHOT_BYTES, _MANY_RANKS = 32 << 20, 64


def snapshots_of(run: Run) -> list[Path]:
    """Return the snapshots of PyTorch's memory of a run, or in a folder that hpcprof did not make."""
    named = [path for path in run.beside or () if is_memory_snapshot(path)]
    if run.beside is not None and run.files is not None:
        return named
    return [*named, *find_memory_snapshots(run.path / FOLDER if run.manifest is not None else run.path)]


def memory_rows(run: Run, store: Store) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the memory tables by name: the stored ones, or of a run that is not collected."""
    if store.exists() and store.has_run(run.id):
        return {name: store.table(run.id, name).rows for name in TABLES}
    from hpcprof.results.collect.node_samples import run_telemetry

    memory = run_memory(run, run_telemetry(run))
    if memory is None:
        return {name: [] for name in TABLES}
    from hpcprof.analysis.framework.outcome import in_declared_columns
    from hpcprof.analysis.framework.registry import ANALYSES
    from hpcprof.analysis.memory.tables import memory_tables

    tables = memory_tables(memory)
    return {name: in_declared_columns(tables[name], ANALYSES[name]).rows for name in TABLES}


def growing_memory(run: Run) -> str:
    """Name the rank whose host memory grows most, and the time until the node is full; empty without growth.

    The sentence is also empty if there are too many samples to read while a user waits.
    """
    size = sum(path.stat().st_size for path in (run.path / SAMPLES).glob("*.jsonl"))
    if size > _MAX_SNAPSHOT_BYTES or not _may_grow(run):
        return ""
    from hpcprof.results.collect.node_samples import run_telemetry

    sampled = run_telemetry(run)
    if sampled is None:
        return ""
    from hpcprof.analysis.memory.findings import growing_ranks, growth_in_words
    from hpcprof.analysis.memory.tables import host_rows

    growing_rows = growing_ranks(host_rows(sampled))
    most = max(growing_rows, key=lambda row: float(row["growth_bytes_per_step"]), default=None)
    return f"Memory on the host grows: {growth_in_words(most)}" if most else ""


def _may_grow(run: Run) -> bool:
    """Return whether the memory of a rank may have grown in its steps; with many ranks, it always may.

    This check is cheap: the exact analysis imports numpy and pandas, which takes most of the time of a
    command.
    """
    points = dict(resident_points(run.path))
    if len(points) > _MANY_RANKS:
        return True
    for rank, marks in step_lines(run, points).items():
        inside = [point for point in points[rank] if marks[0].time <= point[0] <= marks[-1].time]
        late = [size for time, size in inside if time >= inside[0][0] + (inside[-1][0] - inside[0][0]) / 3]
        risen = max(map(sub, late, accumulate(late, min)), default=0.0)
        if len(late) >= MIN_GROWTH_SAMPLES and risen >= MIN_GROWTH_BYTES:
            return True
    return False


def run_memory(run: Run, sampled: RunTelemetry | None) -> RunMemory | None:
    """Return the facts about the memory of a run; None without any."""
    files = snapshots_of(run)
    lines = step_lines(run) if run.manifest is not None else {}
    used = {rank: marks for rank, marks in lines.items() if any(line.reserved_bytes for line in marks)}
    if not files and not used and sampled is None:
        return None
    from hpcprof.analysis.memory.tables import RunMemory

    return RunMemory(used, _read_snapshots(files), sampled)


def _read_snapshots(files: list[Path]) -> Iterator[RankSnapshot]:
    """Read snapshots one by one; the snapshot of a damaged file is None."""
    from hpcprof.analysis.memory.tables import RankSnapshot

    for place, path in enumerate(files):
        named = rank_from_name(path)
        try:
            with reading_profile(path):
                memory_snapshot = read_memory_snapshot(path)
        except DamagedInput:
            yield RankSnapshot(place if named is None else named, path.name, None)
            continue
        rank = memory_snapshot.notes.rank if memory_snapshot.notes.rank is not None else named
        yield RankSnapshot(place if rank is None else rank, path.name, memory_snapshot)
