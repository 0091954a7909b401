"""The sampler of a node: what its GPUs, cores, memory, network and file systems did while a run was on it.

``telemetry/NODE.jsonl`` in the run gets two kinds of lines. An object names what follows: ``fast`` and
``slow`` are the names of values, as ``DEVICE METRIC`` with a metric of `METRICS`. Lists are samples: the time
(seconds since 1970), the fast values and, about once a second, the slow ones. A value that could not be read,
or was not yet due, is null.
"""

import ctypes
import glob
import json
import os
import re
import signal
import time
from contextlib import suppress
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Union

from .stalls import ended_ranks, read, variables_of

FOLDER = "telemetry"
"""The folder in the run that has a file of each node."""

_KINDS = (
    ("counter", "s", "cpu_s cpu_wait_s system_s memory_stall_s io_wait_s busy_s cgroup_throttled_s"),
    ("counter", "s", "cpu_pressure_s memory_pressure_s io_pressure_s"),
    ("counter", "bytes", "read_bytes written_bytes received_bytes sent_bytes"),
    ("counter", "bytes", "pcie_received_bytes pcie_sent_bytes nvlink_received_bytes nvlink_sent_bytes"),
    ("counter", "", "major_faults io_calls swapped_pages refaults oom_kills errors"),
    ("counter", "", "ecc_errors pcie_replays nvlink_errors"),
    ("counter", "J", "energy_j"),
    ("gauge", "%", "blocked_pct paging_pct busy_pct"),
    ("gauge", "bytes", "resident_bytes proportional_bytes memory_used_bytes swap_used_bytes"),
    ("gauge", "bytes", "cgroup_memory_bytes used_bytes"),
    ("gauge", "MHz", "frequency_mhz sm_mhz memory_mhz"),
    ("gauge", "W", "power_w"),
    ("gauge", "C", "temperature_c"),
    ("gauge", "", "other_processes"),
    ("bits", "", "throttle_reasons"),
)
METRICS = {name: (kind, unit) for kind, unit, names in _KINDS for name in names.split()}
"""Kind of each metric, counted since some moment or read as it is now, and its unit."""

_FAST_PERIOD_S, _SLOW_PERIOD_S = 0.1, 1.0
_BYTES_BEFORE_SLOWER = 8 << 20
"""Bytes of a file after which samples come half as often, but at least once in `_SLOWEST_PERIOD_S`."""

_SLOWEST_PERIOD_S = 2.0
_MAX_CPU_SHARE, _MAX_TIME_SHARE = 0.004, 0.25
"""Maximum shares of a core and of the time for samples: sources that take longer are read less often.

The kernel counts about a tenth more than a process sees of itself.
"""

_ENERGY_PERIOD_S = 5.0
"""Seconds between readings of a GPU's energy, which take 5 ms of CPU time (H100, driver 580)."""

_PSS_START_S, _PSS_PERIOD_S, _PSS_MAX_BYTES = 10.0, 60.0, 4 << 30
"""Start and period of readings of shared pages, and the largest rank that is read: it may have to wait."""

_MAX_START_S = 120
"""Maximum time in seconds until the ranks begin."""

Number = Union[int, float, None]
NamedValues = Iterator[Tuple[str, Number]]
"""Values by name; None for one that could not be read."""

_ROOT = ""
"""The folder with the system's files."""

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _read(path: str) -> str:
    """Return the text of a file; empty if it cannot be read."""
    return read(path).decode("ascii", "replace")


_open_files: Dict[str, int] = {}
_MAX_OPEN_FILES, _MAX_READ_BYTES = 256, 1 << 16
"""Maximum number of files that stay open, and maximum bytes that are read of each."""


def _read_open_file(path: str) -> str:
    """Return the text of a file as `_read` does; it stays open: to open it takes longer than to read it."""
    file = _open_files.get(path)
    try:
        if file is None:
            if len(_open_files) >= _MAX_OPEN_FILES:
                return _read(path)
            file = _open_files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(file, _MAX_READ_BYTES, 0).decode("ascii", "replace")
    except OSError:
        if file is not None:
            # Its process or its device is gone.
            os.close(_open_files.pop(path))
        return ""


def _find_files(pattern: str) -> List[str]:
    """Return the files of the system that match a pattern, in order."""
    return sorted(glob.glob(_ROOT + pattern))


def _number(path: str) -> Optional[int]:
    # Slingshot's counters have their time behind an @.
    try:
        return int(_read_open_file(path).partition("@")[0])
    except ValueError:
        return None


def _pairs(text: str, *names: str) -> Dict[str, int]:
    """Return the numbers of a text whose lines are a name and a number."""
    lines = re.findall(r"^(%s)[ :]\s*(\d+)" % "|".join(names), text, re.MULTILINE)
    return {name: int(number) for name, number in lines}


def _pressure(path: str, who: str) -> Optional[float]:
    """Return the seconds that some or all ("full") processes waited, from a file on pressure (PSI)."""
    total = re.search(who + r" .*total=(\d+)", _read_open_file(path))
    return int(total.group(1)) / 1e6 if total else None


Counters = Dict[str, List[Tuple[str, List[str], float]]]
"""Metrics by device: the name of each, the files that are added up, and their unit in that of the metric."""


def _device_counters(devices: Counters) -> NamedValues:
    """Yield the metrics of devices, as far as their files can be read."""
    for device, metrics in devices.items():
        for metric, paths, factor in metrics:
            values = [value for value in map(_number, paths) if value is not None]
            yield "%s %s" % (device, metric), round(sum(values) * factor, 3) if values else None


def _stat(pid: int) -> List[str]:
    """Return the state of a process and what follows it in its ``stat``; empty if it is gone."""
    fields = _read_open_file("/proc/%d/stat" % pid).rpartition(") ")[2].split()
    return fields if len(fields) > 39 else []


def _group_folder(process: str, *files: str) -> str:
    """Return the folder of a process's control group, of version 1 or 2, that has one of some files."""
    for line in _read("/proc/%s/cgroup" % process).splitlines():
        _, kinds, path = line.split(":", 2)
        bases = {"": ("", "/unified")}.get(kinds, ("/memory",) if "memory" in kinds.split(",") else ())
        for folder in (("/sys/fs/cgroup" + base + path).rstrip("/") for base in bases):
            if any(os.path.exists(folder + "/" + file) for file in files):
                return folder
    return ""


class Ranks:
    """The processes of each rank of the run on this node."""

    def __init__(self, run_directory: str) -> None:
        self._run = os.fsencode(run_directory)
        self._seen: Dict[int, int] = {}
        self.processes: Dict[int, Set[int]] = {}
        self.devices: Dict[int, str] = {}
        self._groups: Dict[int, str] = {}
        self._shares_due: Dict[int, float] = {}

    def find(self) -> None:
        """Look for processes that are new; a process keeps its environment from its start."""
        now = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._seen = {pid: times for pid, times in self._seen.items() if pid in now}
        alive = {rank: pids & now for rank, pids in self.processes.items()}
        self.processes = {rank: pids for rank, pids in alive.items() if pids}
        for pid in now.difference(*self.processes.values()):
            # Between its fork and its start a program has the environment of a shell.
            times = self._seen.get(pid, 0)
            if times < 2:
                self._seen[pid] = times + 1
                self._look(pid)

    def _look(self, pid: int) -> None:
        values = variables_of(pid)
        rank = values.get(b"HPCPROF_RANK", b"")
        if values.get(b"HPCPROF_RUN_DIR") == self._run and rank.isdigit():
            self.processes.setdefault(int(rank), set()).add(pid)
            visible = values.get(b"CUDA_VISIBLE_DEVICES") or values.get(b"ROCR_VISIBLE_DEVICES") or b""
            self.devices[int(rank)] = visible.decode("ascii", "replace")

    def cores(self) -> Dict[int, List[int]]:
        """Return the cores that the processes of each rank may use."""
        cores: Dict[int, Set[int]] = {rank: set() for rank in self.processes}
        for rank, pids in self.processes.items():
            for pid in pids:
                with suppress(OSError):
                    cores[rank] |= os.sched_getaffinity(pid)
        return {rank: sorted(allowed) for rank, allowed in cores.items()}

    def fast(self) -> NamedValues:
        """Yield the CPU time of each rank, with its children that have ended, and whether it waits for I/O.

        A process that waits for a file system or a disk is in the state D, "uninterruptible sleep"; a process
        that waits for a page of its memory is in no system call. None where that is closed, or it goes on.
        """
        for rank, pids in sorted(self.processes.items()):
            ticks, has_state = 0, False
            blocked: List[str] = []
            for pid in pids:
                fields = _stat(pid)
                if fields:
                    has_state = True
                    ticks += int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
                    if fields[0] == "D":
                        blocked.append(_read("/proc/%d/syscall" % pid).split(" ")[0].strip())
            paging = (
                None if not has_state or "" in blocked or "running" in blocked else 100 * ("-1" in blocked)
            )
            yield "rank%d cpu_s" % rank, round(ticks * _TICK, 3) if has_state else None
            yield "rank%d blocked_pct" % rank, 100 * bool(blocked) if has_state else None
            yield "rank%d paging_pct" % rank, paging

    def slow(self) -> NamedValues:
        """Yield the memory, faults and data of each rank."""
        stalls: Dict[str, Optional[float]] = {}
        for rank, pids in sorted(self.processes.items()):
            resident = faults = waited = queued = system = 0
            data: Dict[str, int] = {}
            for pid in pids:
                fields = _stat(pid)
                if fields:
                    faults += int(fields[9])
                    resident += int(fields[21]) * _PAGE
                    waited += int(fields[39])
                    system += int(fields[12])
                schedule = _read_open_file("/proc/%d/schedstat" % pid).split()
                queued += int(schedule[1]) if len(schedule) > 1 else 0
                counts = _pairs(_read_open_file("/proc/%d/io" % pid), "rchar", "wchar", "syscr", "syscw")
                for name, value in counts.items():
                    data[name] = data.get(name, 0) + value
            if rank not in self._groups:
                # The root group lacks that file.
                self._groups[rank] = _group_folder(str(min(pids)), "cgroup.type")
            group = self._groups[rank]
            if group not in stalls:
                # Ranks share it mostly.
                stalls[group] = _pressure(group + "/memory.pressure", "full") if group else None
            name = "rank%d " % rank
            yield name + "resident_bytes", resident
            yield name + "proportional_bytes", self._proportional_bytes(rank, pids, resident)
            yield name + "major_faults", faults
            yield name + "memory_stall_s", stalls[group]
            yield name + "cpu_wait_s", round(queued / 1e9, 3)
            yield name + "system_s", round(system * _TICK, 3)
            yield name + "io_wait_s", round(waited * _TICK, 3)
            yield name + "read_bytes", data.get("rchar")
            yield name + "written_bytes", data.get("wchar")
            yield name + "io_calls", data["syscr"] + data["syscw"] if "syscr" in data else None

    def _proportional_bytes(self, rank: int, pids: Set[int], resident: int) -> Optional[int]:
        """Return the memory of a rank in which shared pages count once, if it is time to ask for it."""
        now = time.monotonic()
        due = self._shares_due.setdefault(rank, now + _PSS_START_S)
        if now < due or resident > _PSS_MAX_BYTES:
            return None
        self._shares_due[rank] = now + _PSS_PERIOD_S
        texts = [_read("/proc/%d/smaps_rollup" % pid) for pid in pids]
        return sum(_pairs(text, "Pss").get("Pss", 0) for text in texts) * 1024 or None


_REFAULTS = ("workingset_refault", "workingset_refault_anon", "workingset_refault_file")


class NodeSource:
    """Cores, memory and pressure of this node, and the limits of the job's control group."""

    def __init__(self) -> None:
        self.missing: Dict[str, str] = {}
        self.cores: List[int] = []
        self._group = _group_folder("self", "memory.current", "memory.usage_in_bytes")
        if not self._group:
            self.missing["cgroup"] = "no control group with memory is visible"
        if not os.path.exists("/proc/pressure/cpu"):
            self.missing["pressure"] = "this kernel has no /proc/pressure"

    def limits(self) -> Dict[str, Optional[int]]:
        """Return the resources that do not change."""
        memory = _pairs(_read("/proc/meminfo"), "MemTotal").get("MemTotal", 0) * 1024
        folder = self._group
        while folder.startswith("/sys/fs/cgroup/"):
            for name in ("memory.max", "memory.limit_in_bytes"):
                memory = min(memory, _number(os.path.join(folder, name)) or memory)
            folder = os.path.dirname(folder)
        return {"cores": os.cpu_count(), "memory_bytes": memory}

    def slow(self) -> NamedValues:
        """Yield the kernel's counters of the whole node."""
        wanted = {"cpu"} | {"cpu%d" % core for core in self.cores}
        for line in _read_open_file("/proc/stat").partition("\nintr")[0].splitlines():
            words = line.split()
            if words[0] in wanted:
                # Without idle time, waiting for I/O, and guests, which count twice.
                busy = sum(int(words[i]) for i in (1, 2, 3, 6, 7, 8))
                yield "%s busy_s" % ("node" if words[0] == "cpu" else words[0]), round(busy * _TICK, 2)
        paths = ["/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq" % core for core in self.cores[:16]]
        values = [value for value in map(_number, paths) if value is not None]
        if values:
            yield "node frequency_mhz", round(sum(values) / len(values) / 1000.0)
        memory = _pairs(_read_open_file("/proc/meminfo"), "MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
        node_counters = _read_open_file("/proc/vmstat")
        counts = _pairs(node_counters, "pswpin", "pswpout", "pgmajfault")
        yield "node memory_used_bytes", (memory.get("MemTotal", 0) - memory.get("MemAvailable", 0)) * 1024
        yield "node swap_used_bytes", (memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)) * 1024
        yield "node swapped_pages", counts.get("pswpin", 0) + counts.get("pswpout", 0)
        yield "node major_faults", counts.get("pgmajfault")
        for kind in ("cpu", "memory", "io"):
            waited = _pressure("/proc/pressure/" + kind, "some")
            if waited is not None:
                yield "node %s_pressure_s" % kind, waited
        yield "node refaults", self._refaults(node_counters)
        if self._group:
            yield from self._group_values()

    def _group_values(self) -> NamedValues:
        used = [_number(self._group + name) for name in ("/memory.current", "/memory.usage_in_bytes")]
        yield "node cgroup_memory_bytes", used[1] if used[0] is None else used[0]
        for name in ("/memory.events", "/memory.oom_control"):
            for kills in _pairs(_read_open_file(self._group + name), "oom_kill").values():
                yield "node oom_kills", kills
        for throttled in _pairs(_read_open_file(self._group + "/cpu.stat"), "throttled_usec").values():
            yield "node cgroup_throttled_s", throttled / 1e6

    def _refaults(self, node_counters: str) -> Optional[int]:
        """Return the refaults (reclaimed pages that were needed again) of the job, or else of the node."""
        group_counters = _read_open_file(self._group + "/memory.stat") if self._group else ""
        for text, prefix in ((group_counters, "total_"), (group_counters, ""), (node_counters, "")):
            again = _pairs(text, *(prefix + name for name in _REFAULTS))
            if again:
                return sum(again.values())
        return None


_INTERFACE_FILES = ("rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped")
_PORT_FILES = ("port_rcv_data", "port_xmit_data", "symbol_error", "port_rcv_errors", "link_downed")
_ADAPTER_FILES = (
    *("hni_sts_rx_ok_octets", "hni_sts_tx_ok_octets"),
    *("hni_pcs_uncorrected_cw", "hni_llr_tx_replay_event", "hni_llr_rx_replay_event"),
)
"""The files of what was received and sent, and of errors."""


class Network:
    """Network interfaces, InfiniBand ports and Slingshot's adapters."""

    def __init__(self) -> None:
        self._files: Counters = {}
        for folder in _find_files("/sys/class/net/*"):
            name = os.path.basename(folder)
            if name != "lo" and _read(folder + "/operstate").strip() != "down":
                self._add(name, folder + "/statistics", _INTERFACE_FILES)
        for folder in _find_files("/sys/class/infiniband/*/ports/*/counters"):
            parts = folder.split("/")
            # Data is counted in words of four bytes.
            self._add("%s:%s" % (parts[-4], parts[-2]), folder, _PORT_FILES, 4)
        for folder in _find_files("/sys/class/cxi/*/device/telemetry"):
            self._add(folder.split("/")[-3], folder, _ADAPTER_FILES)
        self.missing = {} if self._files else {"network": "no interface is up"}

    def _add(self, name: str, folder: str, files: Tuple[str, ...], factor: int = 1) -> None:
        received, sent, *errors = (folder + "/" + file for file in files)
        self._files["nic:" + name] = [
            ("received_bytes", [received], factor),
            ("sent_bytes", [sent], factor),
            ("errors", errors, 1),
        ]

    def slow(self) -> NamedValues:
        """Yield bytes and errors of each interface."""
        return _device_counters(self._files)


class FileSystems:
    """Lustre and NFS, by mount."""

    def __init__(self) -> None:
        self._lustre = _find_files("/proc/fs/lustre/llite/*/stats") or _find_files(
            "/sys/kernel/debug/lustre/llite/*/stats"
        )
        self._mounts = _ROOT + "/proc/self/mountstats"
        self._nfs = " nfs" in _read(self._mounts)
        none = "no Lustre or NFS is mounted, or their counters are closed to users"
        self.missing = {} if self._lustre or self._nfs else {"file systems": none}

    def slow(self) -> NamedValues:
        """Yield bytes and calls of each file system."""
        for path in self._lustre:
            name = "lustre:" + os.path.basename(os.path.dirname(path)).rpartition("-")[0]
            sums: Dict[str, int] = {}
            calls: Dict[str, int] = {}
            for line in _read(path).splitlines():
                words = line.split()
                if len(words) >= 4 and words[2] == "samples":
                    calls[words[0]] = int(words[1])
                    sums[words[0]] = int(words[6]) if len(words) > 6 and words[6].isdigit() else 0
            yield name + " read_bytes", sums.get("read_bytes", 0)
            yield name + " written_bytes", sums.get("write_bytes", 0)
            # Newer versions count a read, and once more its bytes.
            twice = [call for call in calls if call.replace("_bytes", "", 1) in {*calls} - {call}]
            yield name + " io_calls", sum(calls.values()) - sum(calls[call] for call in twice)
        yield from self._nfs_values()

    def _nfs_values(self) -> NamedValues:
        mounts = re.split("^device ", _read(self._mounts), flags=re.MULTILINE) if self._nfs else ()
        for mount in mounts:
            words = mount.split(None, 7)
            bytes_ = re.search(r"^\s*bytes:\s+" + r"(\d+)\s+" * 6, mount, re.MULTILINE)
            if len(words) > 6 and words[6].startswith("nfs") and bytes_:
                name = "nfs:" + words[3]
                yield name + " read_bytes", int(bytes_.group(5))
                yield name + " written_bytes", int(bytes_.group(6))
                operations = mount.partition("per-op statistics")[2]
                calls = re.findall(r"^\s*[A-Z_]+: (\d+) ", operations, re.MULTILINE)
                yield name + " io_calls", sum(map(int, calls)) if calls else None


_INT, _UNSIGNED = ctypes.c_int, ctypes.c_uint
_LONG_INT, _UNSIGNED_LONG = ctypes.c_longlong, ctypes.c_ulonglong


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", _UNSIGNED), ("memory", _UNSIGNED)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", _UNSIGNED_LONG), ("free", _UNSIGNED_LONG), ("used", _UNSIGNED_LONG)]


class _Process(ctypes.Structure):
    _fields_ = [("pid", _UNSIGNED), ("used", _UNSIGNED_LONG), ("instance", _UNSIGNED), ("compute", _UNSIGNED)]


class _Field(ctypes.Structure):
    _fields_ = [
        *(("field", _UNSIGNED), ("scope", _UNSIGNED), ("time", _LONG_INT), ("latency", _LONG_INT)),
        *(("kind", _INT), ("code", _INT), ("value", _UNSIGNED_LONG)),
    ]


_ALL_LINKS = 0xFFFFFFFF
_Fields = Dict[str, Tuple[Tuple[int, ...], int]]
_NVLINK: _Fields = {
    # CRC errors of flow control and data, replays, recoveries; the last three are those of newer GPUs.
    "nvlink_errors": ((38, 45, 52, 59, 161, 162, 163), 1),
    "nvlink_received_bytes": ((139,), 1024),
    "nvlink_sent_bytes": ((138,), 1024),
}
_PCIE: _Fields = {"pcie_received_bytes": ((198,), 1), "pcie_sent_bytes": ((197,), 1)}
"""The numbers of NVML's fields that are added up, and their unit in that of the metric."""

_MAX_PROCESSES = 256


class NvidiaGpus:
    """NVIDIA's GPUs, by their management library (NVML)."""

    def __init__(self) -> None:
        self.missing: Dict[str, str] = {}
        self.names: List[str] = []
        self._handles: List[Tuple[int, ctypes.c_void_p]] = []
        self._lacking: Set[object] = set()
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self.missing["NVIDIA GPUs"] = "there is no libnvidia-ml.so.1"
            return
        code = self._nvml.nvmlInit_v2()
        count = ctypes.c_uint()
        if code or self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            self.missing["NVIDIA GPUs"] = "NVML does not start (error %d)" % code
            return
        # Events of the driver are in the kernel's log, which users cannot read.
        self.missing["Xid errors"] = "NVML does not count them"
        for index in range(count.value):
            handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                self._nvml.nvmlDeviceGetName(handle, name, 96)
                self._handles.append((index, handle))
                self.names.append(name.value.decode("ascii", "replace"))

    def _call(self, function: str, *arguments: Any) -> int:
        """Return the error code of a function of NVML; -1 for a call that this version lacks."""
        try:
            return int(getattr(self._nvml, function)(*arguments))
        except AttributeError:
            return -1

    def _ask(self, function: str, handle: ctypes.c_void_p, kind: Any, *arguments: int) -> Any:
        """Return the answer of a function of NVML; None where it has none."""
        if (function, arguments) in self._lacking:
            return None
        answer = kind()
        if self._call(function, handle, *arguments, ctypes.byref(answer)):
            self._lacking.add((function, arguments))
            return None
        return answer if isinstance(answer, ctypes.Structure) else answer.value

    def fast(self) -> NamedValues:
        """Yield power, clock and use of each GPU, and what lowers its clock."""
        for index, handle in self._handles:
            name = "gpu%d " % index
            power = self._ask("nvmlDeviceGetPowerUsage", handle, _UNSIGNED)
            use = self._ask("nvmlDeviceGetUtilizationRates", handle, _Utilization)
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle, _UNSIGNED_LONG)
            yield name + "power_w", None if power is None else power / 1000.0
            yield name + "sm_mhz", self._ask("nvmlDeviceGetClockInfo", handle, _UNSIGNED, 1)
            yield name + "busy_pct", None if use is None else use.gpu
            yield name + "throttle_reasons", reasons

    def slow(self) -> NamedValues:
        """Yield memory and errors of each GPU."""
        for index, handle in self._handles:
            name = "gpu%d " % index
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle, _Memory)
            errors = [
                self._ask("nvmlDeviceGetTotalEccErrors", handle, _UNSIGNED_LONG, kind, 0) for kind in (0, 1)
            ]
            yield name + "memory_mhz", self._ask("nvmlDeviceGetClockInfo", handle, _UNSIGNED, 2)
            yield name + "temperature_c", self._ask("nvmlDeviceGetTemperature", handle, _UNSIGNED, 0)
            yield name + "used_bytes", None if memory is None else memory.used
            yield name + "ecc_errors", None if None in errors else sum(errors)
            yield name + "pcie_replays", self._ask("nvmlDeviceGetPcieReplayCounter", handle, _UNSIGNED)
            yield from self._fields(name, handle, _NVLINK)

    def energy_and_pcie(self) -> NamedValues:
        """Yield the energy of each GPU, and its data on PCIe: these take longest."""
        for index, handle in self._handles:
            name = "gpu%d " % index
            energy = self._ask("nvmlDeviceGetTotalEnergyConsumption", handle, _UNSIGNED_LONG)
            yield name + "energy_j", None if energy is None else energy / 1000.0
            yield from self._fields(name, handle, _PCIE)

    def _fields(self, name: str, handle: ctypes.c_void_p, metrics: _Fields) -> NamedValues:
        """Yield the sum of the fields of each metric that a GPU has; None if it has none."""
        for metric, (numbers, factor) in metrics.items():
            values: List[int] = []
            if metric not in self._lacking:
                query = (_Field * len(numbers))(*(_Field(field=field, scope=_ALL_LINKS) for field in numbers))
                code = self._call("nvmlDeviceGetFieldValues", handle, len(numbers), query)
                values = [] if code else [field.value for field in query if field.code == 0]
            if not values:
                self._lacking.add(metric)
            yield name + metric, sum(values) * factor if values else None

    def processes(self) -> Dict[int, Optional[Set[int]]]:
        """Return the numbers of the processes on each GPU; None where they are not told."""
        numbers: Dict[int, Optional[Set[int]]] = {}
        for index, handle in self._handles:
            count = ctypes.c_uint(_MAX_PROCESSES)
            running = (_Process * _MAX_PROCESSES)()
            code = self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), running)
            numbers[index] = None if code else {process.pid for process in running[: count.value]}
        return numbers


class DrmGpus:
    """GPUs of AMD and Intel, by the files of their kernel drivers."""

    _METRICS = (
        ("power_w", ("hwmon/hwmon*/power1_average", "hwmon/hwmon*/power1_input"), 1e-6),
        ("energy_j", ("hwmon/hwmon*/energy1_input",), 1e-6),
        ("sm_mhz", ("hwmon/hwmon*/freq1_input",), 1e-6),
        ("memory_mhz", ("hwmon/hwmon*/freq2_input",), 1e-6),
        ("temperature_c", ("hwmon/hwmon*/temp1_input",), 1e-3),
        ("busy_pct", ("gpu_busy_percent",), 1),
        ("used_bytes", ("mem_info_vram_used",), 1),
    )

    def __init__(self) -> None:
        self.names: List[str] = []
        self._files: Counters = {}
        makers = {"0x1002": "AMD GPU", "0x8086": "Intel GPU"}
        for folder in _find_files("/sys/class/drm/card[0-9]*/device"):
            maker = makers.get(_read(folder + "/vendor").strip())
            if maker is None or "-" in folder.split("/")[-2]:
                continue
            metrics = []
            for metric, patterns, factor in self._METRICS:
                paths = [path for pattern in patterns for path in sorted(glob.glob(folder + "/" + pattern))]
                if paths:
                    metrics.append((metric, paths[:1], factor))
            if metrics:
                self._files["gpu%d" % len(self.names)] = metrics
                self.names.append(maker)
        self.missing = {} if self._files else {"AMD and Intel GPUs": "no kernel driver shows any"}

    def fast(self) -> NamedValues:
        """Yield the values of each GPU."""
        return _device_counters(self._files)


class SampledSource:
    """Values read together when ``due``, ``every_s`` seconds apart or, as `pace`, less often."""

    def __init__(self, read: Callable[[], NamedValues], every_s: float) -> None:
        self._read, self.every_s = read, every_s
        self.pause = every_s
        self.cpu = self.wall = self.spent = 0.0
        self.due = 0.0
        self._values: List[Tuple[str, Number]] = []
        self._readings = 0

    @property
    def load(self) -> float:
        """The share of a core that readings take unless they are less often."""
        return self.cpu / self.every_s

    def values(self, now: float) -> List[Tuple[str, Number]]:
        """Return the values; None for each where it is too early to read them."""
        if now < self.due:
            return [(name, None) for name, _ in self._values]
        self.due = now + self.pause - _FAST_PERIOD_S / 2
        began, cpu = time.monotonic(), time.process_time()
        self._values = list(self._read())
        cpu, wall = time.process_time() - cpu, time.monotonic() - began
        self.spent += cpu
        if self._readings:
            # The first one does not count: it also opens files and wakes sleeping devices.
            weight = max(0.1, 1.0 / self._readings)
            self.cpu += weight * (cpu - self.cpu)
            self.wall += weight * (wall - self.wall)
        self._readings += 1
        return self._values


def pace(sources: List[SampledSource], budget: float) -> None:
    """Set how often sources are read within a share of a core; expensive ones share what cheap ones leave."""
    for place, source in enumerate(sorted(sources, key=lambda item: item.load)):
        load = min(source.load, budget / (len(sources) - place))
        budget -= load
        source.pause = max(source.every_s, source.wall / _MAX_TIME_SHARE, source.cpu / load if load else 0.0)


def sample_period(written: int, fastest: float, waking: float) -> float:
    """Return the seconds from one sample to the next.

    Long files, by the bytes ``written``, get fewer. ``fastest`` is the least time between two readings, and
    ``waking`` the CPU time of a sample besides them, which may have half of the share of a core.
    """
    file_limit = _FAST_PERIOD_S * 2.0 ** (written // _BYTES_BEFORE_SLOWER)
    return min(_SLOWEST_PERIOD_S, max(file_limit, fastest, 2 * waking / _MAX_CPU_SHARE))


class Sampler:
    """Writes the samples of this node until its ranks have ended."""

    def __init__(self, run_directory: str, node: str, parent: int = 0) -> None:
        self._run, self._parent = run_directory, parent or os.getppid()
        self._path = os.path.join(run_directory, FOLDER, node + ".jsonl")
        self._node = node
        self._ranks, self._system = Ranks(run_directory), NodeSource()
        self._nvidia = NvidiaGpus()
        gpus: Any = self._nvidia if self._nvidia.names else DrmGpus()
        network, files = Network(), FileSystems()
        self._gpu_names: List[str] = gpus.names
        self._parts: List[Any] = [self._system, network, files, gpus, self._nvidia]
        self._process_search = SampledSource(self._look, _SLOW_PERIOD_S)
        self._fast = [SampledSource(part.fast, _FAST_PERIOD_S) for part in (gpus, self._ranks)]
        self._slow = [
            SampledSource(part.slow, _SLOW_PERIOD_S) for part in (self._ranks, self._system, network, files)
        ]
        if gpus is self._nvidia:
            self._slow += [
                SampledSource(read, _SLOW_PERIOD_S) for read in (gpus.slow, self._foreign_processes)
            ]
            self._slow.append(SampledSource(gpus.energy_and_pcie, _ENERGY_PERIOD_S * len(gpus.names)))
        self._header: Optional[Dict[str, Any]] = None
        self._encode = json.JSONEncoder(separators=(",", ":")).encode
        self._unwritten: List[str] = []
        self._written = 0
        self._ended = self._left = self._had_ranks = False
        self._empty = 0
        self._on_gpus: Dict[int, Optional[Set[int]]] = {}
        self._ranks_use_gpus = False

    def run(self) -> None:
        """Take samples; a signal to terminate is followed by the last one."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        with suppress(OSError, ValueError):  # Use any core of the node, and not only that of the first rank.
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._began, began_cpu = time.time(), time.process_time()
        sources = [self._process_search, *self._fast, *self._slow]
        ticks, tick = 0, _FAST_PERIOD_S
        with open(self._path, "ab", 0) as self._file:
            while True:
                now = time.time()
                slow = self._sample(now)
                if self._ended or self._left or self._is_alone(now):
                    return
                ticks += 1
                if slow:
                    # To wake up and to write takes CPU time too.
                    between = time.process_time() - began_cpu - sum(source.spent for source in sources)
                    share = between / max(_SLOW_PERIOD_S, now - self._began)
                    pace(sources, max(_MAX_CPU_SHARE / 2, _MAX_CPU_SHARE - share))
                    fastest = min(source.pause for source in sources)
                    tick = sample_period(self._written, fastest, between / ticks)
                # No longer than a tick if the clock was set back.
                pause = min(tick, max(0.0, now + tick - time.time()))
                self._ended = signal.sigtimedwait({signal.SIGTERM}, pause) is not None
                if self._ended:
                    for source in sources:
                        source.due = 0.0

    def _look(self) -> NamedValues:
        """Look for the processes of the ranks, and whether all that have one are over."""
        self._ranks.find()
        self._system.cores = sorted(set().union(*self._ranks.cores().values()))
        self._empty = 0 if self._ranks.processes else self._empty + 1
        self._had_ranks = self._had_ranks or bool(self._ranks.processes)
        ranks = self._ranks.processes.keys()
        if ranks and os.getppid() != self._parent:
            self._left = ended_ranks(self._run, ranks) == ranks
        yield from ()

    def _is_alone(self, now: float) -> bool:
        """Return whether the ranks here have ended, or will not begin."""
        if self._empty and os.getppid() != self._parent:
            return True
        return self._empty >= 3 and (self._had_ranks or now - self._began > _MAX_START_S)

    def _sample(self, now: float) -> bool:
        """Take a sample of what is due; return whether slow values were."""
        self._process_search.values(now)
        slow = any(now >= source.due for source in self._slow)
        if not slow and not any(now >= source.due for source in self._fast):
            return False
        groups = []
        for sources in (self._fast, self._slow) if slow else (self._fast,):
            groups.append([named for source in sources for named in source.values(now)])
        names = [[name for name, _ in group] for group in groups]
        self._describe(names[0], names[1] if slow else None, now)
        self._write([round(now, 3), *([value for _, value in group] for group in groups)], slow)
        return slow

    def _foreign_processes(self) -> NamedValues:
        """Yield the number of foreign processes on each GPU; None where no rank was ever seen on a GPU."""
        self._on_gpus = self._nvidia.processes()
        ranks = set().union(*self._ranks.processes.values())
        self._ranks_use_gpus = self._ranks_use_gpus or any(on and on & ranks for on in self._on_gpus.values())
        for index, on in sorted(self._on_gpus.items()):
            foreign = len(on - ranks) if on is not None and self._ranks_use_gpus else None
            yield "gpu%d other_processes" % index, foreign

    def _describe(self, fast: List[str], slow: Optional[List[str]], now: float) -> None:
        """Name the values that follow, and the places of the ranks, if they have changed."""
        before = self._header
        if before and before["fast"] == fast and slow is None:
            return
        cores = self._ranks.cores()
        ranks = {
            str(rank): {
                "cores": cores.get(rank, []),
                "gpus": [index for index, on in self._on_gpus.items() if on and on & pids],
                "devices": self._ranks.devices.get(rank, ""),
            }
            for rank, pids in sorted(self._ranks.processes.items())
        }
        slow = slow if slow is not None else before["slow"] if before else []
        if before and [before[key] for key in ("fast", "slow", "ranks")] == [fast, slow, ranks]:
            return
        missing: Dict[str, str] = {}
        for source in self._parts:
            missing.update(source.missing)
        if self._gpu_names:
            missing.pop("NVIDIA GPUs", None)
        self._header = {
            "node": self._node,
            "time": round(now, 3),
            "limits": self._system.limits(),
            "gpus": self._gpu_names,
            "ranks": ranks,
            "missing": missing,
            "fast": fast,
            "slow": slow,
        }
        self._write(self._header)

    def _write(self, value: Any, now: bool = True) -> None:
        """Write a line, or keep it until the next: to a shared file system, each writing is a message."""
        self._unwritten.append(self._encode(value) + "\n")
        if now:
            lines = "".join(self._unwritten).encode()
            self._unwritten = []
            self._file.write(lines)
            self._written += len(lines)
