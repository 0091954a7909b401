"""The steps of a run that figures count."""

import pytest

from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.steps.step_set import COUNTED, StepRule, StepSet, step_set

ROW = {"steps": 8, "counted_steps": 6, "once_steps": 1}
COUNTS = {StepRule.KNOWN_LATENESS: 7, StepRule.REPLAYED: 4}


@pytest.mark.parametrize(
    ("analysis", "words"),
    [
        ("step_times", "10 steps"),
        ("steps_summary", "8 of 10 steps (without 2 that only some ranks have)"),
        ("skew", "7 of 10 steps (without 3 in which lateness is unknown)"),
        ("critical_path", "4 of 10 steps (without 6 outside the replay)"),
        ("pop", "10 steps"),
        ("idle_causes", "9 of 10 steps (without 1 whose end is unknown)"),
        (
            "step_kinds",
            "6 of 10 steps (without 2 that only some ranks have and 1 whose end is unknown and "
            "1 that took long once)",
        ),
    ],
)
def test_each_table_of_steps_says_which_steps_of_the_run_it_counts(analysis: str, words: str) -> None:
    rules = ANALYSES[analysis].steps
    assert rules is not None
    assert str(step_set(ROW, rules, 10, COUNTS)) == words


def test_each_analysis_that_reads_steps_declares_which() -> None:
    assert not [
        name for name, one in ANALYSES.items() if one.events and one.events.steps and one.steps is None
    ]


def test_the_number_that_counts_is_that_of_the_elapsed_time() -> None:
    assert step_set(ROW, COUNTED).count == ROW["counted_steps"]


def test_an_earlier_store_tells_no_reasons() -> None:
    assert step_set({"steps": 8}, COUNTED) == StepSet(8)
    assert step_set({"steps": 8}, COUNTED, 9) == StepSet(9, ((StepRule.COMMON, 1),))
