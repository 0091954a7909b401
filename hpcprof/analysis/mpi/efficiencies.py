"""The efficiencies that POP defines: how much of the time of all ranks is useful, and why not more.

Parallel efficiency is load balance times communication efficiency, and this is serialization efficiency times
transfer efficiency (POP Centre of Excellence, "POP standard metrics for parallel performance analysis").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hpcprof.analysis.mpi.ideal import ideal_times
from hpcprof.analysis.mpi.matching import RunMpi
from hpcprof.profiles.timeline import Ints

_DIGITS = 3
_STARTS, _END = ("MPI_Init", "MPI_Init_thread"), "MPI_Finalize"


@dataclass(frozen=True)
class _Thread:
    """The calls of a rank's main thread on its own clock, and what became of them in the replay."""

    rank: int
    start: Ints
    end: Ints
    common: Ints
    begun: Ints
    ended: Ints

    def useful(self, stamps: Ints) -> Ints:
        """Return how long the thread was outside MPI before each moment, from any fixed moment on."""
        inside = np.append(0, np.cumsum(self.end - self.start))
        call = np.searchsorted(self.start, stamps, side="right") - 1
        last = np.maximum(call, 0)
        part = np.where(call < 0, 0, np.minimum(stamps, self.end[last]) - self.start[last])
        result: Ints = stamps - inside[last] * (call >= 0) - part
        return result

    def ideal(self, stamps: Ints) -> Ints:
        """Return when the thread would reach each moment on an ideal network, on the common clock."""
        call = np.searchsorted(self.start, stamps, side="right") - 1
        last = np.maximum(call, 0)
        inside = stamps < self.end[last]
        after = self.ended[last] + stamps - self.end[last]
        within = np.minimum(self.begun[last] + stamps - self.start[last], self.ended[last])
        found = np.where(inside, within, after)
        return np.where(call < 0, self.begun[:1] + stamps - self.start[:1], found)

    def on_common(self, stamps: Ints) -> Ints:
        """Return moments on the common clock."""
        call = np.maximum(np.searchsorted(self.start, stamps, side="right") - 1, 0)
        return self.common[call] + stamps - self.start[call]


def efficiencies(run: RunMpi, regions: pd.DataFrame) -> list[dict[str, str | float | None]]:
    """Return the efficiencies of the run, of its step and of each phase, in percent.

    The run lasts from the end of ``MPI_Init`` to the start of ``MPI_Finalize``, or from the first call to the
    last. The wall time of the step runs from its first start to its last end on any rank, that of a phase is
    the longest of the ranks. Only the main thread of each rank counts.

    Parameters
    ----------
    run : RunMpi
        With the calls on the common clock.
    regions : DataFrame
        The rows of ``mpi_regions`` of all ranks.
    """
    threads = _threads(run)
    rows = [_row("run", "", threads, {one.rank: _extent(run, one) for one in threads}, together=True)]
    for (scope, name), group in regions.groupby(["scope", "name"], sort=False):
        spans = {
            rank: group.loc[group["rank"] == rank, ["start_ns", "end_ns"]].to_numpy(np.int64)
            for rank in group["rank"].unique().tolist()
        }
        rows.append(_row(str(scope), str(name), threads, spans, together=scope == "step"))
    return rows


def _threads(run: RunMpi) -> list[_Thread]:
    calls = run.calls
    begun, ended = ideal_times(run)
    found, bounds = [], calls.first
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if calls.main[low]:
            columns = (calls.own_start, calls.own_end, calls.start, begun, ended)
            found.append(_Thread(int(calls.rank[low]), *(column[low:high] for column in columns)))
    return found


def _extent(run: RunMpi, thread: _Thread) -> Ints:
    calls = run.calls
    low = int(np.searchsorted(calls.rank, thread.rank))
    names = [calls.names[one] for one in (calls.name[low], calls.name[low + len(thread.start) - 1])]
    start = thread.end[0] if names[0] in _STARTS else thread.start[0]
    end = thread.start[-1] if names[1] == _END else thread.end[-1]
    return np.array([[start, max(start, end)]])


def _row(
    scope: str, name: str, threads: list[_Thread], spans: dict[int, Ints], *, together: bool
) -> dict[str, str | float | None]:
    """Return the efficiencies of what some intervals of each rank, of shape (n, 2), have in common."""
    useful, measured, ideal = [], [], []
    for one in threads:
        span = spans.get(one.rank)
        if span is None or not len(span):
            useful.append(0)
            continue
        useful.append(int(np.sum(one.useful(span[:, 1]) - one.useful(span[:, 0]))))
        measured.append(_ends(one.on_common(span.ravel()).reshape(-1, 2), together))
        ideal.append(_ends(one.ideal(span.ravel()).reshape(-1, 2), together))
    wall, without_transfer = _wall(measured, together), _wall(ideal, together)
    most = max(useful, default=0)
    without_transfer = min(max(without_transfer, most), wall)
    mean = sum(useful) / max(len(useful), 1)
    return {
        "scope": scope,
        "name": name,
        "parallel_efficiency_pct": _pct(mean, wall),
        "load_balance_pct": _pct(mean, most),
        "communication_efficiency_pct": _pct(most, wall),
        "serialization_efficiency_pct": _pct(most, without_transfer),
        "transfer_efficiency_pct": _pct(without_transfer, wall),
    }


def _ends(spans: Ints, together: bool) -> tuple[int, int]:
    """Return the first start and the last end, or for single intervals 0 and the sum of their lengths."""
    if together:
        return int(spans[:, 0].min()), int(spans[:, 1].max())
    return 0, int(np.sum(spans[:, 1] - spans[:, 0]))


def _wall(ends: list[tuple[int, int]], together: bool) -> int:
    last = max((end for _, end in ends), default=0)
    return last - min((start for start, _ in ends), default=0) if together else last


def _pct(part: float, whole: float) -> float | None:
    return round(100 * part / whole, _DIGITS) if whole > 0 else None
