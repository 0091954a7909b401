"""Kernels' names in little room."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.profiles.kernel_names import cut_distinctly, labels, short_name

VECTORIZED = (
    "void at::native::vectorized_elementwise_kernel<(int)4, {}, std::array<char *, (bool)1>>(int, T2)"
)
FILL, ADD = (VECTORIZED.format(f"at::native::{what}<float>") for what in ("FillFunctor", "CUDAFunctor_add"))
POW = (
    "void at::native::<unnamed>::pow_tensor_scalar_kernel_impl<float, float>"
    "(at::TensorIteratorBase &, T2)::[lambda(float) (instance {})]"
)
SGEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_{}_align1>(T1::Params)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void at::native::f<(int)4, at::native::Add<float>>(T2)", "f<4, Add<float>>"),
        ("void (anonymous namespace)::softmax<float, (bool)1>(float *)", "softmax<float, 1>"),
        ("void <unnamed>::softmax<float>(float *)", "softmax<float>"),
        (FILL, "vectorized_elementwise_kernel<4, FillFunctor<float>, array<char *, 1>>"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
         "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("f<(cudnn::DataType_t)-2>", "f<-2>"),
        ("f<void g<int>(int)::[lambda(int) (instance 1)]>(int)",
         "f<g<int>(int)::[lambda(int) (instance 1)]>"),
        ("nvjet_sm90_tst_320x128", "nvjet_sm90_tst_320x128"),
        ("(total)", "(total)"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_short_name_leaves_out_what_tells_nothing(name: str, expected: str) -> None:
    assert short_name(name) == expected


def test_a_range_of_an_object_is_no_signature_of_a_kernel() -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert short_name(name) == name


def test_names_that_begin_alike_are_told_apart() -> None:
    pows = [VECTORIZED.format(POW.format(i)) for i in (1, 2)]
    products = [SGEMM.format(layout) for layout in ("nn", "nt")]
    shown = labels([FILL, ADD, *pows, *products], 28)
    assert list(shown.values()) == [
        "vectorize…FillFunctor<float…",
        "vectorize…CUDAFunctor_add<f…",
        "vectorize…pow_te…1)], array…",
        "vectorize…pow_te…2)], array…",
        "Kernel2<c…8x4_nn_align1>",
        "Kernel2<c…8x4_nt_align1>",
    ]


def test_a_long_word_is_cut_where_the_names_begin_to_differ() -> None:
    names = ["kernel" + "a" * 50 + end for end in ("Forward", "Backward")]
    assert list(labels(names, 16).values()) == ["kerne…Forward", "kerne…Backward"]


def test_what_fits_is_left_whole() -> None:
    assert labels([FILL, "void a::f()"], len(FILL)) == {FILL: FILL, "void a::f()": "void a::f()"}


def test_parameters_stay_where_only_they_differ() -> None:
    shown = labels(["void space::kernel(int, float)", "void space::kernel(int, double)"], 24)
    assert len(set(shown.values())) == 2


@given(st.lists(st.text("ab_<(:[ )]>1", max_size=40), max_size=8), st.integers(8, 30))
def test_no_label_is_longer_than_its_room(names: list[str], room: int) -> None:
    shown = labels(names, room)
    assert set(shown) == set(names)
    assert all(len(text) <= room for text in shown.values())


@pytest.mark.parametrize("piece", ["(", "a", "(a", "a::", "<", "[(", "void ", "((int)"])
def test_a_long_name_takes_no_long_time(piece: str) -> None:
    names = [piece * 50_000 + end for end in ("1", "2")]
    began = time.process_time()
    labels(names, 30)
    assert time.process_time() - began < 2


def test_words_of_the_common_part_fill_the_room() -> None:
    setups = [f"train, 8 ranks, perlmutter, nsys, batch 128, workers {count}" for count in (0, 2)]
    assert [*cut_distinctly(setups, 40).values()] == [
        f"train, 8 rank…nsys, batch 128, workers {count}" for count in (0, 2)
    ]
