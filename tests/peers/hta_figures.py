"""The figures of HolisticTraceAnalysis for a folder of traces, as JSON, with its time and memory.

Run by the Python of an environment that has it: ``PYTHON tests/peers/hta_figures.py FOLDER``. Its own
rounding of time stamps to microseconds is switched off by ``HTA_DISABLE_NS_ROUNDING=1``.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the analyses and print them."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    from hta.trace_analysis import TraceAnalysis

    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        seconds[name] = time.perf_counter() - began
        return result

    hta = timed("load", lambda: TraceAnalysis(trace_dir=sys.argv[1]))
    ranks = sorted(hta.t.traces)
    tables = {
        "temporal": timed("temporal", lambda: hta.get_temporal_breakdown(visualize=False)),
        "overlap": timed("overlap", lambda: hta.get_comm_comp_overlap(visualize=False)),
    }
    # A number of kernels that no trace reaches: below it, HTA sums up the small ones as "others".
    kinds, kernels = timed(
        "kernels",
        lambda: hta.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True, num_kernels=10**6),
    )
    tables |= {"kinds": kinds, "kernels": kernels}
    tables["idle"] = timed("idle", lambda: hta.get_idle_time_breakdown(ranks=ranks, visualize=False)[0])
    launches = timed("launches", lambda: hta.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False))
    queue = timed("queue", lambda: hta.get_queue_length_summary(ranks=ranks))
    queue.columns = [name for _, name in queue.columns]
    tables["queue"] = queue.reset_index()
    figures = {
        name: json.loads(table.to_json(orient="records", double_precision=15))
        for name, table in tables.items()
    }
    figures["launches"] = {
        rank: json.loads(table.to_json(orient="records", double_precision=15))
        for rank, table in launches.items()
    }
    # ru_maxrss begins with the peak of the process that started this one.
    status = Path("/proc/self/status").read_text().splitlines()
    peak = int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024
    print(json.dumps({"figures": figures, "seconds": seconds, "peak_mib": peak}))


if __name__ == "__main__":
    main()
