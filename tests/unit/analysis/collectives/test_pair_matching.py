"""Sends and receives: which belong together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.collectives import pair_matching
from hpcprof.analysis.collectives.pair_matching import MatchedPairs, align_pairs
from hpcprof.analysis.collectives.per_rank import rank_collectives
from hpcprof.profiles.timeline import Floats, Ints
from tests.unit.analysis.simulated import Program, pipeline
from tests.unit.analysis.timelines import COMM, timeline

COLUMNS: dict[str, Any] = {"comm_id": "c", "bytes": 8, "fused": 1}
UNKNOWN = ("comm_ranks", "world_ranks", "step", "peer", "comm_peer")


def match_pairs(rows: pd.DataFrame) -> tuple[list[MatchedPairs], list[str]]:
    """Match rows of all ranks; ``rows`` of a pair are positions among them."""
    whole_world = set(rows["world_ranks"].astype(float)) == {rows["rank"].nunique()}
    return pair_matching.match_pairs(rows.assign(row=np.arange(len(rows))), whole_world)


def table(*rows: dict[str, Any]) -> pd.DataFrame:
    """Return rows of ``rank_collectives``; their times follow from their numbers."""
    times = [{"start_ns": 10 * n, "end_ns": 10 * n + 5, "exposed_ns": 5, "seq": 0} for n in range(len(rows))]
    filled = [dict.fromkeys(UNKNOWN) | COLUMNS | one | row for one, row in zip(times, rows, strict=True)]
    found: pd.DataFrame = pd.DataFrame(filled, dtype=object)
    return found


def send(rank: int, **values: Any) -> dict[str, Any]:
    return {"rank": rank, "op": "Send", **values}


def recv(rank: int, **values: Any) -> dict[str, Any]:
    return {"rank": rank, "op": "Recv", **values}


def ends(rows: pd.DataFrame) -> list[tuple[int, int, list[list[int]]]]:
    """Return sender, receiver and rows of each matched pair."""
    return [(pair.sender, pair.receiver, pair.rows.tolist()) for pair in match_pairs(rows)[0]]


def test_the_nth_send_to_a_partner_is_its_nth_receive_from_the_sender() -> None:
    program = pipeline([1_000_000, 1_000_000, 1_000_000], steps=2, microbatches=3)
    rows = program.results()["rank_collectives"]
    found, problems = match_pairs(rows)
    assert problems == []
    assert [(pair.sender, pair.receiver) for pair in found] == [(0, 1), (1, 0), (1, 2), (2, 1)]
    for pair in found:
        assert pair.seq.tolist() == list(range(6))
        assert pair.message.tolist() == [8 << 20] * 6
        assert pair.step.tolist() == [[0, 0]] * 3 + [[1, 1]] * 3
        assert pair.alone.all()
        for column, (rank, op) in enumerate(((pair.sender, "Send"), (pair.receiver, "Recv"))):
            own = rows.iloc[pair.rows[:, column]]
            assert set(own["rank"]) == {rank}
            assert set(own["op"]) == {op}
            assert pair.start[:, column].tolist() == own["start_ns"].tolist()
            assert pair.end[:, column].tolist() == own["end_ns"].tolist()
        assert np.all(pair.end[:, 1] > pair.start[:, 0])


def test_messages_in_both_directions_and_communicators_are_kept_apart() -> None:
    rows = table(
        send(0, peer=1, comm_id="a"),
        recv(0, peer=1, comm_id="a"),
        send(0, peer=1, comm_id="b"),
        recv(1, peer=0, comm_id="b"),
        send(1, peer=0, comm_id="a"),
        recv(1, peer=0, comm_id="a"),
    )
    assert ends(rows) == [(0, 1, [[0, 5]]), (1, 0, [[4, 1]]), (0, 1, [[2, 3]])]


def test_a_partner_known_by_its_place_in_the_communicator_is_the_member_at_that_place() -> None:
    rows = table(
        send(3, comm_peer=0, comm_ranks=2, world_ranks=4),
        recv(1, comm_peer=1, comm_ranks=2, world_ranks=4),
    )
    assert ends(rows) == [(3, 1, [[0, 1]])]
    # A communicator of all ranks need not have rows of all of them.
    assert ends(rows.assign(comm_ranks=4, comm_peer=[1, 3])) == [(3, 1, [[0, 1]])]


def test_without_the_size_of_the_communicator_all_ranks_must_be_profiled() -> None:
    rows = table(send(0, comm_peer=1, world_ranks=2), recv(1, comm_peer=0, world_ranks=2))
    assert ends(rows) == [(0, 1, [[0, 1]])]
    assert match_pairs(rows.assign(world_ranks=3)) == (
        [],
        ["2 sends and receives of communicator c are not matched: it is unknown which ranks it has"],
    )


def test_of_two_ranks_each_is_the_partner_of_the_other_also_without_communicators() -> None:
    rows = table(send(0, comm_id=None, world_ranks=2), recv(1, comm_id=None, world_ranks=2))
    assert ends(rows) == [(0, 1, [[0, 1]])]
    # As text columns are read from a store.
    assert ends(rows.assign(comm_id="")) == [(0, 1, [[0, 1]])]


def test_three_ranks_without_recorded_partners_are_not_matched_and_a_sentence_says_so() -> None:
    program = pipeline([1_000_000] * 3, steps=1, microbatches=1, named=False)
    assert match_pairs(program.results()["rank_collectives"]) == (
        [],
        [
            "8 sends and receives of communicator p are not matched: their partners are not recorded, and it "
            "has 3 ranks"
        ],
    )


def test_a_send_more_than_receives_matches_none_of_the_pair() -> None:
    rows = table(send(0, peer=1), send(0, peer=1, seq=1), recv(1, peer=0))
    assert match_pairs(rows) == (
        [],
        [
            "messages from rank 0 to rank 1 in communicator c are not matched: rank 0 recorded 2 and rank 1 "
            "1 of them"
        ],
    )


def test_a_message_whose_kernel_one_side_lost_is_left_out() -> None:
    rows = table(send(0, peer=1), send(0, peer=1, seq=1), recv(1, peer=0, seq=1))
    assert ends(rows) == [(0, 1, [[1, 2]])]


def test_sizes_that_differ_are_no_match_and_unknown_ones_are() -> None:
    rows = table(send(0, peer=1), recv(1, peer=0, bytes=9))
    assert "their sizes differ" in match_pairs(rows)[1][0]
    rows = table(send(0, peer=1, bytes=None), recv(1, peer=0, bytes=9))
    assert match_pairs(rows)[0][0].message.tolist() == [9]


def test_kernels_whose_names_do_not_tell_sends_from_receives_are_not_matched() -> None:
    rows = table({"rank": 0, "op": "SendRecv"}, {"rank": 1, "op": "SendRecv"})
    assert match_pairs(rows) == (
        [],
        [
            "2 sends and receives are known by their kernels' names only, which do not tell one from the "
            "other: they are not matched"
        ],
    )


def test_messages_to_oneself_and_to_ranks_without_a_profile_are_left_out() -> None:
    rows = table(send(0, peer=0), recv(0, peer=0), send(0, peer=7))
    assert match_pairs(rows) == ([], [])


def test_a_kernel_with_several_partners_is_alone_with_none() -> None:
    same = {"start_ns": 0, "end_ns": 5, "fused": 2}
    rows = table(
        send(0, peer=1, **same), send(0, peer=2, **same), recv(1, peer=0), recv(2, peer=0), send(2, peer=1)
    )
    assert [pair.alone.tolist() for pair in match_pairs(rows)[0]] == [[[False, True]]] * 2


def test_calls_are_numbered_for_each_partner() -> None:
    asked = [(n, n + 2, "Send", "c", 8, 0, 2, peer) for n, peer in ((0, 1), (10, 2), (20, 1))]
    rows = rank_collectives(timeline([(n, n + 5, COMM, n + 1) for n in (0, 10, 20)], [], asked)).rows
    assert rows["peer"].tolist() == [1, 2, 1]
    assert rows["seq"].tolist() == [0, 0, 1]
    assert rows["comm_peer"].tolist() == [None] * 3


def test_collectives_alone_have_no_pairs() -> None:
    program = Program(2)
    program.collective("AllReduce")
    assert match_pairs(program.results()["rank_collectives"]) == ([], [])


@pytest.mark.parametrize("sizes", [np.linspace(5e3, 5e6, 640), np.geomspace(5e3, 5e6, 640)])
def test_transfers_that_become_longer_are_no_drift_of_a_clock(sizes: Floats) -> None:
    """A receive waits for each message, which takes longer and longer; both ranks have one clock."""
    send = np.cumsum(2 * sizes).astype(np.int64)
    received = send + sizes.astype(np.int64)
    clocks = align_pairs([messages(0, 1, send, received)])[0, 1]
    ahead = received - clocks.on_common_clock(1, received) - (send - clocks.on_common_clock(0, send))
    drifted = (ahead - ahead[0]) / np.maximum(received - received[0], 1)
    assert np.abs(drifted[64:]).max() <= 1.1e-3


def messages(sender: int, receiver: int, send: Ints, received: Ints) -> MatchedPairs:
    """Return messages whose sends take 1 us, and whose receives begin right after the last one."""
    count = len(send)
    nothing = np.zeros((count, 2), np.int64)
    begun = np.append(received[0] - 10_000, received[:-1] + 100)
    return MatchedPairs(
        comm_id=None,
        sender=sender,
        receiver=receiver,
        seq=np.arange(count),
        message=np.zeros(count),
        rows=nothing,
        start=np.column_stack([send, begun]),
        end=np.column_stack([send + 1_000, received]),
        exposed=nothing,
        step=nothing.astype(float),
        fused=nothing,
        alone=np.zeros((count, 2), bool),
    )
