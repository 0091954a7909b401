"""What a compute kernel does, by its name: one table."""

from __future__ import annotations

import re

OTHER = "other"

# In this order: a fused attention is also a product, and PyTorch copies by elementwise kernels. The names are
# those of cuBLAS, cuDNN, CUTLASS, CUB, and of PyTorch's and Triton's kernels.
_FAMILIES = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        ("attention", r"fmha|flash|attention"),
        ("convolution", r"dgrad|wgrad|fprop|conv(?!ert)|winograd"),
        ("matrix product", r"gemm|nvjet|cutlass|splitkreduce|cublas|triton_mm|matmul"),
        ("normalization", r"layer_?norm|batch_?norm|\bbn_|group_?norm|rms_?norm|gammabeta"),
        ("softmax", r"soft_?max"),
        ("reduction", r"reduce|reduction|\bsum_|triton_(red|per)_"),
        ("sort and scan", r"radix|sort|scan|unique"),
        ("index", r"gather|scatter|index_|indexing|embedding|segment|compute_grad_weight"),
        ("copy", r"copy|transpose|nchwtonhwc|nhwctonchw|\bCatArray"),
        ("elementwise", r"elementwise|multi_tensor_apply|dropout|triton_poi_"),
    )
)
FAMILIES = (*(family for family, _ in _FAMILIES), OTHER)


def family(name: str | None) -> str:
    """Return what a kernel does, of `FAMILIES`; "other" where its name does not tell."""
    return next((family for family, pattern in _FAMILIES if pattern.search(name or "")), OTHER)
