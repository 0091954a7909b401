"""Slices lie beside or inside each other in every lane."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.report.perfetto.export import in_lanes

TIMES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=30)


@settings(max_examples=50, deadline=None)
@given(TIMES)
def test_every_lane_opens_and_closes_its_slices_in_the_order_of_time(times: list[tuple[int, int]]) -> None:
    start = np.array([begin for begin, _ in times], np.int64)
    end = start + np.array([length for _, length in times], np.int64)
    seen = []
    for lane in in_lanes(start, end):
        now, inside = 0, list[int]()
        for place in lane.tolist():
            row, ends = place % len(times), place >= len(times)
            moment = int((end if ends else start)[row])
            assert moment >= now
            now = moment
            if ends:
                assert inside.pop() == row
            else:
                inside.append(row)
                seen.append(row)
        assert not inside
    assert sorted(seen) == list(range(len(times)))


def test_slices_that_do_not_cross_share_one_lane() -> None:
    start, end = np.array([0, 0, 5, 10, 10, 12]), np.array([10, 5, 10, 20, 10, 20])
    assert len(list(in_lanes(start, end))) == 1


def test_slices_that_cross_do_not() -> None:
    assert len(list(in_lanes(np.array([0, 5]), np.array([10, 15])))) == 2
