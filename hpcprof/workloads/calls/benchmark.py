"""Times single calls of CUDA's driver in loops, on an idle GPU.

Only the standard library and the driver are needed, so that it runs on any node with an NVIDIA GPU. The
time of Python itself is in all times alike, and not in the difference of two runs.
"""

from __future__ import annotations

import csv
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from statistics import median

from hpcprof.common.errors import HpcprofError
from hpcprof.workloads.calls.options import OUTPUT, Parameters
from hpcprof.workloads.rankenv import RankEnvironment

_LIBRARY = "libcuda.so.1"
_KERNEL = b".version 6.0\n.target sm_60\n.address_size 64\n.visible .entry empty() { ret; }\n"
_GRAPH_KERNELS = 20
_CALLS, _FEWER_CALLS = 200, 20
"""Calls of a round, and those that allocate memory or launch a graph."""
_WARM_UP = 10
_BYTES, _ALLOCATED_BYTES = 64, 2 << 20
_WITHOUT_TIMES, _THREAD_LOCAL = 2, 1
"""CU_EVENT_DISABLE_TIMING, and CU_STREAM_CAPTURE_MODE_THREAD_LOCAL."""

TimedCall = tuple[str, str, int, Callable[[int], object]]
"""A kind, a name, the calls of a round, and a function that makes the call of a number."""


def run(wanted: Parameters | Exception) -> int:
    """Time the calls and write the table; return the exit status."""
    try:
        if isinstance(wanted, Exception):
            raise wanted
        rows = time_calls(Driver(ctypes.CDLL(_LIBRARY)), wanted.rounds)
    except OSError as error:
        sys.stderr.write(f"The workload calls needs an NVIDIA GPU and its driver: {error}.\n")
        return 1
    except HpcprofError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    path = (RankEnvironment.from_environment(os.environ).run_dir or Path.cwd()) / OUTPUT
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("kind", "call", "ns"))
        writer.writerows(rows)
    print(f"{len(rows)} calls timed: {path}", flush=True)
    return 0


def time_calls(driver: Driver, rounds: int) -> list[tuple[str, str, int]]:
    """Return the kind, the name and the median time in ns of each call, over ``rounds``."""
    calls = [*driver.calls()]
    times: dict[str, list[float]] = {kind: [] for kind, *_ in calls}
    for number in range(_WARM_UP + rounds):
        for kind, _, count, call in calls:
            driver.call("cuStreamSynchronize", driver.stream)
            began = time.perf_counter_ns()
            for i in range(count):
                call(i)
            ended = time.perf_counter_ns()
            if number >= _WARM_UP:
                times[kind].append((ended - began) / count)
    driver.call("cuCtxSynchronize")
    return [(kind, name, round(median(times[kind]))) for kind, name, *_ in calls]


class Driver:
    """The functions of CUDA's driver on the first GPU that the rank sees, with a stream of their own."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        device, context, module = c_int(), c_void_p(), c_void_p()
        self.stream, self._kernel, self._event = c_void_p(), c_void_p(), c_void_p()
        self._on_gpu, self._on_host = c_uint64(), c_void_p()
        self._pointers = [c_uint64() for _ in range(_FEWER_CALLS)]
        self.call("cuInit", 0)
        self.call("cuDeviceGet", byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", byref(self.stream), 0)
        self.call("cuModuleLoadData", byref(module), _KERNEL)
        self.call("cuModuleGetFunction", byref(self._kernel), module, b"empty")
        self.call("cuEventCreate", byref(self._event), _WITHOUT_TIMES)
        self.call("cuMemAlloc_v2", byref(self._on_gpu), c_size_t(_BYTES))
        self.call("cuMemHostAlloc", byref(self._on_host), c_size_t(_BYTES), 0)
        self._graph = self._ready_graph()

    def call(self, function: str, *arguments: object) -> None:
        """Call a function; raises HpcprofError with CUDA's number if it fails."""
        if status := getattr(self._library, function)(*arguments):
            raise HpcprofError(f"{function} of CUDA's driver fails with error {status}.")

    def calls(self) -> Iterator[TimedCall]:
        """Yield the calls that are timed; what is allocated is freed by the call after it."""

        def timed(kind: str, name: str, *arguments: object) -> TimedCall:
            function = getattr(self._library, name)
            return kind, name, _CALLS, lambda _: function(*arguments)

        copied = (self._on_gpu, self._on_host, c_size_t(_BYTES), self.stream)
        yield "launch", "cuLaunchKernel", _CALLS, lambda _: self.launch()
        yield timed("copy", "cuMemcpyHtoDAsync_v2", *copied)
        yield timed("wait", "cuStreamSynchronize", self.stream)
        yield timed("record", "cuEventRecord", self._event, self.stream)
        yield timed("stream_wait", "cuStreamWaitEvent", self.stream, self._event, 0)
        yield timed("other", "cuEventQuery", self._event)
        cuda, size = self._library, c_size_t(_ALLOCATED_BYTES)
        launch_graph, allocate, free = cuda.cuGraphLaunch, cuda.cuMemAlloc_v2, cuda.cuMemFree_v2
        yield "graph", "cuGraphLaunch", _FEWER_CALLS, lambda _: launch_graph(self._graph, self.stream)
        yield "allocate", "cuMemAlloc_v2", _FEWER_CALLS, lambda i: allocate(byref(self._pointers[i]), size)
        yield "free", "cuMemFree_v2", _FEWER_CALLS, lambda i: free(self._pointers[i])

    def launch(self) -> None:
        """Launch the empty kernel."""
        self._library.cuLaunchKernel(self._kernel, 1, 1, 1, 32, 1, 1, 0, self.stream, None, None)

    def _ready_graph(self) -> c_void_p:
        graph, ready = c_void_p(), c_void_p()
        self.call("cuStreamBeginCapture_v2", self.stream, _THREAD_LOCAL)
        for _ in range(_GRAPH_KERNELS):
            self.launch()
        self.call("cuStreamEndCapture", self.stream, byref(graph))
        self.call("cuGraphInstantiateWithFlags", byref(ready), graph, c_uint64(0))
        return ready
