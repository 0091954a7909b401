"""Matrix multiplications in single precision that do not use the tensor cores of their GPU."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from hpcprof.analysis.explain.run_graph import RunGraph
from hpcprof.profiles.gpu_peaks import peaks_of
from hpcprof.profiles.timeline import Category, Gpu, Ints

_PRODUCT = re.compile(r"gemm|convolve|fprop|dgrad|wgrad|xmma|cutlass|conv2d", re.IGNORECASE)
_PLAIN = re.compile(r"simt|sgemm|scudnn|ffma|fp32_fp32_fp32", re.IGNORECASE)
_TENSOR = re.compile(r"tensor_?op|tf32|s1688|s16816|wgmma|hmma|bf16|f16f16", re.IGNORECASE)

_TF32 = (8, 0)
"""The compute capability from which on products in single precision can use tensor cores."""

_REACHED = 0.8
"""Of the ratio of the peaks so much is reached: the ordinary cores come closer to theirs."""

_USUAL_GAIN = 4.0
"""The gain on a GPU whose peaks are unknown."""


def runs_without_tensor_cores(name: str) -> bool:
    """Return whether a kernel multiplies matrices in single precision on the ordinary cores, by its name.

    The names are those of cuBLAS, cuDNN and CUTLASS: ``cutlass_80_simt_sgemm_…``, ``…_ffma_…``.
    """
    return bool(_PRODUCT.search(name) and _PLAIN.search(name) and not _TENSOR.search(name))


def slow_products(graph: RunGraph, gpus: Mapping[int, Sequence[Gpu]]) -> Ints:
    """Return the operations that multiply without the tensor cores that their GPU has."""
    able = [_has_tf32(gpus.get(rank, ())) for rank in graph.ranks]
    slow = np.array([*(runs_without_tensor_cores(name) for name in graph.names), False])
    work = graph.work
    found: Ints = np.flatnonzero(
        (work.category == Category.COMP) & slow[work.name] & np.array(able, bool)[graph.work_rank]
    )
    return found


def tensor_core_gain(gpus: Mapping[int, Sequence[Gpu]]) -> float:
    """Return how much faster products in single precision get with the tensor cores of the GPUs.

    That lies between what TF32 and what bfloat16 would give: it is the geometric mean of both.
    """
    names = {one.name for ones in gpus.values() for one in ones}
    known = [peaks for name in names if {"tf32", "bf16", "fp32"} <= (peaks := peaks_of(name)).keys()]
    gains = [_REACHED * math.sqrt(one["tf32"] * one["bf16"]) / one["fp32"] for one in known]
    return max(1.0, min(gains)) if gains else _USUAL_GAIN


def _has_tf32(gpus: Sequence[Gpu]) -> bool:
    """Return whether a rank's GPU can do so; a profile may list all GPUs of the node, which are alike."""
    known = [one.compute_capability for one in gpus if one.compute_capability]
    return bool(known) and all(_version(one) >= _TF32 for one in known)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
