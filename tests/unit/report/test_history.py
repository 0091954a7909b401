"""The history of a metric in words."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from hpcprof.report.history import (
    COLUMNS,
    in_words,
    left_out,
    plain_rows,
    regression_sentence,
    sparkline,
    table,
    told_apart,
)
from hpcprof.results.across.history import History, HistoryPoint

TIME = datetime(2026, 11, 22, tzinfo=timezone.utc)
HISTORY = History(
    "step_ns",
    "train.py, 2 ranks",
    (
        HistoryPoint("r1", TIME, 1e6, ("base",), "abc"),
        HistoryPoint("r2", None, 1.05e6, (), "def\x1b", 0.9999, 5.0),
    ),
)


def test_a_change_is_a_sentence_with_its_probability_and_its_commit() -> None:
    assert list(in_words(HISTORY)) == [
        "train.py, 2 ranks: step of 2 runs, from 1.000 ms to 1.050 ms, now 1.050 ms.",
        "+5.0 % (probability 99.9 %) from r2 on, commit def\\x1b.",
        "If you look after each of 100 runs, about 2 % of histories without a change get a mark where runs "
        "vary normally, 10 % with heavy tails, and half with skewed times.",
    ]


def test_other_clocks_are_said_first() -> None:
    clocks = "the GPUs ran at 1,410 MHz since then and at 1,755 MHz before"
    slower = replace(HISTORY, points=(HISTORY.points[0], replace(HISTORY.points[1], clocks=clocks)))
    assert [*in_words(slower)][
        1
    ] == f"T{clocks[1:]}. +5.0 % (probability 99.9 %) from r2 on, commit def\\x1b."
    assert regression_sentence([slower]) == f"T{clocks[1:]}. Regression: step from r2 on."
    assert dict(zip(COLUMNS, plain_rows([slower])[1], strict=True))["clocks"] == clocks


def test_what_tells_series_apart_is_one_sentence() -> None:
    def series(ranks: str, batch: str) -> History:
        return History("step_ns", "train", HISTORY.points[:1], {"ranks": ranks, "batch\x1b": batch})

    found = [series("2", "8"), series("4", "8"), *(series("2", str(size)) for size in (16, 32, 64, 128))]
    assert told_apart(found) == (
        "6 series, because runs differ in ranks (2, 4); batch\\x1b (8, 16, 32, 64 and 1 more)."
    )
    assert told_apart([HISTORY]) == ""
    assert list(in_words(found[0])) == ["train: step of one run, 1.000 ms."]


def test_runs_without_the_metric_are_named() -> None:
    assert left_out([], "step_ns") == ""
    assert left_out(["r1"], "step_ns") == "Left out: 1 run without step, failed or not collected (r1)."


def test_a_line_of_bars_spans_the_values_and_keeps_the_last_ones() -> None:
    assert sparkline([1, 2, 3], 10) == "▁▅█"
    assert sparkline([9, 1, 2, 3], 3) == "▁▅█"
    assert sparkline([1, 1], 10) == "▁▁"


def test_rows_have_the_columns_with_times_in_utc() -> None:
    rows = plain_rows([HISTORY])
    assert {len(row) for row in rows} == {len(COLUMNS)}
    assert rows[0][2] == "2026-11-22T00:00:00+00:00"
    assert table(HISTORY)["change"] == ["", "+5.0 % (probability 99.9 %)"]
