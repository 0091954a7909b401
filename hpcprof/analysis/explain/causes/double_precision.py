"""Double precision in the training of a neural network, whose results rarely need it."""

import re
from collections.abc import Iterator

import numpy as np

from hpcprof.analysis.explain.annotations import Scene
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait, named
from hpcprof.analysis.explain.causes.slow_math import reached_gains

DOUBLE = re.compile(
    r"^(?!.*(?:\bfloat\b|half|f32)).*(?:\bdouble\b|(?<![a-z])f64|float64|complex128|d884|dgemm)",
    re.IGNORECASE | re.DOTALL,
)
"""Names of kernels that compute in double precision alone: of templates, CuPy, CUTLASS and cuBLAS. Optimizers
take their rates as doubles and compute in single precision."""

MIN_DOUBLE_SHARE = 0.5
"""Minimum share of the time of kernels for those in double precision to be most of them."""

_PRODUCT = re.compile(r"gemm|cutlass|conv|xmma", re.IGNORECASE)
_OPTIMIZER = re.compile(
    r"multi_tensor_apply_kernel.*(?:adam|sgd|optim)|(?:adam|sgd)_?kernel|TensorListMetadata", re.IGNORECASE
)
"""Kernels of optimizers of neural networks: of PyTorch, Apex and DeepSpeed."""

_OF_OTHERS = 2.0
"""Gain of kernels that move data, which is half as much in single precision."""


def _candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the kernels in double precision of a training, if they are most of its compute."""
    work = scene.graph.work
    double = scene.named(DOUBLE.search) & work.is_compute
    most = work.time[double].sum() >= MIN_DOUBLE_SHARE * work.time[work.is_compute].sum()
    if not double.any() or not most or not scene.named(_OPTIMIZER.search).any():
        return
    gain = np.where(scene.named(_PRODUCT.search), _gain_of_products(scene), _OF_OTHERS)
    rows = np.flatnonzero(double)
    yield from scene.of_operations(DOUBLE_PRECISION, rows, less=(work.time * (1 - 1 / gain))[rows])


def _gain_of_products(scene: Scene) -> float:
    """Return how much faster products get in TF32; as other kernels where the GPU's peaks are unknown."""
    return max(_OF_OTHERS, min(reached_gains(scene.gpus, "fp64", ("tf32",)), default=_OF_OTHERS))


DOUBLE_PRECISION = CauseDeclaration(
    name="double_precision",
    title="double precision",
    meaning="a neural network is trained in double precision",
    about="most time of kernels is in those of double precision, by their names, and an optimizer of neural "
    "networks runs. The saving is that of TF32 in products, by the peaks of the GPU, and half the time of "
    "other kernels. Whether the results allow it is not known, so the confidence is low",
    remedy="Compute in single precision in {where} if the results allow it: NumPy's arrays are float64 "
    "unless made float32 (array.astype(numpy.float32)), with torch.set_float32_matmul_precision('high').",
    remedies={"jax": "Leave jax_enable_x64 off for {where} if the results allow it."},
    candidates=_candidates,
    figures=(Figures("kernels", "total_ns", named(DOUBLE.pattern)),),
    kernels=lambda name: bool(DOUBLE.search(name)),
    traits=frozenset({Trait.ON_GPU, Trait.ALL_RANKS, Trait.UNCERTAIN}),
    spread=0.3,
    operations="compute",
    without="in single precision",
)
