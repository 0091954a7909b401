"""The rows are grouped so that each is multiplied and sent once, and never before it is there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcprof.workloads.sequence_parallel.modes.row_groups import (
    Schedule,
    adding_schedules,
    first_schedules,
    matmul_order,
    peer_groups,
    second_schedules,
    split_by_peer,
)


@given(st.integers(0, 15), st.integers(1, 20_000))
def test_every_grouping_holds_each_row_once_and_there_are_not_too_many_to_try(peers: int, rows: int) -> None:
    found = peer_groups(peers, rows)
    assert 1 <= len(set(found)) == len(found) <= 33
    assert all(sum(groups) == peers * rows and 0 not in groups for groups in found)


def test_groups_are_tried_that_end_at_any_tile_of_a_matmul() -> None:
    cuts = {groups[0] for groups in peer_groups(peers=3, rows=1152) if len(groups) == 2}
    assert cuts == set(range(128, 3 * 1152, 128))


@given(st.integers(1, 7), st.integers(1, 1000), st.data())
def test_a_plan_multiplies_every_row_twice_and_never_before_it_is_there(
    peers: int, rows: int, data: st.DataObject
) -> None:
    groups = st.sampled_from(peer_groups(peers, rows))
    multiplied: tuple[list[int], list[int]] = ([], [])
    for which, part in matmul_order(data.draw(groups), data.draw(groups)):
        multiplied[which].extend(range(part.start, part.stop))
        assert len(multiplied[1]) <= len(multiplied[0])
    assert multiplied[0] == multiplied[1] == list(range(peers * rows))


@given(st.integers(1, 7), st.integers(1, 40), st.data())
def test_a_part_of_the_rows_is_cut_where_a_peers_end(peers: int, rows: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, peers * rows - 1))
    stop = data.draw(st.integers(start + 1, peers * rows))
    expected = [divmod(row, rows) for row in range(start, stop)]
    found = [
        (peer, row)
        for peer, theirs, _ in split_by_peer(slice(start, stop), rows)
        for row in range(theirs.start, theirs.stop)
    ]
    assert found == expected
    assert [
        r for _, _, here in split_by_peer(slice(start, stop), rows) for r in range(here.start, here.stop)
    ] == list(range(start, stop))


@given(st.integers(2, 8), st.integers(1, 5000))
def test_the_trials_tune_one_part_of_a_schedule_after_the_other(ranks: int, rows: int) -> None:
    first = first_schedules(ranks, rows)
    assert [schedule.first for schedule in first] == peer_groups(ranks - 1, rows)
    second = second_schedules(first[-1], ranks, rows)
    assert {schedule.first for schedule in second} == {first[-1].first}
    assert [schedule.second for schedule in second] == peer_groups(ranks - 1, rows)
    adding = adding_schedules(second[0], rows)
    assert adding[-1] == second[0]
    assert all(0 < schedule.head <= rows and schedule.add for schedule in adding[:-1])


def test_a_schedule_is_said_in_the_order_of_its_matmuls() -> None:
    assert str(Schedule((256, 2048), (2304,), 2304)) == "256 + 2048 and then 2304"
    assert str(Schedule((), (), 2304)) == "none and then none"
    said = str(Schedule((2304,), (1024, 1280), 896, add=True))
    assert said == "2304 and then 1024 + 1280, with 896 own rows at the start"
