"""The order of findings."""

from __future__ import annotations

from dataclasses import replace

from hpcprof.analysis.explain.arrangement import only_hidden, order_findings
from hpcprof.analysis.explain.cause import Cause
from tests.unit.explanations import MS, finding


def test_a_finding_of_low_confidence_counts_with_its_lower_bound() -> None:
    """A cost of 58.9 % of low confidence came after one of 7.4 %."""
    sure = replace(finding(7, cause=Cause.HOST_SYNC), confidence="medium")
    large = replace(finding(59, 30), confidence="low")
    doubtful = replace(finding(59, 1), confidence="low", where="backward")
    unknown = finding(None, 0, cause=Cause.CAPTURE_INCOMPLETE)
    assert order_findings([unknown, doubtful, sure, large], None, {}) == (large, sure, doubtful, unknown)


def test_a_cost_for_which_the_gpu_waits_is_not_told_to_be_hidden() -> None:
    """Rebuilt from a public export of OpenACC: the GPU waited for allocations in 13 % of a step."""
    waited, behind = finding(7), replace(finding(7), where="forward", evidence=())
    assert only_hidden([waited, behind, behind], [], 100 * MS) == [behind]
    assert only_hidden([waited], [], 1_000 * MS) == [waited]
    assert only_hidden([behind], [replace(behind, saving_ns=9)], 100 * MS) == []
