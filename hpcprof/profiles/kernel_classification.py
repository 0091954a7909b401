"""Class and family of a kernel by its name, with rules that users can extend.

``~/.config/hpcprof/kernel_classes.yaml`` is a list of rules that are tried before those in this file::

    - pattern: "^my_halo_exchange"     # a regular expression, searched in the kernel's name
      class: comm                      # comp, comm or mem
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import yaml
from numpy.typing import NDArray

from hpcprof.common.decode import decode
from hpcprof.common.errors import UsageError
from hpcprof.common.paths import user_config
from hpcprof.profiles.columns.unique import numbered
from hpcprof.profiles.timeline import NO_NAME, Category, Ints

Rule = tuple[re.Pattern[str], Category]

# Templates are demangled with their return type in front.
_COMMUNICATION = (
    # NCCL (ncclDevKernel_…, ncclKernel_… before 2.19), RCCL's own and its MSCCL kernels.
    r"^(void )?nccl",
    r"^(void )?(rccl|mscclKernel)|\bmscclpp::|\bquickreduce::",
    # oneCCL's SYCL kernels carry their namespace or the library's name.
    r"oneapi::ccl|oneccl|\bccl::",
    # NVSHMEM's collectives on the device and on a stream.
    r"nvshmem",
    # Symmetric memory: PyTorch's own kernels, and the copies of one-shot and two-shot all-reduce
    # in inference servers.
    r"symmetric_memory",
    r"\b(one|two)_shot_(all_reduce|reduce_scatter|all_gather)",
    r"\bmultimem_(one_shot_)?(all_reduce|reduce|all_gather)",
    r"\bcross_device_reduce",
)

# The kernels by which HIP copies and sets memory.
_MEMORY = r"^__amd_rocclr_(copy|fill|stream)"

RULES: tuple[Rule, ...] = (
    *((re.compile(pattern), Category.COMM) for pattern in _COMMUNICATION),
    (re.compile(_MEMORY), Category.MEM),
)


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One rule as the user writes it."""

    pattern: str
    kind: str = msgspec.field(name="class")


def load(path: Path | None = None) -> tuple[Rule, ...]:
    """Return the rules in the order in which they are tried: the user's, then those of hpcprof.

    ``path`` is the user's file. By default ``kernel_classes.yaml`` in the user's folder is read if it exists.
    """
    file = path or user_config() / "kernel_classes.yaml"
    if path is None and not file.is_file():
        return RULES
    try:
        entries = yaml.safe_load(file.read_text(encoding="utf-8")) or []
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{file} cannot be read: {' '.join(str(error).split())}.") from None
    if not isinstance(entries, list):
        raise UsageError(f"{file}: expected a list of entries with the keys pattern and class.")
    return (*(_rule(entry, f"{file}, entry {i}") for i, entry in enumerate(entries, 1)), *RULES)


def _rule(entry: object, where: str) -> Rule:
    found = decode(_Entry, entry, where)
    classes = {category.name.lower(): category for category in Category}
    if found.kind not in classes:
        raise UsageError(f"{where}: class {found.kind!r} is not one of {', '.join(classes)}.")
    try:
        return re.compile(found.pattern), classes[found.kind]
    except re.error as error:
        raise UsageError(
            f"{where}: pattern {found.pattern!r} is not a regular expression: {error}."
        ) from None


def classify(names: Iterable[str | None], rules: Sequence[Rule] = RULES) -> Ints:
    """Return the `Category` of each kernel name; compute if no rule matches or there is no name."""
    return np.array([_category(name or "", rules) for name in names], np.int64)


def classes_of(names: Ints, texts: NDArray[np.object_]) -> Ints:
    """Return the `Category` of each kernel, decided once for each name by the rules of `load`.

    Parameters
    ----------
    names : ndarray of int64, shape (n,)
        The numbers of the names in ``texts``, or `NO_NAME`.
    """
    rules = load()
    used, row = numbered(names)
    return classify((None if n == NO_NAME else texts[n] for n in used.tolist()), rules)[row]


def _category(name: str, rules: Sequence[Rule]) -> Category:
    return next((category for pattern, category in rules if pattern.search(name)), Category.COMP)


OTHER = "other"

# What Inductor fuses is named after the operators that the results go to as well: it never is one of these.
_NOT_FUSED = r"^(?!triton_(?:poi|red|per)_).*?"

# The order matters: a fused attention is also a product, and PyTorch copies with elementwise kernels. The
# names are those of cuBLAS, cuDNN, CUTLASS, CUB, TensorRT-LLM, FBGEMM, of hipBLASLt (Cijk_…), MIOpen,
# rocPRIM, Composable Kernel, AOTriton (attn_fwd, bwd_kernel_…), AITER (fmoe, mla, pa), PyTorch and Triton.
_FAMILIES = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        (
            "attention",
            _NOT_FUSED + r"(?:fmha|flash|attention|\b(?:attn|sage)_(?:fwd|bwd)|\bbwd_(?:kernel_|preprocess)"
            r"|(?<![a-z])(?:mla_|pa_(?:bf16|fp16|a16)))",
        ),
        ("convolution", _NOT_FUSED + r"(?:dgrad|wgrad|fprop|conv(?!ert)|winograd|scudnn)"),
        (
            "matrix product",
            _NOT_FUSED + r"(?:(?<!fb)gemm|nvjet|cutlass|splitkreduce|cublas|triton_mm|matmul|Cijk_|\bbmm_"
            r"|fmoe|fused_moe)",
        ),
        (
            "normalization",
            r"layer_?norm|batch_?norm|\bbn_|group_?norm|rms_?norm|gammabeta|cuComputeGradInput|RowwiseMoments"
            r"|Compute\w*(Gradients|Params)CUDA",
        ),
        ("softmax", r"soft_?max"),
        ("reduction", r"reduce|reduction|\bsum_|triton_(red|per)_"),
        ("sort and scan", r"radix|(?<!ten)sort|scan|unique|onesweep|partition_(kernel|config)|top_?k"),
        (
            "index",
            r"gather|scatter|index_|index(Select|Func)|indexing|embedding|segment|compute_grad_weight|kv_?cache",
        ),
        ("copy", r"copy|transpose|nchwtonhwc|nhwctonchw|\bCatArray|\bim2d?2?col"),
        (
            "elementwise",
            r"elementwise|multi_tensor_apply|dropout|triton_poi_|act_and_mul|quant|SubTensorOp|transform_(kernel|config)",
        ),
    )
)
FAMILIES = (*(family for family, _ in _FAMILIES), OTHER)


def family(name: str | None) -> str:
    """Return the family of a compute kernel by its name, one of `FAMILIES`; "other" if no pattern matches."""
    return next((family for family, pattern in _FAMILIES if pattern.search(name or "")), OTHER)
