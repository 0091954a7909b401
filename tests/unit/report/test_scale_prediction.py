"""Predictions of the step on other ranks, as text."""

from dataclasses import replace

from rich.console import Console

from hpcprof.analysis.predict.scale import Interval, ScalePrediction
from hpcprof.report.scale_prediction import scale_text

MS = 1_000_000


def test_a_prediction_says_what_each_part_adds_to_computing_and_which_grows() -> None:
    parts = {
        "compute_ns": 60 * MS,
        "communication_ns": 20 * MS,
        "wait_for_peer_ns": 8 * MS,
        "other_ns": 2 * MS,
    }
    grown = ScalePrediction(
        ranks=16,
        nodes=2,
        scaling="weak",
        step=Interval(90 * MS, 80 * MS, 99 * MS),
        account=parts,
        limits="communication",
        efficiency_pct=90.0,
        node_hours_per_1000_steps=0.05,
        baselines={"unchanged": 80 * MS, "log2": 95 * MS},
        mesh={"data": 16},
        network="run",
        measured_ranks=8,
        measured_ns=81 * MS,
        replay_error_pct=-1.0,
    )
    console = Console(width=1000)

    def text(prediction: ScalePrediction) -> str:
        with console.capture() as captured:
            console.print(scale_text([prediction], [], []))
        return captured.get()

    assert (
        "On 16 ranks, communication grows most: computing takes 60.00 ms, and beyond it communication "
        "20.00 ms, waiting 8.000 ms, delays between operations 2.000 ms. "
    ) in text(grown)
    assert "the measured step, and a line over the logarithm of the ranks" in text(grown)
    assert "no part but computing grows by more than 1 % of the step" in text(
        replace(grown, limits="compute")
    )
