"""The events of a rank in a window of time, or in some of its steps.

Kept events are read by row group, so that a window takes time and memory for its events and not for the whole
profile. Without kept events, the profile is read.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from hpcprof.analysis.steps.streams import NO_CALL, launch_calls
from hpcprof.common.errors import HpcprofError
from hpcprof.profiles.event_columns import timeline_tables
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.readers.discovery import content_of
from hpcprof.profiles.timeline import Allocations, Ints, Table, Timeline
from hpcprof.profiles.timeline_parquet import RankEvents, overlaps_window
from hpcprof.results.collect.kept_events import keep_timeline
from hpcprof.results.collect.step_choice import StoredStepRanges, stored_step_ranges
from hpcprof.results.collect.timelines import Timelines, find_timelines, profile_is_gone
from hpcprof.results.store.rank_tables import kept_table
from hpcprof.results.store.run_communication import RunClocks
from hpcprof.results.store.store import Store
from hpcprof.results.store.tables import ProfileRow
from hpcprof.runs.directory import Run

_END_NS = 1 << 62
"""A time in ns after all events."""
_GPU_TABLES = ("kernels", "memops", "graphs", "gpu_marks", "counters", "unended_kernels")


@dataclass(frozen=True)
class RankSteps(Table):
    """The steps of a rank; arrays have shape (steps,)."""

    number: Ints
    """As in all tables of the run."""
    start: Ints
    end: Ints
    """The interval of each step's wall time, on the rank's clock."""

    def only(self, numbers: Sequence[int]) -> "RankSteps":
        """Return the steps with these numbers."""
        return self.take(np.isin(self.number, numbers))

    def on_common_clock(self, rank: int, clocks: RunClocks) -> "RankSteps":
        """Return the steps of a rank on the clock that all ranks share."""
        return RankSteps(self.number, clocks.to_common(rank, self.start), clocks.to_common(rank, self.end))

    def rows(self, zero: int = 0) -> list[list[int]]:
        """Return number, start and end of each step, as times since ``zero``."""
        rows: list[list[int]] = np.column_stack((self.number, self.start - zero, self.end - zero)).tolist()
        return rows


def steps_of_ranks(events: Iterable[RankEvents]) -> dict[int, RankSteps]:
    """Return the steps of ranks by rank; ranks without steps are missing."""
    events_by_rank = {event.rank: event for event in events}
    rows = kept_table(events_by_rank.values(), "step_parts", ("step", "start_ns", "wall_ns"), lost={})
    rank, number, start, wall = (rows.column(name).to_numpy() for name in rows.column_names)
    whole = RankSteps(number, start, start + wall)
    bounds = np.flatnonzero(np.diff(rank, prepend=-1, append=-1)).tolist()
    steps = {int(rank[low]): whole.take(slice(low, high)) for low, high in pairwise(bounds)}
    return steps | _steps_of_mpi(
        events_by_rank[item] for item in sorted(events_by_rank.keys() - steps.keys())
    )


def _steps_of_mpi(events: Iterable[RankEvents]) -> dict[int, RankSteps]:
    """Return the steps of ranks whose only events are MPI calls."""
    columns = ("scope", "start_ns", "end_ns")
    rows = kept_table(events, "mpi_regions", columns, lost={}).to_pandas(use_threads=False)
    rows = rows[rows["scope"] == "step"]
    return {
        int(rank): RankSteps(np.arange(len(part)), *(part[name].to_numpy(np.int64) for name in columns[1:]))
        for rank, part in rows.groupby("rank")
    }


class RunWindows:
    """Reads windows of the timelines of a collected run, and looks up what they share once.

    ``spare`` is the folder into which `keep` writes the events of ranks that the run has not kept.
    """

    def __init__(self, run: Run, store: Store, spare: Path | None = None) -> None:
        self._run, self._store, self._spare = run, store, spare
        self._last: tuple[int, Timeline] | None = None

    @cached_property
    def profiles(self) -> dict[int, ProfileRow]:
        """The profiles that hold timelines, by rank."""
        profiles = self._store.profiles(self._run.id)
        return {r: p for r, p in sorted(profiles.items()) if content_of(p.kind) is ProfileContent.TIMELINE}

    @cached_property
    def _step_ranges(self) -> StoredStepRanges:
        return stored_step_ranges(self._store, self._run.id)

    def read(self, rank: int, start_ns: int = -_END_NS, end_ns: int = _END_NS) -> Timeline:
        """Read all events of a rank that overlap a window of time, without its end; by default all events.

        ``rank`` is one of `profiles`; ``start_ns`` and ``end_ns`` are on the clock of the rank's profile. The
        tables have the rows of the whole timeline that overlap the window, in their order.
        """
        events = self._kept[rank]
        window = events.window(start_ns, end_ns)
        if window is None and self._spare is not None:
            window = self._spare_events(rank, self._spare).window(start_ns, end_ns)
        if window is None:
            window = cut(events.load() or self._profile(rank), start_ns, end_ns)
        return replace(window, step_range=self._step_ranges.step_range(rank))

    def read_capture(self, rank: int) -> tuple[RankSteps, Timeline]:
        """Read all events of a rank, with one step 0 that spans the events of the host and the GPU."""
        timeline = self.read(rank)
        start, end = timeline.of_operations("start", "end")
        tables = (timeline.calls, timeline.ranges, timeline.operators, timeline.mpi_calls)
        start, end = (
            np.concatenate((columns, *(getattr(t, name) for t in tables)))
            for columns, name in ((start, "start"), (end, "end"))
        )
        return RankSteps(
            *(np.array([number]) for number in (0, start.min(initial=_END_NS), end.max(initial=-_END_NS)))
        ), timeline

    def rows(self, rank: int) -> int | None:
        """Return the number of kept events of a rank; None if they are not kept."""
        spare = [self._spare_events(rank, self._spare)] if self._spare else []
        counts = (events.rows() for events in (self._kept[rank], *spare))
        return next((sum(rows.values()) for rows in counts if rows is not None), None)

    def keep(self, rank: int) -> bool:
        """Keep the events of a rank in the spare folder unless they are kept; return whether it did.

        A folder that cannot be written only costs time.
        """
        if self._spare is None or self.rows(rank) is not None:
            return False
        timeline = self._kept[rank].load() or self._profile(rank)
        timeline = replace(timeline, step_range=self._step_ranges.step_range(rank))
        events = self._spare_events(rank, self._spare)
        with suppress(OSError):
            keep_timeline(events, timeline)
            events.finish(timeline, {})
            self._last = None
        return True

    @cached_property
    def _kept(self) -> dict[int, RankEvents]:
        return self._store.rank_events(self._run.id)

    def _spare_events(self, rank: int, folder: Path) -> RankEvents:
        return RankEvents(folder, self._run.id, rank, self.profiles[rank].sha256)

    def steps(self, rank: int) -> RankSteps:
        """Return the steps of a rank, which may be none."""
        return steps_of_ranks([self._kept[rank]]).get(rank, RankSteps.empty())

    def read_steps(self, rank: int, first: int, last: int) -> Timeline:
        """Read the events of the steps of a rank from ``first`` to ``last``.

        The GPU's events are those during the steps. The host's events begin with the first call that launched
        one of these; launches are searched up to one step earlier. Raises HpcprofError if the rank has none
        of these steps, or cannot be read.
        """
        steps = self.steps(rank)
        inside = np.flatnonzero((steps.number >= first) & (steps.number <= last))
        if not len(inside):
            which = f"step {first}" if first == last else f"steps {first} to {last}"
            raise HpcprofError(f"rank {rank} of {self._run.id} has no {which}: {_numbers_in_words(steps)}.")
        start, end = int(steps.start[inside[0]]), int(steps.end[inside[-1]])
        before = int(steps.start[max(inside[0] - 1, 0)])
        return _from_first_launch(self.read(rank, min(before, start), end), start, end)

    def _profile(self, rank: int) -> Timeline:
        # The next window is often one of the same rank.
        if self._last is None or self._last[0] != rank:
            self._last = None
            file = self.profiles[rank].file
            timelines = find_timelines(self._run, file)
            if rank not in timelines.paths:
                timelines = self._timelines
            if rank not in timelines.paths:
                raise profile_is_gone(self._run, rank, file)
            self._last = rank, timelines.read(rank)
        return self._last[1]

    @cached_property
    def _timelines(self) -> Timelines:
        return find_timelines(self._run)


def _numbers_in_words(steps: RankSteps) -> str:
    if not len(steps):
        return "it has no steps"
    return f"its steps are {steps.number.min()} to {steps.number.max()}"


def cut(timeline: Timeline, start_ns: int, end_ns: int, tables: tuple[str, ...] = ()) -> Timeline:
    """Return a timeline with the rows that overlap a window, in some tables or by default in all."""
    fields = {}
    for field in tables or timeline_tables():
        table = getattr(timeline, field)
        start, end = (table.time, table.time) if isinstance(table, Allocations) else (table.start, table.end)
        fields[field] = table.take(overlaps_window(start, end, start_ns, end_ns))
    return replace(timeline, **fields)


def _from_first_launch(timeline: Timeline, start_ns: int, end_ns: int) -> Timeline:
    """Return the GPU's events in a window, and the host's from the first call that launched one of them."""
    started, ended = timeline.of_operations("start", "end")
    call = launch_calls(timeline)[overlaps_window(started, ended, start_ns, end_ns)]
    launched = timeline.calls.start[call[call != NO_CALL]]
    host_start = min(start_ns, int(launched.min(initial=start_ns)))
    host = tuple(field for field in timeline_tables() if field not in _GPU_TABLES)
    return cut(cut(timeline, start_ns, end_ns, _GPU_TABLES), host_start, end_ns, host)
