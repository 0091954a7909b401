"""Explains a table of operations: the time of a step if some operations took their typical times.

1. The typical time of a name is the mean of what computes and the median of what communicates, over all
   ranks and steps.
2. The ideal step has typical times everywhere. The slowdown by a rank, a stage, a replica or a name is the
   step in which only its operations keep their measured times, over the ideal one (Lin et al., OSDI 2025).
3. A finding is the narrowest place (rank, stage, replica, all) that keeps most of the saving of typical times
   everywhere, with the names that save there. The next one is judged on the replay without it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.explain.cause import cause_of
from hpcprof.analysis.explain.changes import Change, Prediction
from hpcprof.analysis.explain.explanation import (
    MIN_PCT,
    Cause,
    Evidence,
    Explanation,
    Finding,
    NotJudged,
    StepSummary,
)
from hpcprof.analysis.predict.operation_graph import (
    COMMUNICATION,
    MAX_KINDS,
    OperationGraph,
    operation_graphs,
)
from hpcprof.analysis.statistics.confidence_intervals import NORMAL_90
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.patterns import matches
from hpcprof.common.units import listed, named_ranks
from hpcprof.profiles.readers.operations.table import lacks_partners
from hpcprof.profiles.timeline import Floats, Mask

_PLACES = ("rank", "stage", "replica")
"""The kinds of places of a finding, the narrowest first."""
_MIN_PLACE_SHARE = 0.9
"""Minimum share of the saving of typical times everywhere that a place keeps."""
_MIN_NAMED_SHARE = 0.1
"""Minimum share of the saving of a place for a name in its finding."""
_MAX_FINDINGS = 5
_MAX_VALUES = 256
"""Maximum number of ranks, stages, replicas or names that are replayed one by one."""
_MAX_NAMES = 4

_REMEDIES = {
    Cause.LATE_RANK_COMPUTE: cause_of(Cause.LATE_RANK_COMPUTE).remedy,
    Cause.PIPELINE_BUBBLE: "Balance the stages: move layers away from stage {stage}, or use more "
    "microbatches or an interleaved schedule.",
    Cause.EXPOSED_COMMUNICATION: "Overlap {names} with compute, and check the links of {ranks}.",
}
_ALONE_ON_STAGE = (
    " No other rank has its stage {stage}: if its layers take longer, move some to other stages."
)


@dataclass(frozen=True, eq=False)
class OperationReplay:
    """The replay of all steps of a table of operations."""

    graphs: Sequence[OperationGraph]

    @classmethod
    def from_table(cls, table: pd.DataFrame) -> "OperationReplay":
        """Return the replay of a table; raises HpcprofError if no step has all ranks, or steps overlap."""
        refuse_overlap(table)
        graphs = operation_graphs(table)
        if not graphs:
            raise HpcprofError("nothing can be replayed: no step has operations of all ranks.")
        return cls(graphs)

    @cached_property
    def measured(self) -> list[Floats]:
        """Own time of each operation by graph, shape (operations, steps)."""
        return [graph.own for graph in self.graphs]

    @cached_property
    def ideal(self) -> list[Floats]:
        """The same with the typical time of each name."""
        names = np.concatenate([np.repeat(g.rows["name"].to_numpy(), len(g.steps)) for g in self.graphs])
        times = pd.Series(np.concatenate([values.ravel() for values in self.measured])).groupby(names)
        talks = {
            name
            for graph in self.graphs
            for name in graph.rows["name"][
                (graph.group >= 0) | graph.rows["kind"].isin(COMMUNICATION)
            ].unique()
        }
        typical = {name: (group.median() if name in talks else group.mean()) for name, group in times}
        return [
            np.broadcast_to(graph.rows["name"].map(typical).to_numpy(float)[:, None], durations.shape)
            for graph, durations in zip(self.graphs, self.measured, strict=True)
        ]

    def walls(self, durations: Sequence[Floats]) -> Floats:
        """Return the time of each step in ns, shape (steps,), if the operations take ``durations``."""
        return np.concatenate([graph.walls(time) for graph, time in zip(self.graphs, durations, strict=True)])

    def select(self, choose: Callable[[pd.DataFrame], Any]) -> list[Mask]:
        """Return the chosen operations of each graph, shape (operations, 1)."""
        return [np.asarray(choose(graph.rows), bool)[:, None] for graph in self.graphs]

    def of(self, column: str, value: int | str) -> list[Mask]:
        """Return the operations that have a value in a column, as `select` does."""
        return self.select(lambda rows: rows[column].to_numpy() == value)

    def means(
        self, column: str, inside: Sequence[Floats], outside: Sequence[Floats], place: Sequence[Mask] = ()
    ) -> dict[int | str, float]:
        """Return the mean step in ns by value: its operations in a place take ``inside``, others ``outside``.

        Only graphs in which a value changes something are replayed for it.
        """
        walls = [graph.walls(durations) for graph, durations in zip(self.graphs, outside, strict=True)]
        mean, steps = float(np.concatenate(walls).mean()), sum(map(len, walls))
        means = dict.fromkeys(self.values(column), mean)
        for at, graph in enumerate(self.graphs):
            changes = inside[at] != outside[at]
            if place:
                changes &= place[at]
            changing = changes.any(axis=1)
            for value, rows in graph.rows.groupby(column).indices.items():
                if value in means and changing[rows].any():
                    mixed = outside[at].copy()
                    mixed[rows] = np.where(changes[rows], inside[at][rows], mixed[rows])
                    means[value] += float((graph.walls(mixed) - walls[at]).sum()) / steps
        return means

    def mixed(
        self, chosen: Sequence[Mask], inside: Sequence[Floats], outside: Sequence[Floats]
    ) -> list[Floats]:
        """Return the times ``inside`` for the chosen operations, and ``outside`` for all others."""
        return [np.where(*sides) for sides in zip(chosen, inside, outside, strict=True)]

    def values(self, column: str) -> list[int | str]:
        """Return the values of a column, sorted; unknown ones are left out.

        Only the `_MAX_VALUES` count whose times deviate most from those of their names.
        """
        parts = [
            pd.Series(np.abs(times - ideal).sum(axis=1)).groupby(graph.rows[column].to_numpy()).sum()
            for graph, times, ideal in zip(self.graphs, self.measured, self.ideal, strict=True)
        ]
        deviation = pd.concat(parts).groupby(level=0).sum().drop([-1, ""], errors="ignore")
        values: list[int | str] = deviation.nlargest(_MAX_VALUES).index.tolist()
        return sorted(values)


def refuse_overlap(table: pd.DataFrame) -> None:
    """Raise HpcprofError, which names the busiest rank, if most steps begin in the first half of others."""
    rows = table.assign(end_ns=table["start_ns"] + table["duration_ns"])
    by_step = rows.groupby("step")
    first = by_step["start_ns"].min().sort_values()
    length = (by_step["end_ns"].max() - first).loc[first.index]
    if len(first) < 2 or first.diff().median() >= 0.5 * length.median():
        return
    busy = rows[rows["kind"] == "compute"].groupby("rank")["duration_ns"].sum()
    busy = (100 * busy / (rows["end_ns"].max() - first.iloc[0])).sort_values()
    who = f": {named_ranks([int(busy.index[-1])])} computes most, {busy.iloc[-1]:.1f} % of the time"
    overlap = "nothing can be replayed: the steps overlap, so that none has a time of its own"
    raise HpcprofError(f"{overlap}{who if len(busy) else ''}.")


def explain_operations(
    table: pd.DataFrame, elapsed_ns: int | None = None
) -> tuple[Explanation, pd.DataFrame]:
    """Explain the steps of a table of operations; return also the rows of ``operation_slowdowns``.

    ``elapsed_ns`` is the time that the run takes for each step, with what passes between steps: shares are of
    it, by default of the time within a step. Raises HpcprofError if no step has operations of all ranks.
    """
    replay = OperationReplay.from_table(table)
    measured = np.concatenate([graph.measured for graph in replay.graphs])
    unchanged = replay.walls(replay.measured)
    step_ns = elapsed_ns or round(float(measured.mean()))
    summary = StepSummary(
        wall_p50_ns=round(float(np.median(measured))),
        steps=int(table["step"].nunique()),
        ranks=int(table["rank"].nunique()),
        explained_steps=len(measured),
        replay_error_pct=round(100 * float(unchanged.mean() / measured.mean() - 1), 3),
        elapsed_ns=step_ns,
    )
    slowdowns = _slowdowns(replay, unchanged)
    findings = sorted(
        _findings(replay, unchanged, slowdowns, step_ns),
        key=lambda finding: -(finding.saving_ns or 0),
    )
    unknown = [NotJudged("causes inside operations", "a table of operations has neither kernels nor calls")]
    if lacks_partners(table):
        unknown.append(NotJudged("waiting for peers", "the table lacks them: communication includes it"))
    if len(replay.graphs) == MAX_KINDS:
        most = f"only the {MAX_KINDS} most frequent kinds of steps are replayed, by their operations"
        unknown.append(NotJudged("steps of other kinds", most))
    for column in (*_PLACES, "name"):
        if max(graph.rows[column].nunique() for graph in replay.graphs) > _MAX_VALUES:
            most = f"only the {_MAX_VALUES} {column}s whose times deviate most are replayed one by one"
            unknown.append(NotJudged(f"each {column}", most))
    return Explanation(tuple(findings), (), tuple(unknown), summary), slowdowns


def _slowdowns(replay: OperationReplay, unchanged: Floats) -> pd.DataFrame:
    """Return the mean step if only some operations keep their measured times, and its ratio to the ideal.

    ``by`` is ``ideal`` if none do, and ``replay`` if all do; ``instances`` counts those that do.
    """
    ideal = float(replay.walls(replay.ideal).mean())
    count = sum(values.size for values in replay.measured)
    rows = [("ideal", "", 0, ideal), ("replay", "", count, float(unchanged.mean()))]
    for column in (*_PLACES, "name"):
        instances: Counter[Any] = Counter()
        for graph in replay.graphs:
            for value, times in graph.rows[column].value_counts().items():
                instances[value] += times * len(graph.steps)
        means = replay.means(column, replay.measured, replay.ideal)
        rows += [(column, str(value), instances[value], ratio) for value, ratio in means.items()]
    table: pd.DataFrame = pd.DataFrame(rows, columns=["by", "value", "instances", "step_ns"])
    table["slowdown"] = (table["step_ns"] / ideal).round(5)
    table["step_ns"] = table["step_ns"].round().astype(np.int64)
    return table


def _findings(
    replay: OperationReplay, unchanged: Floats, slowdowns: pd.DataFrame, step: float
) -> Iterator[Finding]:
    """Yield the findings; shares are of ``step``, in ns."""
    current, now = replay.measured, unchanged
    slowdown = slowdowns.set_index(["by", "value"])["slowdown"]
    for _ in range(_MAX_FINDINGS):
        place, value, chosen, saving = _narrowest(replay, current, now)
        names = _names(replay, current, now, chosen, float(saving.mean()))
        if saving.mean() < MIN_PCT / 100 * step or not names:
            break
        if place == "rank":
            # The typical time of a name includes the times of this rank.
            saving = now - replay.walls(_like_the_others(replay, current, int(value or 0)))
        ratio = slowdown[(place, str(value))] if value is not None else slowdown[("replay", "")]
        yield _finding(replay, place, value, names, saving, float(ratio), step)
        current = replay.mixed(chosen, replay.ideal, current)
        now = replay.walls(current)
    comm = replay.select(lambda rows: rows["kind"].isin(COMMUNICATION))
    free = replay.mixed(comm, [np.zeros_like(times) for times in replay.measured], replay.measured)
    saving = unchanged - replay.walls(free)
    if saving.mean() >= MIN_PCT / 100 * step:
        yield _finding(replay, "", None, [*_communication_names(replay)], saving, None, step)


def _communication_names(replay: OperationReplay) -> Iterator[str]:
    """Yield the names of communication, the one with most own time first."""
    parts = [
        pd.Series(times.sum(axis=1)).groupby(graph.rows["name"].to_numpy()).sum()
        for graph, times in zip(replay.graphs, replay.measured, strict=True)
    ]
    kinds = {
        name: kind for g in replay.graphs for name, kind in zip(g.rows["name"], g.rows["kind"], strict=True)
    }
    total = pd.concat(parts).groupby(level=0).sum().sort_values(ascending=False)
    yield from (name for name in total.index if kinds[name] in COMMUNICATION)


def _narrowest(
    replay: OperationReplay, current: Sequence[Floats], now: Floats
) -> tuple[str, int | str | None, list[Mask], Floats]:
    """Return the place that keeps most of the saving: its column, value, operations and saving by step."""
    everywhere = replay.select(lambda rows: np.ones(len(rows), bool))
    whole = now - replay.walls(replay.ideal)
    for place in _PLACES:
        values = replay.values(place)
        if len(values) < 2:
            continue
        sides = [replay.of(place, value) for value in values]
        savings = [now - replay.walls(replay.mixed(side, replay.ideal, current)) for side in sides]
        best = int(np.argmax([saving.mean() for saving in savings]))
        if savings[best].mean() >= _MIN_PLACE_SHARE * whole.mean():
            return place, values[best], sides[best], savings[best]
    return "", None, everywhere, whole


def _names(
    replay: OperationReplay, current: Sequence[Floats], now: Floats, place: Sequence[Mask], whole: float
) -> list[str]:
    """Return the names whose operations in a place save much of its saving, most first."""
    means = replay.means("name", replay.ideal, current, place)
    savings = {str(name): float(now.mean()) - mean for name, mean in means.items()}
    ordered = sorted(savings, key=lambda name: -savings[name])
    return [name for name in ordered if savings[name] >= _MIN_NAMED_SHARE * whole]


def _finding(
    replay: OperationReplay,
    place: str,
    value: int | str | None,
    names: Sequence[str],
    saving: Floats,
    slowdown: float | None,
    step: float,
) -> Finding:
    rows = replay.graphs[0].rows
    inside = rows if value is None else rows[rows[place] == value]
    ranks = tuple(sorted(map(int, inside["rank"].unique())))
    stages = sorted({int(stage) for stage in inside["stage"].unique()} - {-1})
    talks = slowdown is None or bool(rows.loc[rows["name"] == names[0], "kind"].isin(COMMUNICATION).all())
    cause = Cause.EXPOSED_COMMUNICATION if talks else Cause.LATE_RANK_COMPUTE
    cause = Cause.PIPELINE_BUBBLE if place == "stage" and not talks else cause
    half = NORMAL_90 * float(saving.std()) / np.sqrt(len(saving))
    mean = float(saving.mean())
    texts, evidence = (), ()  # type: tuple[str, ...], tuple[Evidence, ...]
    if slowdown is not None:
        who = f"{place} {value}" if value is not None else "all ranks"
        texts = (f"if only {who} keeps its measured times, the ideal step is {slowdown:.3f} times as long",)
        evidence = (Evidence("operation_slowdowns", None, "slowdown", slowdown),)
    subject = "all ranks" if 1 < len(ranks) == rows["rank"].nunique() else named_ranks(ranks)
    is_alone = {*rows.loc[rows["stage"].isin(stages), "rank"]} == {*ranks}
    remedy = _REMEDIES[cause].format(ranks=subject, stage=value, names=listed(names, _MAX_NAMES))
    if place == "rank" and cause is Cause.LATE_RANK_COMPUTE and len(stages) == 1 and is_alone:
        remedy += _ALONE_ON_STAGE.format(stage=stages[0])
    where = listed(names, _MAX_NAMES) + (f" on stage {stages[0]}" if len(stages) == 1 else "")
    return Finding(
        cause=cause,
        ranks=ranks,
        where=where,
        saving_ns=round(mean),
        saving_low_ns=round(mean - half),
        saving_high_ns=round(mean + half),
        share_pct=round(100 * mean / step, 3),
        evidence=evidence,
        remedy=remedy,
        confidence="high" if slowdown is not None else "medium",
        evidence_text=texts,
    )


def what_if_operations(
    table: pd.DataFrame, changes: Sequence[Change], elapsed_ns: int | None = None
) -> Prediction:
    """Predict the step of a table of operations with changed times; without changes, replay it.

    The replay has no delays between operations, so that its error is their part of the step. The time between
    steps, the rest of ``elapsed_ns``, stays. Raises UsageError if a change is about something that the table
    does not have.
    """
    replay = OperationReplay.from_table(table)
    durations: Sequence[Floats] = replay.measured
    for change in changes:
        durations = _changed_times(replay, durations, change)
    measured = np.concatenate([graph.measured for graph in replay.graphs])
    unchanged, predicted = replay.walls(replay.measured), replay.walls(durations)
    half = NORMAL_90 * float(np.std(predicted)) / np.sqrt(len(predicted)) + abs(
        float(np.median(unchanged) - np.median(measured))
    )
    wall = float(np.median(predicted))
    between_ns = max(0.0, elapsed_ns - float(measured.mean())) if elapsed_ns else 0.0
    return Prediction(
        wall_p50_ns=round(wall),
        low_ns=round(max(wall - half, 0.0)),
        high_ns=round(wall + half),
        measured_p50_ns=round(float(np.median(measured))),
        replay_error_pct=round(100 * float(np.median(unchanged) / np.median(measured) - 1), 3),
        steps=len(measured),
        elapsed_ns=round(float(predicted.mean()) + between_ns),
        measured_elapsed_ns=round(float(measured.mean()) + between_ns),
    )


def _changed_times(replay: OperationReplay, durations: Sequence[Floats], change: Change) -> list[Floats]:
    if change.kind == "ideal":
        if not change.pattern:
            return list(replay.ideal)
        changed = _select_operations(replay, change.pattern)
        return (
            replay.mixed(changed, durations, replay.ideal)
            if change.factor
            else replay.mixed(changed, replay.ideal, durations)
        )
    if change.median:
        return _like_the_others(replay, durations, change.rank)
    if change.kind not in ("kernel", "comm", "bandwidth"):
        raise UsageError(
            f"{change.kind} changes nothing in a table of operations: use kernel:REGEX for its names."
        )
    if change.kind == "kernel":
        changed = replay.select(lambda rows: np.array(matches(change.pattern, rows["name"].tolist()), bool))
    else:
        changed = replay.select(lambda rows: rows["kind"].isin(COMMUNICATION))
    if change.rank is not None:
        changed = [here & mask for here, mask in zip(changed, replay.of("rank", change.rank), strict=True)]
    if not any(rows.any() for rows in changed):
        raise UsageError(f"no operation of the table has a name that matches {change.pattern!r}.")
    factor = 1 / change.factor if change.kind == "bandwidth" else change.factor
    return [np.where(rows, times * factor, times) for rows, times in zip(changed, durations, strict=True)]


def _select_operations(replay: OperationReplay, pattern: str) -> list[Mask]:
    """Return the operations that ``rank:0``, ``stage:3``, ``replica:1`` or ``name:REGEX`` selects."""
    column, _, value = pattern.partition(":")
    if column == "name":
        chosen = replay.select(lambda rows: np.array(matches(value, rows["name"].tolist()), bool))
    elif column in _PLACES and re.fullmatch(r"\d+", value):
        chosen = replay.of(column, int(value))
    else:
        raise UsageError(
            f"{pattern!r} selects no operations: write rank:0, stage:0, replica:0 or name:REGEX."
        )
    if not any(rows.any() for rows in chosen):
        raise UsageError(f"the table has no operation of {pattern!r}.")
    return chosen


def _like_the_others(replay: OperationReplay, durations: Sequence[Floats], rank: int | None) -> list[Floats]:
    """Return times with the median of the other ranks of a rank's stage, else of all, in place of its own."""
    result = []
    for graph, times in zip(replay.graphs, durations, strict=True):
        rows, changed = graph.rows, times.copy()
        is_this_rank = (rows["rank"] == rank).to_numpy()
        for (name, stage), at in rows[is_this_rank].groupby(["name", "stage"]).groups.items():
            is_other_rank = ((rows["name"] == name) & ~is_this_rank).to_numpy()
            alike = is_other_rank & (rows["stage"] == stage).to_numpy()
            if is_other_rank.any():
                changed[at] = np.median(times[alike if alike.any() else is_other_rank])
        result.append(changed)
    return result
