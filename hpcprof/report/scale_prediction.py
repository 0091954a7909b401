"""Predictions of the step on other ranks, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table

from hpcprof.common.units import counted, format_ns, listed

if TYPE_CHECKING:
    from hpcprof.analysis.predict.pipeline import PipelinePrediction
    from hpcprof.analysis.predict.scale import ScalePrediction
    from hpcprof.results.across.predictions import KeptPrediction

_PARTS = {
    "compute": "computing",
    "communication": "communication",
    "wait_for_peer": "waiting",
    "other": "delays between operations",
}
"""The parts of a predicted step in words: computing alone, and what each of the others adds."""


def scale_text(
    curve: Sequence[ScalePrediction], notes: Sequence[str], checks: Sequence[KeptPrediction]
) -> RenderableType:
    """Return the predictions of a run for a terminal: a table, what limits, and what is not modelled."""
    first, last = curve[0], curve[-1]
    table = Table(box=None, pad_edge=False)
    for name in ("Ranks", "Step", "From", "To", "Efficiency", "Unchanged", "a + b log2 p"):
        table.add_column(name, justify="right")
    for scale_prediction in curve:
        times = (scale_prediction.step.value, scale_prediction.step.low, scale_prediction.step.high)
        table.add_row(
            f"{scale_prediction.ranks:,}",
            *map(format_ns, times),
            f"{scale_prediction.efficiency_pct:.1f} %",
            *(format_ns(scale_prediction.baselines[name]) for name in ("unchanged", "log2")),
        )
    mesh = ", ".join(f"{name} {size:,}" for name, size in last.mesh.items())
    sentences = [
        f"On {counted(first.measured_ranks, 'rank')} a step takes {format_ns(first.measured_ns)}, without "
        "the profiler's share where that is known (the model's replay of it is "
        f"{abs(first.replay_error_pct):.1f} % off); {first.scaling} scaling.",
        f"Mesh on {counted(last.ranks, 'rank')}: {mesh}. Network: from {_NETWORK_SOURCES[last.network]}.",
    ]
    compute, *added = (format_ns(last.account[f"{part}_ns"]) for part in _PARTS)
    grows = f"{_PARTS[last.limits]} grows most"
    if last.limits == "compute":
        grows = "no part but computing grows by more than 1 % of the step"
    beyond = ", ".join(f"{name} {time}" for name, time in zip([*_PARTS.values()][1:], added, strict=True))
    limits = f"On {counted(last.ranks, 'rank')}, {grows}: computing takes {compute}, and beyond it {beyond}"
    hours = f"1,000 steps take {last.node_hours_per_1000_steps:.3g} node-hours."
    guesses = "Two naive guesses stand beside: the measured step, and a line over the logarithm of the ranks."
    sentences += [guesses, f"{limits}. {hours}", *notes, score_text(checks)]
    sentences.append(f"Not modelled: {listed(last.not_modelled, len(last.not_modelled), '; ')}.")
    return Group(*sentences[:2], "", table, "", *filter(None, sentences[2:]))


_NETWORK_SOURCES = {
    "site": "the site's measurements",
    "run": "the run's own communication",
    "literature": "start values of the literature, as the run has too few sizes (see study network)",
}


def pipeline_text(prediction: PipelinePrediction) -> str:
    """Return the prediction of a pipeline as sentences."""
    point = prediction
    chunks = f", {counted(point.chunks, 'chunk')} each" if point.chunks > 1 else ""
    batches = f"{point.microbatches:,} microbatch{'es' if point.microbatches > 1 else ''}"
    return (
        f"{point.schedule} on {counted(point.stages, 'stage')}{chunks}, {batches}"
        f" ({point.ranks:,} ranks): {format_ns(point.value)} a step, from {format_ns(point.low)} to "
        f"{format_ns(point.high)} in 90 %.\n"
        f"Bubbles: {point.bubble_pct:.1f} % of a stage's time between the first and the last block.\n"
        f"Measured: {format_ns(point.measured_ns)} a step; rebuilt from its blocks with an error of "
        f"{point.rebuilt_error_pct:+.1f} %.\n"
        f"Not modelled: {listed(point.not_modelled, len(point.not_modelled), '; ')}."
    )


def score_text(checks: Sequence[KeptPrediction]) -> str:
    """Return a sentence about how earlier predictions did."""
    scored = [check for check in checks if check.beats_both is not None]
    if not scored:
        return "No prediction of this run has been checked yet (hpcprof predict --check RUN)."
    wins = sum(bool(score.beats_both) for score in scored)
    how = "all" if wins == len(scored) else f"{wins} of {len(scored)}"
    doubt = "" if wins == len(scored) else ": the prediction does not beat both baselines"
    return f"{how.capitalize()} checked predictions of this run were better than both baselines{doubt}."


KEPT_COLUMNS = ("Run", "From", "To", "Predicted", "Measured", "Error", "Unchanged", "a + b log2 p")


def kept_cells(prediction: KeptPrediction) -> list[str]:
    """Return the cells of a kept prediction, with its score and those of the baselines."""
    actual = prediction.actual

    def error(value: int) -> str:
        return "" if actual is None else f"{100 * (value / actual - 1):+.1f} %"

    return [
        prediction.run,
        f"{prediction.measured_ranks:,}",
        f"{prediction.ranks:,}",
        f"{format_ns(prediction.value)} ({format_ns(prediction.low)} to {format_ns(prediction.high)})",
        "" if actual is None else format_ns(actual),
        *map(error, (prediction.value, prediction.unchanged, prediction.log2)),
    ]
