"""The choice of kernels and launches that Nsight Compute measures."""

from __future__ import annotations

import lzma
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.timeline import Timeline
from hpcprof.study.kernel_choice import best_window, choose_kernels, function_name
from hpcprof.submit.profilers.base import Target
from hpcprof.submit.profilers.ncu import NCU

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    path = tmp_path_factory.mktemp("export") / "rank0.sqlite"
    path.write_bytes(lzma.decompress((DATA / "sp_bf16_rank0.sqlite.xz").read_bytes()))
    return read(path)


@pytest.mark.parametrize(
    ("demangled", "name"),
    [
        ("void at::native::vectorized<(int)4, at::Add<float>, std::array<char *, 3>>(int, T2)", "vectorized"),
        ("void at::native::<unnamed>::elementwise<at::X<(bool)1>>(T1, at::Y)", "elementwise"),
        ("void (anonymous namespace)::softmax_warp<float, (int)10>(T1 *)", "softmax_warp"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopA_NNT", "nvjet_tst_192x192_64x4_2x1_v_bz_coopA_NNT"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nt_align1>(T1::Params)", "Kernel2"),
        ("ncclDevKernel_AllGather(ncclDevKernelArgsStorage<(unsigned long)4096>)", "ncclDevKernel_AllGather"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_function_name_is_what_ncu_filters_by(demangled: str, name: str) -> None:
    assert function_name(demangled) == name


def test_the_kernels_that_take_longest_are_chosen_and_no_communication(timeline: Timeline) -> None:
    choice = choose_kernels(timeline, top=2, launches=10)
    # As `nsys stats` lists them: one matmul is the only kernel beside those of NCCL.
    assert choice.names == ("nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT",)
    assert (choice.skip, choice.count, choice.share) == (0, 10, 1)
    assert choose_kernels(timeline, top=20, launches=10**6).count == 86


def test_the_filter_is_one_that_the_profiler_takes_for_many_ranks(timeline: Timeline) -> None:
    choice = choose_kernels(timeline, top=20, launches=10)
    settings = NCU.resolve({"kernel": choice.pattern, "launch-count": str(choice.count)})
    NCU.check(Target("ddp", 4, profiled=1), settings)
    for name in choice.names:
        assert re.search(choice.pattern, name) and re.search(choice.pattern, f"at::native::{name}")
        assert not re.search(choice.pattern, f"{name}_and_more")


WEIGHTS = {"a": 5.0, "b": 3.0, "c": 1.0, "d": 0.5}


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=30), st.integers(1, 30))
def test_the_window_is_the_first_whose_distinct_kernels_weigh_most(names: list[str], count: int) -> None:
    count = min(count, len(names))
    worth = [sum(WEIGHTS[n] for n in set(names[i : i + count])) for i in range(len(names) - count + 1)]
    assert best_window(names, WEIGHTS, count) == worth.index(max(worth))
