"""Floating-point operations of matrix multiplications and convolutions, and the peak rates of GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hpcprof.analysis.operators.convolutions import convolution_flops, is_convolution

_FIRST_FACTOR = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::_scaled_mm", "aten::_int_mm"), 0),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::_addmm_activation"), 1),
}
"""The position of the left factor among the inputs; the right one follows it."""

_TYPES = {
    "float": "fp32",
    "double": "fp64",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
}
_SINGLE = re.compile(r"sgemm|simt|_ffma_|f32f32_f32f32")
_TF32 = re.compile(r"tf32|tensorop_s1688")

_H100 = {"fp16": 989.4, "bf16": 989.4, "tf32": 494.7, "fp8": 1978.9, "fp32": 66.9, "fp64": 66.9}
_MI300X = {"fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9, "fp64": 163.4}
_MI300A = {"fp16": 980.6, "bf16": 980.6, "fp8": 1961.2, "fp64": 122.6}
_PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    ("V100-SXM2", {"fp16": 125.0, "fp32": 15.7, "fp64": 7.8}),
    ("V100-PCIE", {"fp16": 112.0, "fp32": 14.0, "fp64": 7.0}),
    ("A100", {"fp16": 312.0, "bf16": 312.0, "tf32": 156.0, "fp32": 19.5, "fp64": 19.5}),
    ("H100 PCIe", {"fp16": 756.0, "bf16": 756.0, "tf32": 378.0, "fp8": 1513.0, "fp32": 51.0, "fp64": 51.0}),
    ("H100 NVL", {"fp16": 835.5, "bf16": 835.5, "tf32": 417.5, "fp8": 1670.5, "fp32": 60.0, "fp64": 60.0}),
    ("H200 NVL", {"fp16": 835.5, "bf16": 835.5, "tf32": 417.5, "fp8": 1670.5, "fp32": 60.0, "fp64": 60.0}),
    ("GH200", _H100),
    ("H100", _H100),
    ("H200", _H100),
    ("L40S", {"fp16": 362.0, "bf16": 362.0, "tf32": 183.0, "fp8": 733.0, "fp32": 91.6}),
    ("L4", {"fp16": 121.0, "bf16": 121.0, "tf32": 60.0, "fp8": 242.5, "fp32": 30.3}),
    ("A40", {"fp16": 149.7, "bf16": 149.7, "tf32": 74.8, "fp32": 37.4}),
    ("A10", {"fp16": 125.0, "bf16": 125.0, "tf32": 62.5, "fp32": 31.2}),
    ("MI250X", {"fp16": 191.5, "bf16": 191.5, "fp64": 47.9}),
    ("MI300X", _MI300X),
    ("MI300A", _MI300A),
)
"""Dense peaks in TFLOP/s from the data sheets of NVIDIA and AMD, by a part of the GPU's name.

The first match counts. Tensor (matrix) cores where they take the type; ``fp32`` is that of the plain cores.
An MI250X is two devices, and the figures are those of one.
"""


def counts_flops(operator: str | None) -> bool:
    """Return whether `flops` knows an operator."""
    return operator in _FIRST_FACTOR or is_convolution(operator)


def flops(operator: str | None, dims: str | None, values: str | None = None) -> float | None:
    """Return the operations of one call: 2·m·n·k, times the batch, of a matrix multiplication.

    Parameters
    ----------
    operator : str or None
    dims, values : str or None
        The shapes of the inputs, and the inputs that are no tensors, as in
        `hpcprof.profiles.timeline.Operators`.

    Returns
    -------
    float or None
        None if it is any other operator but a convolution, or the inputs are absent or impossible.
    """
    if operator is not None and is_convolution(operator):
        return convolution_flops(operator, dims, values)
    first = _FIRST_FACTOR.get(operator or "")
    shapes = _parsed(dims)
    if first is None or len(shapes) < first + 2:
        return None
    left, right = shapes[first : first + 2]
    if not (_is_shape(left) and _is_shape(right) and len(left) == len(right) in (2, 3)):
        return None
    if left[-1] != right[-2] or left[:-2] != right[:-2]:
        return None
    product: float = 2.0 * right[-1]
    for size in left:
        product *= size
    return product


def peak_tflops(gpu: str, operator: str | None, types: str | None, kernels: Iterable[str]) -> float | None:
    """Return the peak of a GPU for the inputs of an operator with `flops`, None if unknown.

    With ``float`` inputs the names of the kernels decide between TF32 and FP32.
    """
    first = 0 if is_convolution(operator) else _FIRST_FACTOR.get(operator or "")
    written = _parsed(types)
    if first is None or len(written) < first + 2 or written[first] != written[first + 1]:
        return None
    precision = _TYPES.get(str(written[first]))
    if precision == "fp32":
        precision = _of_single(kernels)
    return peaks_of(gpu).get(precision or "")


def peaks_of(gpu: str) -> Mapping[str, float]:
    """Return the dense peaks of a GPU in TFLOP/s, by data type; empty if it is unknown."""
    return next((peaks for part, peaks in _PEAKS if part in gpu), {})


def _of_single(kernels: Iterable[str]) -> str | None:
    text = " ".join(kernels)
    if _TF32.search(text):
        return "tf32"
    return "fp32" if _SINGLE.search(text) else None


def _parsed(written: str | None) -> list[Any]:
    try:
        found = json.loads(written or "[]")
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _is_shape(sizes: object) -> bool:
    return isinstance(sizes, list) and all(isinstance(n, int) and 0 <= n < 1 << 48 for n in sizes)
