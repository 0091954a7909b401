"""Logs of NCCL's Inspector."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.collective_operations import bus_factor
from hpcprof.profiles.readers.discovery import find_profiles, identify_rank
from hpcprof.profiles.readers.inspector.reader import is_log, read
from tests.data.inspector_log import BEGUN_US, line, of_slow_rank, write_log
from tests.unit.profiles.readers.conftest import DATA


def test_a_collective_is_a_kernel_with_its_communicator_and_size(tmp_path: Path) -> None:
    found = read(
        write_log(tmp_path / "n1-pid4001.log", [line(1, 0, BEGUN_US, 500), line(1, 1, BEGUN_US + 900, 700)])
    )
    assert (found.origin.rank, found.origin.world_size, found.origin.host) == (1, 4, "n1")
    assert (found.kernels.end // 1000).tolist() == [BEGUN_US, BEGUN_US + 900]
    assert (found.kernels.end - found.kernels.start).tolist() == [500_000, 700_000]
    assert found.names(found.collectives.operation) == ["AllReduce"] * 2
    assert found.names(found.collectives.communicator) == ["0x7f8c496ae9f661"] * 2
    assert (found.collectives.bytes.tolist(), found.collectives.ranks.tolist()) == ([1 << 20] * 2, [4, 4])
    assert found.origin.losses == ()


def test_a_log_of_two_h100_gives_the_bandwidth_that_the_inspector_computed(tmp_path: Path) -> None:
    told = []
    for rank in range(2):
        written = lzma.decompress((DATA / f"inspector_rank{rank}.log.xz").read_bytes())
        path = tmp_path / f"rank{rank:05d}.inspector.log"
        path.write_bytes(written)
        found = read(path)
        assert (found.origin.losses, found.origin.rank, len(found.kernels)) == ((), rank, 80)
        assert set(found.collectives.bytes.tolist()) == {4 << 20, 4 << 10}
        took = found.kernels.end - found.kernels.start
        bandwidth = found.collectives.bytes / np.maximum(took, 1) * bus_factor("AllReduce", 2)
        lines = [json.loads(text)["coll_perf"] for text in written.splitlines()]
        told.append([(one["coll_busbw_gbs"], one["coll_sn"]) for one in lines])
        assert bandwidth == pytest.approx([value for value, _ in told[-1]], rel=1e-3)
    assert [number for _, number in told[0]] == list(range(80))


def test_messages_have_their_partner(tmp_path: Path) -> None:
    message = line(0, 1, BEGUN_US, 50)
    performance = message.pop("coll_perf")
    message["p2p_perf"] = {
        **{key.replace("coll", "p2p"): value for key, value in performance.items()},
        "p2p": "Send",
        "p2p_peer": 3,
    }
    found = read(write_log(tmp_path / "a.log", [message]))
    assert found.names(found.collectives.operation) == ["Send"]
    assert found.collectives.comm_peer.tolist() == [3]


def test_what_a_log_lacks_is_said(tmp_path: Path) -> None:
    lines = [line(0, 3, None, 500), line(0, 5, None, 500, coll_timing_source="collective_cpu")]
    path = write_log(tmp_path / "a.log", lines)
    path.write_text(path.read_text() + '{"header": {"id": "0x7f8c')
    found = read(path)
    assert {loss.sentence for loss in found.origin.losses} == {
        "1 of 3 events has no valid form and is left out",
        "4 of 6 collectives have no valid record and are left out",
        "2 of 2 collectives have no readable time",
        "1 of 2 collectives has no readable duration from the GPU",
    }
    assert (found.kernels.end - found.kernels.start).tolist() == [500_000, 500_000]


def test_only_logs_of_the_inspector_are_profiles(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text('{"loss": 0.1}\n')
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "n1-pid4001.log").write_text(of_slow_rank(1))
    (tmp_path / "rank00007.inspector.log").write_text(of_slow_rank(0))
    found = find_profiles(tmp_path)
    assert [(path.name, identify_rank(path)) for path in found] == [
        ("n1-pid4001.log", 1),
        ("rank00007.inspector.log", 7),
    ]
    assert not is_log(tmp_path / "train.log")
    with pytest.raises(DamagedInput, match="is not a log of NCCL's Inspector"):
        read(tmp_path / "train.log")


def test_impossible_numbers_are_left_out(tmp_path: Path) -> None:
    wrong = [line(0, 0, 1 << 60, 500), line(0, 1, BEGUN_US, -5), line(0, 2, BEGUN_US, 5, coll="Nothing")]
    found = read(write_log(tmp_path / "a.log", [*wrong, line(0, 3, BEGUN_US, 5)]))
    assert found.kernels.end.tolist() == [BEGUN_US * 1000]


def test_calls_are_apart_although_the_clock_is_coarse(tmp_path: Path) -> None:
    found = read(write_log(tmp_path / "a.log", [line(0, i, BEGUN_US, 5) for i in range(4)]))
    assert np.diff(found.collectives.start).tolist() == [1, 1, 1]
