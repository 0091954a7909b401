"""The peak rates of the GPU in a report of Nsight Compute: the roofs of the roofline."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.hardware.ncu_counts import PRECISIONS
from hpcprof.profiles.kernel_report import KernelReport

DRAM = "dram"

# The highest clocks in kHz; the second name is that of older versions.
_SM_CLOCKS = ("device__attribute_max_gpu_frequency_khz", "device__attribute_clock_rate")
_MEMORY_CLOCKS = ("device__attribute_max_mem_frequency_khz", "device__attribute_memory_clock_rate")
_FUSED = {"fp16": "hfma", "fp32": "ffma", "fp64": "dfma"}

# Dense operations. A metric without sparsity in its name has the sparse peak, if sparse operations exist.
_DENSE = re.compile(
    r"sm__ops_path_tensor_(?:op_[a-z0-9]+_)?src_([a-z0-9_]+?)(?:_dst_\w+?)?_sparsity_off\.sum\.peak_sustained"
)
_PLAIN = re.compile(r"sm__ops_path_tensor_src_([a-z0-9_]+?)(?:_dst_\w+?)?\.sum\.peak_sustained")
# Sparse operations exist from compute capability 8.0 on, but for these types on no chip.
_NEVER_SPARSE = ("fp64", "int1")
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
    for precision, op in _FUSED.items():
        per_cycle = metrics.get(f"sm__sass_thread_inst_executed_op_{op}_pred_on.sum.peak_sustained")
        if per_cycle:
            peaks[precision] = per_cycle * PRECISIONS[precision][op] * sm
    return peaks | {f"tensor_{source}": per_cycle * sm for source, per_cycle in _tensor(metrics).items()}


def _tensor(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the dense operations per cycle by type, for the fastest instruction that reads the type."""
    found: dict[str, float] = {}
    for name, per_cycle in metrics.items():
        match = _DENSE.fullmatch(name)
        if match is None and (plain := _PLAIN.fullmatch(name)):
            sparse = metrics.get(_MAJOR, 0) >= 8 and plain[1] not in _NEVER_SPARSE
            match = None if sparse or "_sparsity_" in name else plain
        if match:
            found[match[1]] = max(per_cycle, found.get(match[1], 0.0))
    return found


def _clock(metrics: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    """Return the first known clock, in Hz."""
    return next((metrics[name] * 1e3 for name in names if metrics.get(name)), None)
