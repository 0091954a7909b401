"""Launches, on timelines in which they are incomplete."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcprof.analysis.slowdown.kernel_instances import place_kernels
from hpcprof.analysis.summaries.api_calls import launches
from hpcprof.analysis.summaries.nvtx_gpu_projection import range_gpu
from hpcprof.profiles.timeline import Timeline
from tests.unit.analysis.timelines import COMM, COMP, timeline


def test_kernels_without_a_recorded_launch_are_left_out() -> None:
    rows = launches(timeline([(0, 900, COMP), (100, 130, COMP, 60), (200, 250, COMP, 120)])).rows
    shown = rows[["count", "queue_count", "queue_avg_ns", "kernel_avg_ns", "total_avg_ns"]]
    assert shown.to_numpy().tolist() == [[2, 2, 60.0, 40.0, 100.0]]


def test_the_time_in_the_queue_is_that_of_the_launches_that_waited() -> None:
    # On thread 2 one kernel began before its call returned, as clocks that differ can show; on 1 both.
    rows = launches(
        timeline(
            [
                (100, 110, COMP, 40, 2),
                (200, 210, COMP, 230, 2),
                (300, 310, COMP, 320, 1),
                (400, 410, COMP, 430, 1),
            ]
        )
    ).rows.set_index("tid")
    assert rows["queue_count"].to_dict() == {1: 0, 2: 1}
    assert rows.loc[2, ["queue_avg_ns", "queue_min_ns", "queue_stddev_ns"]].tolist() == [60.0, 60, 0.0]
    assert rows.loc[1, ["queue_avg_ns", "queue_min_ns", "queue_stddev_ns"]].tolist() == [None, None, 0.0]


def shuffled(given: Timeline) -> Timeline:
    """Return the timeline with its kernels in another order."""
    order = np.random.default_rng(3).permutation(len(given.kernels))
    return replace(given, kernels=given.kernels.take(order))


def test_instances_are_in_the_order_of_their_starts() -> None:
    work = [(1000 * i, 1000 * i + 10 + i, COMP, 1000 * i - 5) for i in range(50)]
    beside = [(1000 * i, 1000 * i + 20, COMM) for i in range(0, 50, 3)]
    steps = [(1000 * i - 10, 1000 * i + 500, "iteration") for i in range(50)]
    given = timeline(work + beside, steps)
    expected, found = place_kernels(given), place_kernels(shuffled(given))
    assert found.launched.tolist() == sorted(found.launched.tolist())
    for name in ("duration", "covered", "launched", "phase"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()


def test_a_range_that_is_not_closed_lies_in_the_one_around_it() -> None:
    # The profile ends at 1000, the ranges at 100: there nsys ends it too.
    given = timeline([(50, 60, COMP, 45)], [(0, 100, "outer"), (40, 1000, "open"), (90, 95, "last")])
    given = replace(given, ranges=replace(given.ranges, closed=np.array([1, 0, 1])))
    rows = range_gpu(given).rows.set_index("range")
    assert rows[["gpu_ops", "avg_num_child", "avg_range_lvl"]].to_dict("index") == {
        "outer": {"gpu_ops": 1, "avg_num_child": 1.0, "avg_range_lvl": 0.0},
        "open": {"gpu_ops": 1, "avg_num_child": 0.0, "avg_range_lvl": 1.0},
    }
