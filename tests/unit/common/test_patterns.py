"""Expressions of users: found anywhere, in a time that the expression cannot make long."""

from __future__ import annotations

import time

import pytest

from hpcprof.common.patterns import matches


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|aa)+$", r"(\w+\s?)+$", "(.*)(.*)(.*)!!", "(a*)*b"])
def test_nested_repetitions_end_at_once_on_long_names(pattern: str) -> None:
    begin = time.monotonic()
    assert matches(pattern, ["a" * 50_000 + "!"] * 20) == [False] * 20
    assert time.monotonic() - begin < 5


def test_an_expression_occurs_anywhere_in_a_text() -> None:
    names = ["sgemm_kernel", "gémm", "", "gem", "\udcff gemm"]
    assert matches("g[ée]mm", names) == [True, True, False, False, True]


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "(a{1000}){1000}", "a*+"])
def test_an_expression_that_needs_more_is_refused_without_a_text(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        matches(pattern, [])
