"""The comparison of candidate runs with baseline runs, and its conclusion."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from hpcprof.analysis.comparison.compare import (
    CLOCKS_DIFFER,
    GATES,
    INCONCLUSIVE,
    MATERIAL_PCT,
    NO_STATISTICS,
    NOT_MEASURED,
    REGRESSION,
    steps_compared,
)
from hpcprof.analysis.comparison.kernel_difference import WHOLE_CAPTURES
from hpcprof.analysis.comparison.run_differences import Difference
from hpcprof.analysis.comparison.step_difference import STEP
from hpcprof.analysis.explain.explanation import Explanation
from hpcprof.analysis.framework.declaration import Analysis
from hpcprof.analysis.framework.outcome import WHOLE_RUN, AnalysisTable, Row
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.common.notebook import InNotebooks
from hpcprof.common.units import capitalized, counted, format_ns, time_unit, visible
from hpcprof.profiles.kernel_names import short_name
from hpcprof.report.explanation import named
from hpcprof.report.formatting import metric_label
from hpcprof.report.terminal import more_rows, remarks, titled
from hpcprof.results.across.across_runs import compare_sides, explain_difference
from hpcprof.results.ask.explanation import explain_for_report, kept_explanation
from hpcprof.results.ask.run_inputs import run_data
from hpcprof.results.collect.run_names import command_line, typed_run
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run

_MAX_ROWS = {"kernel_difference": 8, "collective_difference": 5, "idle_difference": 5, "memory_difference": 8}
"""Maximum number of rows of an analysis that a comparison shows."""

_DIFFERENCE_COLUMN = ("difference_ns",)
_NAMED_ANALYSES = {
    "kernel_difference": ("kernel", ("name",), _DIFFERENCE_COLUMN),
    "collective_difference": ("collective", ("op",), ("count_effect_ns", "size_effect_ns")),
    "idle_difference": ("idle time,", ("cause", "range"), _DIFFERENCE_COLUMN),
}
"""The analyses that name what takes longer: what it is, and the columns with its name and with the increase.

A collective also takes longer when ranks wait in it for others, which says nothing of its cause.
"""


def _per_capture(rows: Sequence[Row], analysis: Analysis) -> tuple[list[Row], Analysis]:
    """Return rows and an analysis whose names say that the figures are of whole captures."""

    def renamed(name: str) -> str:
        return name.replace("per_step", "per_capture")

    columns = tuple(replace(column, name=renamed(column.name)) for column in analysis.columns)
    return [{renamed(key): value for key, value in row.items()} for row in rows], replace(
        analysis,
        title=analysis.title.replace("per step", "per capture"),
        columns=columns,
        main_columns=tuple(map(renamed, analysis.main_columns)),
    )


@dataclass(frozen=True)
class Comparison(InNotebooks):
    """The runs of both sides, and the table of the analysis ``compare``, whose side A is the baseline.

    ``differences`` are the analyses that explain the difference of the step, and ``differing`` the facts in
    which the sides differ. ``reasons`` are sentences that name what made the candidate slower.
    """

    baseline: list[Run]
    candidate: list[Run]
    analysis: Analysis
    table: AnalysisTable
    differences: Mapping[str, AnalysisTable] = field(default_factory=dict)
    differing: Sequence[Difference] = ()
    reasons: Sequence[str] = ()
    steps: Mapping[str, str] = field(default_factory=dict)
    """The steps behind the metric that decides, by run; empty if it is not of steps."""

    def __repr__(self) -> str:
        sides = " with ".join(", ".join(run.id for run in side) for side in (self.candidate, self.baseline))
        return f"<hpcprof comparison of {sides}: {self.conclusion() or 'no regression.'}>"

    def named(self, run: Run) -> str:
        """Return a run with the steps of it that are compared."""
        steps = self.steps.get(run.id)
        return f"{run.id} ({steps})" if steps else run.id

    @cached_property
    def waterfall(self) -> "Waterfall | None":
        """The parts of the difference of the step; None if it is not known on both sides."""
        return waterfall(self.differences["step_difference"].rows) if self.differences else None

    def rows(self, analysis: str) -> list[Row]:
        """Return the rows of one of the analyses that explain the difference, without unchanged rows."""
        column = "difference_bytes" if analysis == "memory_difference" else "difference_ns"
        return [row for row in self.differences[analysis].rows if row[column]]

    def as_json(self) -> dict[str, Any]:
        """Return everything as objects for JSON, with times in whole nanoseconds."""
        parts = self.waterfall
        reasons = {name: table.reason for name, table in self.differences.items()}
        # Most runs keep no snapshots.
        del reasons["memory_difference"]
        return {
            "a": [run.id for run in self.baseline],
            "b": [run.id for run in self.candidate],
            "steps": dict(self.steps),
            "conclusion": self.conclusion(),
            "difference": in_a_sentence(parts) if parts else None,
            "waterfall": parts.as_json() if parts else None,
            "metrics": self.table.rows,
            "parts": self.differences["step_difference"].rows,
            "kernels": self.differences["kernel_difference"].rows,
            "collectives": self.differences["collective_difference"].rows,
            "idle": self.differences["idle_difference"].rows,
            "memory": self.differences["memory_difference"].rows,
            "differing": [asdict(fact) for fact in self.differing],
            "remarks": [*filter(None, [*reasons.values(), *remarks(self.table)])],
        }

    def explanation(self, store: Store, width: int) -> RenderableType:
        """Return the explanation of the difference, for a terminal of ``width`` characters."""
        return Group(*self._explanation(store, width))

    def _explanation(self, store: Store, width: int) -> Iterator[RenderableType]:
        if clocks := self.other_clocks():
            yield Text(f"\n{clocks}".rstrip(), style="bold")
        if self.waterfall is not None:
            yield Text(f"\n{in_a_sentence(self.waterfall)}", style="bold")
            for line in waterfall_lines(self.waterfall, width):
                yield Text(line, no_wrap=True, overflow="ignore")
            yield from map(Text, remarks(self.differences["step_difference"]))
        for name, limit in _MAX_ROWS.items():
            rows = self.rows(name)
            if rows:
                shown_rows, analysis = rows[:limit], ACROSS_RUNS[name]
                # Without steps on both sides, figures are of whole captures.
                if WHOLE_CAPTURES in self.differences[name].reason:
                    shown_rows, analysis = _per_capture(shown_rows, analysis)
                yield from titled(analysis.title, analysis, shown_rows, width)
            if len(rows) > limit:
                words = [*map(typed_run, self.candidate), "--analysis", name]
                words += [word for run in self.baseline for word in ("--against", typed_run(run))]
                more = counted(len(rows) - limit, "more row")
                yield more_rows(more, command_line(store, "report", *words))
        if self.differing:
            yield Text("\nWhat else differs", style="bold")
            yield from (
                Text(visible(f"   {fact.name}: {fact.in_words('A', 'B')}")) for fact in self.differing
            )

    def metrics_to_show(self) -> tuple[Analysis, AnalysisTable]:
        """Return the metrics without what the rest of the text says: facts that differ, and no statistics."""
        reason = self.table.reason
        for fact in self.differing:
            sentence = f"{fact.name} differs: {fact.in_words('A', 'B')}"
            reason = reason.replace(f"{sentence}; ", "").removesuffix(sentence).rstrip("; ")
        table = replace(self.table, reasons={WHOLE_RUN: reason} if reason else {})
        if not table.rows or not table.rows[0]["verdict"].endswith(NO_STATISTICS):
            return self.analysis, table
        columns = tuple(
            column for column in self.analysis.columns if column.name in ("metric", "a", "b", "ratio")
        )
        return replace(self.analysis, columns=columns, main_columns=()), table

    @property
    def regressed(self) -> bool:
        """True if the candidate is worse by a metric that decides: that of the first row, and of gates."""
        return any(row["verdict"] == REGRESSION for row in self.table.rows)

    def is_judged(self, gates: Sequence[str]) -> bool:
        """Return whether the metric that decides, or one of the ``gates``, has runs enough for a verdict."""
        gated = {name for gate in gates for name in GATES[gate]}
        rows = (row for at, row in enumerate(self.table.rows) if not at or row["metric"] in gated)
        return any(row["ci_low"] is not None for row in rows)

    @property
    def is_open(self) -> bool:
        """True if neither a change nor its absence is shown."""
        verdicts = [row["verdict"] for row in self.table.rows[:1]]
        return all(verdict == INCONCLUSIVE or verdict.endswith(NO_STATISTICS) for verdict in verdicts)

    def other_clocks(self) -> str:
        """Return that a candidate that is worse ran at other clocks, in a sentence; empty if it did not."""
        if not self.regressed:
            return ""
        remark_text = next((remark for remark in remarks(self.table) if remark.startswith(CLOCKS_DIFFER)), "")
        return f"{capitalized(remark_text.partition('; ')[0])}. " if remark_text else ""

    def conclusion(self) -> str:
        """Return the conclusion in a sentence; empty if nothing regressed and every verdict is certain."""
        parts = [part for remark in remarks(self.table) for part in remark.split("; ")]
        lacking = "".join(f"Not judged: {part}. " for part in parts if part.startswith(NOT_MEASURED))
        return f"{lacking}{self._verdict_sentence()}".rstrip()

    def _verdict_sentence(self) -> str:
        worse = [metric_label(row["metric"]) for row in self.table.rows if row["verdict"] == REGRESSION]
        if worse:
            return f"{self.other_clocks()}Regression: {'; '.join(worse)}."
        for row in self.table.rows[:1]:
            if row["verdict"].endswith(NO_STATISTICS):
                return "Inconclusive: give at least two runs per side."
            if row["verdict"] == INCONCLUSIVE:
                metric = metric_label(row["metric"])
                return f"Inconclusive: neither a change of the metric {metric!r} nor its absence is shown."
        return ""


def compare_runs(
    a: list[Run],
    b: list[Run],
    store: Store,
    margin_pct: float = MATERIAL_PCT,
    force: bool = False,
    gates: Sequence[str] = (),
) -> Comparison:
    """Compare candidate runs ``b`` with baseline runs ``a``, all of them collected.

    The other parameters and the errors are those of `compare_sides`.
    """
    table = compare_sides(b, a, store, margin_pct, force, gates)
    decides = next((row["metric"] for row in table.rows), "")
    steps = {run.id: steps_compared(run_data(run, store), decides) for run in (*a, *b)}
    differences, differing = explain_difference(b, a, store)
    return Comparison(a, b, ACROSS_RUNS["compare"], table, differences, differing, steps=steps)


def regression_reasons(compared: Comparison, store: Store) -> list[str]:
    """Return sentences that name what made the candidate slower: what takes most longer, and the cause.

    The last runs of both sides are explained, if they are not yet. A cause is one whose saving has grown by
    `MATERIAL_PCT` of a step.
    """
    reasons = []
    before, after = (_find_explanation(side[-1], store) for side in (compared.baseline, compared.candidate))
    if after is not None:
        had = {finding.place: finding.saving_ns or 0 for finding in before.findings} if before else {}
        grown = [
            ((finding.saving_ns or 0) - had.get(finding.place, 0), finding) for finding in after.findings
        ]
        least = (after.step.priced_ns or 0) * MATERIAL_PCT / 100
        growth, finding = max(grown, key=lambda pair: pair[0], default=(0, None))
        if finding is not None and growth > least:
            more = compared.waterfall.difference_ns if compared.waterfall else growth
            whole = "Cause" if growth >= more / 2 else "Part of it"
            reasons.append(f"{whole}: {named(finding, after)}, {format_ns(growth)} a step.")
    longer = [
        (increase, label, " ".join(filter(None, (row.get(name) for name in names))))
        for analysis, (label, names, effects) in _NAMED_ANALYSES.items()
        for row in (compared.rows(analysis) if analysis in compared.differences else ())
        if row.get("class") != "comm" and (increase := sum(row[effect] for effect in effects)) > 0
    ]
    if longer:
        increase, label, name = max(longer)
        reasons.append(
            visible(f"Largest increase: {label} {short_name(name)}, {format_ns(increase)} a step.")
        )
    return reasons


def _find_explanation(run: Run, store: Store) -> Explanation | None:
    explain_for_report(run, store)
    return kept_explanation(run, store)


_MIN_NAMED_SHARE = 0.01
"""Minimum share of all changes for a part that the sentence names."""

_MAX_BAR, _MIN_BAR = 40, 8
_UP_BARS, _DOWN_BARS = "█", "░"


class Waterfall(msgspec.Struct, frozen=True):
    """The step of both sides, and the parts whose differences lead from one to the other, in whole ns."""

    a_ns: int
    b_ns: int
    parts: dict[str, int]

    @property
    def difference_ns(self) -> int:
        """The difference of the step, which is the sum of ``parts``."""
        return self.b_ns - self.a_ns

    def as_json(self) -> dict[str, Any]:
        """Return the waterfall as objects for JSON."""
        return {
            "a_ns": self.a_ns,
            "b_ns": self.b_ns,
            "difference_ns": self.difference_ns,
            "parts": [{"part": name, "difference_ns": change} for name, change in self.parts.items()],
        }


def waterfall(rows: Sequence[Row]) -> Waterfall | None:
    """Return the waterfall of the rows of ``step_difference``, parts as they are; None without rows."""
    step = next((row for row in rows if row["part"] == STEP), None)
    if step is None:
        return None
    parts = {row["part"]: row["difference_ns"] for row in rows if row is not step}
    return Waterfall(step["a_ns"], step["b_ns"], parts)


def in_a_sentence(parts: Waterfall) -> str:
    """Return the difference in one sentence, the largest parts first: ``+477 µs a step: compute +90, …``."""
    factor, unit = time_unit(max(map(abs, (parts.difference_ns, *parts.parts.values()))))
    changes = sorted(parts.parts.items(), key=lambda part: -abs(part[1]))
    least = _MIN_NAMED_SHARE * sum(abs(change) for _, change in changes)
    changed = [
        f"{name} {_signed_value(change, factor)}"
        for name, change in changes
        if change and abs(change) >= least
    ]
    both = f"{format_ns(parts.a_ns)} in A, {format_ns(parts.b_ns)} in B"
    if not parts.difference_ns and not changed:
        return f"No difference of the step: {both}."
    return f"{_signed_value(parts.difference_ns, factor)} {unit} a step: {', '.join(changed)} ({both})."


def _signed_value(nanoseconds: int, factor: int) -> str:
    value = nanoseconds / factor
    digits = 0 if abs(value) >= 100 or factor == 1 else 1 if abs(value) >= 10 else 2
    text = f"{abs(value):,.{digits}f}"
    sign = "-" if value < 0 else "+"
    return f"{sign}{text}" if any(character in "123456789" for character in text) else "±0"


def waterfall_lines(parts: Waterfall, width: int) -> Iterator[str]:
    """Yield the waterfall for a terminal of ``width`` characters: a line for each side and for each part.

    A part that takes more is drawn in full blocks, one that takes less in light ones; each begins where the
    one before it ends.
    """
    factor, unit = time_unit(max(map(abs, (parts.difference_ns, *parts.parts.values()))))
    named = {"A": format_ns(parts.a_ns)}
    named |= {name: f"{_signed_value(change, factor)} {unit}" for name, change in parts.parts.items()}
    named["B"] = format_ns(parts.b_ns)
    label, value = (max(map(len, texts)) for texts in (named, named.values()))
    room = min(_MAX_BAR, width - label - value - 6)
    bars = _bars(list(parts.parts.values()), room) if room >= _MIN_BAR else [""] * len(parts.parts)
    for (name, text), bar in zip(named.items(), ["", *bars, ""], strict=True):
        yield f"  {name:{label}}  {text:>{value}}  {bar}".rstrip()


def _bars(changes: Sequence[int], room: int) -> list[str]:
    levels = [0]
    for change in changes:
        levels.append(levels[-1] + change)
    low, span = min(levels), max(levels) - min(levels) or 1
    places = [round((level - low) * room / span) for level in levels]
    bars = []
    for before, after, change in zip(places, places[1:], changes, strict=False):
        length = max(abs(after - before), 1 if change else 0)
        bars.append(
            " " * min(before, after, room - length) + (_UP_BARS if change > 0 else _DOWN_BARS) * length
        )
    return bars
