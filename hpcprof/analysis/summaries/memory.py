"""Memory: copies and sets by operation, and the memory of the program's allocator."""

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows, none_in
from hpcprof.analysis.statistics.grouped import summarize, sums
from hpcprof.profiles.columns.unique import number_texts, object_array
from hpcprof.profiles.timeline import HOST, Ints, Timeline


def memops(timeline: Timeline) -> Outcome:
    """Summarize the durations and sizes of memory operations.

    The figures are those of cuda_gpu_mem_time_sum and cuda_gpu_mem_size_sum of ``nsys stats``.
    ``total_bytes`` is None if the size of an operation is unknown.
    """
    table = timeline.memops
    if not len(table):
        return none_in(timeline, "memory operations")
    names, group = number_texts(timeline, table.name)
    summary = summarize(group, table.end - table.start)
    total = sums(group, table.bytes, len(names))
    unknown = set(group[table.bytes < 0].tolist())
    sizes = [None if i in unknown else size for i, size in enumerate(total.tolist())]
    return Outcome({"operation": object_array(names), **summary.table("count"), "total_bytes": sizes})


def memory_usage(timeline: Timeline) -> Outcome:
    """Summarize the bytes that were allocated and reserved on each device.

    The statistics are over the values after each allocation and release, not weighted by time; ``count``
    is the number of these values. Percentiles are values that occurred (the lower of two neighbours).
    ``device`` is ``host`` for the host's memory, of which PyTorch reserves none.
    """
    table = timeline.allocations
    if not len(table):
        file = timeline.origin.path.name
        return no_rows(
            f"no allocations in {file}: the PyTorch profiler records them with profile_memory=True"
        )
    rows = []
    for device in np.unique(table.device).tolist():
        events = table.take(table.device == device)
        row = {"device": "host" if device == HOST else str(device), "count": len(events)}
        rows.append(
            row | _statistics("allocated", events.allocated) | _statistics("reserved", events.reserved)
        )
    return Outcome(columns_of(rows))


def _statistics(name: str, bytes_in_use: Ints) -> dict[str, int]:
    p50, p95 = np.percentile(bytes_in_use, (50, 95), method="lower").tolist()
    return {
        f"{name}_min_bytes": int(bytes_in_use.min()),
        f"{name}_mean_bytes": round(float(bytes_in_use.mean())),
        f"{name}_p50_bytes": p50,
        f"{name}_p95_bytes": p95,
        f"{name}_max_bytes": int(bytes_in_use.max()),
    }
