"""Slow matrix products: multiplications in single precision without the tensor cores of their GPU."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hpcprof.analysis.explain.annotations import Scene, Times
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait, named
from hpcprof.profiles.gpu_peaks import peaks_of
from hpcprof.profiles.timeline import Gpu

_PRODUCT = re.compile(r"gemm|convolve|fprop|dgrad|wgrad|xmma|cutlass|conv2d", re.IGNORECASE)
_ORDINARY_CORES = re.compile(r"simt|sgemm|scudnn|ffma|fp32_fp32_fp32", re.IGNORECASE)
_TENSOR_CORES = re.compile(r"tensor_?op|tf32|s1688|s16816|wgmma|hmma|bf16|f16f16", re.IGNORECASE)

_MIN_TF32_CAPABILITY = (8, 0)
"""Minimum compute capability for products in single precision on tensor cores."""

_REACHED_SHARE = 0.8
"""Share of the ratio of the peaks that programs reach: ordinary cores come closer to their peak."""

_USUAL_GAIN = 4.0
"""Assumed speed-up of products on a GPU whose peaks are unknown."""


def runs_without_tensor_cores(name: str) -> bool:
    """Return whether a kernel multiplies matrices in single precision on the ordinary cores, by its name.

    The names are those of cuBLAS, cuDNN and CUTLASS: ``cutlass_80_simt_sgemm_…``, ``…_ffma_…``.
    """
    return bool(_PRODUCT.search(name) and _ORDINARY_CORES.search(name) and not _TENSOR_CORES.search(name))


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the products that run without the tensor cores that their GPU has."""
    graph, work = scene.graph, scene.graph.work
    able = np.array([_has_tf32(scene.gpus.get(rank, ())) for rank in graph.ranks], bool)
    plain = scene.named(runs_without_tensor_cores) & able[graph.work_rank]
    is_slow = plain & work.is_compute
    slow = np.flatnonzero(is_slow)
    if not len(slow):
        return
    gain = np.where(is_slow, tensor_core_gain(scene.gpus), 1.0)

    def remove(times: Times) -> Times:
        return times.with_alone(times.alone / gain)

    place = scene.mostly(work.place[slow], np.ones(len(slow)))
    time = work.time[slow]
    rank = graph.work_rank[slow]
    ranks = scene.ranks_of_most(rank, time)
    yield scene.candidate(SLOW_MATH, place, remove, rank, time, ranks=ranks)


def tensor_core_gain(gpus: Mapping[int, Sequence[Gpu]]) -> float:
    """Return how much faster products in single precision get with the tensor cores of the GPUs.

    That lies between what TF32 and what bfloat16 would give: it is the geometric mean of both.
    """
    products = reached_gains(gpus, "fp32", ("tf32", "bf16"))
    return max(1.0, min(products)) if products else _USUAL_GAIN


def reached_gains(gpus: Mapping[int, Sequence[Gpu]], slow: str, quick: Sequence[str]) -> list[float]:
    """Return the gain of products on each kind of GPU with known peaks, from a type to the mean of others.

    The mean of the peaks of the ``quick`` types is the geometric one.
    """
    names = {gpu.name for gpus_of_rank in gpus.values() for gpu in gpus_of_rank}
    peaks_of_gpus = [peaks for name in names if {slow, *quick} <= (peaks := peaks_of(name)).keys()]
    means = (math.prod(peaks[kind] for kind in quick) ** (1 / len(quick)) for peaks in peaks_of_gpus)
    return [_REACHED_SHARE * mean / peaks[slow] for mean, peaks in zip(means, peaks_of_gpus, strict=True)]


def _has_tf32(gpus: Sequence[Gpu]) -> bool:
    """Return whether a rank's GPU has TF32; a profile may list all GPUs of the node, which are alike."""
    texts = [gpu.compute_capability for gpu in gpus if gpu.compute_capability]
    versions = [tuple(int(part) for part in text.split(".") if part.isdigit()) for text in texts]
    return bool(versions) and min(versions) >= _MIN_TF32_CAPABILITY


SLOW_MATH = CauseDeclaration(
    name="slow_math",
    title="slow matrix products",
    meaning="matrix products do not use the tensor cores",
    about="matrix multiplications without tensor cores, on a GPU that has them",
    remedy="Use the tensor cores: torch.set_float32_matmul_precision('high') for TF32, or "
    "torch.autocast('cuda', dtype=torch.bfloat16).",
    remedies={
        "jax": "Use the tensor cores: jax.default_matmul_precision('tensorfloat32'), or inputs in bfloat16."
    },
    candidates=candidates,
    figures=(Figures("kernels", "total_ns", named("simt|sgemm|ffma|scudnn")),),
    traits=frozenset({Trait.ON_GPU, Trait.ALL_RANKS}),
    spread=0.3,
    operations="compute",
    kernels=runs_without_tensor_cores,
    without="with tensor cores",
)
