"""Floating-point operations of matrix multiplications and convolutions, and the peak rates for them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpcprof.analysis.operators.convolutions import convolution_flops, is_convolution, parsed_list
from hpcprof.profiles.gpu_peaks import peaks_of

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
# hipBLASLt names the types of a product after the layouts of its inputs: Cijk_Ailk_Bljk_S_B_.
_SINGLE = re.compile(r"sgemm|simt|_ffma_|f32f32_f32f32|Cijk_[A-Za-z]+_[A-Za-z]+_S_?B_")
_TF32 = re.compile(r"tf32|tensorop_s1688|Cijk_[A-Za-z]+_[A-Za-z]+_S_MX_B_")


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
    shapes = parsed_list(dims)
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
    written = parsed_list(types)
    if first is None or len(written) < first + 2 or written[first] != written[first + 1]:
        return None
    precision = _TYPES.get(str(written[first]))
    if precision == "fp32":
        precision = _of_single(kernels)
    return peaks_of(gpu).get(precision or "")


def _of_single(kernels: Iterable[str]) -> str | None:
    text = " ".join(kernels)
    if _TF32.search(text):
        return "tf32"
    return "fp32" if _SINGLE.search(text) else None


def _is_shape(sizes: object) -> bool:
    return isinstance(sizes, list) and all(isinstance(n, int) and 0 <= n < 1 << 48 for n in sizes)
