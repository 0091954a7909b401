"""The steps of a run that figures count."""

import pytest

from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.steps.step_set import COUNTED, StepRule, StepSet, run_steps

ROW = {"steps": 8, "counted_steps": 6, "once_steps": 1}


@pytest.mark.parametrize(
    ("analysis", "words"),
    [
        ("step_times", "10 steps"),
        ("steps_summary", "8 of 10 steps (without 2 that only some ranks have)"),
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
    assert str(run_steps(ROW, every=10).chosen(rules)) == words


def test_the_number_that_counts_is_that_of_the_elapsed_time() -> None:
    assert run_steps(ROW).chosen(COUNTED).count == ROW["counted_steps"]


def test_an_earlier_store_tells_no_reasons() -> None:
    assert run_steps({"steps": 8}).chosen(COUNTED) == StepSet(8)
    assert run_steps({"steps": 8}, every=9).chosen(COUNTED) == StepSet(9, ((StepRule.COMMON, 1),))
