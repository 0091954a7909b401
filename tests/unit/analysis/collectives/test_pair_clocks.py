"""The clocks of ranks that send each other messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.collectives.pair_matching import (
    MatchedPairs,
    Messages,
    align_messages,
    align_pairs,
    sender_later,
)
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.readers.discovery import read_profile
from tests.unit.analysis.over_all_ranks import match_pairs
from tests.unit.analysis.simulated import JITTER, LAG, MESSAGE, Program, pipeline

DATA = Path(__file__).parents[3] / "data"
FORWARD = [1_000_000, 1_000_000, 1_000_000]


def pairs_of(program: Program) -> list[MatchedPairs]:
    return match_pairs(program.results()["rank_collectives"])[0]


def test_clocks_that_are_apart_and_drift_agree_within_half_the_delay_of_a_message() -> None:
    ahead, drift = [0, 10**12, -(5 * 10**9)], [0.0, 5e-6, -3e-6]
    plain, moved = pairs_of(pipeline(FORWARD)), pairs_of(pipeline(FORWARD, ahead=ahead, drift=drift))
    clocks = align_pairs(moved)
    assert list(clocks) == [(0, 1), (1, 2)]
    for clock in clocks.values():
        assert clock.uncertainty.max() < LAG + JITTER
    for pair, truth in zip(moved, plain, strict=True):
        apart = sender_later(pair, clocks[pair.ranks]) - (truth.start[:, 0] - truth.start[:, 1])
        assert np.abs(apart).max() < LAG + JITTER


def test_the_clocks_of_two_real_ranks_of_one_host_agree_within_a_microsecond() -> None:
    parts = []
    for rank in range(2):
        profile = read_profile(DATA / f"pipeline_rank{rank}.pt.trace.json.gz")
        parts.append(analyze_rank(ANALYSES["rank_collectives"], profile, rank).frame)
    (clock,) = align_pairs(match_pairs(pd.concat(parts, ignore_index=True))[0]).values()
    # A receive ends 13 us after its send, in both directions.
    assert clock.uncertainty.max() == pytest.approx(13_000, rel=0.05)
    assert abs(clock.zero[1] - clock.zero[0] + clock.offset[0, 1]) < 1000


def test_messages_that_wait_in_a_buffer_do_not_spoil_the_clocks() -> None:
    # Stage 1 is slow: most of the messages to it have arrived long before it receives them.
    (clock,) = align_pairs(pairs_of(pipeline([500_000, 2_000_000], ahead=[0, 777]))).values()
    assert clock.zero[1] - clock.zero[0] + clock.offset[0, 1] == pytest.approx(777, abs=LAG)


def test_a_drift_over_a_long_run_is_followed() -> None:
    drift = [0.0, 50e-6]
    program = pipeline([200_000, 200_000], steps=200, drift=drift)
    (clock,) = align_pairs(pairs_of(program)).values()
    assert np.ptp(clock.offset[:, 1]) > 20_000
    assert clock.uncertainty.max() < 3 * LAG


def test_one_direction_aligns_clocks_only_if_receives_waited() -> None:
    waiting, late = Program(2, ahead=[0, 5_000_000]), Program(2, ahead=[0, 5_000_000])
    for _ in range(8):
        waiting.compute(2_000_000, 10)
        waiting.message(0, 1)
        late.compute(10, 3_000_000)
        late.message(0, 1)
    (clock,) = align_pairs(pairs_of(waiting)).values()
    assert clock.zero[1] - clock.zero[0] + clock.offset[0, 1] == pytest.approx(5_000_000, abs=LAG + JITTER)
    assert clock.uncertainty.max() <= MESSAGE / 2 + JITTER
    assert align_pairs(pairs_of(late)) == {}


def test_the_uncertainty_of_one_direction_covers_how_much_messages_differ() -> None:
    program, rng = Program(2), np.random.default_rng(0)
    for _ in range(40):
        program.compute(2_000_000, 10)
        program.message(0, 1)
    (pair,) = pairs_of(program)
    # The call that receives also waits for something else.
    end = pair.end + np.column_stack([np.zeros(40, int), rng.integers(0, 3_000_000, 40)])
    (clock,) = align_pairs([replace(pair, end=end)]).values()
    assert 1_000_000 < clock.uncertainty[1] < 2_000_000


def test_a_receive_that_is_late_for_another_reason_is_no_wait_for_the_other_rank() -> None:
    """Both exchange data after work that takes the second rank 4 ms longer, in calls of some microseconds."""
    count, ahead = 20, 5_000_000
    begin = 20_000_000 * np.arange(count)[:, np.newaxis] + [0, 4_000_000]
    end = begin + np.array([4_010_000, 5_000])
    end[3, 1] += 70_000
    stamps = {0: (begin[:, 0], end[:, 0]), 1: (begin[:, 1] + ahead, end[:, 1] + ahead)}
    pairs = []
    for sender, receiver in ((0, 1), (1, 0)):
        start, ends = (np.column_stack([stamps[rank][at] for rank in (sender, receiver)]) for at in (0, 1))
        nothing = np.zeros(start.shape, np.int64)
        pairs.append(
            MatchedPairs(
                comm_id=None,
                sender=sender,
                receiver=receiver,
                seq=np.arange(count),
                message=np.zeros(count),
                rows=nothing,
                start=start,
                end=ends,
                exposed=nothing,
                step=nothing.astype(float),
                fused=nothing,
                alone=np.zeros(start.shape, bool),
            )
        )
    (clock,) = align_pairs(pairs).values()
    assert clock.zero[1] - clock.zero[0] + clock.offset[0, 1] == pytest.approx(ahead, abs=20_000)


@dataclass(frozen=True)
class Rounds:
    """Rounds of a reduction to rank 0, which the other rank's call waits for, and of a broadcast back."""

    late: tuple[float, float] = (0.0, 0.0)
    latency: tuple[float, float] = (5e3, 5e3)
    """In ns; of the reduction and of the broadcast."""
    noise: float = 3e3
    drift: float = 0.0
    count: int = 70

    def worst_error(self, seed: int) -> tuple[float, float]:
        """Return how far the clocks are off at most, and how far they are said to be, in ns."""
        random, ends, rows = np.random.default_rng(seed), [0.0, 0.0], []

        def delay(way: int) -> float:
            preempted = random.exponential(3e6) * (random.random() < 0.02)
            return self.latency[way] + random.exponential(self.noise) + preempted

        def stamp(rank: int, moment: float) -> int:
            return round(moment + rank * (7e6 + self.drift * moment))

        for _ in range(self.count):
            begin = [
                end + 8e6 + late + random.exponential(6e4) for end, late in zip(ends, self.late, strict=True)
            ]
            reduced = max(begin[0], begin[1] + delay(0)) + 2e3
            given = max(begin) + 3e3 + random.exponential(self.noise)
            rows.append((stamp(1, begin[1]), stamp(0, reduced), given - begin[1], reduced - begin[0], False))
            sent = reduced + 1e5
            ends = [sent + 3e3, max(given + 2e3, sent + delay(1)) + 1e3]
            rows.append((stamp(0, sent), stamp(1, ends[1]), 3e3, ends[1] - given - 2e3, True))
        sends, receives, *lengths, up = (np.array(column) for column in zip(*rows, strict=True))
        messages = Messages(sends, receives, np.column_stack(lengths).astype(np.int64), up)
        clock = align_messages({(0, 1): [messages]})[0, 1]
        moments = np.linspace(0, ends[0], 20)
        stamps = np.array([[stamp(rank, moment) for rank in range(2)] for moment in moments])
        return float(np.abs(np.diff(clock.aligned(stamps))).max()), float(clock.uncertainty[1])


@pytest.mark.parametrize(
    ("rounds", "most"),
    [
        (Rounds(), 8e3),
        (Rounds(late=(6e6, 0)), 8e3),
        (Rounds(late=(0, 6e6)), 8e3),
        (Rounds(late=(6e6, 0), noise=5e4), 3e4),
        (Rounds(late=(6e6, 0), drift=5e-6, count=300), 3e4),
        (Rounds(late=(6e6, 0), count=8), 3e4),
        (Rounds(latency=(2e5, 5e3)), 1.1e5),
    ],
    ids=["nobody late", "late root", "late leaf", "noise", "drift", "few", "unequal latencies"],
)
def test_who_is_late_does_not_move_the_clocks_of_a_reduction_and_a_broadcast(
    rounds: Rounds, most: float
) -> None:
    for seed in range(5):
        error, said = rounds.worst_error(seed)
        assert error <= min(most, said)


def test_a_drift_is_taken_out_of_messages_in_one_direction() -> None:
    drift = 50e-6
    program = Program(2, drift=[0.0, drift])
    for _ in range(40):
        program.compute(20_000_000, 10)
        program.message(0, 1)
    (clock,) = align_pairs(pairs_of(program)).values()
    true = np.linspace(1e6, 800e6, 20)[:, np.newaxis]
    common = clock.aligned(np.rint(true * [1, 1 + drift]).astype(np.int64))
    assert np.abs(common[:, 1] - common[:, 0]).max() < clock.uncertainty[0] + 5_000
    assert clock.uncertainty[0] <= MESSAGE / 2


def test_fewer_than_five_messages_align_no_clocks() -> None:
    assert align_pairs(pairs_of(pipeline([1000, 1000], steps=1, microbatches=2))) == {}


def test_of_kernels_with_several_partners_only_the_start_bounds_the_send() -> None:
    program = pipeline(FORWARD)
    plain = pairs_of(program)
    # The kernel of each send also waits 100 ms for somebody else.
    longer = [
        MatchedPairs(
            **{
                **vars(pair),
                "end": pair.end + np.array([100_000_000, 0]),
                "alone": np.zeros_like(pair.alone),
            }
        )
        for pair in plain
    ]
    for clock in align_pairs(longer).values():
        assert abs(clock.zero[1] - clock.zero[0] + clock.offset[0, 1]) < MESSAGE
        assert clock.uncertainty.max() < MESSAGE + LAG + JITTER
