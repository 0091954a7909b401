"""Differences of kernels, collectives and idle time between two runs, by name."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.analysis.comparison.kernel_difference import (
    LaunchSum,
    collective_difference,
    effects,
    idle_difference,
    kernel_difference,
)
from hpcprof.analysis.framework.run_data import RunData
from tests.unit.analysis.several import run

Row = dict[str, Any]


def kernel(name: str, count: int, total: int, grid: str = "1 1 1", rank: int = 0) -> Row:
    return {
        **{"rank": rank, "name": name, "instances": count, "total_ns": total, "class": "comp"},
        **{"grid": grid, "block": "128 1 1"},
    }


def stepped(name: str, steps: int, **tables: list[dict[str, object]]) -> RunData:
    """Build a run with steps on every rank that has rows."""
    ranks = {row["rank"] for rows in tables.values() for row in rows}
    times: list[dict[str, object]] = [{"rank": rank, "step": i} for rank in ranks for i in range(steps)]
    return run(name, tables={**tables, "step_times": times})


def kernels(a: list[Row], b: list[Row], steps: int = 2) -> dict[str, dict[Hashable, Any]]:
    sides = [stepped(name, steps, kernels_by_shape=rows) for name, rows in (("a", a), ("b", b))]
    rows = kernel_difference([sides[1]], [sides[0]]).rows.to_dict("records")
    return {row["name"]: row for row in rows}


launches = st.builds(
    lambda count, time, steps: LaunchSum(count / steps, time / steps),
    st.integers(1, 10**6),
    st.integers(0, 10**13),
    st.integers(1, 10**4),
)
shapes: st.SearchStrategy[dict[Any, LaunchSum]] = st.dictionaries(st.sampled_from("stuvw"), launches)


@settings(max_examples=40, deadline=None)
@given(shapes, shapes)
def test_the_effects_add_up_to_the_difference(a: dict[Any, LaunchSum], b: dict[Any, LaunchSum]) -> None:
    found = effects(a, b)
    assert found.by_count + found.by_shape + found.by_duration == found.b - found.a


def test_the_effects_of_a_case_done_by_hand() -> None:
    # Before: 10 of 100 ns and 10 of 300 ns, 200 ns in the mean. After: 10 of 110, 30 of 300, 5 of 1000 (new).
    a: dict[Any, LaunchSum] = {"small": LaunchSum(10, 1000), "large": LaunchSum(10, 3000)}
    b: dict[Any, LaunchSum] = {
        "small": LaunchSum(10, 1100),
        "large": LaunchSum(30, 9000),
        "huge": LaunchSum(5, 5000),
    }
    found = effects(a, b)
    assert (found.a, found.b) == (4000, 15100)
    # 25 more at 200 ns; 45 at the old mean would be 9000, the new mix at old durations is 15000.
    assert (found.by_count, found.by_shape, found.by_duration) == (5000, 6000, 100)


def test_another_grid_alone_is_an_effect_of_shape_and_a_slower_clock_one_of_duration() -> None:
    found = kernels(
        [kernel("gemm", 4, 400), kernel("relu", 4, 400)],
        [kernel("gemm", 4, 800, grid="2 1 1"), kernel("relu", 4, 440)],
    )
    assert found["gemm"]["shape_effect_ns"] == found["gemm"]["difference_ns"] == 200
    assert found["relu"]["duration_effect_ns"] == found["relu"]["difference_ns"] == 20
    assert found["relu"]["change"] == "changed"


def test_a_new_and_a_gone_kernel_that_have_nothing_in_common_stay_apart() -> None:
    found = kernels([kernel("softmax_warp_forward", 4, 400)], [kernel("radixSort", 40, 8000)])
    assert {name: row["change"] for name, row in found.items()} == {
        "softmax_warp_forward": "gone",
        "radixSort": "new",
    }
    assert found["radixSort"]["count_effect_ns"] == 4000


def test_a_renamed_kernel_is_one_row_with_its_former_name_and_the_score() -> None:
    before, after = "sm80_xmma_gemm_f32_tn_128x128", "sm80_xmma_gemm_f32_tn_128x64"
    found = kernels(
        [kernel(before, 4, 400), kernel("relu", 1, 1)], [kernel(after, 4, 300), kernel("relu", 1, 1)]
    )
    row = found[after]
    assert (row["change"], row["was"], row["difference_ns"]) == ("renamed", before, -50)
    # 40 % for 11 of 12 words, 20 % for the count, 20 % for the shape, 15 % for the duration.
    assert 85 <= row["similarity_pct"] <= 95
    assert before not in found


def test_of_several_candidates_the_most_alike_was_renamed() -> None:
    found = kernels(
        [kernel("gemm_f32_128x128_tn", 4, 400), kernel("gemm_f32_64x64_nn", 40, 400)],
        [kernel("gemm_f32_64x64_nt", 40, 440), kernel("gemm_f32_128x256_tn", 4, 420)],
    )
    assert {name: row["was"] for name, row in found.items()} == {
        "gemm_f32_64x64_nt": "gemm_f32_64x64_nn",
        "gemm_f32_128x256_tn": "gemm_f32_128x128_tn",
    }


def test_times_are_per_step_and_rank_and_the_largest_change_comes_first() -> None:
    a = [kernel("gemm", 8, 800, rank=rank) for rank in range(2)] + [kernel("relu", 2, 20)]
    b = [kernel("gemm", 8, 880, rank=rank) for rank in range(2)] + [kernel("relu", 2, 2020)]
    found = kernels(a, b, steps=4)
    assert list(found) == ["relu", "gemm"]
    assert (found["gemm"]["a_per_step"], found["gemm"]["a_ns"], found["gemm"]["b_ns"]) == (2.0, 200, 220)


def test_what_a_run_without_a_profile_launched_is_unknown_and_not_gone() -> None:
    profiled = stepped("a", 2, kernels_by_shape=[kernel("gemm", 8, 800)])
    for runs, against in (([run("b")], [profiled]), ([profiled, run("b")], [profiled])):
        outcome = kernel_difference(runs, against)
        assert not len(outcome)
        assert outcome.reason == "a run without a profile does not tell what it launched"


def test_without_steps_the_figures_are_those_of_whole_profiles() -> None:
    a, b = (run(name, tables={"kernels_by_shape": [kernel("gemm", 8, 800)]}) for name in "ab")
    outcome = kernel_difference([b], [a])
    assert outcome.rows["a_ns"].tolist() == [800]
    assert "those of whole profiles" in outcome.reason
    assert kernel_difference([run("b")], [run("a")]).reason == "no CUDA kernels on either side"


def collective(start: int, end: int, size: int | None, exposed: int = 0, part: int = 0) -> Row:
    return {
        **{"rank": 0, "op": "AllReduce", "bytes": size, "comm_ranks": 2, "part": part, "step": 0},
        **{"start_ns": start, "end_ns": end, "exposed_ns": exposed},
    }


def test_smaller_messages_are_an_effect_of_size_and_fused_ones_count_once() -> None:
    # Twice as many messages: of half the size, which take less; those of the old size take no longer.
    a = [collective(0, 100, 1 << 20, 50), collective(200, 300, 1 << 20), collective(200, 300, 8, part=1)]
    b = [collective(0, 100, 1 << 20, 90), *(collective(i, i + 60, 1 << 19) for i in (200, 300, 400))]
    sides = [stepped(name, 1, rank_collectives=rows) for name, rows in (("a", a), ("b", b))]
    (row,) = collective_difference([sides[1]], [sides[0]]).rows.to_dict("records")
    assert (row["op"], row["ranks"], row["a_per_step"], row["b_per_step"]) == ("AllReduce", 2, 2.0, 4.0)
    assert (row["difference_ns"], row["count_effect_ns"]) == (80, 200)
    assert (row["size_effect_ns"], row["duration_effect_ns"]) == (-120, 0)
    assert row["exposed_difference_ns"] == 40
    assert collective_difference([run("b")], [run("a")]).reason == "no collectives on either side"


def test_sizes_that_one_side_lacks_are_no_difference() -> None:
    """Rebuilt from one program under nsys, without NCCL's payloads, and under PyTorch's profiler."""
    unsized = [collective(0, 100, None) | {"comm_ranks": None} for _ in range(2)]
    sized = [collective(0, 150, size) for size in (1 << 20, 1 << 19)]
    sides = [stepped(name, 1, rank_collectives=rows) for name, rows in (("a", unsized), ("b", sized))]
    (row,) = collective_difference([sides[1]], [sides[0]]).rows.to_dict("records")
    assert (row["change"], row["ranks"], row["duration_effect_ns"]) == ("changed", None, 100)


def test_idle_time_is_the_mean_over_ranks_by_cause_range_and_call() -> None:
    def idle(rank: int, cause: str, time: int) -> Row:
        return {"rank": rank, "cause": cause, "range": "data", "api": None, "idle_ns_per_step": time}

    a = stepped("a", 1, idle_causes=[idle(0, "host", 10), idle(1, "host", 30), idle(0, "sync", 6)])
    b = stepped("b", 1, idle_causes=[idle(0, "host", 50), idle(1, "host", 50)])
    rows = idle_difference([b], [a]).rows
    assert rows[["cause", "a_ns", "b_ns", "difference_ns"]].to_numpy().tolist() == [
        ["host", 20, 50, 30],
        ["sync", 3, 0, -3],
    ]
    assert idle_difference([run("b")], [a]).reason == "the idle time of runs without steps is unknown"
