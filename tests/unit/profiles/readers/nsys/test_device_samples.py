"""Metrics of GPUs and NICs in nsys exports, from the reader to the rows by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcprof.analysis.telemetry.device_metrics import device_metrics
from hpcprof.profiles.possible_times import with_possible_times
from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.scrub.names import Names
from hpcprof.profiles.scrub.nsys import scrub
from tests.data.nsys_metrics import ACTIVE, CLOCK, MS, RANGES, SENT, WAITS, gpu, nic, ranges, write


def rows(path: Path) -> list[tuple[Any, ...]]:
    table = device_metrics(read(path)).columns()
    return sorted(zip(*table.values(), strict=True), key=str)


def test_samples_of_gpus_are_joined_to_the_steps_in_which_they_were_taken(tmp_path: Path) -> None:
    samples = [
        *((105 * MS, 1, CLOCK, 1755), (109 * MS, 1, CLOCK, 1410)),
        *((115 * MS, 1, CLOCK, 1395), (115 * MS, 0, ACTIVE, 88)),
        # Before the first step, between two of them and after the last one.
        *((99 * MS, 1, CLOCK, 345), (111 * MS, 1, CLOCK, 600), (180 * MS, 1, CLOCK, 300)),
    ]
    assert rows(write(tmp_path / "x.sqlite", gpu(samples))) == [
        ("gpu0", 1, 1, "step", "SMs Active", "Throughput %", 1, 88.0, 88.0, 88.0),
        ("gpu1", 0, 0, "step", "GPC Clock Frequency", "MHz", 2, 1582.5, 1410.0, 1755.0),
        ("gpu1", 1, 1, "step", "GPC Clock Frequency", "MHz", 1, 1395.0, 1395.0, 1395.0),
        *(
            ("gpu1", None, None, phase, "GPC Clock Frequency", "MHz", 1, value, value, value)
            for phase, value in (("after", 300.0), ("before", 345.0), ("between", 600.0))
        ),
    ]


def test_samples_of_a_nic_count_in_the_middle_of_their_interval(tmp_path: Path) -> None:
    path = write(tmp_path / "x.sqlite", nic([(99 * MS, 105 * MS, SENT, 500), (113 * MS, 115 * MS, WAITS, 7)]))
    assert rows(path) == [
        ("nic:mlx5_0", 0, 0, "step", "IB: Bytes sent", "bytes/ms", 1, 500.0, 500.0, 500.0),
        ("nic:mlx5_0", 1, 1, "step", "IB: Send waits", "ticks/ms", 1, 7.0, 7.0, 7.0),
    ]


@pytest.mark.parametrize(("missing", "name"), [("TARGET_INFO_NIC_INFO", "nic:5"), ("NIC_ID_MAP", "nic:0")])
def test_a_nic_without_a_name_has_a_number(tmp_path: Path, missing: str, name: str) -> None:
    tables = nic([(100 * MS, 102 * MS, SENT, 5)])
    del tables[missing]
    assert rows(write(tmp_path / "x.sqlite", tables))[0][0] == name


def test_many_steps_are_joined_and_without_steps_there_is_one_row(tmp_path: Path) -> None:
    tables = gpu([(step * MS, 0, CLOCK, step) for step in range(150)])
    steps = ranges((step * MS, (step + 1) * MS) for step in range(150))
    found = rows(write(tmp_path / "many.sqlite", {**tables, "NVTX_EVENTS": (RANGES, steps)}))
    assert len(found) == 50 and (0, 2, "step") in [row[1:4] for row in found]
    assert sum(row[6] for row in found) == 150
    (only,) = rows(write(tmp_path / "none.sqlite", {**tables, "NVTX_EVENTS": (RANGES, [])}))
    assert only[1:4] == (None, None, "run") and only[6] == 150


def test_what_cannot_be_read_is_left_out_and_counted(tmp_path: Path) -> None:
    tables = gpu(
        [
            (105 * MS, 0, CLOCK, 1755),
            (None, 0, CLOCK, 1755),
            (105 * MS, 0, 77, 1),
            (105 * MS, 0, CLOCK, "fast"),
        ]
    )
    tables |= {"NET_NIC_METRIC": ("start INTEGER, value INTEGER", [(1, 2), (3, 4)])}
    timeline = with_possible_times(read(write(tmp_path / "x.sqlite", tables)))
    assert len(timeline.device_samples) == 1
    assert [loss.sentence for loss in timeline.origin.losses] == [
        "1 of 4 samples of GPUs and NICs has no valid metricId and is left out",
        "1 of 4 samples of GPUs and NICs has no valid value and is left out",
        "2 samples of GPUs and NICs of the category NET_NIC_METRIC are not supported and are left out",
        "1 of 2 samples of GPUs and NICs has no valid start and is left out",
    ]


def test_a_scrubbed_export_keeps_the_metrics_of_gpus_but_no_nics(tmp_path: Path) -> None:
    path = write(tmp_path / "x.sqlite", gpu([(105 * MS, 0, CLOCK, 9)]) | nic([(100 * MS, 102 * MS, SENT, 5)]))
    left_out = scrub(path, tmp_path / "shared.sqlite", Names())
    assert "TARGET_INFO_NIC_INFO" in left_out
    assert [row[0] for row in rows(tmp_path / "shared.sqlite")] == ["gpu0"]
