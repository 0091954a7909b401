"""Checks of the node and its file systems: counters, sampling, TMPDIR, monitoring, space."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from hpcprof.submit.doctor.machine import CheckResult, Inspected, Status

_GIB = 2**30
# unix(7): sun_path holds 108 bytes, the last of them a zero.
SOCKET_PATH = 107
# The wrapper makes a folder of this form for each rank; profilers make folders of their own in it.
_SCRATCH = "/hpcprof.XXXXXX/"
_PROFILERS_OWN = 50


def counters(machine: Inspected) -> CheckResult:
    """Check that this user may read hardware counters; otherwise ncu fails with ERR_NVGPUCTRPERM."""
    name = "hardware counters"
    text = machine.read(Path("/proc/driver/nvidia/params"))
    if text is None:
        return CheckResult(name, Status.ABSENT, "No NVIDIA driver is loaded here.")
    if re.search(r"^RmProfilingAdminOnly: *1", text, re.MULTILINE) and machine.user != 0:
        return CheckResult(
            name,
            Status.WARNING,
            "The driver lets only administrators read them: ncu fails with ERR_NVGPUCTRPERM.",
            "Ask the operators to set the module option NVreg_RestrictProfilingToAdminUsers=0.",
        )
    return CheckResult(name, Status.OK, "This user may read hardware counters.")


def perf_events(machine: Inspected) -> CheckResult:
    """Check that nsys can sample the CPU."""
    name = "CPU sampling"
    text = (machine.read(Path("/proc/sys/kernel/perf_event_paranoid")) or "").strip()
    if not re.fullmatch(r"-?\d+", text):
        return CheckResult(name, Status.ABSENT, "This kernel has no perf_event_paranoid.")
    if int(text) > 2 and machine.user != 0:
        return CheckResult(
            name,
            Status.WARNING,
            f"perf_event_paranoid is {text}: nsys cannot sample the CPU.",
            "Keep the profiler option sample=none, or ask for sysctl kernel.perf_event_paranoid=2.",
        )
    return CheckResult(name, Status.OK, f"perf_event_paranoid is {text}.")


def tmpdir(machine: Inspected) -> CheckResult:
    """Check that TMPDIR is short, writable and has space."""
    name = "TMPDIR"
    path = machine.site.tmpdir or machine.environment.get("TMPDIR") or "/tmp"
    left = SOCKET_PATH - len(path.encode()) - len(_SCRATCH)
    if left < _PROFILERS_OWN:
        return CheckResult(
            name,
            Status.BROKEN if left < 0 else Status.WARNING,
            f"{path} is too long: the path of a profiler's socket in it has at most {SOCKET_PATH} bytes.",
            "Set TMPDIR to a short path on the node, such as /tmp.",
        )
    if machine.site.tmpdir and not machine.scheduler.runs_here:
        return CheckResult(name, Status.OK, f"Jobs make {path} on the node.")
    try:
        with tempfile.TemporaryDirectory(dir=path):
            free = machine.free(Path(path))
    except OSError as error:
        observation = f"{path} cannot be written: {error.strerror}."
        return CheckResult(
            name, Status.BROKEN, observation, "Set TMPDIR to a folder that exists and that you can write to."
        )
    if free < _GIB:
        observation = f"{path} has {free / _GIB:.1f} GiB left."
        return CheckResult(name, Status.WARNING, observation, "Free some space, or set TMPDIR elsewhere.")
    return CheckResult(name, Status.OK, f"{path} has {free / _GIB:.0f} GiB left.")


def dcgm(machine: Inspected) -> CheckResult:
    """Check that NVIDIA's monitoring does not hold the hardware counters, which have one user at a time."""
    name = "DCGM"
    if not machine.which("dcgmi"):
        return CheckResult(name, Status.ABSENT, "dcgmi is not on the PATH, so nothing needs to be paused.")
    if not machine.run(["dcgmi", "discovery", "--list"]).ok:
        return CheckResult(name, Status.OK, "Its host engine is not running.")
    return CheckResult(
        name,
        Status.WARNING,
        "It is running and may hold the hardware counters.",
        "Run dcgmi profile --pause before ncu, and dcgmi profile --resume afterwards.",
    )


def runs(machine: Inspected) -> CheckResult:
    """Check that there is space for runs."""
    name = "runs folder"
    free = machine.free(machine.runs.absolute()) / _GIB
    observation = f"{machine.runs} has {free:.1f} GiB left."
    if free < 5:
        status = Status.BROKEN if free < 0.1 else Status.WARNING
        return CheckResult(
            name, status, observation, "Free some space, or give --runs-dir on another file system."
        )
    return CheckResult(name, Status.OK, observation)
