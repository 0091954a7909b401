"""Rank selection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.common.errors import UsageError
from hpcprof.runs.rank_selection import rank_spans, select_ranks


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("all", list(range(12))),
        ("none", []),
        ("0,4-7", [0, 4, 5, 6, 7]),
        ("5,5,3", [3, 5]),
        ("local=0", [0, 4, 8]),
        ("nodes=0-1", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("nodes=0,2", [0, 1, 2, 3, 8, 9, 10, 11]),
        ("every=5", [0, 5, 10]),
        ("local=0,nodes=0-1", [0, 4]),
        ("nodes=1,2,local=1,3", [5, 7, 9, 11]),
    ],
)
def test_a_selection_names_these_ranks_of_three_nodes_with_four_ranks(text: str, ranks: list[int]) -> None:
    assert select_ranks(text, nodes=3, ranks_per_node=4) == ranks


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0,",
        "a",
        "local",
        "local=",
        "every=0",
        "node=1",
        "7-4",
        "0,7-4",
        "0 1",
        "-1",
        pytest.param("9" * 5000, id="too long"),
        "every=²",
    ],
)
def test_what_is_no_selection_is_refused_with_the_value_named(text: str) -> None:
    with pytest.raises(UsageError, match="--profile-ranks"):
        select_ranks(text, nodes=3, ranks_per_node=4)


def test_a_rank_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="no rank 9; the job has rank 0 alone"):
        select_ranks("9", 1, 1)
    with pytest.raises(UsageError, match="no rank 12; the job has ranks 0 to 11"):
        select_ranks("0,12", nodes=3, ranks_per_node=4)


def test_conditions_that_no_rank_meets_are_refused() -> None:
    with pytest.raises(UsageError, match="selects none of the job's 3 x 4 ranks"):
        select_ranks("local=4,nodes=0", nodes=3, ranks_per_node=4)


@pytest.mark.parametrize("text", ["0-99999999999999", "nodes=3-99999999999999", "local=4-99999999999999"])
def test_a_span_of_any_length_costs_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="99999999999999"):
        select_ranks(text, nodes=3, ranks_per_node=4)


@given(st.sets(st.integers(0, 200)))
def test_compressed_ranks_are_the_same_ranks(ranks: set[int]) -> None:
    spans = rank_spans(ranks)
    if ranks:
        assert select_ranks(",".join(spans), nodes=1, ranks_per_node=201) == sorted(ranks)
    else:
        assert spans == []
