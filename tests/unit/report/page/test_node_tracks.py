"""The tracks of a node in a timeline."""

from __future__ import annotations

import numpy as np
import pytest

from hpcprof.profiles.readers.telemetry import NodeTelemetry, RankPlace, Series
from hpcprof.report.page.timeline_tracks import node_tracks

TIMES = np.arange(100.0, 110.0)


def node(name: str, ranks: tuple[int, ...], waits: float = 0.0) -> NodeTelemetry:
    """Return a node whose ranks have a GPU each."""
    series = {("node", "busy_s"): Series(TIMES, 3.0 * TIMES)}
    series["node", "memory_pressure_s"] = Series(TIMES, waits * TIMES)
    for gpu, rank in enumerate(ranks):
        series[f"gpu{gpu}", "sm_mhz"] = Series(TIMES, np.where(TIMES < 105, 1755.0, 1410.0))
        series[f"rank{rank}", "cpu_s"] = Series(TIMES, (0.25 + rank) * TIMES)
        series[f"rank{rank}", "blocked_pct"] = Series(TIMES, np.zeros(10))
    places = {rank: RankPlace((), (gpu,)) for gpu, rank in enumerate(ranks)}
    return NodeTelemetry(name, series, places, ("A GPU",) * len(ranks))


def test_a_rank_has_the_samples_of_its_gpu_and_the_first_of_a_node_also_those_of_the_node() -> None:
    nodes = [node("n1", (0, 1)), node("n2", (2, 3), waits=0.4)]
    found = node_tracks(nodes, [1, 2, 3], 104.5, 106.5)
    shown = {rank: {track.label: track.texts() for track in tracks} for rank, tracks in found.items()}
    clock = {"GPU clock": ["1,410 MHz"] * 2 + ["1,410 MHz"]}
    assert shown == {
        1: {**clock, "CPU": ["1.25 cores"] * 3, "Node CPU": ["3 cores"] * 3},
        2: {**clock, "CPU": ["2.25 cores"] * 3, "Node CPU": ["3 cores"] * 3, "Memory waits": ["40 %"] * 3},
        3: {**clock, "CPU": ["3.25 cores"] * 3},
    }
    (track,) = (one for one in found[3] if one.label == "GPU clock")
    assert (track.begin.tolist(), track.end.tolist()) == ([104.0, 105.0, 106.0], [105.0, 106.0, 107.0])
    assert node_tracks(nodes, [0], 104.5, 104.6)[0][0].texts() == ["1,410 MHz"]
    assert node_tracks(nodes, [0], 103.5, 103.6)[0][0].texts() == ["1,755 MHz"]
    assert node_tracks(nodes, [0], 200.0, 201.0) == {0: []}


def test_of_many_samples_some_are_shown() -> None:
    times = np.arange(0.0, 1000.0, 0.1)
    series = {("rank0", "cpu_s"): Series(times, times)}
    (track,) = node_tracks([NodeTelemetry("n", series, {0: RankPlace()})], [0], 0.0, 1000.0)[0]
    assert 1500 < len(track.values) <= 2000
    assert track.values == pytest.approx(1.0)
