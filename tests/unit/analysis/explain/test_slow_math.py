"""The gain that tensor cores would bring."""

from __future__ import annotations

import pytest

from hpcprof.analysis.explain.causes.slow_math import runs_without_tensor_cores, tensor_core_gain
from hpcprof.profiles.timeline import Gpu


def gpu(name: str) -> Gpu:
    return Gpu(
        device=0,
        name=name,
        uuid="",
        compute_capability="9.0",
        sm_count=132,
        clock_hz=1,
        memory_bytes=1,
        memory_bytes_per_s=1,
    )


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("NVIDIA H200", 5.9, 11.9), ("NVIDIA A100-SXM4-40GB", 6.4, 12.8), ("NVIDIA L40S", 1.6, 3.2)],
)
def test_the_gain_lies_between_that_of_tf32_and_of_bfloat16(name: str, least: float, most: float) -> None:
    assert least < tensor_core_gain({0: (gpu(name),)}) < most


def test_the_gain_of_an_unknown_gpu_is_a_cautious_one() -> None:
    assert tensor_core_gain({0: (gpu("NVIDIA X9000"),)}) == tensor_core_gain({}) == 4


def test_products_on_the_ordinary_cores_are_known_by_name() -> None:
    assert runs_without_tensor_cores("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>()")
    assert runs_without_tensor_cores("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma")
    assert not runs_without_tensor_cores("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1")
    assert not runs_without_tensor_cores("vectorized_elementwise_kernel")
