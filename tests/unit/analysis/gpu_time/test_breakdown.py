"""Breakdown and overlap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.gpu_time.breakdown import breakdown, device_breakdown, kernel_classes, overlap
from hpcprof.profiles.timeline import Category, Timeline
from tests.unit.analysis.timelines import COMM, COMP, MEM, timeline

operations = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(0, 40),
        st.sampled_from([COMP, COMM, MEM]),
        st.just(0),
        st.just(0),
        st.integers(0, 1),
    ).filter(lambda row: row[0] <= row[1]),
    min_size=1,
    max_size=12,
)


@given(operations)
def test_the_parts_are_exclusive_and_add_up_to_the_span(rows: list[tuple[int, ...]]) -> None:
    expected = dict.fromkeys(("span", "compute", "exposed_comm", "exposed_mem", "idle"), 0)
    for device in {row[5] for row in rows}:
        own = [row for row in rows if row[5] == device]
        covered = {
            kind: {t for s, e, k, *_ in own if k == kind for t in range(s, e)} for kind in (COMP, COMM, MEM)
        }
        span = max(row[1] for row in own) - min(row[0] for row in own)
        expected["span"] += span
        expected["compute"] += len(covered[COMP])
        expected["exposed_comm"] += len(covered[COMM] - covered[COMP])
        expected["exposed_mem"] += len(covered[MEM] - covered[COMM] - covered[COMP])
        expected["idle"] += span - len(covered[COMP] | covered[COMM] | covered[MEM])
    row = breakdown(timeline(rows)).rows.iloc[0]
    assert {name: row[f"{name}_ns"] for name in expected} == expected
    assert row[["compute_ns", "exposed_comm_ns", "exposed_mem_ns", "idle_ns"]].sum() == row["span_ns"]


@given(operations)
def test_the_sets_of_classes_are_exclusive_and_add_up_to_the_busy_time(rows: list[tuple[int, ...]]) -> None:
    names = {COMP: "comp", COMM: "comm", MEM: "mem"}
    expected: dict[str, int] = {}
    for device in {row[5] for row in rows}:
        for t in range(41):
            running = {kind for s, e, kind, _, _, on in rows if on == device and s <= t < e}
            if running:
                name = "+".join(names[kind] for kind in (COMP, COMM, MEM) if kind in running)
                expected[name] = expected.get(name, 0) + 1
    found = kernel_classes(timeline(rows)).rows
    assert (dict(zip(found["classes"], found["ns"], strict=True)) if len(found) else {}) == expected


def test_percentages_have_two_decimals() -> None:
    row = breakdown(timeline([(0, 1, COMP), (2, 3, COMM)])).rows.iloc[0]
    assert (row["compute_pct"], row["exposed_comm_pct"], row["idle_pct"]) == (33.33, 33.33, 33.33)


def test_operations_that_take_no_time_have_no_percentages() -> None:
    outcome = breakdown(timeline([(5, 5, COMP)]))
    assert outcome.rows["span_ns"].tolist() == [0]
    assert outcome.rows["idle_pct"].tolist() == [None]
    assert outcome.reason == "the operations in rank00000.sqlite take no time"


def test_overlap_is_the_share_of_communication_beside_compute() -> None:
    rows = overlap(timeline([(0, 10, COMP), (5, 15, COMM), (6, 18, COMM), (30, 40, COMP)])).rows
    assert rows.to_dict("records") == [{"comm_ns": 13, "overlapped_ns": 5, "overlap_pct": 38.46}]


@given(operations)
def test_the_breakdown_by_device_is_that_of_its_operations_alone(rows: list[tuple[int, ...]]) -> None:
    found = device_breakdown(timeline(rows)).columns()
    assert found["device"] == sorted({row[5] for row in rows})
    for at, device in enumerate(found.pop("device")):
        alone = breakdown(timeline([row for row in rows if row[5] == device])).columns()
        assert {name: values[at] for name, values in found.items()} == {n: v[0] for n, v in alone.items()}


def test_compute_on_another_device_hides_no_communication() -> None:
    rows = overlap(timeline([(0, 10, COMP, 0, 0, 0), (0, 10, COMM, 0, 0, 1)])).rows
    assert rows["overlapped_ns"].tolist() == [0]


def test_without_communication_the_share_is_none_with_a_reason() -> None:
    outcome = overlap(timeline([(0, 10, COMP)]))
    assert outcome.rows.to_dict("records") == [{"comm_ns": 0, "overlapped_ns": 0, "overlap_pct": None}]
    assert outcome.reason == "no communication kernels in rank00000.sqlite"


def test_without_gpu_operations_there_is_no_row_and_a_reason() -> None:
    empty = timeline()
    assert overlap(empty).reason == "no CUDA kernels in rank00000.sqlite"
    assert len(overlap(empty).rows) == len(breakdown(empty).rows) == 0
    assert breakdown(empty).reason == "no CUDA kernels or memory operations in rank00000.sqlite"


def test_a_real_rank_hides_nothing_in_sequence_parallelism(sequence_parallel: Timeline) -> None:
    row = breakdown(sequence_parallel).rows.iloc[0]
    assert (row["span_ns"], row["compute_ns"], row["exposed_comm_ns"]) == (156423566, 124346099, 31250790)
    assert overlap(sequence_parallel).rows["overlap_pct"].tolist() == [0.0]


def test_a_fused_kernel_is_compute_and_communication_that_compute_hides() -> None:
    whole = timeline([(0, 40, COMP), (40, 100, Category.FUSED), (100, 120, COMM)])
    (parts,) = breakdown(whole).rows.to_dict("records")
    assert (parts["compute_ns"], parts["exposed_comm_ns"], parts["idle_ns"]) == (100, 20, 0)
    (hidden,) = overlap(whole).rows.to_dict("records")
    assert (hidden["comm_ns"], hidden["overlapped_ns"]) == (80, 60)
