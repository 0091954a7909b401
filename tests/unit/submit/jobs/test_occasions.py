"""Occasions on which a job records some of its steps."""

from __future__ import annotations

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.job import parse_capture_when


@pytest.mark.parametrize(("text", "percent"), [("slow", 20), ("slow:5", 5), ("slow:250", 250), ("off", 0)])
def test_a_slowdown_has_a_percentage(text: str, percent: int) -> None:
    assert parse_capture_when(text) == percent


@pytest.mark.parametrize(
    "text", ["", "fast", "slow:", "slow:0", "slow:-5", "slow:1.5", "slow:99999", "slow:5%"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write slow, slow:PERCENT"):
        parse_capture_when(text)
