"""Hardware counters of kernels by the names of both, and the metrics of single launches."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows, none_in
from hpcprof.analysis.statistics.grouped import mean_and_extremes
from hpcprof.profiles.columns.unique import numbered_rows, object_array
from hpcprof.profiles.kernel_report import KernelReport, MeasuredKernel
from hpcprof.profiles.timeline import Timeline


def kernel_counters(timeline: Timeline) -> Outcome:
    """Summarize the values of each counter over the launches of each kernel."""
    table = timeline.counters
    if not len(table):
        return none_in(timeline, "hardware counters of kernels")
    groups, row = numbered_rows(table.name, table.counter)
    names, counters = groups.T
    sizes = sorted(_KIBIBYTES & {*timeline.names(counters)})
    return Outcome(
        {
            "name": object_array(timeline.names(names)),
            "counter": object_array(timeline.names(counters)),
            "count": np.bincount(row),
            "total": np.bincount(row, table.value),
            **mean_and_extremes(row, table.value),
        },
        f"in units of 1024 bytes: {', '.join(sizes)}" if sizes else "",
    )


_KIBIBYTES = {"FETCH_SIZE", "WRITE_SIZE"}
"""Counters of rocprofv3 in units of 1024 bytes."""
_OF_PEAK = "pct_of_peak_sustained_elapsed"
OCCUPANCY = {
    "achieved_occupancy_pct": (
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "sm__warps_active.avg.pct_of_peak_sustained_elapsed",
    ),
    "theoretical_occupancy_pct": (
        "sm__maximum_warps_per_active_cycle_pct",
        "sm__maximum_warps_avg_per_active_cycle_pct",
    ),
}
_PERCENTAGES = {
    "compute_throughput_pct": (f"sm__throughput.avg.{_OF_PEAK}", f"sm__throughput.max.{_OF_PEAK}"),
    "memory_throughput_pct": (
        f"gpu__compute_memory_throughput.avg.{_OF_PEAK}",
        f"gpu__compute_memory_access_throughput.avg.{_OF_PEAK}",
    ),
    "dram_throughput_pct": (
        f"gpu__dram_throughput.avg.{_OF_PEAK}",
        f"dram__throughput.avg.{_OF_PEAK}",
        f"dram__bytes.sum.{_OF_PEAK}",
        f"dram__bytes.avg.{_OF_PEAK}",
    ),
    **OCCUPANCY,
    "l1_hit_pct": ("l1tex__t_sector_hit_rate.pct", "l1tex__hit_rate.pct"),
    "l2_hit_pct": ("lts__t_sector_hit_rate.pct", "lts__hit_rate.pct"),
}
"""The names of the metric of each value, the usual one first: sections, versions and chips differ."""

DURATION = "gpu__time_duration.sum"
_DURATIONS = (DURATION, "gpu__time_duration.avg", "gpu__time_duration.max", "gpu__time_active.sum")
_INTEGER_METRICS = {
    "sm_count": ("launch__sm_count", "device__attribute_multiprocessor_count"),
    "duration_ns": _DURATIONS,
}
_SECTOR_BYTES = 32


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
    percent = {name: first_metric(metrics, alternatives) for name, alternatives in _PERCENTAGES.items()}
    counts = {name: first_metric(metrics, alternatives) for name, alternatives in _INTEGER_METRICS.items()}
    tensor, tensor_type = tensor_flops(metrics)
    return {
        "id": kernel.id,
        "name": kernel.name,
        "grid": kernel.grid,
        "block": kernel.block,
        **{name: None if value is None else round(value, 2) for name, value in percent.items()},
        **{name: None if value is None else round(value) for name, value in counts.items()},
        **{f"flops_{precision}": flops(metrics, precision) for precision in PRECISIONS},
        "flops_tensor": tensor,
        "tensor_type": tensor_type,
        "dram_bytes": dram_bytes(metrics),
    }


Metrics = Mapping[str, float]


def first_metric(metrics: Metrics, names: Sequence[str]) -> float | None:
    """Return the value of the first metric that was measured; None if none was."""
    return next((metrics[name] for name in names if name in metrics), None)


PRECISIONS = {
    "fp16": {"hadd": 2, "hmul": 2, "hfma": 4},
    "fp32": {"fadd": 1, "fmul": 1, "ffma": 2},
    "fp64": {"dadd": 1, "dmul": 1, "dfma": 2},
}
"""The operations of one instruction of a thread, by precision and instruction.

Half-precision instructions work on pairs, as in ncu's own half-precision roofline.
"""

_FP16_ACTIVITY = ("sm__inst_executed_pipe_fp16", "sm__inst_executed_pipe_fma_type_fp16")
_TENSOR_ACTIVITY = ("sm__pipe_tensor_type_", "sm__pipe_tensor", "sm__inst_executed_pipe_tensor")
"""Prefixes of metrics that show by zeros that there were no instructions, the most specific first.

The tensor pipe also runs instructions other than matrix products; a type excludes those.
"""

_TENSOR = re.compile(
    r"sm__ops_path_tensor_src_([a-z0-9_]+?)((?:_dst_\w+?)?)(_sparsity_off|_sparsity_on)?\.sum"
)
"""Operations of the tensor cores: the type that they read, the type that they write, and sparsity."""


def flops(metrics: Metrics, precision: str) -> int | None:
    """Return the floating-point operations of a precision outside the tensor cores."""
    weights = PRECISIONS[precision]
    counts = {
        op: _instructions(metrics, f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum") for op in weights
    }
    if all(count is not None for count in counts.values()):
        return round(sum(weights[op] * (count or 0) for op, count in counts.items()))
    return 0 if precision == "fp16" and _idle(metrics, _FP16_ACTIVITY) else None


def tensor_flops(metrics: Metrics) -> tuple[int | None, str | None]:
    """Return the operations of the tensor cores and the type that they read; several are joined by ``+``.

    Without operations the type is None. Depending on the chip, each type has one metric, or one per written
    type and sparsity; a metric that is the sum of others takes precedence.
    """
    counts: dict[str, dict[tuple[str, str], float]] = {}
    for name, value in metrics.items():
        if match := _TENSOR.fullmatch(name):
            source, written, sparsity = match[1], match[2], match[3] or ""
            counts.setdefault(source, {})[written, sparsity] = value
    if not counts:
        return (0, None) if _idle(metrics, _TENSOR_ACTIVITY) else (None, None)
    totals = {source: round(_total(parts)) for source, parts in counts.items()}
    used = {source: total for source, total in totals.items() if total}
    return sum(used.values()), "+".join(sorted(used)) or None


def dram_bytes(metrics: Metrics) -> int | None:
    """Return the bytes read from and written to the GPU's memory."""
    seconds = (first_metric(metrics, _DURATIONS) or 0) / 1e9
    both = ("read", "write")
    for names, scale in (
        (["dram__bytes.sum"], 1.0),
        ([f"dram__bytes_{direction}.sum" for direction in both], 1.0),
        ([f"dram__sectors_{direction}.sum" for direction in both], _SECTOR_BYTES),
        ([f"dram__bytes_{direction}.sum.per_second" for direction in both], seconds),
        (["dram__bytes.sum.per_second"], seconds),
    ):
        if scale and all(name in metrics for name in names):
            return round(scale * sum(metrics[name] for name in names))
    return None


def _instructions(metrics: Metrics, name: str) -> float | None:
    """Return a counter, or its value per cycle times the number of cycles."""
    whole_chip = name.replace("smsp__", "sm__", 1)
    if (counted := first_metric(metrics, (name, whole_chip))) is not None:
        return counted
    per_cycle = metrics.get(f"{name}.per_cycle_elapsed")
    cycles = metrics.get("smsp__cycles_elapsed.avg")
    rate = metrics.get("smsp__cycles_elapsed.avg.per_second")
    time = first_metric(metrics, _DURATIONS)
    if cycles is None and rate is not None and time is not None:
        cycles = rate * time / 1e9
    return None if per_cycle is None or cycles is None else per_cycle * cycles


def _idle(metrics: Metrics, prefixes: tuple[str, ...]) -> bool:
    """Return whether a unit was idle, by the first group of its metrics that was collected."""
    # Extremes over units do not show activity: for a metric that is a difference they may be nonzero.
    means = {name: value for name, value in metrics.items() if ".avg" in name or ".sum" in name}
    groups = ([value for name, value in means.items() if name.startswith(start)] for start in prefixes)
    observed = next((group for group in groups if group), [])
    return bool(observed) and not any(observed)


def _total(parts: Mapping[tuple[str, str], float]) -> float:
    """Sum the metrics of one type over written types and sparsity; an empty text marks such a sum."""
    kinds = {written for written, _ in parts}
    chosen = {""} if "" in kinds else kinds
    total = 0.0
    for kind in chosen:
        counts = {sparsity: value for (written, sparsity), value in parts.items() if written == kind}
        total += counts[""] if "" in counts else sum(counts.values())
    return total
