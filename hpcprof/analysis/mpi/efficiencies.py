"""The efficiencies of POP: the useful share of the time of all ranks, and the factors that limit it.

Parallel efficiency is load balance times communication efficiency, and this is serialization efficiency times
transfer efficiency (POP Centre of Excellence, "POP standard metrics for parallel performance analysis"). The
host and device branches are those of TALP, for programs with GPUs (`offload`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows, none_in
from hpcprof.analysis.mpi.ideal import ideal_times
from hpcprof.analysis.mpi.matching import RunMpi
from hpcprof.analysis.mpi.per_rank import regions_of
from hpcprof.analysis.mpi.run_lists import START_CALLS
from hpcprof.analysis.steps.mpi_steps import main_thread_calls
from hpcprof.profiles.columns.intervals import Intervals, coverage, union, union_of
from hpcprof.profiles.columns.unique import numbered, rows_by_key
from hpcprof.profiles.timeline import LATEST, Category, Ints, Timeline

DIGITS = 3
"""Decimals of efficiencies in percent."""
_NO_TIMES = np.empty(0, np.int64)

_MAX_OVERHEAD_NS = 1_000
"""Maximum gap between two calls that is the profiler's own time, not useful time.

The profiler takes 0.1 to 0.9 µs in profiles of nsys 2023.4.
"""
_END = "MPI_Finalize"


class _Past(msgspec.Struct, frozen=True):
    """The last call of a thread on its clock and in the replay, and its time inside MPI before that call."""

    inside: int
    start: int
    end: int
    begun: int
    ended: int

    def begin(self, start: int) -> int:
        """Return the ideal begin of a call, which is this one or a later one."""
        return self.begun if start == self.start else self.ended + start - self.end

    def inside_before(self, start: int) -> int:
        """Return the time inside MPI before a call, which is this one or a later one."""
        return self.inside + (0 if start == self.start else self.end - self.start)


class _Thread(msgspec.Struct, frozen=True):
    """The calls of a rank's main thread on its own clock, on the common clock, and in the replay.

    ``before`` is the time inside MPI before the first one.
    """

    before: int
    start: Ints
    end: Ints
    common: Ints
    begun: Ints
    ended: Ints

    def useful(self, stamps: Ints) -> Ints:
        """Return the time outside MPI before each moment, in ns since an arbitrary origin."""
        inside = self.before + np.append(0, np.cumsum(self.end - self.start))
        call = np.searchsorted(self.start, stamps, side="right") - 1
        last = np.maximum(call, 0)
        part = np.where(call < 0, 0, np.minimum(stamps, self.end[last]) - self.start[last])
        return stamps - np.where(call < 0, self.before, inside[last]) - part

    def ideal(self, stamps: Ints) -> Ints:
        """Return each moment in the replay on an ideal network, on the common clock."""
        call = np.searchsorted(self.start, stamps, side="right") - 1
        last = np.maximum(call, 0)
        inside = stamps < self.end[last]
        after = self.ended[last] + stamps - self.end[last]
        within = np.minimum(self.begun[last] + stamps - self.start[last], self.ended[last])
        reached = np.where(inside, within, after)
        return np.where(call < 0, self.begun[:1] + stamps - self.start[:1], reached)

    def on_common(self, stamps: Ints) -> Ints:
        """Return moments on the common clock."""
        call = np.maximum(np.searchsorted(self.start, stamps, side="right") - 1, 0)
        return self.common[call] + stamps - self.start[call]


class _Span(msgspec.Struct):
    """The sums of the intervals of a scope on a rank, in ns, and their first start and last end."""

    useful: int = 0
    common: int = 0
    ideal: int = 0
    common_ends: tuple[int, int] = (LATEST, -LATEST)
    ideal_ends: tuple[int, int] = (LATEST, -LATEST)

    def add(self, thread: _Thread, starts: Ints, ends: Ints) -> None:
        """Add starts and ends of intervals; a start and its end may be added by different calls."""
        for times, sums in ((thread.on_common, "common"), (thread.ideal, "ideal")):
            low, high = times(starts), times(ends)
            setattr(self, sums, getattr(self, sums) + int(high.sum() - low.sum()))
            first, last = getattr(self, f"{sums}_ends")
            both = min(first, int(low.min(initial=LATEST))), max(last, int(high.max(initial=-LATEST)))
            setattr(self, f"{sums}_ends", both)
        self.useful += int(thread.useful(ends).sum() - thread.useful(starts).sum())


def run_limits(names: Sequence[str | None], start: Ints, end: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return the begin and the end of a run.

    It begins after ``MPI_Init``, or otherwise with the first call or step, and ends before ``MPI_Finalize``,
    or otherwise with the last call or step. ``names`` are those of the first and the last call; ``start`` and
    ``end``, of shape (n,), are the calls of the main thread in order, at least one, and ``starts`` and
    ``ends``, of shape (m,), the steps and phases, if any; in ns.
    """
    first = end[0] if names[0] in START_CALLS else starts.min(initial=start[0])
    last = start[-1] if names[-1] == _END else ends.max(initial=end[-1])
    return np.array([first, max(first, last)], np.int64)


class Efficiencies:
    """The efficiencies of a run, of its step and of each phase, added up window by window.

    The run lasts as `run_limits` says. The wall time of the step runs from its first start to its last end on
    any rank, and the wall time of a phase is the longest of the ranks. Only the main thread of each rank
    counts. ``regions`` are batches of the rows of ``mpi_regions`` of all ranks.
    """

    def __init__(self, regions: Iterable[pd.DataFrame]) -> None:
        self._scopes: dict[tuple[str, str], int] = {}
        self._regions: dict[int, tuple[Ints, Ints, Ints]] = {}
        for batch in regions:
            self._add_regions(batch)
        self._spans: dict[tuple[int, int], _Span] = {}
        self._runs: dict[int, _Span] = {}
        self._past: dict[int, _Past] = {}
        self._last: dict[int, tuple[int, int, int]] = {}

    def _add_regions(self, regions: pd.DataFrame) -> None:
        if not len(regions):
            return
        keys = regions.groupby(["scope", "name"], sort=False, observed=True)
        names = [(str(scope), str(name)) for (scope, name), _ in keys]
        numbers = np.array([self._scopes.setdefault(name, len(self._scopes)) for name in names], np.int32)
        number = numbers[keys.ngroup().to_numpy()]
        rank, start, end = (regions[name].to_numpy(np.int64) for name in ("rank", "start_ns", "end_ns"))
        for (key,), rows in rows_by_key(rank):
            self._regions[key] = number[rows], start[rows], end[rows]

    def add(self, run: RunMpi, *, last: bool) -> None:
        """Add the next window, whose calls are on the common clock; ``last`` is True for the last window."""
        calls, past, bounds = run.calls, self._past, run.calls.first
        threads = calls.sequence[bounds[:-1]].tolist()
        # A window begins with the last call of the one before, if that was a collective of all ranks.
        first = {
            thread: past[thread].begin(start)
            for thread, start in zip(threads, calls.own_start[bounds[:-1]].tolist(), strict=True)
            if thread in past
        }
        begun, ended = ideal_times(run, first)
        length = calls.length + _gaps_to_next(run)
        own_end, ended = calls.own_start + length, ended + length - calls.length
        for thread, low, high in zip(threads, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            prior = past.get(thread)
            before = prior.inside_before(int(calls.own_start[low])) if prior else 0
            if calls.main[low]:
                columns = (calls.own_start, own_end, calls.start, begun, ended)
                track = _Thread(before, *(column[low:high] for column in columns))
                self._add_thread(run, int(calls.rank[low]), track, low, high, first=prior is None, last=last)
            end = high - 1
            past[thread] = _Past(
                before + int(length[low:end].sum()),
                *(int(column[end]) for column in (calls.own_start, own_end, begun, ended)),
            )

    def _add_thread(
        self, run: RunMpi, rank: int, track: _Thread, low: int, high: int, *, first: bool, last: bool
    ) -> None:
        calls = run.calls
        span = self._runs.setdefault(rank, _Span())
        _, starts, ends = self._regions.get(rank, (_NO_TIMES,) * 3)
        names = [calls.names[int(calls.name[call])] for call in (low, high - 1)]
        limits = run_limits(names, track.start, track.end, starts, ends)
        if first:
            span.add(track, limits[:1], limits[:0])
        moment = limits[1:]
        useful, common, ideal = (times(moment)[0] for times in (track.useful, track.on_common, track.ideal))
        self._last[rank] = int(useful), int(common), int(ideal)
        if rank not in self._regions:
            return
        number, start, end = self._regions[rank]
        until = LATEST if last else int(track.start[-1])
        since = -LATEST if first else int(track.start[0])
        begun, ended = ((stamps >= since) & (stamps < until) for stamps in (start, end))
        for scope in np.unique(number[begun | ended]).tolist():
            in_scope = number == scope
            scope_span = self._spans.setdefault((scope, rank), _Span())
            scope_span.add(track, start[in_scope & begun], end[in_scope & ended])

    def rows(self) -> list[dict[str, str | float | None]]:
        """Return the efficiencies of the run, the step and the phases, in percent."""
        for rank, (useful, common, ideal) in self._last.items():
            span = self._runs[rank]
            span.useful += useful
            span.common_ends = span.common_ends[0], max(span.common_ends[0], common)
            span.ideal_ends = span.ideal_ends[0], max(span.ideal_ends[0], ideal)
        self._last = {}
        rows = [_row("run", "", self._runs, self._runs.keys(), together=True)]
        for (scope, name), number in self._scopes.items():
            spans = {
                rank: span for (scope_number, rank), span in self._spans.items() if scope_number == number
            }
            rows.append(_row(scope, name, spans, self._runs.keys(), together=scope == "step"))
        return rows


def _gaps_to_next(run: RunMpi) -> Ints:
    """Return the gap from each call to the next one of its thread, in ns; 0 if above `_MAX_OVERHEAD_NS`."""
    calls = run.calls
    gap = np.append(calls.own_start[1:], 0) - calls.own_end
    gap[calls.first[1:] - 1] = 0
    return np.where(gap <= _MAX_OVERHEAD_NS, np.maximum(gap, 0), 0)


def _row(
    scope: str, name: str, spans: Mapping[int, _Span], ranks: Collection[int], *, together: bool
) -> dict[str, str | float | None]:
    """Return the efficiencies over the intervals of some ranks, which ran ``together`` or each by itself."""
    useful = [spans[rank].useful if rank in spans else 0 for rank in ranks]
    intervals = spans.values()
    wall = _wall([span.common_ends if together else (0, span.common) for span in intervals])
    without_transfer = _wall([span.ideal_ends if together else (0, span.ideal) for span in intervals])
    most = max(useful, default=0)
    without_transfer = min(max(without_transfer, most), wall)
    mean = sum(useful) / max(len(useful), 1)
    return {
        "scope": scope,
        "name": name,
        "parallel_efficiency_pct": pct(mean, wall),
        "load_balance_pct": pct(mean, most),
        "communication_efficiency_pct": pct(most, wall),
        "serialization_efficiency_pct": pct(most, without_transfer),
        "transfer_efficiency_pct": pct(without_transfer, wall),
    }


def _wall(ends: Sequence[tuple[int, int]]) -> int:
    return max((end for _, end in ends), default=0) - min((start for start, _ in ends), default=0)


def pct(part: float, whole: float) -> float | None:
    """Return a part in percent of the whole; None if that is not above 0."""
    return round(100 * part / whole, DIGITS) if whole > 0 else None


_MIN_CALLING_STEPS = 0.1
"""Minimum share of steps that call MPI."""
_BRANCHES = (
    "host_efficiency_pct",
    "offload_efficiency_pct",
    "device_efficiency_pct",
    "device_load_balance_pct",
    "device_communication_efficiency_pct",
    "device_orchestration_efficiency_pct",
)


def offload(timeline: Timeline) -> Outcome:
    """Return the time of the main thread and of the GPUs of a rank in the run, its steps and its phases.

    On the host, useful is the time outside MPI and outside calls that launch work, copy, or wait for a GPU.
    On the device, useful is the time of kernels, active also that of copies and of kernels that communicate
    (Rahimi et al., "Hardware-agnostic and insightful efficiency metrics for accelerated systems", 2026; and
    DLB's TALP).

    The main thread is the one with the most calls of MPI. The times of several GPUs are added. Work of a
    GPU counts where it happens, not where it was launched. Without calls of MPI in one step of ten, there
    are no rows: these efficiencies say nothing about such a program, and take a while.
    """
    if not len(timeline.mpi_calls):
        return none_in(timeline, "MPI calls")
    if not timeline.operation_count:
        return no_rows("without work on GPUs, there is no branch of devices")
    calls = main_thread_calls(timeline)
    in_mpi = union(calls.start, np.maximum(calls.start, calls.end))
    regions = pd.DataFrame(regions_of(timeline), columns=["scope", "name", "start_ns", "end_ns"])
    starts, ends = (regions[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    steps = regions["scope"] == "step"
    if steps.any() and np.mean(coverage(starts, ends, in_mpi)[steps] > 0) < _MIN_CALLING_STEPS:
        return no_rows(f"hardly a step calls MPI in {timeline.origin.path.name}")
    process, number = int(calls.process[0]), int(calls.thread[0])
    all_calls = timeline.calls
    thread_calls = np.flatnonzero((all_calls.process == process) & (all_calls.thread == number))
    start = all_calls.start[thread_calls]
    in_calls = union_of(in_mpi, union(start, np.maximum(start, all_calls.end[thread_calls])))
    # The calls of a large profile take more memory than the sums.
    del thread_calls, start
    first, last = run_limits(timeline.names(calls.name), calls.start, calls.end, starts, ends).tolist()
    starts, ends = np.append(first, starts), np.append(last, ends)
    elapsed, outside, inside = ends - starts, coverage(starts, ends, in_calls), coverage(starts, ends, in_mpi)
    count, useful, active = 0, np.zeros_like(elapsed), np.zeros_like(elapsed)
    for computes, anything in _devices(timeline):
        count += 1
        useful += coverage(starts, ends, computes)
        active += coverage(starts, ends, anything)
    times = {
        "elapsed_ns": elapsed,
        "useful_ns": elapsed - outside,
        "gpu_calls_ns": outside - inside,
        "gpu_useful_ns": useful,
        "gpu_active_ns": active,
    }
    keys = {"scope": ["run", *regions["scope"]], "name": ["", *regions["name"]]}
    sums = pd.DataFrame(keys | times).groupby([*keys], sort=False).sum()
    return Outcome(sums.assign(devices=count).reset_index())


def _devices(timeline: Timeline) -> Iterator[tuple[Intervals, Intervals]]:
    """Yield for each device the intervals of compute, and the intervals of any work."""
    start, end, on, category = timeline.of_operations("start", "end", "device", "category")
    for device in numbered(on)[0].tolist():
        on_device = on == device
        computes = on_device & (category == Category.COMP)
        yield union(start[computes], end[computes]), union(start[on_device], end[on_device])


def with_branches(pop: Outcome, times: pd.DataFrame) -> Outcome:
    """Return the efficiencies with those of hosts and devices, null for programs without GPUs.

    ``pop`` are the rows of ``pop`` without these columns, ``times`` the rows of ``offload`` of all ranks.
    """
    rows = pop.columns()
    if not len(pop):
        return pop
    keys = zip(rows["scope"], rows["name"], rows["parallel_efficiency_pct"], strict=True)
    branches = [_branches(times, scope, name, parallel) for scope, name, parallel in keys]
    return Outcome({**rows, **columns_of(branches)}, pop.reason)


def _branches(times: pd.DataFrame, scope: str, name: str, parallel: float | None) -> dict[str, float | None]:
    rows = times[(times["scope"] == scope) & (times["name"] == name)] if len(times) else times
    if not len(rows):
        return dict.fromkeys(_BRANCHES)
    useful, calls, devices, computing = (
        float(rows[column].sum()) for column in ("useful_ns", "gpu_calls_ns", "devices", "gpu_useful_ns")
    )
    elapsed = float(rows["elapsed_ns"].max())
    most_useful, most_active = (
        float((rows[column] / rows["devices"]).max()) for column in ("gpu_useful_ns", "gpu_active_ns")
    )
    offloads = pct(useful, useful + calls)
    values = (
        None if parallel is None or offloads is None else round(parallel * offloads / 100, DIGITS),
        offloads,
        pct(computing, elapsed * devices),
        pct(computing, most_useful * devices),
        pct(most_useful, most_active),
        pct(most_active, elapsed),
    )
    return dict(zip(_BRANCHES, values, strict=True))
