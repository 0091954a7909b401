"""Messages between two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.analysis.collectives.per_rank import rank_collectives
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.operators.operators import operators
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import Timeline
from tests.unit.analysis.over_all_ranks import of_run, point_to_point
from tests.unit.analysis.simulated import JITTER, LAG, MESSAGE, Program, pipeline


def test_each_message_has_its_pair_size_latency_and_who_began_last() -> None:
    program = Program(2, ahead=[0, 10**9])
    for _ in range(3):
        program.compute(2_000_000, 1_000_000)
        program.message(0, 1)
        program.compute(1_000_000, 4_000_000)
        program.message(1, 0)
    outcome = point_to_point(program.results())
    assert outcome.reason == ""
    rows = outcome.frame
    assert rows["sender"].tolist() == [0, 1] * 3
    assert rows["receiver"].tolist() == [1, 0] * 3
    assert rows["seq"].tolist() == [0, 0, 1, 1, 2, 2]
    assert set(rows["bytes"]) == {8 << 20}
    assert set(rows["latency_ns"]) == {MESSAGE}
    assert rows["algbw_gbps"].tolist() == [round((8 << 20) / MESSAGE, 6)] * 6
    # Rank 0 computes for longer before it sends, and so does rank 1.
    assert rows["last_rank"].tolist() == [0, 1] * 3
    assert rows["spread_ns"][0] == pytest.approx(1_000_000, abs=LAG + JITTER)


def test_the_summary_has_a_row_for_each_pair_and_size() -> None:
    results = pipeline([500_000, 2_000_000], steps=3, microbatches=2).results()
    rows, summary = point_to_point(results).frame, of_run("point_to_point_summary", results).frame
    for name, table in (("point_to_point", rows), ("point_to_point_summary", summary)):
        assert table.columns.tolist() == [column.name for column in ANALYSES[name].columns]
    assert sorted(summary["sender"]) == [0, 1]
    assert summary["count"].tolist() == [6, 6]
    assert set(summary["bytes"]) == {8 << 20}
    assert [round(value) for value in summary["latency_p50_ns"]] == [
        round(rows[rows["sender"] == sender]["latency_ns"].median()) for sender in summary["sender"]
    ]


def test_messages_that_share_a_kernel_have_no_bandwidth() -> None:
    program = pipeline([500_000, 500_000], steps=3)
    for rank in program.ranks:
        rank.asked += list(rank.asked)
    outcome = point_to_point(program.results())
    assert set(outcome.frame["algbw_gbps"]) == {None}
    assert outcome.reason.startswith("48 messages share a kernel with others: ")


def test_without_aligned_clocks_nobody_is_last_and_a_sentence_says_so() -> None:
    program = Program(2)
    program.message(0, 1, comm=None)
    outcome = point_to_point(program.results())
    assert outcome.frame[["last_rank", "spread_ns"]].iloc[0].tolist() == [None, None]
    assert outcome.reason == (
        "communicators are unknown: all ranks are assumed to share one; the clocks of two ranks are aligned "
        "from 5 messages on, in both directions or with receives that wait; otherwise the last rank and the "
        "spread are unknown"
    )


def test_a_rank_without_a_profile_is_said() -> None:
    outcome = point_to_point(pipeline([500_000] * 3).results(without=[2]))
    assert set(outcome.frame["sender"]) == {0, 1}
    assert outcome.reason == "1 of 3 ranks have no profile"


def test_without_messages_there_is_no_row_and_a_sentence() -> None:
    program = Program(2)
    program.compute(10, 10)
    assert point_to_point(program.results()).reason == "no rank has sends or receives"
    program.collective("AllReduce")
    assert point_to_point(program.results()).reason == "no rank has sends or receives"


def test_messages_of_the_host_are_counted_by_partner_and_a_table_has_no_option_for_shapes(
    tmp_path: Path,
) -> None:
    table = tmp_path / "timers.csv"
    rows = [f"1,0,{kind},{kind},{10 * at},5,{peer}" for at, (kind, peer) in enumerate(_MESSAGES)]
    head = "rank,step,name,kind,start_ns,duration_ns,peer"
    table.write_text("\n".join([head, "1,0,f,compute,0,9,", *rows]))
    timeline = read_profile(table)
    assert isinstance(timeline, Timeline)
    assert list(rank_collectives(timeline).rows["seq"]) == [0, 0, 1, 0, 1]
    assert operators(timeline).reason == ""


_MESSAGES = [("send", 0), ("send", 2), ("send", 2), ("recv", 0), ("send", 0)]
