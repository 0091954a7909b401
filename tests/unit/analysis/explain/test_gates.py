"""The findings that let a check fail."""

from __future__ import annotations

import pytest

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explanation import CAUSES, NO_GPU, Explanation, NotJudged, StepSummary
from hpcprof.analysis.explain.gates import Gate, parse_gate
from hpcprof.common.errors import UsageError
from tests.unit.explanations import STEP, explained, finding


def test_a_gate_is_a_cause_with_or_without_a_percentage() -> None:
    assert parse_gate("host_sync") == Gate(Cause.HOST_SYNC)
    assert parse_gate("host_sync:2.5") == parse_gate("host_sync:2.5%") == Gate(Cause.HOST_SYNC, 2.5)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "unknown cause '' of --fail-on"),
        ("host_synk", "did you mean 'host_sync'"),
        ("host_sync:", "--fail-on host_sync:: '' must be a percentage between 0 and 100."),
        ("host_sync:-1", "'-1' must be"),
        ("host_sync:nan", "'nan' must be"),
        ("host_sync:101", "'101' must be"),
    ],
)
def test_what_is_no_gate_is_refused_with_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_gate(text)
    assert sentence in str(refused.value)


def test_without_a_percentage_every_finding_that_is_shown_breaks_the_gate() -> None:
    large, small, unknown = finding(9), finding(2), finding(None)
    other = finding(50, cause=Cause.HOST_SYNC)
    assert Gate(Cause.HOST_WORK).broken_by(explained(large, small, unknown, other)) == [large, unknown]


def test_with_a_percentage_the_savings_from_there_on_break_the_gate() -> None:
    large, small, unknown = finding(9), finding(2), finding(None)
    assert Gate(Cause.HOST_WORK, 9).broken_by(explained(large, small, unknown)) == [large]
    assert Gate(Cause.HOST_WORK, 2).broken_by(explained(large, small, unknown)) == [large, small]
    assert Gate(Cause.HOST_WORK, 9.1).broken_by(explained(large, small, unknown)) == []


def test_a_cause_that_could_not_be_judged_says_why() -> None:
    assert Gate(Cause.CONTENTION).unknown_in(explained()) == "one rank was profiled"
    assert Gate(Cause.HOST_WORK).unknown_in(explained()) == ""


def test_where_no_cause_could_be_judged_only_those_that_steps_show_are() -> None:
    def unknown(cause: Cause, reason: str, step: StepSummary = STEP) -> str:
        explanation = Explanation((), (), (NotJudged(CAUSES, reason),), step)
        return Gate(cause).unknown_in(explanation)

    causes = (Cause.HOST_SYNC, Cause.HOST_WORK)
    assert {unknown(cause, "not profiled") for cause in causes} == {"not profiled"}
    assert unknown(Cause.STEP_DRIFT, "not profiled") == unknown(Cause.BUSY_CORES, "not profiled") == ""
    assert unknown(Cause.BUSY_CORES, "not profiled", StepSummary(None, 0, 1, 0, None)) == "not profiled"
    assert (unknown(Cause.HOST_WORK, NO_GPU), unknown(Cause.HOST_SYNC, NO_GPU)) == ("", NO_GPU)
