"""Causes by their mechanism: generated programs with a cause, at the price of the program without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.causes.kernels import bytes_at_once
from hpcprof.analysis.explain.explain import explain_run
from hpcprof.analysis.explain.explanation import Explanation, Finding
from hpcprof.analysis.explain.whole_run import STREAM_WAITS
from hpcprof.profiles.gpu_peaks import peaks_of
from hpcprof.profiles.timeline import Category, Gpu
from tests.unit.analysis.explain.programs import (
    MS,
    US,
    Compile,
    Host,
    Instruction,
    Launch,
    Memory,
    Once,
    Place,
    StreamWait,
    Wait,
    inputs_of,
    simulate,
    without_waits,
)

LAYERS = 4
GEMM, SOFTMAX = "nvjet_hsh_128x256_64x4", "void softmax_warp_forward<float, bf16, 10>"
PASS = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"


def explained(*ranks: Sequence[Instruction], steps: int = 6) -> Explanation:
    return explain_run(inputs_of(simulate([tuple(one) for one in ranks], steps)))[0]


def layers(*inside: Instruction) -> list[Instruction]:
    """Return a step that the GPU limits: some kernels in each layer, and a product after them."""
    return [Place("forward", (*inside, Launch(2 * MS, name=GEMM)) * LAYERS)]


def product(ns: int) -> Launch:
    return Launch(ns, name=GEMM)


UNFUSED = (
    product(200 * US),
    Launch(150 * US, name=PASS),
    Launch(400 * US, name=SOFTMAX),
    Launch(150 * US, name=PASS),
    product(200 * US),
)
NORM = (
    *(Launch(900 * US, name=PASS),) * 2,
    Launch(500 * US, name="void at::native::reduce_kernel<512, 1, at::native::MeanOps<float>>", grid=9),
    Launch(1 * US, name=PASS),
    *(Launch(900 * US, name=PASS),) * 2,
)
"""Squares, their mean, its root, and two products with it."""

CAST = "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(Iterator &)>"
WITHIN = "Memcpy DtoD (Device -> Device)"
CAT = "void at::native::CatArrayBatchedCopy<OpaqueType<2>, unsigned int, 3, 64, 64>"
SCORES = Launch(500 * US, name="best")
EVENT = Memory(1 * US, name="cudaEventRecord")
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>"
TUNING = (EVENT, *(Launch(60 * US, name=FILL), SCORES) * 5, EVENT, Wait(None))
"""A tuner empties the caches before each run of a kernel."""

MEMSET = Launch(1 * US, name="[CUDA memset]", category=Category.MEM)
"""It comes before a product that counts its parts."""

VALUE = (Launch(2 * US, name="[CUDA memcpy Device-to-Host]", category=Category.MEM, blocks=True), Wait())
"""A value that a program reads by ``.item()``."""

TO_GPU = Launch(2 * US, name="[CUDA memcpy Host-to-Device]", category=Category.MEM)

CHECK = (
    Launch(200 * US, name="residual"),
    Launch(2 * US, name="[CUDA memcpy Device-to-Host]", category=Category.MEM, blocks=True),
    Host(300 * US),
)
TOKEN = tuple(part for _ in range(300) for part in (Host(8 * US), Launch(3 * US, name="gemv")))
COMPILING = [
    Place("forward", (product(4 * MS), *(Once(step, (Compile(9 * MS),)) for step in (2, 5, 8, 11)))),
    Place("update", (product(4 * MS), CHECK[1])),
]

STRIDED = "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda(TensorIteratorBase &)>"
"""PyTorch's copy between tensors of other strides."""

ODD = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_32x6_tn_align1>(Params)"
"""A product over rows of an odd length."""

LISTS = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<3>, "
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*)"
INDEX_GRADIENT = "void (anonymous namespace)::indexing_backward_kernel_small_stride<float>(long const*)"

PROGRAMS: dict[str, tuple[str, list[Instruction], list[Instruction]]] = {
    "attention without a fused kernel": (
        Cause.SLOW_ATTENTION,
        layers(*UNFUSED),
        layers(product(100 * US), product(100 * US)),
    ),
    "attention whose products follow a memset": (
        Cause.SLOW_ATTENTION,
        layers(MEMSET, *UNFUSED[:-1], MEMSET, UNFUSED[-1]),
        layers(product(100 * US), product(100 * US)),
    ),
    "casts and passes of other widths, with small ones between": (
        Cause.ELEMENTWISE_CHAIN,
        layers(
            Launch(900 * US, name=PASS, grid=65536),
            Launch(900 * US, name=PASS, grid=32768),
            *(MEMSET, Launch(2 * US, name=PASS)),
            Launch(900 * US, name="cupy_multiply__float32_float_float32", grid=131072),
        ),
        layers(Launch(900 * US, name=PASS)),
    ),
    "a value for each of sixty agents": (
        Cause.HOST_SYNC,
        [Place("act", (Host(300 * US), product(200 * US), *(*VALUE, Host(3 * US)) * 60))],
        [Place("act", (Host(300 * US), product(200 * US), *VALUE, Host(3 * US)))],
    ),
    "a copy to the GPU for each of sixty agents": (
        Cause.BLOCKING_COPY,
        [Place("observe", (*(TO_GPU, Host(3 * US)) * 60, Host(300 * US), product(200 * US), *VALUE))],
        [Place("observe", (TO_GPU, Host(3 * US), Host(300 * US), product(200 * US), *VALUE))],
    ),
    "a chain of elementwise kernels": (
        Cause.ELEMENTWISE_CHAIN,
        layers(*(Launch(900 * US, name=PASS) for _ in range(5))),
        layers(Launch(900 * US, name=PASS)),
    ),
    "a pool that maps its memory in each step": (
        Cause.DEVICE_ALLOCATION,
        layers(Wait(), Memory(500 * US, name="cudaMallocAsync_v11020")),
        layers(Wait(), Memory(2 * US, name="cudaMallocAsync_v11020")),
    ),
    "a pool that gives its memory back while the host waits": (
        Cause.DEVICE_ALLOCATION,
        layers(Wait(late_ns=800 * US), Memory(200 * US, name="cudaMallocAsync_v11020")),
        layers(Wait(), Memory(2 * US, name="cudaMallocAsync_v11020")),
    ),
    "a norm that is written out": (
        Cause.ELEMENTWISE_CHAIN,
        layers(*NORM),
        layers(Launch(900 * US, name=PASS)),
    ),
    "a kernel that is tuned in each step": (
        Cause.KERNEL_TUNING,
        layers(*TUNING * 3, SCORES),
        layers(SCORES),
    ),
    "keys and values that are joined for each token": (
        Cause.CONCATENATION,
        [Place("decode", (Launch(900 * US, name=CAT), product(400 * US)) * LAYERS)],
        [Place("decode", (product(400 * US),) * LAYERS)],
    ),
    "arrays that a compiled function copies to update them": (
        Cause.DEVICE_COPY,
        [Place("decode", (Launch(900 * US, name=WITHIN, category=Category.MEM), product(400 * US)) * LAYERS)],
        [Place("decode", (product(400 * US),) * LAYERS)],
    ),
    "weights that are cast for each token": (
        Cause.TYPE_CONVERSION,
        [Place("decode", (Launch(900 * US, name=CAST), product(400 * US)) * LAYERS)],
        [Place("decode", (product(400 * US),) * LAYERS)],
    ),
    "conversions of layout": (
        Cause.LAYOUT_CONVERSION,
        layers(
            *(
                Launch(150 * US, name=f"void cudnn::ops::{name}Kernel<half>")
                for name in ("nchwToNhwc", "nhwcToNchw")
            )
        ),
        layers(),
    ),
    "copies to other strides between convolutions": (
        Cause.LAYOUT_CONVERSION,
        layers(Launch(200 * US, name="sm90_xmma_fprop_implicit_gemm"), Launch(200 * US, name=STRIDED)),
        layers(Launch(200 * US, name="sm90_xmma_fprop_implicit_gemm")),
    ),
    "a vocabulary of an odd size": (
        Cause.SHAPE_INEFFICIENCY,
        layers(Launch(6_000 * US, name=ODD)),
        layers(Launch(1_020 * US, name=ODD.replace("align1", "align8"))),
    ),
    "an optimizer in passes over lists of tensors": (
        Cause.ELEMENTWISE_CHAIN,
        [*layers(), *(Launch(ns * US, name=f"{LISTS}{ns}>") for ns in (900, 700, 600, 500, 400))],
        [*layers(), Launch(1600 * US, name=f"{LISTS}FusedAdamMathFunctor>")],
    ),
    "a gradient that adds equal rows one after another": (
        Cause.REPEATED_INDICES,
        layers(Launch(100 * US, name=GATHER), Launch(2 * MS, name=INDEX_GRADIENT)),
        layers(Launch(100 * US, name=GATHER), Launch(300 * US, name=INDEX_GRADIENT)),
    ),
    "a residual that is checked ten times": (
        Cause.HOST_SYNC,
        [Place("solve", (*(Launch(60 * US, name="jacobi") for _ in range(10)), *(CHECK * 10)))],
        [Place("solve", (*(Launch(60 * US, name="jacobi") for _ in range(10)), *CHECK))],
    ),
    "launches that return with their kernels": (
        Cause.HOST_SYNC,
        [Place("decode", (Host(8 * US), Launch(60 * US, name="gemm", blocks=True)) * 60)],
        [Place("decode", (Host(8 * US), Launch(60 * US, name="gemm")) * 60)],
    ),
    "many short kernels in a loop": (
        Cause.SMALL_KERNELS,
        [Place("decode", (*TOKEN, CHECK[1]))],
        [Place("decode", (Host(8 * US), Launch(300 * 3 * US + 299 * 1_000, name="graph"), CHECK[1]))],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_cause_is_the_first_finding_at_its_price(name: str) -> None:
    cause, program, clean = PROGRAMS[name]
    found, without = explained(program), explained(clean)
    first = found.shown()[0]
    assert first.cause == cause
    assert found.step.elapsed_ns and without.step.elapsed_ns and first.saving_ns
    cost = found.step.elapsed_ns - without.step.elapsed_ns
    assert first.saving_ns == pytest.approx(cost, rel=0.1)
    assert cause not in {one.cause for one in without.shown()}
    assert first.evidence and "{" not in first.remedy


@pytest.mark.parametrize(
    ("name", "size"),
    [
        (ODD, 2),
        ("void cutlass::Kernel2<cutlass_75_tensorop_f16_s1688gemm_f16_64x64_nn_align4>(Params)", 8),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4>(Params)", 16),
        ("void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x32_16x4_nn_align1>(Params)", 16),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>(Params)", 16),
        ("nvjet_tst_192x192_64x3_2x1_v_bz_coopB_TNN", 16),
    ],
)
def test_the_name_of_a_product_says_how_much_it_loads_at_once(name: str, size: int) -> None:
    assert bytes_at_once(name) == size


def test_few_products_of_odd_shapes_claim_nothing() -> None:
    assert not explained([*layers(Launch(300 * US, name=ODD)), product(2_000 * US)]).findings


def test_kernels_of_one_name_that_take_a_third_of_the_step_are_named() -> None:
    first, second = (f"void histogram_kernel<{bins}>(int)" for bins in (4, 8))
    kernels = (Launch(MS, name=first), Launch(2 * MS, name=second), product(MS))
    kernel = explained([Host(10 * US), Place("backward", kernels)]).step.kernel
    assert kernel and (kernel.name, kernel.where) == ("histogram_kernel", "backward")
    assert kernel.share_pct == pytest.approx(75, abs=2)
    parts = tuple(Place(f"phase {part}", (Launch(MS, name=first),)) for part in "abc")
    spread = explained([Host(10 * US), Place("forward", parts), Launch(MS, name=first)]).step.kernel
    assert spread and spread.where == "forward"
    even = (Launch(MS, name=first), product(MS), Launch(MS, name="scan"), Launch(MS, name="sort"))
    assert explained([Place("backward", even)]).step.kernel is None


def test_a_softmax_between_no_products_is_not_attention() -> None:
    loss = (Launch(400 * US, name=SOFTMAX), Launch(100 * US, name="reduce"))
    logarithm = (product(200 * US), Launch(400 * US, name="cunn_SoftMaxForward<LogSoftMaxForwardEpilogue>"))
    for program in (layers(*loss), layers(*logarithm, product(200 * US))):
        assert Cause.SLOW_ATTENTION not in {one.cause for one in explained(program).findings}


def test_copies_to_other_strides_without_convolutions_convert_no_layout() -> None:
    attention = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128"
    strided = Launch(200 * US, name=STRIDED)
    # Rebuilt from a public trace of a transformer on videos, which has one convolution for the patches.
    patches = (Launch(200 * US, name="sm90_xmma_fprop_implicit_gemm"), product(MS), *[strided] * 9)
    inside_attention = layers(Launch(200 * US, name=attention), strided)
    for program in (layers(strided), inside_attention, [Place("forward", patches)]):
        found = explained(program)
        assert Cause.LAYOUT_CONVERSION not in {one.cause for one in found.findings}


def test_kernels_that_one_rank_alone_has_are_a_cause_of_that_rank() -> None:
    def rank(*inside: Instruction) -> list[Instruction]:
        return [*layers(*inside), Launch(50 * US, collective=True, group=(0, 1))]

    first = explained(rank(product(200 * US)), rank(*UNFUSED), steps=8).shown()[0]
    assert (first.cause, first.ranks) == (Cause.SLOW_ATTENTION, (1,))


def test_runs_of_other_kernels_between_two_events_tune_nothing() -> None:
    parts = tuple(Launch(500 * US, name=f"part{number}") for number in range(10))
    timed = layers(EVENT, *parts, EVENT, Wait(None))
    assert Cause.KERNEL_TUNING not in {one.cause for one in explained(timed).findings}


@pytest.mark.parametrize("before", [PASS, FILL, ""])
def test_a_program_that_times_its_own_kernels_tunes_nothing(before: str) -> None:
    # A value is set to zero before each run.
    first: tuple[Instruction, ...] = (Launch(5 * US, name=before),) if before else ()
    run = (*first, Launch(300 * US, name="sweep"))
    timed = (Launch(2 * MS, name="assemble"), EVENT, *run * 10, EVENT, Wait(None))
    assert Cause.KERNEL_TUNING not in {one.cause for one in explained(timed, steps=8).findings}


@pytest.mark.parametrize(
    "copy",
    [
        Launch(900 * US, name=CAT),
        Launch(900 * US, name=CAST),
        Launch(900 * US, name=WITHIN, category=Category.MEM),
    ],
)
def test_copies_on_the_gpu_beside_longer_products_claim_nothing(copy: Launch) -> None:
    # As the gradient of keys, queries and values that a layer computes at once.
    assert not explained(layers(copy)).shown()


def test_copies_of_one_type_are_no_evidence_of_conversions() -> None:
    plain = "void at::native::elementwise_kernel<128, 4, gpu_kernel_impl_nocast<direct_copy_kernel_cuda()>>"
    copies = (Launch(900 * US, name=CAST), Launch(300 * US, name=plain), product(400 * US))
    (first,) = explained([Place("decode", copies * LAYERS)]).shown()
    assert first.cause == Cause.TYPE_CONVERSION
    assert len([item for item in first.evidence if item.analysis == "kernels"]) == 1


def with_shapes(blocks: int, threads: int, units: int = 132) -> Explanation:
    """Explain steps of 40 launches in a row, each with some blocks, and a product of known shape."""
    made = simulate([[*(Launch(90 * US, name="scan") for _ in range(40)), product(2 * MS)]], 6)[0]
    grid, block = np.ones_like(made.kernels.grid), np.ones_like(made.kernels.block)
    is_scan = made.kernels.end - made.kernels.start < 1 * MS
    grid[:, 0], block[:, 0] = np.where(is_scan, blocks, 999), np.where(is_scan, threads, 256)
    kernels = replace(made.kernels, grid=grid, block=block)
    inputs = inputs_of({0: replace(made, kernels=kernels)})
    return explain_run(replace(inputs, gpus={0: (Gpu(0, "NVIDIA H200", sm_count=units),)}))[0]


def test_launches_in_a_row_that_fill_little_of_the_gpu_could_be_one() -> None:
    (first,) = with_shapes(blocks=33, threads=64).shown()
    assert first.cause == Cause.UNFILLED_GPU
    # Forty times 33 blocks fill the GPU ten times.
    assert first.saving_ns == pytest.approx(30 * 90 * US, rel=0.1)
    # No profile records whether each needs the one before.
    assert first.confidence == "low"
    assert not with_shapes(blocks=34, threads=64).shown()
    assert not with_shapes(blocks=33, threads=64, units=0).shown()
    # A kernel without a shape, as within a graph on ROCm, has blocks of one thread.
    assert not with_shapes(blocks=33, threads=1).shown()


def test_a_long_launch_that_fills_little_of_the_gpu_could_have_more_blocks() -> None:
    def explained_launch(ns: int, *streams: int) -> Explanation:
        launches = [Launch(ns, stream, name="search") for stream in streams]
        made = simulate([[*launches, Host(20 * US), *map(Wait, streams)]], 6)[0]
        grid, block = np.ones_like(made.kernels.grid), np.ones_like(made.kernels.block)
        grid[:, 0], block[:, 0] = 33, 256
        inputs = inputs_of({0: replace(made, kernels=replace(made.kernels, grid=grid, block=block))})
        return explain_run(replace(inputs, gpus={0: (Gpu(0, "NVIDIA H200", sm_count=132),)}))[0]

    (first,) = explained_launch(3 * MS, 7).shown()
    assert (first.cause, first.confidence) == (Cause.UNFILLED_GPU, "low")
    assert first.saving_ns == pytest.approx(3 * MS * 3 / 4, rel=0.02)
    assert Cause.UNFILLED_GPU not in {one.cause for one in explained_launch(90 * US, 7).findings}
    # Launches side by side fill the GPU together.
    assert not explained_launch(3 * MS, 13, 14, 15, 16).shown()


def test_sorting_costs_its_kernels_where_a_step_may_do_without_the_order() -> None:
    sort = "void cub::detail::radix_sort::DeviceSegmentedRadixSortKernel<Policy, bool>"
    reverse = "fill_reverse_indices_kernel(long *, int, IntDivider<unsigned int>)"
    (first,) = explained(layers(Launch(500 * US, name=sort), Launch(100 * US, name=reverse))).shown()
    assert (first.cause, first.confidence) == (Cause.SORTING, "low")
    assert first.saving_ns == pytest.approx(LAYERS * 600 * US, rel=0.02)


@pytest.mark.parametrize(("after", "cause"), [(True, Cause.HOST_WORK), (False, Cause.PAGE_MIGRATION)])
def test_pages_are_a_cause_of_host_work_where_they_move_in_the_steps(after: bool, cause: Cause) -> None:
    """A program that reads its results at its end waits for pages there, in no step."""
    move = Launch(3 * US, 99, "[CUDA memcpy Unified Device-to-Host]", Category.MEM, call_ns=2 * US)
    moves = [Once(7, 5_600 * (move,), after=True)] if after else 700 * [move]
    read: list[Instruction] = [Wait(), Host(9 * MS)]
    found = explain_run(inputs_of(simulate([[*read, *moves, product(9 * MS)]], 8)))[0]
    assert found.shown()[0].cause == cause


def test_fourier_transforms_of_lengths_with_large_prime_factors_could_be_padded() -> None:
    (first,) = explained(layers(Launch(1 * MS, name="void multi_bluestein_fft<256, EPT<16>>"))).shown()
    assert first.cause == Cause.SHAPE_INEFFICIENCY
    assert "next_fast_len" in first.remedy
    assert first.saving_ns == pytest.approx(LAYERS * 0.85 * MS, rel=0.02)


def patches(
    marks: int | None, *, recorded: bool = False, ranks: int = 1, interface: str = "cuda"
) -> Explanation:
    """Explain steps on three streams, with short kernels on their own or on one that waits."""
    step: list[Instruction] = []
    for stream in (13, 14, 15):
        mark = stream if marks is None else marks
        waits = () if marks is None else (StreamWait(stream, marks), StreamWait(marks, stream))
        burn = Launch(2 * MS, stream, name="burn", grid=5)
        step += [StreamWait(stream, 21), *waits[:1], burn, *waits[1:], Launch(5 * US, mark, name="mark")]
    step += [
        *(StreamWait(21, stream) for stream in (13, 14, 15, marks or 15)),
        Launch(5 * US, 21, name="exchange"),
    ]
    timelines = simulate([step * 3] * ranks, 6)
    for rank, made in timelines.items():
        table = made.synchronizations
        implicit = table.correlation[(table.stream == marks) | (table.source_stream == marks)]
        calls = made.calls.take(recorded | ~np.isin(made.calls.correlation, implicit))
        strings = np.array([text.replace("cuda", interface) for text in made.strings], object)
        timelines[rank] = replace(made, calls=calls, strings=strings)
    inputs = inputs_of(timelines)
    gpus = dict.fromkeys(timelines, (Gpu(0, "NVIDIA H200", sm_count=132),))
    return explain_run(replace(inputs, gpus=gpus))[0]


def test_streams_that_the_legacy_default_stream_serializes_could_share_the_gpu() -> None:
    found = patches(7)
    (first,) = found.shown()
    assert (first.cause, first.confidence) == (Cause.SERIALIZED_STREAMS, "low")
    # Three kernels of 125 blocks share 132 multiprocessors, two blocks on each.
    shared = 2 * (1 + 2 * 125 / 132 / 2)
    assert first.saving_ns == pytest.approx(3 * (3 * 2 - shared) * MS, rel=0.1)
    # The finding prices the waits for other streams, too.
    assert not {"late starts", STREAM_WAITS} & {one.what for one in found.not_judged}
    assert Cause.SERIALIZED_STREAMS in {one.cause for one in patches(7, ranks=2).shown()}
    assert not patches(None).shown()
    # Events that the program itself records order what needs it.
    assert not patches(7, recorded=True).shown()
    assert not patches(7, interface="hip").shown()


def in_two_threads(program: Sequence[Instruction], forward: int, launches: int) -> Explanation:
    """Explain a program whose launches after the first ``forward`` of each step are by another thread."""
    made = simulate([tuple(program)], 6)[0]
    is_launch = np.array(made.names(made.calls.name)) == "cudaLaunchKernel"
    thread = made.calls.thread.copy()
    thread[is_launch] += np.arange(is_launch.sum()) % launches >= forward
    return explain_run(inputs_of({0: replace(made, calls=replace(made.calls, thread=thread))}))[0]


def test_layers_that_the_backward_pass_computes_again_are_a_finding_at_their_time() -> None:
    layer = tuple(Launch(300 * US, name=f"forward{number}") for number in range(8))
    gradients = tuple(Launch(300 * US, name=f"gradient{number}") for number in range(16))
    found = in_two_threads([*layer, *layer, *(*layer, *gradients) * 2], 16, 64)
    (first,) = found.shown()
    assert first.cause == Cause.RECOMPUTATION
    assert first.saving_ns == pytest.approx(16 * 300 * US, rel=0.1)
    assert not in_two_threads([*layer, *layer, *gradients, *gradients], 16, 48).shown()
    # Another thread that does the same work has no gradients beside it.
    assert not in_two_threads([*layer] * 4, 16, 32).shown()
    # A thread that launches while the first one does is no backward pass, which that waits for.
    pairs = zip([*layer] * 3, [*layer, *gradients], strict=True)
    beside = in_two_threads([one for pair in pairs for one in pair], 1, 2)
    assert Cause.RECOMPUTATION not in {one.cause for one in beside.findings}


def test_kernels_that_take_a_time_slice_longer_in_some_steps_show_another_program() -> None:
    def program(slice_ns: int) -> list[Instruction]:
        return [
            Once(step, (Launch(700 * US + slice_ns * ((step + number) % 3 == 0), name=f"part{number}"),))
            for number in range(8)
            for step in range(12)
        ]

    (first,) = explained(program(1100 * US), steps=12).shown()
    assert first.cause == Cause.SHARED_GPU
    assert first.saving_ns == pytest.approx(8 * 1100 * US / 3, rel=0.1)
    # A longer batch takes longer in all kernels whose grid is that of the GPU.
    lengths = [
        Once(step, (Launch(300 * US * (1 + (step % 4 == 0)), name=f"{part} {number % 6}"),))
        for number, part in enumerate("qkvo" * 6)
        for step in range(12)
    ]
    assert Cause.SHARED_GPU not in {one.cause for one in explained(lengths, steps=12).findings}
    # Products of one name and other inner sizes differ in each step alike.
    sizes = [Launch(ns * US, name=GEMM) for ns in (300, 1400, 300, 300, 1400, 300, 300, 300)]
    assert not explained(sizes, steps=12).shown()


def test_elementwise_kernels_over_other_sizes_or_apart_are_no_chain() -> None:
    apart = (Launch(900 * US, name=PASS), product(50 * US)) * 3
    sizes = (Launch(900 * US, name=PASS, grid=grid) for grid in (3000, 9000, 5000))
    for kernels in (apart, sizes):
        assert not explained(layers(*kernels)).shown()


def test_elementwise_kernels_beside_longer_products_claim_nothing() -> None:
    # As the activation of a transformer: no profile records which tensors are the same.
    assert not explained(layers(*(Launch(150 * US, name=PASS) for _ in range(5)))).shown()


def test_kernels_that_are_compiled_in_several_steps_are_a_finding() -> None:
    found = explained(COMPILING, steps=14)
    assert Cause.RECOMPILATION in {one.cause for one in found.findings} | {
        other.cause for one in found.findings for other in one.alternatives
    }
    # Drivers load each kernel at its first use: in one step, or in the first ones.
    for steps in ((2,), (0, 1, 2, 3)):
        loads = (Once(step, (Compile(9 * MS),)) for step in steps)
        once = [Place("forward", (product(4 * MS), *loads, CHECK[1]))]
        assert Cause.RECOMPILATION not in {one.cause for one in explained(once, steps=14).findings}


def test_few_steps_that_compile_for_long_are_recompilation_and_not_any_pause() -> None:
    pause = (Host(15 * MS), product(1 * US), Compile(60 * MS))
    loads = (Once(step, pause) for step in (6, 20, 33))
    found = explained([Place("forward", (product(4 * MS), *loads, CHECK[1]))], steps=40)
    assert found.shown()[0].cause == Cause.RECOMPILATION


def test_kernels_that_go_are_not_launched_either() -> None:
    convolution, copy = (Launch(20 * US, name=name) for name in ("sm90_xmma_fprop_implicit_gemm", STRIDED))
    planted = [Place("forward", (Host(60 * US), convolution, Host(60 * US), copy) * 40)]
    mended = [Place("forward", (Host(60 * US), convolution) * 40)]
    found, without = explained(planted), explained(mended)
    every = [other for one in found.findings for other in (one, *one.alternatives)]
    saving = next(one.saving_ns or 0 for one in every if one.cause == Cause.LAYOUT_CONVERSION)
    cost = (found.step.elapsed_ns or 0) - (without.step.elapsed_ns or 0)
    assert saving == pytest.approx(cost, rel=0.1)


def test_plans_of_cudnn_for_each_length_are_advised_against_by_name() -> None:
    def first(kernel: str) -> Finding:
        planning = (Host(40 * MS), Compile(5 * US), Launch(50 * US, name=kernel), CHECK[1])
        layer = (*(product(200 * US) for _ in range(9)), Launch(50 * US, name=kernel))
        program: list[Instruction] = [*layer * 3, *(Once(step, planning) for step in range(12))]
        return explained(program, steps=12).shown()[0]

    of_cudnn, of_triton = first("cudnn_generated_fort_native_sdpa_sm90_knob_7"), first("triton_per_fused_1")
    assert of_cudnn.cause == of_triton.cause == Cause.RECOMPILATION
    assert "enable_cudnn_sdp(False)" in of_cudnn.remedy and "TORCH_LOGS" in of_triton.remedy


def test_a_wait_that_no_call_records_is_offered_beside_the_work_that_it_keeps_from_overlapping() -> None:
    read = Launch(3 * US, name="[CUDA memcpy Device-to-Host]", category=Category.MEM)
    program: list[Instruction] = [
        *(Launch(MS, name="fusion") for _ in range(10)),
        Wait(),
        read,
        Host(30 * MS),
    ]
    timelines = {0: without_waits(simulate([program], 30)[0])}
    first = explain_run(inputs_of(timelines))[0].shown()[0]
    assert first.cause == Cause.HOST_WORK and first.saving_ns == pytest.approx(30 * MS, rel=0.1)
    (instead,) = (one for one in first.alternatives if one.cause == Cause.HOST_SYNC)
    # Host and GPU then work at the same time.
    assert instead.saving_ns == pytest.approx(10 * MS, rel=0.1)


def test_a_rank_whose_experts_have_more_tokens_is_one_cause_and_balance_is_its_price() -> None:
    def rank(expert: int) -> list[Instruction]:
        exchange = Launch(100 * US, collective=True, group=(0, 1), op="AlltoAll")
        layer = (product(MS), exchange, Launch(expert, name="expert_gemm"), exchange)
        # Clocks need a collective that ends on all ranks at once.
        return [Place("forward", (*layer * LAYERS, Launch(50 * US, collective=True, group=(0, 1))))]

    found = explained(rank(1 * MS), rank(3 * MS), steps=8)
    first = found.shown()[0]
    assert (first.cause, first.ranks) == (Cause.EXPERT_IMBALANCE, (1,))
    # The tokens stay as many: 2 ms on both ranks instead of 3.
    assert first.saving_ns == pytest.approx(LAYERS * MS, rel=0.1)
    balanced = explained(rank(2 * MS), rank(2 * MS), steps=8).shown()
    assert Cause.EXPERT_IMBALANCE not in {one.cause for one in balanced}


@pytest.mark.parametrize("copy_first", [True, False])
def test_work_and_a_copy_as_long_before_a_collective_are_the_late_host_in_either_order(
    copy_first: bool,
) -> None:
    blocking = Launch(5 * MS, name="[CUDA memcpy Host-to-Device]", category=Category.MEM, blocks=True)
    work = Host(5 * MS)
    late = Place("data", (blocking, work) if copy_first else (work, blocking))

    def program(rank: int) -> list[Instruction]:
        step: list[Instruction] = [Launch(8 * MS), Launch(MS, collective=True), Wait()]
        return [late, *step] if rank == 1 else step

    (first, *_) = explained(*map(program, range(4)), steps=12).shown()
    assert (first.cause, first.where, first.ranks) == (Cause.LATE_RANK_HOST, "data", (1,))
    assert first.saving_ns == pytest.approx(10 * MS, rel=0.02)
    assert Cause.BLOCKING_COPY in {item.cause for item in first.alternatives}


def test_work_that_has_a_price_beside_a_finding_is_not_hidden_as_well() -> None:
    # The host works before the copy, while the GPU is busy; without its calls the copy would begin earlier.
    copy = Launch(4 * MS, name="[CUDA memcpy Host-to-Device]", category=Category.MEM, blocks=True)
    step: list[Instruction] = [
        Place("data", (Host(3 * MS), copy)),
        Launch(20 * MS),
        Launch(MS, collective=True),
    ]
    found = explained(step, step, steps=8)
    priced = {item.place for finding in found.findings for item in (finding, *finding.alternatives)}
    assert (Cause.HOST_WORK, "data", (0, 1)) in priced
    assert not priced & {item.place for item in found.hidden}


def test_conversions_in_a_place_without_products_are_what_it_is_for() -> None:
    """Pictures come as bytes, and a network multiplies numbers of another type."""
    cast = Place("data", (Launch(9 * MS, name=CAST),))
    step: list[Instruction] = [cast, Place("forward", (product(4 * MS),))]
    assert Cause.TYPE_CONVERSION not in {item.cause for item in explained(step).findings}


def test_kernels_of_another_stream_stay_behind_the_work_for_which_the_host_waited() -> None:
    first, second = ((Host(100 * US), Launch(MS, stream)) for stream in (7, 9))
    waiting, events = (
        [Place("levels", (*first, after_first, *second, after_second)), Place("tail", (Launch(MS),))]
        for after_first, after_second in ((Wait(7), Wait(9)), (StreamWait(9, 7), StreamWait(7, 9)))
    )
    found, without = explained(waiting), explained(events)
    saving = (found.step.elapsed_ns or 0) - (without.step.elapsed_ns or 0)
    (finding,) = found.shown()
    assert (finding.cause, finding.where) == (Cause.HOST_SYNC, "levels")
    assert finding.saving_ns == pytest.approx(saving, rel=0.05)


DGEMM = "void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x32_16x4_tn_align1>(T1::Params)"
ADAM = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<double, 4>>"


@pytest.mark.parametrize(("last", "priced"), [(ADAM, True), ("void finish<double>(double *)", False)])
def test_double_precision_is_a_cause_where_a_neural_network_is_trained(last: str, priced: bool) -> None:
    silu = (
        "void at::native::vectorized_elementwise_kernel<2, silu_kernel()::lambda(double), array<char *, 2>>"
    )
    kernels = ((6 * MS, DGEMM), (2 * MS, silu), (100 * US, last))
    step = (Launch(time, name=name, grid=999) for time, name in kernels)
    timeline = simulate([[*step, Host(20 * US), Wait()]], 6)[0]
    gpus = {0: (Gpu(0, "NVIDIA H200", compute_capability="9.0", sm_count=132),)}
    found = explain_run(replace(inputs_of({0: timeline}), gpus=gpus))[0]
    assert [one.cause for one in found.shown()] == [Cause("double_precision")] * priced
    if priced:
        # Products take TF32's share of the peaks, at 80 % of the ratio, and other kernels half their time.
        gain = 0.8 * peaks_of("NVIDIA H200")["tf32"] / peaks_of("NVIDIA H200")["fp64"]
        assert found.shown()[0].saving_ns == pytest.approx(6 * MS * (1 - 1 / gain) + 1.05 * MS, rel=0.02)
        assert found.shown()[0].confidence == "low"


def test_what_moves_single_precision_between_casts_would_take_half_of_its_time() -> None:
    back = "void at::native::vectorized_elementwise_kernel<8, bfloat16_copy_kernel_cuda(), array<char *, 2>>"
    softmax = "void cunn_SoftMaxForward<4, float, float, float, LogSoftMaxForwardEpilogue>(float *, float *)"

    def saving(*between: Launch) -> float:
        loss = (product(200 * US), Launch(900 * US, name=CAST), *between, Launch(400 * US, name=back))
        (first, *_) = explained([Place("loss", (*loss, product(200 * US)))]).shown()
        assert first.cause == Cause.TYPE_CONVERSION
        return float(first.saving_ns or 0)

    index = Launch(5 * US, name="void at::native::elementwise_kernel<direct_copy(long)>")
    long = Launch(800 * US, name=softmax)
    assert saving(long, index) == pytest.approx((1300 + 400) * US, rel=0.02)
    # A product between them takes what it is given.
    assert saving(long, product(50 * US)) == pytest.approx(1300 * US, rel=0.02)
