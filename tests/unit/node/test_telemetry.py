"""The sampler on trees of files as kernels show them, and on a library in place of NVML."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcprof.node import telemetry

AMD = "sys/class/drm/card1/device/"
INTEL = "sys/class/drm/card0/device/"
CXI = "sys/class/cxi/cxi0/device/telemetry/"
PORT = "sys/class/infiniband/mlx5_0/ports/1/counters/"
LUSTRE = """snapshot_time             1760000000.123456789 secs.nsecs
read_bytes                10 samples [bytes] 4096 1048576 5242880
write_bytes               20 samples [bytes] 1048576 1048576 20971520
open                      3 samples [usecs] 10 20 45
"""
LUSTRE_OF_2_15 = f"""{LUSTRE}read                      10 samples [usecs] 20 200 1000 30000
write                     20 samples [usecs] 30 400 5000 900000
"""
MOUNTS = """device /dev/vda mounted on / with fstype ext4
device server:/export mounted on /home with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576
\tevents:\t9 8 7 6 5
\tbytes:\t100 200 0 0 3000 4000 1 2
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 0 0 1 0 7 40 40 0 40 0
\tper-op statistics
\t        NULL: 0 0 0 0 0 0 0 0
\t        READ: 30 30 0 6000 3000 1 200 210 0
\t       WRITE: 12 12 0 4000 2000 1 100 110 0
device tmpfs mounted on /run with fstype tmpfs
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(telemetry, "_ROOT", str(tmp_path / "tree"))
    monkeypatch.setattr(telemetry, "_open_files", kept := dict[str, int]())
    yield tmp_path / "tree"
    for file in kept.values():
        os.close(file)


def reads(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Let the sampler read these files, and find all others empty."""
    for name in ("_read", "_read_open_file"):
        monkeypatch.setattr(telemetry, name, lambda path: files.get(path, ""))


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_gpus_of_amd_and_intel_are_read_from_the_files_of_their_drivers(root: Path) -> None:
    hwmon = {
        AMD + "vendor": "0x1002\n",
        AMD + "gpu_busy_percent": "97\n",
        AMD + "mem_info_vram_used": "34359738368\n",
        AMD + "hwmon/hwmon4/power1_average": "412000000\n",
        AMD + "hwmon/hwmon4/freq1_input": "1700000000\n",
        AMD + "hwmon/hwmon4/freq2_input": "1600000000\n",
        AMD + "hwmon/hwmon4/temp1_input": "58000\n",
        INTEL + "vendor": "0x8086\n",
        INTEL + "hwmon/hwmon2/energy1_input": "123456789\n",
        # A connector, and a graphics chip of the board.
        "sys/class/drm/card1-DP-1/device/vendor": "0x1002\n",
        "sys/class/drm/card2/device/vendor": "0x1a03\n",
    }
    write(root, hwmon)
    gpus = telemetry.DrmGpus()
    assert gpus.names == ["Intel GPU", "AMD GPU"] and not gpus.missing
    values = dict(gpus.fast())
    assert values["gpu0 energy_j"] == 123.457
    assert values["gpu1 power_w"] == 412.0 and values["gpu1 temperature_c"] == 58.0
    assert (values["gpu1 sm_mhz"], values["gpu1 memory_mhz"]) == (1700.0, 1600.0)
    assert (values["gpu1 busy_pct"], values["gpu1 used_bytes"]) == (97, 34359738368)
    (root / AMD / "gpu_busy_percent").write_text("2")
    assert dict(gpus.fast())["gpu1 busy_pct"] == 2


def test_slingshot_and_infiniband_count_bytes_and_errors(root: Path) -> None:
    octets = {CXI + "hni_sts_rx_ok_octets": "700@1760000000.5\n", CXI + "hni_sts_tx_ok_octets": "900@7.5\n"}
    errors = {CXI + "hni_llr_tx_replay_event": "2@1760000000.5\n", CXI + "hni_pcs_uncorrected_cw": "1@7.5\n"}
    words = {PORT + "port_rcv_data": "100\n", PORT + "port_xmit_data": "50\n", PORT + "symbol_error": "4\n"}
    write(root, {**octets, **errors, **words})
    network = telemetry.Network()
    assert dict(network.slow()) == {
        "nic:cxi0 received_bytes": 700,
        "nic:cxi0 sent_bytes": 900,
        "nic:cxi0 errors": 3,
        "nic:mlx5_0:1 received_bytes": 400,
        "nic:mlx5_0:1 sent_bytes": 200,
        "nic:mlx5_0:1 errors": 4,
    }
    assert not network.missing


def test_lustre_and_nfs_count_bytes_and_calls(root: Path) -> None:
    folder = "proc/fs/lustre/llite/"
    write(root, {f"{folder}scratch-ffff8881/stats": LUSTRE, f"{folder}my-fs-ffff8882/stats": LUSTRE_OF_2_15})
    write(root, {"proc/self/mountstats": MOUNTS})
    lustre = {"read_bytes": 5242880, "written_bytes": 20971520, "io_calls": 33}
    assert dict(telemetry.FileSystems().slow()) == {
        **{
            f"lustre:{name} {metric}": value
            for name in ("my-fs", "scratch")
            for metric, value in lustre.items()
        },
        "nfs:/home read_bytes": 3000,
        "nfs:/home written_bytes": 4000,
        "nfs:/home io_calls": 42,
    }


class _Library:
    """A library with the functions of NVML that read fields: only these exist."""

    def __init__(self, fields: dict[int, int]) -> None:
        self.fields, self.asked = fields, 0

    def nvmlDeviceGetFieldValues(self, handle: Any, count: int, asked: Any) -> int:
        self.asked += 1
        for one in asked:
            one.code, one.value = (0, self.fields[one.field]) if one.field in self.fields else (3, 99)
        return 0


def test_fields_of_nvml_are_added_up_and_those_without_any_asked_once() -> None:
    gpus = telemetry.NvidiaGpus()
    library = _Library({138: 10, 139: 20, 38: 1, 52: 2})
    gpus._nvml, gpus._handles = library, [(0, ctypes.c_void_p())]  # type: ignore[assignment]
    values = dict(gpus.slow())
    assert (values["gpu0 nvlink_sent_bytes"], values["gpu0 nvlink_received_bytes"]) == (10240, 20480)
    assert values["gpu0 nvlink_errors"] == 3
    assert dict(gpus.energy_and_pcie())["gpu0 pcie_sent_bytes"] is None
    library.asked = 0
    dict(gpus.slow()), dict(gpus.energy_and_pcie())
    assert library.asked == 3


def test_a_rank_that_waits_for_a_disk_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = telemetry.Ranks("/run")
    ranks.processes = {0: {1, 2}, 1: {3}}
    states = {1: "S", 2: "D", 3: "R"}
    monkeypatch.setattr(telemetry, "_stat", lambda pid: [states[pid], *["0"] * 40])
    values = dict(ranks.fast())
    assert (values["rank0 blocked_pct"], values["rank1 blocked_pct"]) == (100, 0)


@pytest.mark.parametrize(
    ("call", "paging"), [("-1 0x7ffc 0x7f21", 100), ("74 0x3 0x0", 0), ("running\n", None), ("", None)]
)
def test_a_rank_that_waits_for_a_page_is_in_no_call(
    call: str, paging: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = telemetry.Ranks("/run")
    ranks.processes = {0: {1}, 1: {2}}
    monkeypatch.setattr(telemetry, "_stat", lambda pid: ["D" if pid == 1 else "S", *["0"] * 40])
    monkeypatch.setattr(telemetry, "_read", {"/proc/1/syscall": call}.__getitem__)
    values = dict(ranks.fast())
    assert (values["rank0 blocked_pct"], values["rank0 paging_pct"]) == (100, paging)
    assert values["rank1 paging_pct"] == 0


@pytest.mark.parametrize("base", ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"])
def test_the_pressure_of_the_group_of_a_rank_is_read_and_not_that_of_the_node(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = "some avg10=0.00 avg60=0.00 avg300=0.00 total=9000000\n"
    whole = some.replace("some", "full").replace("9", "4")
    files = {
        "/proc/7/cgroup": "4:memory:/old\n0::/slurm/job_7/step_0\n",
        "/proc/8/cgroup": "0::/\n",
        f"{base}/slurm/job_7/step_0/memory.pressure": some + whole,
        f"{base}/memory.pressure": some,
    }
    reads(monkeypatch, files)
    monkeypatch.setattr(os.path, "exists", f"{base}/slurm/job_7/step_0/cgroup.type".__eq__)
    ranks = telemetry.Ranks("/run")
    ranks.processes = {0: {7}, 1: {8}}
    values = dict(ranks.slow())
    assert (values["rank0 memory_stall_s"], values["rank1 memory_stall_s"]) == (4.0, None)


def test_pages_that_are_needed_again_are_those_of_the_job_or_else_of_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vm = "pgmajfault 7\nworkingset_refault_anon 20\nworkingset_refault_file 22\n"
    old = "workingset_refault_file 1\ntotal_workingset_refault_file 5\ntotal_workingset_refault_anon 1\n"
    files = {"/proc/vmstat": vm}
    reads(monkeypatch, files)
    system = telemetry.NodeSource()
    assert dict(system.slow())["node refaults"] == 42
    system._group = "/sys/fs/cgroup/job"
    files["/sys/fs/cgroup/job/memory.stat"] = "anon 1\nworkingset_refault 3\n"
    assert dict(system.slow())["node refaults"] == 3
    files["/sys/fs/cgroup/job/memory.stat"] = old
    assert dict(system.slow())["node refaults"] == 6


def test_what_takes_long_is_read_less_often_and_what_is_cheap_ten_times_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0, cpu=0.0)
    times = SimpleNamespace(monotonic=lambda: clock.now + clock.cpu, process_time=lambda: clock.cpu)
    monkeypatch.setattr(telemetry, "time", times)
    read = dict.fromkeys(("ranks", "GPU", "node", "energy"), 0)

    def source(name: str, cpu: float, every: float) -> telemetry.SampledSource:
        def values() -> telemetry.NamedValues:
            read[name] += 1
            # The first reading takes long.
            clock.cpu += cpu if read[name] > 1 else 0.2
            yield name, read[name]

        return telemetry.SampledSource(values, every)

    sources = [
        source("ranks", 1e-4, 0.1),
        source("GPU", 3e-3, 0.1),
        source("node", 5e-4, 1.0),
        source("energy", 4e-2, 5.0),
    ]
    for tick in range(6000):
        clock.now = tick / 10
        for one in sources:
            due = clock.now >= one.due
            ((_, value),) = one.values(clock.now)
            # The names stay, whether values are read or not.
            assert (value is not None) == due
        telemetry.pace(sources, 0.005)
    assert 5900 < read["ranks"] <= 6000 and 590 < read["node"] <= 600
    assert 200 < read["GPU"] < 500 and 10 < read["energy"] < 50
    assert 0.9 * 0.005 * 600 < clock.cpu - 4 * 0.2 < 1.1 * 0.005 * 600
    for one in sources:
        one.due = 0.0
        assert one.values(clock.now)[0][1] is not None


def test_what_waits_long_is_read_less_often_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    times = SimpleNamespace(monotonic=lambda: clock.now, process_time=lambda: 0.0)
    monkeypatch.setattr(telemetry, "time", times)

    def values() -> telemetry.NamedValues:
        clock.now += 0.3
        yield "power", 1

    source = telemetry.SampledSource(values, 0.1)
    for _ in range(3):
        clock.now += 10
        source.values(clock.now)
    telemetry.pace([source], 0.005)
    assert source.pause == pytest.approx(1.2)


def test_samples_are_rarer_in_long_files_and_where_to_wake_up_is_dear() -> None:
    assert telemetry.sample_period(0, 0.1, 1e-4) == pytest.approx(0.1)
    assert telemetry.sample_period(17 << 20, 0.1, 1e-4) == pytest.approx(0.4)
    assert telemetry.sample_period(0, 0.1, 5e-4) == pytest.approx(0.25)
    assert telemetry.sample_period(0, 0.5, 1e-4) == pytest.approx(0.5)
    assert telemetry.sample_period(1 << 30, 9.0, 1.0) == 2.0
