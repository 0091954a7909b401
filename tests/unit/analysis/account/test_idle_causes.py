"""The GPU is idle for what the next operation waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.account.idle_causes import idle_causes
from hpcprof.analysis.account.step_account import step_parts
from hpcprof.profiles.timeline import ApiCalls, Category, Timeline
from tests.unit.analysis.explain.programs import (
    MS,
    Host,
    Instruction,
    Launch,
    Place,
    Wait,
    inputs_of,
    simulate,
)
from tests.unit.analysis.timelines import COMP, MEM, timeline

STEP = [(0, 1000, "iteration", 0)]
MAIN, AUTOGRAD = 0, 1


def with_calls(profile: Timeline, calls: list[tuple[int, int, str, int]]) -> Timeline:
    """Add calls (start, end, name, thread) that launch nothing, and make launches last 5 ns."""
    names = list(dict.fromkeys(name for _, _, name, _ in calls))
    strings = np.array([*profile.strings, *names], object)
    first = len(profile.strings)
    own = profile.calls
    more = np.array([(start, end, thread) for start, end, _, thread in calls], np.int64).reshape(-1, 3)
    columns = {
        "start": more[:, 0],
        "end": more[:, 1],
        "thread": more[:, 2],
        "name": np.array([first + names.index(name) for _, _, name, _ in calls], np.int64),
        "process": np.zeros(len(calls), np.int64),
        "correlation": np.full(len(calls), 10_000) + np.arange(len(calls)),
    }
    launches = {"end": own.start + 5}
    joined = {
        name: np.concatenate((launches.get(name, getattr(own, name)), added))
        for name, added in columns.items()
    }
    return replace(profile, strings=strings, calls=ApiCalls(**joined))


def causes(profile: Timeline) -> dict[tuple[str, str | None, str | None], int]:
    rows = idle_causes(profile).rows
    return {
        (row["cause"], row["range"], row["api"]): row["idle_ns_per_step"] for row in rows.to_dict("records")
    }


def test_the_idle_time_of_a_step_is_that_of_the_account_of_the_steps_with_an_end() -> None:
    program: list[Instruction] = [Place("data", (Host(9 * MS),)), *[Launch(MS)] * 3, Wait()]
    tables = inputs_of(simulate([program], 5)).tables
    every = tables["step_kinds"].iloc[0]
    # The last step lacks the pause before a next one.
    assert every["idle_ns"] > 1.2 * tables["step_account"]["idle_ns"].mean()
    rows = tables["idle_causes"]
    assert rows["idle_ns_per_step"].sum() == pytest.approx(every["idle_ns"], abs=len(rows))


def test_no_idle_time_is_in_a_range_without_a_length() -> None:
    profile = timeline([(10, 100, COMP, 1), (330, 1000, COMP, 300)], [*STEP, (110, 110, "gc", 0)])
    assert {range_ for _, range_, _ in causes(profile)} == {"iteration"}


def test_a_gap_is_the_hosts_until_the_launch_call_begins_and_then_the_launchs() -> None:
    profile = timeline(
        [(10, 100, COMP, 1), (330, 1000, COMP, 300)],
        [*STEP, (90, 250, "data", 0), (260, 400, "forward", 0)],
    )
    assert causes(with_calls(profile, [(150, 200, "cudaEventQuery", MAIN)])) == {
        ("host", "data", None): 100,
        ("host", "data", "cudaEventQuery"): 50,
        ("host", "iteration", None): 10,
        ("host", "forward", None): 40,
        ("launch", "forward", "call"): 30,
    }


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        ("cudaStreamSynchronize_v3020", "sync"),
        ("cuCtxSynchronize", "sync"),
        ("cudaMemcpy", "copy"),
        ("cudaFree_v3020", "allocation"),
        ("cudaHostRegister", "allocation"),
    ],
)
def test_a_call_that_lasts_until_the_gpu_is_empty_is_the_cause_as_long_as_it_blocked(
    call: str, cause: str
) -> None:
    profile = timeline(
        [(10, 100, COMP, 1), (330, 1000, COMP, 300)],
        [*STEP, (20, 150, "loss", 0), (160, 400, "forward", 0)],
    )
    found = causes(with_calls(profile, [(30, 110, call, MAIN)]))
    assert found == {
        # It returns 10 after the GPU is empty, and had blocked its thread for 70 before.
        (cause, "loss", call.removesuffix("_v3020")): 80,
        ("host", "forward", None): 120,
        ("launch", "forward", "call"): 30,
    }


def test_a_long_launch_call_holds_the_host_up_until_it_returns() -> None:
    """Rebuilt from a public trace, whose first launch of a kernel took 6.5 ms to load its code."""
    step = [(0, 8 * MS, "iteration", 0)]
    profile = timeline([(1 * MS, 2 * MS, COMP, MS - 10), (7 * MS, 8 * MS, COMP, 2 * MS + 100)], step)
    name = profile.strings[profile.calls.name[0]]

    def lasting(end: int) -> dict[tuple[str, str | None, str | None], int]:
        calls = replace(profile.calls, end=np.array([MS - 5, end]))
        return causes(replace(profile, calls=calls))

    loading = lasting(7 * MS - 50)
    assert loading["launch", "iteration", name] == 50 + 10
    assert loading["host", "iteration", name] == 5 * MS - 150
    # An operation that begins inside its call was given to the GPU before.
    assert lasting(7 * MS + 50)["launch", "iteration", name] == 5 * MS - 100 + 10


def test_a_synchronization_that_ended_before_the_gpu_was_idle_is_not_the_cause() -> None:
    profile = timeline([(10, 100, COMP, 1), (330, 1000, COMP, 300)], STEP)
    found = causes(with_calls(profile, [(30, 90, "cudaStreamSynchronize", MAIN)]))
    assert found[("host", "iteration", None)] == 200


def test_an_asynchronous_allocation_holds_nothing_up() -> None:
    profile = timeline([(10, 100, COMP, 1), (330, 1000, COMP, 300)], STEP)
    found = causes(with_calls(profile, [(95, 110, "cudaMallocAsync", MAIN)]))
    assert found[("host", "iteration", "cudaMallocAsync")] == 10
    assert found[("host", "iteration", None)] == 190


def test_an_allocation_on_the_way_to_the_launch_is_told_apart() -> None:
    profile = timeline([(10, 100, COMP, 1), (330, 1000, COMP, 300)], STEP)
    found = causes(with_calls(profile, [(150, 250, "cudaMalloc", MAIN)]))
    assert found[("allocation", "iteration", "cudaMalloc")] == 100
    assert found[("host", "iteration", None)] == 100


def test_a_copy_that_blocks_its_caller_is_a_copy_while_it_is_staged() -> None:
    profile = timeline([(10, 100, COMP, 1), (330, 1000, MEM, 110)], STEP)
    calls = profile.calls
    blocking = replace(profile, calls=replace(calls, end=np.array([5, 990])))
    assert causes(blocking) == {("copy", "iteration", "call"): 220, ("host", "iteration", None): 10}


def test_an_operation_launched_long_before_that_waits_for_another_stream_is_a_dependency() -> None:
    operations = [(10, 100, COMP, 1, 0, 0, 1), (50, 600, COMP, 2, 0, 0, 2)]
    waiting = timeline([*operations, (640, 1000, COMP, 3, 0, 0, 1)], STEP)
    following = timeline([*operations, (640, 1000, COMP, 3, 0, 0, 2)], STEP)
    # No operation was launched on an idle GPU, so the usual lag of 10 µs does not fit into this profile.
    scaled = [
        replace(one, kernels=replace(one.kernels, start=one.kernels.start * 1000, end=one.kernels.end * 1000))
        for one in (waiting, following)
    ]
    longer = [
        replace(one, ranges=replace(one.ranges, start=one.ranges.start * 1000, end=one.ranges.end * 1000))
        for one in scaled
    ]
    assert [next(iter(causes(one)))[0] for one in longer] == ["dependency", "launch"]


def test_a_thread_without_ranges_is_where_the_thread_that_marks_the_steps_is() -> None:
    profile = timeline(
        [(10, 100, COMP, 1, MAIN), (330, 1000, COMP, 300, AUTOGRAD)], [*STEP, (90, 500, "backward", MAIN)]
    )
    assert causes(profile) == {("host", "backward", None): 200, ("launch", "backward", "call"): 30}


def test_idle_time_in_the_last_step_alone_which_has_no_end_is_said() -> None:
    profile = timeline([(0, 1000, COMP, 0), (1000, 1100, COMP, 1000)], [*STEP, (1000, 2000, "iteration", 0)])
    found = idle_causes(profile)
    assert (len(found), found.reason) == (0, "no step that ends has idle time")


def test_an_operation_of_unknown_launch_and_the_end_of_the_last_step_are_told_apart() -> None:
    profile = timeline([(10, 100, COMP, 1), (330, 800, COMP, None)], [*STEP, (700, 900, "log", 0)])
    assert causes(profile) == {
        ("unknown", "iteration", None): 230,
        ("host", "log", None): 100,
        ("host", "iteration", None): 100,
    }


@given(
    st.lists(
        st.tuples(
            st.integers(0, 900),
            st.integers(1, 80),
            st.sampled_from(Category),
            st.none() | st.integers(0, 900),
            st.integers(0, 1),
            st.just(0),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=15,
    ),
    st.lists(
        st.tuples(
            st.integers(0, 900),
            st.integers(0, 100),
            st.sampled_from(["cudaStreamSynchronize", "cudaMalloc", "cudaMemcpy", "cudaEventQuery"]),
            st.integers(0, 1),
        ),
        max_size=8,
    ),
    st.lists(
        st.tuples(st.integers(0, 900), st.integers(0, 300), st.sampled_from(["a", "b"]), st.integers(0, 1)),
        max_size=6,
    ),
)
def test_the_causes_add_up_to_the_idle_time(
    operations: list[tuple[Any, ...]],
    calls: list[tuple[int, int, str, int]],
    ranges: list[tuple[int, int, str, int]],
) -> None:
    profile = with_calls(
        timeline(
            [(start, start + length, *rest) for start, length, *rest in operations],
            [*STEP, *((start, start + length, *rest) for start, length, *rest in ranges)],
        ),
        [(start, start + length, name, thread) for start, length, name, thread in calls],
    )
    idle = int(step_parts(profile).rows["idle_ns"].sum())
    assert sum(causes(profile).values()) == idle
