"""Hardware counters of kernels by the names of both, and the metrics of single launches."""

from __future__ import annotations

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows
from hpcprof.analysis.framework.text_columns import object_array
from hpcprof.analysis.hardware.ncu_counts import DURATION, PRECISIONS, dram_bytes, flops, tensor_flops
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.kernel_report import KernelReport, MeasuredKernel
from hpcprof.profiles.timeline import Timeline


def kernel_counters(timeline: Timeline) -> Outcome:
    """Summarize the values of each counter over the launches of each kernel."""
    table = timeline.counters
    if not len(table):
        return no_rows(f"no hardware counters of kernels in {timeline.origin.path.name}")
    groups, row = numbered_rows(table.name, table.counter)
    launches = np.bincount(row)
    total = np.bincount(row, table.value)
    least, most = np.full(len(groups), np.inf), np.full(len(groups), -np.inf)
    np.minimum.at(least, row, table.value)
    np.maximum.at(most, row, table.value)
    names, counters = groups.T
    return Outcome(
        {
            "name": object_array(timeline.names(names)),
            "counter": object_array(timeline.names(counters)),
            "count": launches,
            "total": total,
            "mean": total / launches,
            "min": least,
            "max": most,
        }
    )


_PERCENT = {
    "compute_throughput_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_throughput_pct": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_throughput_pct": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "achieved_occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "theoretical_occupancy_pct": "sm__maximum_warps_per_active_cycle_pct",
    "l1_hit_pct": "l1tex__t_sector_hit_rate.pct",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
}
_WHOLE = {"sm_count": "launch__sm_count", "duration_ns": DURATION}


def ncu_kernels(report: KernelReport) -> Outcome:
    """List the launches that Nsight Compute measured, in its order.

    Percentages refer to the peak that the unit sustains, with two decimals as ncu prints them. ``flops_*``
    and ``dram_bytes`` are counts per launch. Values that were not collected are None; the reason names them.
    """
    if not report.kernels:
        return no_rows(f"no kernels in {report.origin.path.name}")
    rows = columns_of([_row(kernel) for kernel in report.kernels])
    missing = [name for name, values in rows.items() if name != "tensor_type" and None in values]
    if not missing:
        return Outcome(rows)
    kernels = "" if all({*rows[name]} == {None} for name in missing) else " for all kernels"
    return Outcome(rows, f"{report.origin.path.name} has no {', '.join(missing)}{kernels}")


def _row(kernel: MeasuredKernel) -> dict[str, object]:
    metrics = kernel.metrics
    percent = {name: metrics.get(metric) for name, metric in _PERCENT.items()}
    whole = {name: metrics.get(metric) for name, metric in _WHOLE.items()}
    tensor, tensor_type = tensor_flops(metrics)
    return {
        "id": kernel.id,
        "name": kernel.name,
        "grid": kernel.grid,
        "block": kernel.block,
        **{name: None if value is None else round(value, 2) for name, value in percent.items()},
        **{name: None if value is None else round(value) for name, value in whole.items()},
        **{f"flops_{precision}": flops(metrics, precision) for precision in PRECISIONS},
        "flops_tensor": tensor,
        "tensor_type": tensor_type,
        "dram_bytes": dram_bytes(metrics),
    }
