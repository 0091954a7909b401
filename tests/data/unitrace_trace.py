"""A small made-up program as unitrace records it, one event per line as it writes them."""

from __future__ import annotations

import json
from typing import Any

BASE_US = 1_795_000_000_000_000
PID, TID = 4711, 4712
DEVICES = (2**32 - 1, 2**32 - 2)
STEPS = 3
GEMM = "gemm_kernel<float>(int, float*)"


def metadata(rank: int) -> list[dict[str, Any]]:
    """Return what names the host and two tiles."""
    found: list[dict[str, Any]] = [_named(PID, f"RANK {rank} HOST<x4204c0s0b0n0>")]
    for tile, pid in enumerate(DEVICES):
        name = f"RANK {rank} DEVICE<x4204c0s0b0n0>[Intel(R) Data Center GPU Max 1550] 0:18:0:0 #0.{tile}"
        found.append(_named(pid, name))
    return found


def _named(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "ts": BASE_US, "args": {"name": name}}


def events(rank: int = 0) -> list[dict[str, Any]]:
    """Return the events: of each step a copy, two kernels on two tiles, a wait, and calls of MPI."""
    found = metadata(rank)
    for step in range(STEPS):
        at = BASE_US + 1000 * step
        ids = [10 * step + number for number in range(1, 4)]
        found += [
            _host("iteration", at, 900),
            _host("zeCommandListAppendMemoryCopy", at + 10, 5),
            _arrow(ids[0], at + 10),
            _host("zeCommandListAppendLaunchKernel", at + 20, 5),
            _arrow(ids[1], at + 20),
            _host("zeCommandListAppendLaunchKernel", at + 30, 5),
            _arrow(ids[2], at + 30),
            _device(0, "zeCommandListAppendMemoryCopy(M2D)[1048576]", ids[0], at + 40, 20),
            _device(0, f"{GEMM}[SIMD16 {{40; 4; 1}} {{256; 1; 1}}]", ids[1], at + 70, 100.25),
            _device(1, "oneapi::ccl::allreduce[SIMD32 {2; 1; 1} {512; 1; 1}]", ids[2], at + 180, 50),
            _device(0, "zeCommandListAppendBarrier", 1000 + step, at + 172, 1),
            _host("zeEventHostSynchronize", at + 50, 200),
            {**_host("MPI_Allreduce", at + 300, 30), "args": {"ssize": 8, "mpi_counter": step}},
        ]
    return found


def _host(name: str, at: float, length: float) -> dict[str, Any]:
    event = {"ph": "X", "tid": TID, "pid": PID, "name": name, "cat": "cpu_op"}
    return {**event, "ts": at, "dur": length, "id": 0}


def _arrow(number: int, at: float) -> dict[str, Any]:
    arrow = {"ph": "s", "tid": TID, "pid": PID, "name": "dep", "cat": f"Flow_H2D_{number}_0"}
    return {**arrow, "ts": at, "id": number}


def _device(tile: int, name: str, number: int, at: float, length: float) -> dict[str, Any]:
    event = {"ph": "X", "tid": 2**32 - 1 - tile, "pid": DEVICES[tile], "name": name, "cat": "gpu_op"}
    return {**event, "ts": at, "dur": length, "args": {"id": str(number)}}


def text(found: list[dict[str, Any]] | None = None, closed: bool = True) -> str:
    """Return the events as unitrace writes them; not ``closed`` as where the program was killed."""
    lines = ",\n".join(json.dumps(event) for event in (events() if found is None else found))
    return '{ "traceEvents":[\n' + lines + ("\n]\n}\n" if closed else "")
