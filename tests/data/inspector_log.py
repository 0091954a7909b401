"""Logs of NCCL's Inspector in the format 4.0, as ``inspector_json.cc`` of NVIDIA/nccl 2.30.7 writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BEGUN_US = 1_764_000_000_000_000
HEADER = {"id": "0x7f8c496ae9f661", "comm_name": "unknown", "nnodes": 1}


def line(
    rank: int,
    number: int,
    stop_us: int | None,
    took_us: int,
    *,
    size: int = 1 << 20,
    **more: Any,
) -> dict[str, Any]:
    """Return the line of a collective whose kernel stops at a moment; without one, that is not in the log."""
    performance: dict[str, Any] = {
        "coll": "AllReduce",
        "coll_sn": number,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": took_us,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": size / took_us / 1000,
        "coll_busbw_gbs": 1.5 * size / took_us / 1000,
        **more,
    }
    if stop_us is not None:
        stamps = {"channel_id": 0, "kernel_start_ts": stop_us - took_us, "kernel_record_ts": stop_us}
        events = [{**stamps, "kernel_stop_ts": stop_us - late} for late in (2, 0)]
        performance["event_trace_ts"] = {"coll_start_ts": stop_us - took_us - 9, "kernel_events": events}
    return {
        "header": {**HEADER, "rank": rank, "n_ranks": 4},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": BEGUN_US,
            "hostname": "n1",
            "pid": 4000 + rank,
        },
        "coll_perf": performance,
    }


def write_log(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    """Write a log."""
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def of_slow_rank(rank: int, *, timed: bool = True) -> str:
    """Return the log of one of four ranks that wait 300 microseconds for rank 2 in each all-reduce of 500."""
    took = 500 if rank == 2 else 800
    lines = (line(rank, i, BEGUN_US + 2000 * i + rank if timed else None, took) for i in range(40))
    return "".join(json.dumps(one) + "\n" for one in lines)
