"""Causes in kernels that compute or move more than they have to, known by the names of the kernels.

- **Slow attention**: products, masks and a softmax over sequence × sequence instead of one fused kernel,
  which keeps the scores on the chip. Then (1) what runs between a product and the next one around a softmax,
  or its gradient, takes no time; (2) the two products no longer write and read the scores, at the rate at
  which the softmax moves them (it reads and writes them once): each takes half of the softmax's time less,
  but at least half of its own. Source: T. Dao et al., "FlashAttention: fast and memory-efficient exact
  attention with IO-awareness", 2022.
- **Elementwise chains**: kernels that read and write one tensor after another, in passes that one could
  share. A sequence of elementwise kernels over equally large tensors, by their grids, keeps only its
  longest. Reductions and concatenations between them go too: a fused norm reads its rows once. No profile
  records which tensors they share: places whose products take longer than their elementwise kernels are left
  alone.
  So do optimizers that work on lists of tensors: a fused one touches what their two longest passes touch, the
  parameters, the gradients and the moments.
- **Repeated indices**: PyTorch adds the gradients of one row one after another. Without repetition it would
  read the gradients, and read and write rows, each about as long as the gather takes. Source: PyTorch,
  ``indexing_backward_kernel`` in ``ATen/native/cuda/Indexing.cu``.
- **Sorting**: kernels that sort, by their names, and that add up equal rows behind it. Whether a program
  needs the order is not known: it may need the largest values alone, or sort what does not change.
- **Odd shapes**: matrix products whose rows do not begin at multiples of 16 bytes. The libraries name the
  alignment of the operands in their kernels, in elements (``…_align2``). Such a kernel loads less than 16
  bytes at once, and on Hopper it cannot use the copies of whole tiles that others use. Source: CUTLASS, the
  names of its kernels; prices: ``benchmarks/odd_shapes.py``.
"""

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import partial

import numpy as np

from hpcprof.analysis.explain.annotations import Scene
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait, named
from hpcprof.analysis.explain.rank_activity import grid_blocks
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.timeline import Category, Floats, Ints, Mask


class KernelKind(IntEnum):
    """The computation of a kernel, by its name."""

    OTHER = 0
    PRODUCT = 1
    """A matrix product or a convolution."""
    SOFTMAX = 2
    """A softmax or its gradient, but not the logarithm of one, as in a loss."""
    ELEMENTWISE = 3
    """One pass over tensors: casts, copies, masks, scales, activations."""
    LAYOUT = 4
    """The conversion of a tensor between channels first and channels last."""
    JOINED = 5
    """A reduction, or a concatenation: one more pass over what elementwise kernels around it have."""


_MIN_COMPUTE_SHARE = 1 / 3
"""Minimum share of the compute of a step for kernels that take longer by their shapes: others would too."""

_KINDS = (
    (KernelKind.LAYOUT, r"n[cd]*hwc?_?(to|2)_?n[cd]*hw"),
    (KernelKind.PRODUCT, r"gemm|gemv|nvjet|cutlass|xmma|convolve|fprop|dgrad|wgrad|conv2d|cublas\w*Kernel"),
    (KernelKind.OTHER, r"log_?softmax"),
    (KernelKind.JOINED, r"reduce_kernel|CatArrayBatchedCopy"),
    (KernelKind.SOFTMAX, r"softmax"),
    (
        KernelKind.ELEMENTWISE,
        r"elementwise_kernel|elementwise_with_index|fused_dropout|masked_(fill|scale)|"
        r"triton_poi_|loop_\w*fusion|Eigen::internal::EigenMetaKernel|cupy_\w+__\w+",
    ),
)
"""The kind of a kernel, by the first pattern that its name contains.

Names are those of cuBLAS, cuDNN, CUTLASS, PyTorch (ATen and Triton), XLA and CuPy."""


def kernel_kinds(scene: Scene) -> Ints:
    """Return the `KernelKind` of each operation of a scene, shape (operations,)."""
    graph = scene.graph
    by_name = np.array([*map(_kind, graph.names), KernelKind.OTHER], np.int64)
    return np.where(graph.work.is_compute, by_name[graph.work.name], int(KernelKind.OTHER))


def _kind(name: str) -> KernelKind:
    return next((kind for kind, text in _KINDS if re.search(text, name, re.IGNORECASE)), KernelKind.OTHER)


def _sequences(scene: Scene, chosen: Ints) -> list[Ints]:
    """Return the sequences of chosen operations on a stream that work on equally large tensors.

    ``chosen`` are ascending rows; operations are in the order of their streams. The grids of kernels over the
    same elements differ by a power of two, the elements per thread. Short elementwise kernels, `JOINED` ones
    and memsets may lie between.
    """
    if not len(chosen):
        return []
    work, kind, later, before = scene.graph.work, scene.once(kernel_kinds), chosen[1:], chosen[:-1]
    short = (kind == KernelKind.ELEMENTWISE) & (work.time < _MIN_KERNEL_NS)
    long_before = np.cumsum(~(short | (work.category == Category.MEM) | (kind == KernelKind.JOINED)))
    follows = (long_before[later] - long_before[before] == 1) & (work.step[later] == work.step[before])
    follows &= work.stream[later] == work.stream[before]
    larger = np.log2(np.maximum(work.grid[later], 1) / np.maximum(work.grid[before], 1))
    follows &= np.abs(larger - np.rint(larger).clip(-_MAX_GRID_POWER, _MAX_GRID_POWER)) < _GRID_TOLERANCE
    return np.split(chosen, np.flatnonzero(~follows) + 1)


_MAX_GRID_POWER, _GRID_TOLERANCE = 3, 0.01
"""Maximum power of two between the grids of kernels over equally many elements, and its rounding error."""


_MAX_KERNELS_BETWEEN = 8
"""Maximum number of kernels between a softmax and the product before or after it."""

_MAX_SCORES_SHARE = 0.5
"""Maximum share of a product's time for moving the attention scores."""


def _unfused_attention(scene: Scene) -> Iterator[Candidate]:
    """Yield all attention without a fused kernel, as one cause: it is the same in each layer."""
    work, kind = scene.graph.work, scene.once(kernel_kinds)
    time = work.time.astype(float)
    less = np.zeros(len(work))
    for softmax in np.flatnonzero(kind == KernelKind.SOFTMAX).tolist():
        first, last = (_neighbouring_product(scene, softmax, direction) for direction in (-1, 1))
        if first is None or last is None:
            continue
        inner = np.arange(first + 1, last)
        less[inner] = time[inner]
        for product in (first, last):
            less[product] = max(less[product], min(time[softmax] / 2, _MAX_SCORES_SHARE * time[product]))
    removed = np.flatnonzero(less)
    yield from scene.of_operations(SLOW_ATTENTION, removed, less[removed])


def _neighbouring_product(scene: Scene, softmax: int, direction: int) -> int | None:
    """Return the product before or after a softmax on its stream.

    Only elementwise kernels lie between, and memsets, as of the counters of a product.
    """
    work, kind = scene.graph.work, scene.once(kernel_kinds)
    for row in range(softmax + direction, softmax + direction * (_MAX_KERNELS_BETWEEN + 2), direction):
        if not 0 <= row < len(work) or work.stream[row] != work.stream[softmax]:
            return None
        if kind[row] == KernelKind.PRODUCT:
            return row
        if kind[row] != KernelKind.ELEMENTWISE and work.category[row] != Category.MEM:
            return None
    return None


_MIN_KERNEL_NS = 10_000
"""Minimum time of a kernel of a chain in ns: shorter ones are bound by their launch."""

_MIN_CHAIN_KERNELS = 3
"""Minimum number of kernels of a chain."""


def _chains(scene: Scene) -> Iterator[Candidate]:
    work, kind = scene.graph.work, scene.once(kernel_kinds)
    time = work.time
    is_pass = kind == KernelKind.ELEMENTWISE
    elementwise = np.flatnonzero(is_pass & (time >= _MIN_KERNEL_NS) & _in_places_of(scene, is_pass))
    runs = [run for run in _sequences(scene, elementwise) if len(run) >= _MIN_CHAIN_KERNELS]
    spare = [np.setdiff1d(np.arange(run[0], run[-1] + 1), run[np.argmax(time[run])]) for run in runs]
    removed = np.concatenate([elementwise[:0], *spare])
    removed = removed[work.is_compute[removed]]
    yield from scene.of_operations(ELEMENTWISE_CHAIN, removed)
    passes = np.flatnonzero(scene.named(_LIST_PASS.search))
    longest = np.argsort(np.bincount(work.name[passes], time[passes], 1))[-_FUSED_PASSES:]
    removed = passes[~np.isin(work.name[passes], longest)]
    yield from scene.of_operations(ELEMENTWISE_CHAIN, removed, advice=_FUSED_OPTIMIZER)


_LIST_PASS = re.compile("multi_tensor_apply_kernel(?!.*LpNorm)")
"""PyTorch's pass over a list of tensors, as of an optimizer or a scaler; norms have to come before it."""

_FUSED_PASSES = 2
"""Number of passes over the list that take as long as one fused pass."""

_FUSED_OPTIMIZER = (
    "Update the parameters of {where} in one pass: fused=True for Adam, AdamW or SGD. Where a step needs few "
    "rows of a large embedding, let only these change: sparse=True with SparseAdam or SGD."
)


_JOINS = re.compile("CatArrayBatchedCopy")
"""PyTorch's copy of several tensors into one."""

_CASTS = re.compile(
    r"(?:b?float\d+\w*|converting)_copy_kernel_cuda|direct_copy_kernel_cuda.*(?:Load|Store)WithCast",
    re.DOTALL,
)
"""PyTorch's copy of a tensor into one of another type (``ATen/native/cuda/Copy.cu``)."""

_TO_HALF = re.compile(r"(?:bfloat16|float16|half)\w*_copy_kernel_cuda", re.IGNORECASE)
"""Such a copy into half precision."""

_SINGLE = re.compile(r"^(?!.*(?:bfloat16|half|double)).*\bfloat\b", re.IGNORECASE | re.DOTALL)
"""Kernels of PyTorch that read and write single precision alone."""

_WITHIN_GPU = re.compile("memcpy.*(?:device-to-device|d2d|dtod)", re.IGNORECASE)
"""A copy from memory of a GPU to memory of the same one."""


def _copies(scene: Scene, cause: CauseDeclaration, pattern: re.Pattern[str]) -> Iterator[Candidate]:
    """Yield the copies with such a name, in places where they take longer than the products.

    Copies in places without products, such as the conversion of pictures, may be all that the place is for.
    """
    yield from scene.of_operations(cause, _copies_beside_products(scene, pattern))


def _copies_beside_products(scene: Scene, pattern: re.Pattern[str]) -> Ints:
    named_so = scene.named(pattern.search)
    return np.flatnonzero(named_so & _in_places_of(scene, named_so, with_products=True))


def _joins(scene: Scene) -> Iterator[Candidate]:
    return _copies(scene, CONCATENATION, _JOINS)


def _casts(scene: Scene) -> Iterator[Candidate]:
    """Yield the casts, and half the time of what moves single precision between one and the cast back."""
    work, casts = scene.graph.work, _copies_beside_products(scene, _CASTS)
    products = np.cumsum(scene.once(kernel_kinds) == KernelKind.PRODUCT)
    half = np.where(scene.named(_SINGLE.search), work.time / 2, 0.0)
    less = np.zeros(len(work))
    less[casts] = work.time[casts]
    begin, end = casts[:-1], casts[1:]
    again = (work.stream[begin] == work.stream[end]) & (work.step[begin] == work.step[end])
    again &= scene.named(_TO_HALF.search)[end] & (products[begin] == products[end])
    for first, last in zip(begin[again].tolist(), end[again].tolist(), strict=True):
        less[first + 1 : last] = half[first + 1 : last]
    rows = np.flatnonzero(less)
    yield from scene.of_operations(TYPE_CONVERSION, rows, less[rows], less[rows])


def _copies_within_gpu(scene: Scene) -> Iterator[Candidate]:
    """Yield the copies within a GPU; libraries of MPI copy messages so between processes."""
    return iter(()) if scene.graph.mpi is not None else _copies(scene, DEVICE_COPY, _WITHIN_GPU)


_MIN_UNFILLED_NS = 3_000
"""Minimum time of such a launch in ns."""

_MAX_FILLED_SHARE, _MIN_UNFILLED = 1 / 4, 8
"""Maximum share of the multiprocessors with a block of a launch, and minimum number of such launches in a
row."""

_MIN_LONG_NS = 100_000
"""Minimum time of such a launch in ns for its blocks to have work that more of them could share."""


def _unfilled(scene: Scene) -> Iterator[Candidate]:
    """Yield the launches in a row that leave most of the GPU idle, but for the longest, and long ones."""
    work = scene.graph.work
    time = work.time
    units = scene.multiprocessors
    if not units:
        return
    blocks = grid_blocks(work.grid)
    few = work.is_compute & (time >= _MIN_UNFILLED_NS)
    few &= (blocks > 0) & (blocks <= _MAX_FILLED_SHARE * units)
    if not few.any():
        return
    at_once = _blocks_at_once(scene)
    few &= at_once <= _MAX_FILLED_SHARE * units
    _, kind = numbered_rows(work.stream, work.step, work.name, work.grid, few.astype(np.int64))
    begins = np.flatnonzero(np.diff(kind, prepend=-1))
    counts = np.diff(begins, append=len(kind))
    chosen = few[begins] & (counts >= _MIN_UNFILLED)
    long = few & (time >= _MIN_LONG_NS)
    long &= time[long].sum() >= _MIN_COMPUTE_SHARE * time[work.is_compute].sum()
    less = np.where(long, time * (1 - at_once / units), 0.0)
    for begin, count in zip(begins[chosen].tolist(), counts[chosen].tolist(), strict=True):
        full = -(-count * int(blocks[begin]) // units)
        spare = begin + np.argsort(time[begin : begin + count])
        less[spare] = 0.0
        less[spare[:-full]] = time[spare[:-full]]
    removed = np.flatnonzero(less)
    yield from scene.of_operations(UNFILLED_GPU, removed, less[removed])


def _blocks_at_once(scene: Scene) -> Floats:
    """Return the blocks of each kernel and those beside it on its rank, as a mean over its time."""
    work, at_once = scene.graph.work, np.zeros(len(scene.graph.work))
    for rank in range(len(scene.ranks)):
        rows = np.flatnonzero(work.is_compute & (scene.graph.work_rank == rank) & (work.time > 0))
        blocks = grid_blocks(work.grid[rows])
        moments = np.concatenate((work.start[rows], work.end[rows]))
        order = np.argsort(moments, kind="stable")
        level, moments = np.cumsum(np.concatenate((blocks, -blocks))[order]), moments[order]
        total = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(moments))))[: len(moments)]
        begun, ended = (total[np.searchsorted(moments, bound[rows])] for bound in (work.start, work.end))
        at_once[rows] = (ended - begun) / work.time[rows]
    return at_once


_SORTS = re.compile(
    "(?i)(?:radix|merge|segmented|bitonic)_?sort|DeviceSort|fill_reverse_indices|sort_postprocess|coalesceValues"
)
"""Sorting in CUB, rocPRIM, Thrust and PyTorch (``ATen/native/cuda/Sort.cu``), whose sparse matrices add up
equal entries behind it."""


def _sorting(scene: Scene) -> Iterator[Candidate]:
    yield from scene.of_operations(SORTING, np.flatnonzero(scene.named(_SORTS.search)))


_INDEX_GRADIENT, _GATHER = map(re.compile, ("indexing_backward_kernel", "index_elementwise|gather_kernel"))
"""PyTorch's gradient of an index, and its gather."""

_MAX_GATHER_RATIO = 3
"""Maximum ratio of the time of an index gradient to that of its gather if no index is repeated."""


def _repeated_indices(scene: Scene) -> Iterator[Candidate]:
    """Yield the gradients of indices that take more than three times their gathers, as one cause."""
    work = scene.graph.work
    time = work.time
    gradients, gathers = (
        np.flatnonzero(scene.named(pattern.search)) for pattern in (_INDEX_GRADIENT, _GATHER)
    )
    least = _MAX_GATHER_RATIO * float(time[gathers].sum())
    if 0 < least < float(time[gradients].sum()):
        share = 1 - least / float(time[gradients].sum())
        longer: Floats = np.multiply(time[gradients], share, dtype=np.float64)
        yield from scene.of_operations(REPEATED_INDICES, gradients, time[gradients], longer)


def _in_places_of(scene: Scene, chosen: Mask, *, with_products: bool = False) -> Mask:
    """Return a mask of the operations in places whose ``chosen`` operations take longer than the products."""
    work, products = scene.graph.work, scene.once(kernel_kinds) == KernelKind.PRODUCT
    # `NONE` is -1.
    chosen_time, product_time = (
        np.bincount(work.place + 1, work.time * rows, len(scene.graph.places) + 1)
        for rows in (chosen, products)
    )
    longer = (chosen_time > product_time) & ((product_time > 0) | (not with_products))
    return longer[work.place + 1]


_STRIDED_COPY = re.compile(r"(?<!vectorized_)(?<!unrolled_)elementwise_kernel<.*direct_copy_kernel")
"""PyTorch's copy between tensors of other strides, as ``contiguous()`` makes it; others are vectorized."""

_MAX_COPIES = 4
"""Maximum number of copies to other strides per convolution: a transformer has one, for patches."""

_CONVOLUTION = re.compile("^(?!.*sdpa).*(fprop|dgrad|wgrad|convolve|conv2d)", re.IGNORECASE | re.DOTALL)
"""A convolution; cuDNN names its fused attention after its passes too (``…_sdpa_sm90_flash_fprop_…``)."""


def _conversions(scene: Scene) -> Iterator[Candidate]:
    """Yield all conversions: the layout of one place decides on those of the next."""
    work = scene.graph.work
    copies, convolves = (scene.named(pattern.search) for pattern in (_STRIDED_COPY, _CONVOLUTION))
    # A copy to other strides converts a layout where the place has a convolution for every few of them.
    places = work.place.max(initial=0) + 2
    copied, convolved = (np.bincount(work.place[rows] + 1, minlength=places) for rows in (copies, convolves))
    copies &= (copied <= _MAX_COPIES * convolved)[work.place + 1]
    converts = np.flatnonzero((scene.once(kernel_kinds) == KernelKind.LAYOUT) | copies)
    yield from scene.of_operations(LAYOUT_CONVERSION, converts)


_ALIGNED_PRODUCT = re.compile(r"tensor_?op(?!.*[dz]884).*align(\d+)(?!.*align\d)", re.IGNORECASE)
"""A product on tensor cores, and its alignment in elements, that of the last operand; not in double."""

_HALF = re.compile(r"f16|[hH]\d")
"""Products of elements of two bytes; others have four."""

_BLUESTEIN = re.compile("bluestein", re.IGNORECASE)
"""A Fourier transform of a length with a large prime factor, in cuFFT, rocFFT and others."""

_SAVED_BY_FAST_LENGTH = 0.85
"""Share of its time that a length of small primes saves such a transform, which takes two of twice the length
or more, and products with chirps before, between and after."""

_FAST_LENGTHS = (
    "Pad the Fourier transforms of {where} to a length that has small prime factors alone, such as "
    "next_fast_len of scipy.fft or cupyx.scipy.fft gives: others take two transforms of twice the length or "
    "more."
)

_SAVED_SHARE = {2: 0.83, 4: 0.67}
"""Share of its time that padding saves a product, by the bytes that it loads at once.

Products in bfloat16 of three sizes on an H200 save 0.80 to 0.87 and 0.65 to 0.71."""


def bytes_at_once(name: str) -> int:
    """Return the bytes that a product on tensor cores loads at once, 16 if its name has no alignment."""
    match = _ALIGNED_PRODUCT.search(name)
    return 16 if match is None else int(match[1]) * (2 if _HALF.search(name) else 4)


def _odd_shapes(scene: Scene) -> Iterator[Candidate]:
    """Yield all products with misaligned operands as one cause, since most have one tensor in common.

    Fourier transforms of awkward lengths are another.
    """
    work = scene.graph.work
    saved = np.array([*(_SAVED_SHARE.get(bytes_at_once(name), 0.0) for name in scene.graph.names), 0.0])[
        work.name
    ]
    compute = work.is_compute
    slow = np.flatnonzero(compute & (saved > 0))
    time = work.time
    if time[slow].sum() >= _MIN_COMPUTE_SHARE * time[compute].sum():
        yield from scene.of_operations(SHAPE_INEFFICIENCY, slow, time[slow], time[slow] * saved[slow])
    slow = np.flatnonzero(scene.named(_BLUESTEIN.search))
    less: Floats = np.multiply(time[slow], _SAVED_BY_FAST_LENGTH, dtype=np.float64)
    yield from scene.of_operations(SHAPE_INEFFICIENCY, slow, time[slow], less, advice=_FAST_LENGTHS)


_declare = partial(
    CauseDeclaration,
    traits=frozenset({Trait.ALL_RANKS}),
    spread=0.3,
    column="compute_ns",
    operations="compute",
)

SLOW_ATTENTION = _declare(
    name="slow_attention",
    title="attention without a fused kernel",
    meaning="attention writes and reads its scores, sequence by sequence, instead of keeping them on the "
    "chip",
    about="products, masks and a softmax over sequence × sequence instead of one fused kernel. The saving "
    "is that of not moving the scores: all that runs between the two products, and the products' share of "
    "it",
    remedy="Use fused attention in {where}: torch.nn.functional.scaled_dot_product_attention (its flash or "
    "cuDNN backend needs half precision and masks that it knows), or FlashAttention.",
    remedies={
        "jax": "Use fused attention in {where}: jax.nn.dot_product_attention(implementation='cudnn'), in "
        "half precision."
    },
    candidates=_unfused_attention,
    figures=(Figures("kernels", "total_ns", named("(?i)softmax")),),
    kernels=lambda name: "softmax" in name.lower(),
    without="with fused attention",
)

ELEMENTWISE_CHAIN = _declare(
    name="elementwise_chain",
    title="chains of elementwise kernels",
    meaning="elementwise kernels in a row move the same bytes again and again",
    about="three or more elementwise kernels (casts, masks, activations) in a row over equally large "
    "tensors, of 10 µs or more, in a place whose elementwise kernels take longer than its products: each "
    "reads and writes what one could keep, and so do reductions and concatenations between them. The saving "
    "is that of all but the longest. In an optimizer that passes over lists of tensors, it is that of all "
    "but the two longest passes",
    remedy="Fuse the elementwise kernels of {where}: torch.compile, or one operator instead of several "
    "(fused bias, activation, dropout and residual); keep one precision instead of casting back and forth.",
    remedies={
        "jax": "Let XLA fuse {where}: jit all of it together, without values that leave the program between."
    },
    candidates=_chains,
    figures=(Figures("kernels", "total_ns", named("elementwise|triton_poi|fusion|multi_tensor")),),
    kernels=lambda name: "elementwise" in name or "multi_tensor" in name,
    without="with fused elementwise kernels",
)

CONCATENATION = _declare(
    name="concatenation",
    title="copies that join tensors",
    meaning="tensors are copied to be joined, for longer than the products take",
    about="PyTorch copies tensors into one (`torch.cat`) for longer than the products of the place take, as "
    "where keys and values of earlier tokens are copied for each new one. The saving is their time",
    remedy="Allocate the whole tensor of {where} once, and write the new part into it (index_copy_, slices, "
    "a static cache of keys and values) instead of torch.cat.",
    remedies={
        "jax": "Allocate the whole array of {where} once, and write the new part into it "
        "(jax.lax.dynamic_update_slice) instead of concatenating."
    },
    candidates=_joins,
    figures=(Figures("kernels", "total_ns", named("CatArrayBatchedCopy")),),
    kernels=lambda name: bool(_JOINS.search(name)),
)

DEVICE_COPY = _declare(
    name="device_copy",
    title="copies within the GPU",
    meaning="data is copied within the memory of the GPU, for longer than the products take",
    about="copies within the memory of a GPU take longer than the products of the place, as where JAX "
    "copies arguments that a compiled function updates. The saving is their time",
    remedy="Write in place in {where} (in-place operators, index_copy_), and clone nothing that stays equal.",
    remedies={
        "jax": "Donate what {where} updates: jax.jit(function, donate_argnums=…), so that XLA writes into "
        "the arrays that it is given instead of copying them first.",
        "cuda": "Exchange the pointers of buffers in {where} instead of copying one to the other, or let "
        "kernels write where the data is needed.",
    },
    candidates=_copies_within_gpu,
    figures=(Figures("memops", "total_ns", lambda table, _: table["operation"].str.contains(_WITHIN_GPU)),),
    column="exposed_mem_ns",
)

UNFILLED_GPU = _declare(
    name="unfilled_gpu",
    title="launches that fill little of the GPU",
    meaning="launches leave most multiprocessors idle",
    about="eight launches of one kernel or more in a row, of 3 µs or more, have blocks for a quarter of the "
    "multiprocessors or less each, with what runs beside them. The saving is that of one launch for all: "
    "it takes as long as the longest, once for each time that their blocks fill the GPU. It is possible "
    "where none needs the result of another, which no profile records, so the confidence is low. Single such "
    "launches of 0.1 ms or more count too, if they take a third of the compute: with more blocks, all "
    "multiprocessors share the work",
    remedy="Give the GPU more at once in {where}: one launch over all parts (a larger grid, a batched call), "
    "or streams side by side. If each launch needs the one before it, let several problems run together.",
    candidates=_unfilled,
    figures=(Figures("kernels", "total_ns"), Figures("kernels", "instances")),
    traits=frozenset({Trait.ALL_RANKS, Trait.UNCERTAIN}),
    spread=0.5,
)

SORTING = _declare(
    name="sorting",
    title="sorting",
    meaning="the GPU sorts",
    about="kernels that sort, or add up equal entries of sparse matrices in PyTorch behind it. The saving is "
    "their time: a step may need the largest values alone, or sort what does not change. No profile records "
    "that, so the confidence is low",
    remedy="Sort less in {where}: take the largest values by topk, keep what does not change sorted "
    "(coalesce() a sparse matrix once), and leave the order out where it does not matter (scatter, "
    "index_add_, bincount).",
    remedies={
        "jax": "Sort less in {where}: jax.lax.top_k or approx_max_k, and segment sums instead of sorts.",
        "cuda": "Sort less in {where}: select the largest values alone, keep what does not change sorted, "
        "sort fewer bits of the keys, and leave the order out where it does not matter (atomic sums).",
    },
    candidates=_sorting,
    figures=(Figures("kernels", "total_ns", named(_SORTS.pattern)),),
    kernels=lambda name: bool(_SORTS.search(name)),
    traits=frozenset({Trait.ALL_RANKS, Trait.UNCERTAIN}),
    spread=0.5,
    without="without sorting",
)

REPEATED_INDICES = _declare(
    name="repeated_indices",
    title="gradients of repeated indices",
    meaning="the gradients of rows that an index repeats are added one after another",
    about="the gradient of an index (`table[index]`) in PyTorch takes longer than three times the gathers of "
    "the step, as where many indices are equal: it adds the gradients of one row one after another. The "
    "saving is what exceeds that",
    remedy="Gather in {where} with table.index_select(0, index.flatten()) or nn.functional.embedding instead "
    "of table[index]: their gradients add equal rows at once. For few rows, multiply by a one-hot matrix.",
    candidates=_repeated_indices,
    figures=(Figures("kernels", "total_ns", named("indexing_backward_kernel")),),
    kernels=lambda name: bool(_INDEX_GRADIENT.search(name)),
    without="without repeated indices",
)

LAYOUT_CONVERSION = _declare(
    name="layout_conversion",
    title="conversions of layout",
    meaning="tensors are converted between channels first and channels last",
    about="tensors are converted between channels first (NCHW) and channels last (NHWC) around "
    "convolutions, which use the tensor cores in one of them; also copies to other strides (`contiguous()`) "
    "where convolutions are",
    remedy="Keep one layout: model.to(memory_format=torch.channels_last) and the same for the input of "
    "{where}; operators without it (views, some norms) convert back.",
    remedies={"jax": "Keep one layout in {where}: channels last in inputs and in dimension_numbers."},
    candidates=_conversions,
    figures=(Figures("kernels", "total_ns", named("(?i)nchw|nhwc|direct_copy_kernel")),),
    kernels=lambda name: "nchw" in name.lower() or bool(_STRIDED_COPY.search(name)),
    without="with one layout",
)

TYPE_CONVERSION = _declare(
    name="type_conversion",
    title="conversions of type",
    meaning="tensors are copied into another type, for longer than the products take",
    about="PyTorch copies tensors into another type for longer than the products of the place take, as "
    "where `torch.autocast` casts all weights for each token of a decoder. The saving is their time, and "
    "half of that of kernels in single precision between a cast and the cast back to half precision",
    remedy="Keep one type in {where}: weights in that of the products (model.bfloat16() or model.half(), as "
    "torch.autocast casts them again for each call), and no .float() around what takes half precision.",
    remedies={"jax": "Keep weights and inputs of {where} in the type in which the products compute."},
    candidates=_casts,
    figures=(Figures("kernels", "total_ns", named(_CASTS.pattern)),),
    kernels=lambda name: bool(_CASTS.search(name)),
    without="with one type",
)

SHAPE_INEFFICIENCY = _declare(
    name="shape_inefficiency",
    title="odd shapes",
    meaning="matrix products or Fourier transforms take longer, because their sizes are odd",
    about="matrix products on tensor cores whose operands are not aligned to 8 bytes, by the names of their "
    "kernels, take a third of the compute of a step or more: rows have a length that is no multiple of 8 "
    "elements in half precision. The saving is the share of their time that padding saved in "
    "`benchmarks/odd_shapes.py`: 83 % with odd lengths, 67 % with even ones. Also Fourier transforms by "
    "Bluestein's algorithm, whose length has a large prime factor: 85 % of their time",
    remedy="Pad the sizes of {where} (vocabulary, hidden size, heads, batch) to multiples of 8 elements, "
    "better of 64: kernels then load 16 bytes at once.",
    candidates=_odd_shapes,
    figures=(Figures("kernels", "total_ns", named("(?i)align[12](?!\\d)|bluestein")),),
    kernels=lambda name: bytes_at_once(name) in _SAVED_SHARE or bool(_BLUESTEIN.search(name)),
    without="with padded shapes",
)
