"""Writes the timelines of chosen ranks and steps of a run as one trace."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from hpcprof.common.atomic import replacing
from hpcprof.common.errors import HpcprofError
from hpcprof.common.units import counted
from hpcprof.profiles.timeline import Ints, Timeline
from hpcprof.report.perfetto.trace import clock_packet, rank_packets
from hpcprof.report.trace_events import Exported, first_event
from hpcprof.results.over_ranks import run_communication
from hpcprof.results.store.store import Store
from hpcprof.results.windows import RankSteps, RunWindows
from hpcprof.submit.runs.directory import Run

TRACE = "all_ranks.pftrace.gz"
"""The name of the trace; a collect of the folder ignores it."""

_COMPRESSION = 5
_EVER = (-(1 << 61), 1 << 61)


def export_trace(
    run: Run,
    store: Store,
    folder: Path,
    progress: Callable[[Path], None],
    *,
    ranks: Sequence[int],
    steps: tuple[int, int] | None,
) -> Exported:
    """Write one trace of some ranks of a collected run, on the clock that their communication aligns.

    Ranks are read one after the other. Those that cannot be read are left out, with a note.

    Parameters
    ----------
    folder : Path
        Created where it is missing; a trace of the same name is replaced.
    steps : (int, int) or None
        The first and the last step; all of the capture by default.

    Raises
    ------
    HpcprofError
        If the file cannot be written, or no rank can be read.
    """
    path, notes = folder / TRACE, list[str]()
    progress(path)
    source = _Source(run, store)
    source.find_begin(ranks, steps)
    timelines = source.timelines(ranks, steps, notes)
    first = next(timelines, None)
    if first is None:
        more = f" So it is with {counted(len(notes) - 1, 'other rank')}." if len(notes) > 1 else ""
        raise HpcprofError(f"nothing written: {notes[0]}{more}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Without a time and a file name the same timelines always give the same bytes.
        with (
            replacing(path) as temporary,
            temporary.open("wb") as raw,
            gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0) as packed,
        ):
            if source.clocks.start_utc_ns is not None:
                packed.write(clock_packet(source.clocks.start_utc_ns))
            for rank, timeline in chain([first], timelines):
                packed.writelines(source.packets(rank, timeline, steps))
    except OSError as error:
        raise HpcprofError(f"cannot write to {folder}: {error.strerror}.") from None
    return Exported([path], [*notes, source.clocks.note()])


class _Source:
    """The sources of a trace of a run."""

    def __init__(self, run: Run, store: Store) -> None:
        self._run, self._store, self._windows = run, store, RunWindows(run, store)
        self._communication = run_communication(run, store)
        self.clocks = self._communication.clocks
        self._begin = self.clocks.start_utc_ns or 0

    def find_begin(self, ranks: Sequence[int], steps: tuple[int, int] | None) -> None:
        """Have the trace begin at 0 where no UTC times are known, because no time stamp may be negative."""
        if self.clocks.start_utc_ns is None:
            firsts = [
                self.clocks.stamp_on_common(rank, min([first_event(timeline), *own.start.tolist()]))
                for rank, timeline in self.timelines(ranks, steps, [])
                for own in [self._steps(rank, steps)]
            ]
            self._begin = -min(firsts, default=0)

    def timelines(
        self, ranks: Sequence[int], steps: tuple[int, int] | None, notes: list[str]
    ) -> Iterator[tuple[int, Timeline]]:
        """Yield the timelines that can be read; ``notes`` get why others cannot."""
        read = self._windows
        for rank in ranks:
            try:
                timeline = read.read(rank, *_EVER) if steps is None else read.read_steps(rank, *steps)
            except HpcprofError as error:
                notes.append(str(error))
                continue
            yield rank, timeline

    def packets(self, rank: int, timeline: Timeline, steps: tuple[int, int] | None) -> Iterator[bytes]:
        """Yield the packets of a rank."""
        own = self._steps(rank, steps)
        matched, in_trace = self._communication.of_rank(rank), partial(self._in_trace, rank)
        yield from rank_packets(rank, timeline, own, matched, in_trace, whole=steps is None)

    def _steps(self, rank: int, steps: tuple[int, int] | None) -> RankSteps:
        found = self._windows.steps(rank)
        first, last = steps or _EVER
        return found.take((found.number >= first) & (found.number <= last))

    def _in_trace(self, rank: int, stamps: Ints) -> Ints:
        return self.clocks.to_common(rank, stamps) + self._begin
