"""Floating-point operations of matrix multiplications and convolutions, and the peak rates for them."""

import re
from collections.abc import Iterable
from math import prod
from typing import Any

import msgspec

from hpcprof.common.decode import lenient_json, lenient_json_list
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
_SINGLE_PRECISION_KERNEL = re.compile(r"sgemm|simt|_ffma_|f32f32_f32f32|Cijk_[A-Za-z]+_[A-Za-z]+_S_?B_")
_TF32 = re.compile(r"tf32|tensorop_s1688|Cijk_[A-Za-z]+_[A-Za-z]+_S_MX_B_")
"""Names of kernels with float inputs; hipBLASLt has the types after the layouts: ``Cijk_Ailk_Bljk_S_B_``."""


def counts_flops(operator: str | None) -> bool:
    """Return whether `flops` counts the operations of an operator."""
    return operator in _FIRST_FACTOR or is_convolution(operator)


def flops(operator: str | None, dims: str | None, values: str | None = None) -> float | None:
    """Return the operations of one call: 2·m·n·k, times the batch, of a matrix multiplication.

    ``dims`` and ``values`` are the shapes of the inputs, and the inputs that are no tensors, as in
    `hpcprof.profiles.timeline.Operators`. For convolutions see `convolution_flops`. It is None for any
    other operator, and if the inputs are absent or impossible.
    """
    recorded = costs(values)
    if "flops" in recorded:
        return recorded["flops"] or None
    if operator is not None and is_convolution(operator):
        return convolution_flops(operator, dims, values)
    first = _FIRST_FACTOR.get(operator or "")
    shapes = lenient_json_list(dims)
    if first is None or len(shapes) < first + 2:
        return None
    left, right = shapes[first : first + 2]
    if not (_is_sizes(left) and _is_sizes(right) and len(left) == len(right) in (2, 3)):
        return None
    if left[-1] != right[-2] or left[:-2] != right[:-2]:
        return None
    product: float = 2.0 * right[-1]
    for size in left:
        product *= size
    return product


def costs(values: str | None) -> dict[str, float]:
    """Return the operations and the bytes of a call by name, where the profile has them."""
    recorded = lenient_json(values) if (values or "").startswith("{") else None
    return {key: float(value) for key, value in (recorded or {}).items() if type(value) in (int, float)}


def peak_tflops(gpu: str, operator: str | None, types: str | None, kernels: Iterable[str]) -> float | None:
    """Return the peak of a GPU for the inputs of an operator with `flops`, None if unknown.

    With ``float`` inputs the names of the kernels decide between TF32 and FP32.
    """
    first = 0 if is_convolution(operator) else _FIRST_FACTOR.get(operator or "")
    written = lenient_json_list(types)
    if first is None or len(written) < first + 2 or written[first] != written[first + 1]:
        return None
    precision = _TYPES.get(str(written[first]))
    if precision == "fp32":
        precision = _single_precision(kernels)
    return peaks_of(gpu).get(precision or "")


def _single_precision(kernels: Iterable[str]) -> str | None:
    text = " ".join(kernels)
    if _TF32.search(text):
        return "tf32"
    return "fp32" if _SINGLE_PRECISION_KERNEL.search(text) else None


_CONVOLUTIONS = ("aten::conv1d", "aten::conv2d", "aten::conv3d")
_TRANSPOSED_CONVOLUTIONS = ("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d")
_BACKWARD = "aten::convolution_backward"
_STRIDE_PADDING_DILATION = {
    **dict.fromkeys((*_CONVOLUTIONS, "aten::convolution", "aten::_convolution"), (3, 4, 5)),
    "aten::cudnn_convolution": (3, 2, 4),
    **dict.fromkeys(("aten::mkldnn_convolution", "aten::miopen_convolution"), (4, 3, 5)),
}
"""The positions of these inputs."""
_MAY_BE_TRANSPOSED = {"aten::convolution": 6, "aten::_convolution": 6, _BACKWARD: 7}
"""The position of the input that says whether the convolution is transposed."""
_OUTPUT_MASK = 10
"""The position of the input that says which gradients a backward call computes."""

_MAX_DIMENSION = 1 << 48
"""Limit of a size of a tensor: a larger one is damage."""


class _Inputs(msgspec.Struct, frozen=True):
    """The shapes of the inputs of a call, and the inputs that are no tensors."""

    shapes: list[Any]
    values: list[Any]

    def shape(self, position: int) -> list[int]:
        """Return a shape, empty if it is absent or impossible."""
        shape: list[Any] = self.shapes[position : position + 1]
        return shape[0] if shape and _is_sizes(shape[0]) else []

    def value(self, position: int) -> Any:
        """Return a value, None if it is absent."""
        return self.values[position] if position < len(self.values) else None


def is_convolution(operator: str | None) -> bool:
    """Return whether an operator is a convolution, or the backward pass of one."""
    return operator in _STRIDE_PADDING_DILATION or operator in (*_TRANSPOSED_CONVOLUTIONS, _BACKWARD)


def convolution_flops(operator: str, dims: str | None, values: str | None) -> float | None:
    """Return the operations of one call, as `torch.utils.flop_counter` counts them.

    They are 2·(size of the weight)·(batch)·(points of the output or, if it is transposed, of the input). A
    backward call has as many for each of the gradients of image and weight that it computes. It is None if
    the inputs are absent or impossible.
    """
    texts = lenient_json_list(values)
    inputs = _Inputs(
        lenient_json_list(dims), [lenient_json(t.lower()) if isinstance(t, str) else None for t in texts]
    )
    if operator == _BACKWARD:
        mask = inputs.value(_OUTPUT_MASK)
        if not isinstance(mask, list) or len(mask) != 3:
            return None
        points = inputs.shape(1 if inputs.value(_MAY_BE_TRANSPOSED[operator]) else 0)
        return _count(inputs.shape(2), points, sum(map(bool, mask[:2])))
    image, weight = inputs.shape(0), inputs.shape(1)
    if len(image) == len(weight) - 1:
        image = [1, *image]
    if operator in _TRANSPOSED_CONVOLUTIONS or inputs.value(
        _MAY_BE_TRANSPOSED.get(operator, len(inputs.values))
    ):
        return _count(weight, image, 1)
    return _count(weight, _output(image, weight, inputs, _STRIDE_PADDING_DILATION[operator]), 1)


def _count(weight: list[int], points: list[int], gradients: int) -> float | None:
    """Return the operations, given the weight, and the shape that has the batch and the points."""
    if len(weight) < 3 or len(points) != len(weight):
        return None
    return 2.0 * gradients * prod(weight) * points[0] * prod(points[2:])


def _output(
    image: list[int], weight: list[int], inputs: _Inputs, positions: tuple[int, int, int]
) -> list[int]:
    size = len(weight) - 2
    stride, padding, dilation = (_per_dimension(inputs.value(position), size) for position in positions)
    if not (stride and padding and dilation and min(stride) > 0 and len(image) == len(weight)):
        return []
    rows = zip(image[2:], weight[2:], stride, padding, dilation, strict=True)
    points = [(length + 2 * p - d * (width - 1) - 1) // s + 1 for length, width, s, p, d in rows]
    return [image[0], weight[0], *points] if min(points) >= 0 else []


def _per_dimension(value: Any, size: int) -> list[int]:
    """Return a value for each dimension, empty if there is none; one value counts for all."""
    if not _is_sizes(value) or not value:
        return []
    whole: list[int] = value * size if len(value) == 1 else value
    return whole if len(whole) == size else []


def _is_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < _MAX_DIMENSION for n in value)
