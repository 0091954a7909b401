"""Peak rates of GPUs, from their data sheets.

NVIDIA's are at nvidia.com/data-center, AMD's at amd.com/en/products/accelerators/instinct. All rates are
dense, without structured sparsity.
"""

from collections.abc import Mapping
from typing import NamedTuple


class GpuPeaks(NamedTuple):
    """The peaks of one GPU.

    ``tflops`` are those by data type, in TFLOP/s: of tensor (matrix) cores where they take the type. NVIDIA's
    do not take ``fp32``. ``memory`` is the bandwidth in TB/s where profiles do not record it.
    """

    tflops: Mapping[str, float]
    memory: float | None = None


def _cuda(fp16: float, tf32: float, fp32: float, fp64: float = 0.0, fp8: float = 0.0) -> GpuPeaks:
    """Return the peaks of an NVIDIA GPU since Ampere; 0 for a type without tensor cores."""
    rates = {"fp16": fp16, "bf16": fp16, "tf32": tf32, "fp8": fp8, "fp32": fp32, "fp64": fp64}
    return GpuPeaks({name: rate for name, rate in rates.items() if rate})


_H100 = _cuda(989.4, 494.7, 66.9, 66.9, 1978.9)
_NVL = _cuda(835.5, 417.5, 60.0, 60.0, 1670.5)


def _cdna(units: int, ghz: float, fp16: int, fp64: int, memory: float, **other_rates: int) -> GpuPeaks:
    """Return the peaks of an AMD GPU from the operations per cycle of one compute unit's matrix cores."""
    rates = {"fp16": fp16, "bf16": fp16, "fp32": 256, "fp64": fp64, **other_rates}
    return GpuPeaks({name: round(units * ghz * rate / 1e3, 1) for name, rate in rates.items()}, memory)


_PEAKS = (
    ("V100-SXM2", GpuPeaks({"fp16": 125.0, "fp32": 15.7, "fp64": 7.8})),
    ("V100-PCIE", GpuPeaks({"fp16": 112.0, "fp32": 14.0, "fp64": 7.0})),
    ("A100", _cuda(312.0, 156.0, 19.5, 19.5)),
    ("H100 PCIe", _cuda(756.0, 378.0, 51.0, 51.0, 1513.0)),
    ("H100 NVL", _NVL),
    ("H200 NVL", _NVL),
    ("GH200", _H100),
    ("H100", _H100),
    ("H200", _H100),
    ("L40S", _cuda(362.0, 183.0, 91.6, fp8=733.0)),
    ("L4", _cuda(121.0, 60.0, 30.3, fp8=242.5)),
    ("A40", _cuda(149.7, 74.8, 37.4)),
    ("A10", _cuda(125.0, 62.5, 31.2)),
    # An MI250X is two devices; the figures are for one.
    ("MI250X", _cdna(110, 1.7, 1024, 256, 1.638)),
    ("MI300A", _cdna(228, 2.1, 2048, 256, 5.3, tf32=1024, fp8=4096)),
    ("MI300X", _cdna(304, 2.1, 2048, 256, 5.3, tf32=1024, fp8=4096)),
    ("MI325X", _cdna(304, 2.1, 2048, 256, 6.0, tf32=1024, fp8=4096)),
    ("MI350X", _cdna(256, 2.2, 4096, 128, 8.0, fp8=8192)),
    ("MI355X", _cdna(256, 2.4, 4096, 128, 8.0, fp8=8192)),
)
"""By a part of the GPU's name; the first match counts."""


def peaks_of(gpu: str) -> Mapping[str, float]:
    """Return the dense peaks of a GPU in TFLOP/s, by data type; empty if it is unknown."""
    return _find_peaks(gpu).tflops


def memory_bytes_per_s(gpu: str) -> int | None:
    """Return the bandwidth of the memory of an AMD GPU, None for others, whose profiles record it."""
    memory = _find_peaks(gpu).memory
    return None if memory is None else round(memory * 1e12)


def _find_peaks(gpu: str) -> GpuPeaks:
    return next((peaks for part, peaks in _PEAKS if part in gpu), GpuPeaks({}))
