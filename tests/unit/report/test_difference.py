"""The difference of the step in words."""

from __future__ import annotations

from hpcprof.report.comparison import Waterfall, in_a_sentence, waterfall, waterfall_lines

FOUND = Waterfall(
    5_300_000,
    5_777_000,
    {"compute": 90_000, "exposed communication": 489_000, "exposed copies": 0, "idle": -102_000},
)


def test_the_sentence_has_one_unit_and_the_largest_parts_first() -> None:
    assert in_a_sentence(FOUND) == (
        "+477 µs a step: exposed communication +489, idle -102, compute +90.0 (5.300 ms in A, 5.777 ms in B)."
    )


def test_equal_steps_have_a_sentence_too() -> None:
    assert (
        in_a_sentence(Waterfall(5_000, 5_000, {"compute": 0}))
        == "No difference of the step: 5.000 µs in A, 5.000 µs in B."
    )


def test_parts_that_cancel_out_are_told() -> None:
    found = in_a_sentence(Waterfall(2_000, 2_000, {"compute": 500, "idle": -500}))
    assert found.startswith("±0 ns a step: compute +500, idle -500")


def test_each_bar_begins_where_the_one_before_it_ends() -> None:
    lines = list(waterfall_lines(FOUND, 80))
    assert lines[0].split() == ["A", "5.300", "ms"]
    assert lines[-1].split() == ["B", "5.777", "ms"]
    compute, communication, copies, idle = lines[1:-1]
    assert "+90.0 µs" in compute and "±0 µs" in copies
    assert compute.rindex("█") + 1 == communication.index("█")
    assert communication.rindex("█") == idle.rindex("░")
    assert not {"█", "░"} & set(copies)
    assert max(map(len, lines)) <= 80


def test_a_narrow_terminal_has_figures_without_bars() -> None:
    lines = list(waterfall_lines(FOUND, 40))
    assert max(map(len, lines)) <= 40
    assert "+489 µs" in lines[2]


def test_rows_without_the_step_have_no_waterfall() -> None:
    assert waterfall([]) is None
