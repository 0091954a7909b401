"""Predicts the step of a run with changed times: what if a range took none, or the network were faster."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import pandas as pd

from hpcprof.analysis.account.host_activity import NONE
from hpcprof.analysis.explain.changes import Change, Prediction
from hpcprof.analysis.explain.explanation import CAPTURE, NO_GPU
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.explain.intervals import Uncertainty
from hpcprof.analysis.explain.mpi_removals import MpiRemovals
from hpcprof.analysis.explain.on_host import predict_on_host
from hpcprof.analysis.explain.profiler_share import typical_launch
from hpcprof.analysis.explain.rank_edges import EdgeKind
from hpcprof.analysis.explain.removals import Removals
from hpcprof.analysis.explain.replay import Replay, Times
from hpcprof.analysis.explain.replayable import Replayable, replayable
from hpcprof.common.errors import HpcprofError, UsageError, unknown
from hpcprof.common.patterns import matches
from hpcprof.profiles.columns.unique import begins_run, ends_run
from hpcprof.profiles.timeline import Category, Ints, Mask


def predict(inputs: ExplainInputs, changes: Sequence[Change]) -> Prediction:
    """Replay a run with changed times; without changes, as it was.

    The interval of 90 % is that of the profiled program: what the profiler itself adds stays in it. Changes
    that only shorten times never predict a longer step than the unchanged replay. Raises UsageError if a
    change names a range, kernel, API call or rank that the run does not have, and HpcprofError if the run
    cannot be replayed.
    """
    return predict_each(inputs, [changes])[0]


def predict_each(inputs: ExplainInputs, sets: Sequence[Sequence[Change]]) -> list[Prediction]:
    """Replay a run with each of some sets of changes, as `predict` does; its graph is built once."""
    built = replayable(inputs)
    if built == NO_GPU:
        return [predict_on_host(inputs.tables, changes) for changes in sets]
    if not isinstance(built, Replayable):
        raise HpcprofError(f"nothing can be replayed: {built}.")
    replay = Replay(built.graph)
    changer = _Changer(replay)
    slowed = inputs.alone is not None or typical_launch(changer.removals, built.profiler) is not None
    unreplayed = _unreplayed(replay, inputs.tables["step_kinds"])
    return [
        replace(
            _predict_step(replay, changer, changes, unreplayed),
            has_profiler_share=slowed,
            is_capture=built.source == CAPTURE,
        )
        for changes in sets
    ]


def _unreplayed(replay: Replay, kinds: pd.DataFrame) -> tuple[float, float]:
    """Return the excess of the account's median step and elapsed time over the replay's, in ns.

    The replay lacks a last step without an end, and the time after the last operation of a step. The excess
    of the elapsed time is 0 if steps take long once: the account leaves these out, and the replay does not.
    """
    if not len(kinds) or kinds["steps"].iloc[0] != replay.graph.steps:
        return 0.0, 0.0
    observed = replay.graph.observed
    measured = float(np.median(replay.walls(observed))), float(replay.elapsed(observed).mean())
    elapsed = measured[1] if kinds["once_steps"].iloc[0] else kinds["elapsed_ns"].iloc[0]
    return kinds["wall_p50_ns"].iloc[0] - measured[0], elapsed - measured[1]


def _predict_step(
    replay: Replay, changer: "_Changer", changes: Sequence[Change], unreplayed: tuple[float, float]
) -> Prediction:
    """Predict a step with some changes; ``unreplayed`` times are in the measured and the predicted step."""

    def changed(times: Times) -> Times:
        return reduce(changer.changed, changes, times)

    times = changed(replay.measured)
    measured = replay.walls(replay.graph.observed)
    unchanged = replay.walls(replay.unchanged)
    moments = replay.moments(times) if changes else replay.unchanged
    predicted = replay.walls(moments)
    steps = replay.elapsed(moments)
    elapsed, base_elapsed, measured_elapsed = (
        float(times_of_steps.mean())
        for times_of_steps in (steps, replay.elapsed(replay.unchanged), replay.elapsed(replay.graph.observed))
    )
    base, wall = float(np.median(unchanged)), float(np.median(predicted))
    error = base - float(np.median(measured))
    if np.all(times.lag <= replay.measured.lag) and np.all(times.alone <= replay.measured.alone):
        # Contention is estimated, and the first and last steps are not typical.
        wall, elapsed = min(wall, base), min(elapsed, base_elapsed)
    uncertainty = Uncertainty(replay, replay.wall, abs(error))
    apart = predicted[: len(steps)]
    saving = uncertainty.saving_interval(replay.measured, changed, base - wall, apart - apart.mean())
    median_rest, elapsed_rest = unreplayed
    return Prediction(
        wall_p50_ns=round(wall + median_rest),
        low_ns=round(max(0.0, base - saving.high + median_rest)),
        high_ns=round(base - saving.low + median_rest),
        measured_p50_ns=round(float(np.median(measured)) + median_rest),
        replay_error_pct=round(100 * error / float(np.median(measured)), 3),
        steps=replay.graph.steps,
        elapsed_ns=round(elapsed + elapsed_rest),
        measured_elapsed_ns=round(measured_elapsed + elapsed_rest),
    )


class _Changer:
    """Applies the changes of a user to the times of a replay."""

    def __init__(self, replay: Replay) -> None:
        self.replay, self.graph, self.removals = replay, replay.graph, Removals(replay)
        self._of_mpi = MpiRemovals(replay, part) if (part := replay.graph.mpi) is not None else None

    def changed(self, times: Times, change: Change) -> Times:
        ranks = range(len(self.graph.ranks)) if change.rank is None else (self._position(change.rank),)
        if change.median:
            if len(self.graph.ranks) < 2:
                raise UsageError("rank:N=median needs the profiles of other ranks.")
            if self._of_mpi is not None and self.graph.is_of_host:
                return self._of_mpi.like_the_others(times, ranks[0])
            return self.removals.late_gpu(self.removals.late_host(times, ranks[0]), ranks[0])
        change_by_name = {"range": self._range, "gpu": self._gpu, "kernel": self._kernels}
        change_by_name |= {"mpi": self._mpi, "api": self._calls, "copy": self._copies}
        if change.kind in change_by_name:
            return self.replay.on_ranks(times, change_by_name[change.kind](times, change), ranks)
        factor = 1 / change.factor if change.kind == "bandwidth" else change.factor
        if self._of_mpi is not None:
            times = self._of_mpi.communication(times, np.ones(len(self.graph.calls), bool), factor)
        return self.removals.communication(times, np.full(len(self.graph.work), factor))

    def _position(self, rank: int) -> int:
        if rank not in self.graph.ranks:
            raise unknown("rank", str(rank), [str(number) for number in self.graph.ranks])
        return self.graph.ranks.index(rank)

    def _mask_of_names(self, pattern: str, name: Ints, kind: str) -> Mask:
        matching = np.array([*matches(pattern, self.graph.names), False])
        rows: Mask = matching[name]
        if not rows.any():
            raise UsageError(f"no {kind} of the replayed steps has a name that matches {pattern!r}.")
        return rows

    def _copies(self, times: Times, change: Change) -> Times:
        if not change.factor:
            times = self.removals.copies(times, "")
        return times.scale_alone(self.graph.work.category == Category.MEM, change.factor)

    def _kernels(self, times: Times, change: Change) -> Times:
        work = self.graph.work
        rows = self._mask_of_names(change.pattern, work.name, "kernel")
        times = self.removals.communication(times, np.where(rows, change.factor, 1.0))
        return times.scale_alone(rows & ~work.is_communication, change.factor)

    def _calls(self, times: Times, change: Change) -> Times:
        """Scale the own time of calls; calls scaled to no time do not wait either."""
        calls = np.flatnonzero(self._mask_of_names(change.pattern, self.graph.calls.name, "API call"))
        edges = self.removals.edge_of_call[EdgeKind.CALL][calls]
        scaled = times.scale_lag(edges, change.factor)
        return scaled if change.factor else self.removals.waits(scaled, calls)

    def _mpi(self, times: Times, change: Change) -> Times:
        """Scale the transfer time of MPI calls, without their waits."""
        rows = self._mask_of_names(change.pattern, self.graph.calls.name, "MPI call")
        if self._of_mpi is None:
            raise UsageError("MPI calls are replayed only if all ranks make some.")
        return self._of_mpi.communication(times, rows, change.factor)

    def _places(self, name: str) -> list[str]:
        places = [place for place in self.graph.places if place == name or place.endswith(f"/{name}")]
        if not places:
            raise unknown("range", name, sorted(self.graph.places))
        return places

    def _gpu(self, times: Times, change: Change) -> Times:
        """Scale the kernels that a range launches, or let the last of them take longer in each step."""
        graph, work = self.graph, self.graph.work
        inside = np.any([self.removals.inside(place) for place in self._places(change.pattern)], axis=0)
        computes = work.is_compute & inside[work.place]
        if not computes.any():
            raise UsageError(f"the range {change.pattern!r} launches no kernels in the replayed steps.")
        scaled, rows = times.scale_alone(computes, change.factor), np.flatnonzero(computes)
        rows = rows[np.lexsort((work.start[rows], work.step[rows], graph.work_rank[rows]))]
        last = rows[ends_run(graph.work_rank[rows], work.step[rows])]
        return scaled.set_alone(last, scaled.alone[last] + change.add_ns)

    def _range(self, times: Times, change: Change) -> Times:
        for place in self._places(change.pattern):
            if change.factor != 1:
                times = self.removals.host_time(times, place, factor=change.factor)
            if change.add_ns:
                times = self._longer(times, place, change.add_ns)
        return times

    def _longer(self, times: Times, place: str, more_ns: int) -> Times:
        """Let the host of each rank take longer in a place, once a step: before its first call from there."""
        graph, pieces = self.graph, self.graph.pieces
        inside = self.removals.inside(place)
        call = np.concatenate((pieces.call[inside[pieces.place]], np.flatnonzero(inside[graph.calls.place])))
        call = np.unique(call)
        # The first call after a gap in an earlier step belongs to that one.
        first = call[begins_run(graph.call_rank[call], graph.calls.step[call])]
        # Host time before the first call of all is in no step, unless there is one step alone.
        begins = graph.calls.before[first] == NONE
        first = first + begins if begins.all() else first[~begins]
        edges = self.removals.edge_of_call[EdgeKind.HOST][first]
        return times.set_lag(edges, times.lag[edges] + more_ns)
