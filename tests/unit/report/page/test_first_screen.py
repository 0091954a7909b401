"""The first screen of a run's page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explanation import Finding
from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.report.contents import Contents
from hpcprof.report.page.first_screen import costliest, first_screen
from hpcprof.runs.directory import Run
from tests.unit.explanations import explained, finding

ACCOUNT = AnalysisTable(
    {
        "rank": [0, 0, 0, 1, 1, 1],
        "step": [0, 1, 2, 0, 1, 2],
        "wall_ns": [900, 100, 110, 900, 110, 100],
        "compute_ns": [60, 60, 70, 60, 90, 80],
        "exposed_comm_ns": [10, 10, 10, 10, 10, 10],
        "wait_for_peer_ns": [0, 20, 20, None, 0, 0],
        "exposed_mem_ns": [0, 0, 0, 0, 0, 0],
        "idle_ns": [830, 10, 10, 830, 10, 10],
    }
)


def contents(*findings: Finding) -> Contents:
    run = Run("r", Path("r"))
    made = Contents(run, None, [], {}, {"step_account": ACCOUNT}, [], [], lambda *options: options[-1])
    return replace(made, explanation=explained(*findings))


@pytest.mark.parametrize(
    ("cause", "ranks", "place"),
    [
        (Cause.LATE_RANK_GPU, (1,), (1, 1)),
        (Cause.STEP_SPIKES, (0,), (0, 2)),
        (Cause.HOST_WORK, (0, 1), (0, 1)),
    ],
)
def test_a_finding_is_shown_where_it_costs_most_but_not_in_the_first_step(
    cause: Cause, ranks: tuple[int, ...], place: tuple[int, int]
) -> None:
    assert costliest(replace(finding(13, cause=cause), ranks=ranks), contents()) == place


def test_a_finding_is_shown_in_a_step_that_the_timeline_holds() -> None:
    one = replace(finding(13, cause=Cause.LATE_RANK_GPU), ranks=(1,))
    assert costliest(one, contents(), {(0, 1), (1, 2)}) == (1, 2)
    assert costliest(one, contents(), {(0, 1)}) == (None, None)
    assert costliest(replace(one, steps=(2,)), contents()) == (1, 2)


def test_a_title_of_steps_without_a_place_has_one_colon() -> None:
    drift = replace(finding(13, cause=Cause.STEP_DRIFT), where="whole capture", steps=(3, 4), ranks=())
    (card,) = first_screen(contents(drift)).cards
    assert card.title == "The step time changes during the capture: in steps 3 to 4 only"


def test_the_first_screen_refers_to_the_tables_behind_it() -> None:
    screen = first_screen(replace(contents(finding(13)), analyses={}))
    assert (screen.tables(), screen.accounts) == (["idle_causes"], [])
    assert screen.cards[0].rank is None


def test_a_saving_that_cannot_be_estimated_is_said() -> None:
    screen = first_screen(replace(contents(finding(None)), analyses={}))
    assert screen.cards[0].saving == "cost unknown"
