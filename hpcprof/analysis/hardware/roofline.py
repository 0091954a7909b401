"""The roofline: peak rates of a GPU from Nsight Compute, and the share of them that each kernel reaches."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from hpcprof.analysis.comparison.run_differences import SIDE_NAMES, describe_differences
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.hardware.kernel_counters import PRECISIONS
from hpcprof.common.units import named_ranks
from hpcprof.profiles.kernel_names import KernelLookup
from hpcprof.profiles.kernel_report import KernelReport

_SHAPE = ["name", "grid", "block"]
_FLOPS = [f"flops_{precision}" for precision in PRECISIONS] + ["flops_tensor"]
_SECTIONS = (
    "SpeedOfLight_RooflineChart, SpeedOfLight_HierarchicalHalfRooflineChart and "
    "SpeedOfLight_HierarchicalTensorRooflineChart"
)


def roofline_of_run(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Compute the roofline of a run whose ranks ran under Nsight Compute.

    The times in situ come from the run's other ranks, if these ran under Nsight Systems.
    """
    outcome = roofline(results["ncu_kernels"], results["kernels_by_shape"], results["ncu_peaks"])
    return _add_notes(outcome, _several_devices(results["device_breakdown"]) if len(outcome.rows) else [])


def roofline_against(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Compute the roofline of runs under Nsight Compute, with times in situ from other runs of the job.

    The runs in ``against`` ran under Nsight Systems. The reason names other differences between the sides.
    """
    kernels, peaks, shapes = (
        pd.concat([run.tables[name] for run in side], ignore_index=True)
        for name, side in (("ncu_kernels", runs), ("ncu_peaks", runs), ("kernels_by_shape", against))
    )
    outcome = roofline(kernels, shapes, peaks)
    devices = [device for run in against for device in _several_devices(run.tables["device_breakdown"])]
    notes = list(dict.fromkeys(devices)) if len(outcome.rows) else []
    return _add_notes(outcome, [*notes, *describe_differences(runs, against, SIDE_NAMES, ("profiler",))])


def _add_notes(outcome: Outcome, notes: Sequence[str]) -> Outcome:
    """Add sentences to the reason of an outcome."""
    return Outcome(outcome.rows, "; ".join(filter(None, [outcome.reason, *notes])))


def _several_devices(breakdown: pd.DataFrame) -> list[str]:
    """Return a sentence if ranks used several devices, because the times in situ do not name the device."""
    devices = breakdown.groupby("rank")["device"].nunique() if len(breakdown) else pd.Series(dtype=int)
    several = devices[devices > 1]
    if several.empty:
        return []
    ranks = named_ranks([int(rank) for rank in several.index])
    return [
        f"in_situ_ns of {ranks} is the median over all launches on {int(several.max())} devices of a rank"
    ]


def roofline(kernels: pd.DataFrame, shapes: pd.DataFrame, peaks: pd.DataFrame) -> Outcome:
    """Join the operations, bytes and times of the kernels, one row per name, grid and block.

    Parameters
    ----------
    kernels : DataFrame
        Rows of ``ncu_kernels``; the launches of a kernel with a value count by their median.
    shapes : DataFrame
        Rows of ``kernels_by_shape`` of the same program under Nsight Systems, of any ranks; may be empty. If
        ranks differ, the median of their medians counts.
    peaks : DataFrame
        Rows of ``ncu_peaks``.

    Each resource that a kernel uses (``dram``, ``fp32``, ``tensor_bf16``…) needs at least its operations or
    bytes divided by its peak rate. ``bound`` is the resource that needs the most time, and ``pct_of_bound``
    that time in percent of the kernel's time. With one precision this is the roofline
    min(peak, intensity x bandwidth). The kernel's time is the time in situ or, if unknown, that of ncu;
    ``achieved_flops`` is per second of it.
    """
    if kernels.empty:
        return no_rows("roofline needs a profile of Nsight Compute, and this run has none with kernels")
    peak = dict(zip(peaks["resource"], peaks["peak_per_s"], strict=True)) if len(peaks) else {}
    in_situ = _in_situ(shapes)
    groups = kernels.groupby(_SHAPE, sort=False, dropna=False)
    rows = [_row(key, group, peak, in_situ) for key, group in groups]
    frame = pd.DataFrame(rows, dtype=object)
    order = frame["in_situ_ns"].fillna(frame["ncu_ns"]).fillna(0).astype(float)
    frame = frame.iloc[order.argsort(kind="stable")[::-1]].reset_index(drop=True)
    reasons = _reasons(frame, shapes)
    if frame[["bound", "achieved_flops", "in_situ_ns"]].isna().all(axis=None):
        return no_rows(reasons)
    return Outcome(frame.where(frame.notna(), None), reasons)


def _in_situ(shapes: pd.DataFrame) -> KernelLookup[int]:
    """Return the times of the kernels under Nsight Systems, in ns."""
    named = shapes.dropna(subset="name") if len(shapes) else pd.DataFrame(columns=[*_SHAPE, "med_ns"])
    medians = named["med_ns"].astype(float).groupby([named[key] for key in _SHAPE]).median()
    return KernelLookup((*kernel, round(float(time))) for kernel, time in medians.items())


def _row(
    key: Any, launches: pd.DataFrame, peak: Mapping[str, float], in_situ: KernelLookup[int]
) -> dict[str, object]:
    name, grid, block = key
    ncu_ns = _median(launches["duration_ns"])
    in_situ_ns = in_situ.find(name, grid, block)
    time = ncu_ns if in_situ_ns is None else in_situ_ns
    counts = {column: _median(launches[column]) for column in [*_FLOPS, "dram_bytes"]}
    types = launches["tensor_type"].dropna().unique()
    row: dict[str, object] = dict(zip(_SHAPE, key, strict=True)) | dict.fromkeys(
        ("ai_flop_per_byte", "achieved_flops", "bound", "pct_of_bound")
    )
    row |= {"ncu_ns": None if ncu_ns is None else round(ncu_ns), "in_situ_ns": in_situ_ns}
    flops = [counts[column] for column in _FLOPS]
    if time and None not in flops:
        total = sum(value or 0 for value in flops)
        row["achieved_flops"] = round(total / time * 1e9)
        if counts["dram_bytes"]:
            row["ai_flop_per_byte"] = round(total / counts["dram_bytes"], 4)
    if time:
        row |= _binding_resource(counts, "+".join(types), peak, time)
    return row


def _binding_resource(
    counts: Mapping[str, float | None], tensor_type: str, peak: Mapping[str, float], time: float
) -> dict[str, object]:
    """Return the resource that needs the most time, and its share; empty if a value is unknown."""
    used = {column.removeprefix("flops_"): value for column, value in counts.items()}
    used[DRAM] = used.pop("dram_bytes")
    used[f"tensor_{tensor_type}"] = used.pop("tensor")
    needed = {}
    for resource, amount in used.items():
        if amount is None or (amount and resource not in peak):
            return {}
        if amount:
            needed[resource] = amount / peak[resource] * 1e9
    if not needed:
        return {}
    bound = max(needed, key=lambda resource: needed[resource])
    return {"bound": bound, "pct_of_bound": round(100 * needed[bound] / time, 2)}


def _median(values: "pd.Series[Any]") -> float | None:
    """Return the median of the launches with a value; others may have been measured for other metrics."""
    measured = values.dropna()
    return float(measured.astype(float).median()) if len(measured) else None


def _reasons(rows: pd.DataFrame, shapes: pd.DataFrame) -> str:
    """Return the reasons why values are missing."""
    reasons = []
    unknown = int(rows["bound"].isna().sum())
    if unknown:
        reasons.append(
            f"{unknown} of {len(rows)} kernels have no bound: it needs the operations of every precision, "
            f"the bytes of DRAM and the peak rates, which ncu collects in the sections {_SECTIONS}"
        )
    absent = int(rows["in_situ_ns"].isna().sum())
    if not len(shapes):
        reasons.append("in_situ_ns is unknown, because no rank has a timeline of Nsight Systems")
    elif absent:
        reasons.append(f"{absent} of {len(rows)} kernels are not in the timeline of Nsight Systems")
    return "; ".join(reasons)


DRAM = "dram"

_SM_CLOCKS = ("device__attribute_max_gpu_frequency_khz", "device__attribute_clock_rate")
_MEMORY_CLOCKS = ("device__attribute_max_mem_frequency_khz", "device__attribute_memory_clock_rate")
"""Metrics of the highest clock in kHz; the second name is that of older versions."""

_FUSED_INSTRUCTIONS = {"fp16": "hfma", "fp32": "ffma", "fp64": "dfma"}

_DENSE = re.compile(
    r"sm__ops_path_tensor_(?:op_[a-z0-9]+_)?src_([a-z0-9_]+?)(?:_dst_\w+?)?_sparsity_off\.sum\.peak_sustained"
)
_TENSOR_METRIC = re.compile(r"sm__ops_path_tensor_src_([a-z0-9_]+?)(?:_dst_\w+?)?\.sum\.peak_sustained")
"""Peaks of dense operations; without sparsity in its name, a metric has the sparse peak where one exists."""

_NEVER_SPARSE = ("fp64", "int1")
"""Types without sparse operations on any chip; others have them from compute capability 8.0 on."""

_MAJOR = "device__attribute_compute_capability_major"


def ncu_peaks(report: KernelReport) -> Outcome:
    """List the GPU's peak rates: ``dram`` in bytes per second, the others in operations per second.

    A rate is what the unit sustains per cycle according to ncu, times the highest clock of the device.
    TARGET_INFO_GPU of an nsys export and data sheets are computed the same way. Kernels run below that
    clock. ``tensor_*`` are dense operations on the type that the tensor cores read.
    """
    peaks: dict[str, float] = {}
    for kernel in report.kernels:
        peaks = _peaks(kernel.metrics) | peaks
    if not peaks:
        return no_rows(
            f"no peaks in {report.origin.path.name}: they are in ncu's roofline sections, "
            "and not on its details page"
        )
    return Outcome({"resource": list(peaks), "peak_per_s": list(peaks.values())})


def _peaks(metrics: Mapping[str, float]) -> dict[str, float]:
    sm, memory = _clock(metrics, _SM_CLOCKS), _clock(metrics, _MEMORY_CLOCKS)
    peaks = {}
    if memory and (dram := metrics.get("dram__bytes.sum.peak_sustained")):
        peaks[DRAM] = dram * memory
    if not sm:
        return peaks
    for precision, op in _FUSED_INSTRUCTIONS.items():
        per_cycle = metrics.get(f"sm__sass_thread_inst_executed_op_{op}_pred_on.sum.peak_sustained")
        if per_cycle:
            peaks[precision] = per_cycle * PRECISIONS[precision][op] * sm
    return peaks | {f"tensor_{source}": per_cycle * sm for source, per_cycle in _tensor(metrics).items()}


def _tensor(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the dense operations per cycle by type, for the fastest instruction that reads the type."""
    rates: dict[str, float] = {}
    for name, per_cycle in metrics.items():
        match = _DENSE.fullmatch(name)
        if match is None and (plain := _TENSOR_METRIC.fullmatch(name)):
            sparse = metrics.get(_MAJOR, 0) >= 8 and plain[1] not in _NEVER_SPARSE
            match = None if sparse or "_sparsity_" in name else plain
        if match:
            rates[match[1]] = max(per_cycle, rates.get(match[1], 0.0))
    return rates


def _clock(metrics: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((metrics[name] * 1e3 for name in names if metrics.get(name)), None)
