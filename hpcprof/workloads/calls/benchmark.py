"""Times single calls of CUDA's driver in loops, on an idle GPU, in several processes one after another.

Only the standard library and the driver are needed, so that it runs on any node with an NVIDIA GPU. The time
of Python itself is in all times alike, and not in the difference of two runs. Processes of one program differ
by a factor of two, by the clock of the core that they run on: the quickest of them counts.
"""

from __future__ import annotations

import csv
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from statistics import median

from hpcprof.common.errors import HpcprofError
from hpcprof.workloads.calls.options import OUTPUT, Parameters
from hpcprof.workloads.rankenv import RankEnvironment

_CUDA_DRIVER = "libcuda.so.1"
_EMPTY_KERNEL = b".version 6.0\n.target sm_60\n.address_size 64\n.visible .entry empty() { ret; }\n"
_CALLS_PER_ROUND, _WARM_UP_ROUNDS = 200, 10
"""Calls of a round, and rounds that do not count."""
_COPIED_BYTES = 64
_DISABLE_TIMING = 2
"""CU_EVENT_DISABLE_TIMING."""

TimedCall = tuple[str, str, Callable[[], object]]
"""A kind, a name, and a function that makes the call."""
Row = tuple[str, str, int]
"""A kind, a name, and the time of the call in ns."""


def run(parameters: Parameters | Exception) -> int:
    """Time the calls and write the table; return the exit status. Without processes the times are printed."""
    try:
        if isinstance(parameters, Exception):
            raise parameters
        if not parameters.processes:
            csv.writer(sys.stdout).writerows(time_calls(Driver(ctypes.CDLL(_CUDA_DRIVER)), parameters.rounds))
            return 0
        rows = quickest([_time_in_process() for _ in range(parameters.processes)])
    except OSError as error:
        sys.stderr.write(f"The workload calls needs an NVIDIA GPU and its driver: {error}.\n")
        return 1
    except HpcprofError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode
    path = (RankEnvironment.from_environment(os.environ).run_dir or Path.cwd()) / OUTPUT
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("kind", "call", "ns"))
        writer.writerows(rows)
    print(f"{len(rows)} calls timed: {path}", flush=True)
    return 0


def _time_in_process() -> list[Row]:
    """Return the times of this program in a process of its own; CalledProcessError if that fails."""
    command = [sys.executable, *sys.orig_argv[1:], "--processes", "0"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [(kind, name, int(ns)) for kind, name, ns in csv.reader(printed.splitlines())]


def quickest(tables: list[list[Row]]) -> list[Row]:
    """Return each call with its least time in several tables."""
    return [min(rows, key=lambda row: row[2]) for rows in zip(*tables, strict=True)]


def time_calls(driver: Driver, rounds: int) -> list[Row]:
    """Return the median time of each call over ``rounds``."""
    calls = [*driver.calls()]
    times: dict[str, list[float]] = {kind: [] for kind, *_ in calls}
    for number in range(_WARM_UP_ROUNDS + rounds):
        for kind, _, call in calls:
            driver.call("cuStreamSynchronize", driver.stream)
            began = time.perf_counter_ns()
            for _ in range(_CALLS_PER_ROUND):
                call()
            ended = time.perf_counter_ns()
            if number >= _WARM_UP_ROUNDS:
                times[kind].append((ended - began) / _CALLS_PER_ROUND)
    driver.call("cuCtxSynchronize")
    return [(kind, name, round(median(times[kind]))) for kind, name, _ in calls]


class Driver:
    """The functions of CUDA's driver on the first GPU that the rank sees, with a stream of their own."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        device, context, module = c_int(), c_void_p(), c_void_p()
        self.stream, self._kernel, self._event = c_void_p(), c_void_p(), c_void_p()
        self._on_gpu, self._on_host = c_uint64(), c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", byref(self.stream), 0)
        self.call("cuModuleLoadData", byref(module), _EMPTY_KERNEL)
        self.call("cuModuleGetFunction", byref(self._kernel), module, b"empty")
        self.call("cuEventCreate", byref(self._event), _DISABLE_TIMING)
        self.call("cuMemAlloc_v2", byref(self._on_gpu), c_size_t(_COPIED_BYTES))
        self.call("cuMemHostAlloc", byref(self._on_host), c_size_t(_COPIED_BYTES), 0)

    def call(self, function: str, *arguments: object) -> None:
        """Call a function; raises HpcprofError with CUDA's number if it fails."""
        if status := getattr(self._library, function)(*arguments):
            raise HpcprofError(f"{function} of CUDA's driver fails with error {status}.")

    def calls(self) -> Iterator[TimedCall]:
        """Yield the calls that are timed."""

        def timed(kind: str, name: str, *arguments: object) -> TimedCall:
            function = getattr(self._library, name)
            return kind, name, lambda: function(*arguments)

        grid = (1, 1, 1, 32, 1, 1)
        yield timed("launch", "cuLaunchKernel", self._kernel, *grid, 0, self.stream, None, None)
        copied = (self._on_gpu, self._on_host, c_size_t(_COPIED_BYTES), self.stream)
        yield timed("copy", "cuMemcpyHtoDAsync_v2", *copied)
        yield timed("wait", "cuStreamSynchronize", self.stream)
        yield timed("record", "cuEventRecord", self._event, self.stream)
        yield timed("stream_wait", "cuStreamWaitEvent", self.stream, self._event, 0)
        yield timed("other", "cuEventQuery", self._event)
