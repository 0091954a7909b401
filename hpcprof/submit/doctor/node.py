"""Checks of the node and its file systems: counters, sampling, TMPDIR, monitoring, space."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from hpcprof.submit.doctor.finding import Finding, Status
from hpcprof.submit.doctor.machine import Machine

_GIB = 2**30
# unix(7): sun_path holds 108 bytes, the last of them a zero.
SOCKET_PATH = 107
# The wrapper gives each rank a folder of this form, and profilers make folders of their own in it.
_SCRATCH = "/hpcprof.XXXXXX/"
_PROFILERS_OWN = 50


def counters(machine: Machine) -> Finding:
    """Look whether a user may read hardware counters, without which ncu ends by ERR_NVGPUCTRPERM."""
    name = "hardware counters"
    text = machine.read(Path("/proc/driver/nvidia/params"))
    if text is None:
        return Finding(name, Status.ABSENT, "No NVIDIA driver is loaded here.")
    if re.search(r"^RmProfilingAdminOnly: *1", text, re.MULTILINE) and machine.user != 0:
        return Finding(
            name,
            Status.WARNING,
            "The driver keeps them to administrators: ncu fails by ERR_NVGPUCTRPERM.",
            "Ask the operators for the module option NVreg_RestrictProfilingToAdminUsers=0.",
        )
    return Finding(name, Status.OK, "This user may read them.")


def perf_events(machine: Machine) -> Finding:
    """Look whether nsys could sample the CPU."""
    name = "CPU sampling"
    text = (machine.read(Path("/proc/sys/kernel/perf_event_paranoid")) or "").strip()
    if not re.fullmatch(r"-?\d+", text):
        return Finding(name, Status.ABSENT, "This kernel has no perf_event_paranoid.")
    if int(text) > 2 and machine.user != 0:
        return Finding(
            name,
            Status.WARNING,
            f"perf_event_paranoid is {text}: nsys cannot sample the CPU.",
            "Leave the profiler option sample=none, or ask for sysctl kernel.perf_event_paranoid=2.",
        )
    return Finding(name, Status.OK, f"perf_event_paranoid is {text}.")


def tmpdir(machine: Machine) -> Finding:
    """Look whether TMPDIR is short, can be written and has space."""
    name = "TMPDIR"
    path = machine.site.tmpdir or machine.environment.get("TMPDIR") or "/tmp"
    left = SOCKET_PATH - len(path.encode()) - len(_SCRATCH)
    if left < _PROFILERS_OWN:
        return Finding(
            name,
            Status.BROKEN if left < 0 else Status.WARNING,
            f"{path} is long: profilers make sockets in it, with paths of {SOCKET_PATH} characters at most.",
            "Set TMPDIR to a short path on the node, such as /tmp.",
        )
    if machine.site.tmpdir and not machine.here:
        return Finding(name, Status.OK, f"Jobs make {path} on the node.")
    try:
        with tempfile.TemporaryDirectory(dir=path):
            free = machine.free(Path(path))
    except OSError as error:
        said = f"{path} cannot be written: {error.strerror}."
        return Finding(name, Status.BROKEN, said, "Set TMPDIR to a folder that exists and is yours.")
    if free < _GIB:
        said = f"{path} has {free / _GIB:.1f} GiB left."
        return Finding(name, Status.WARNING, said, "Free some space, or set TMPDIR elsewhere.")
    return Finding(name, Status.OK, f"{path} has {free / _GIB:.0f} GiB left.")


def dcgm(machine: Machine) -> Finding:
    """Look whether NVIDIA's monitoring holds the hardware counters, which only one can use at a time."""
    name = "DCGM"
    if not machine.which("dcgmi"):
        return Finding(name, Status.ABSENT, "There is no dcgmi, so nothing has to be paused.")
    if not machine.run(["dcgmi", "discovery", "--list"]).ok:
        return Finding(name, Status.OK, "Its host engine is not running.")
    return Finding(
        name,
        Status.WARNING,
        "It is running and may hold the hardware counters.",
        "Before ncu, run dcgmi profile --pause, and dcgmi profile --resume afterwards.",
    )


def runs(machine: Machine) -> Finding:
    """Look whether there is space for runs."""
    name = "runs folder"
    free = machine.free(machine.runs.absolute()) / _GIB
    said = f"{machine.runs} has {free:.1f} GiB left."
    if free < 5:
        status = Status.BROKEN if free < 0.1 else Status.WARNING
        return Finding(name, status, said, "Free some space, or give --runs-dir on another file system.")
    return Finding(name, Status.OK, said)
