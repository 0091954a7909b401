"""What a kernel does, by its name."""

from __future__ import annotations

import pytest

from hpcprof.profiles.kernel_families import family


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>)",
            "attention",
        ),
        ("sm90_xmma_wgrad_indexed_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc__5x_cudnn", "convolution"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)", "matrix product"),
        ("nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT", "matrix product"),
        ("void cudnn::bn_bw_1C11_singleread<float, (int)512>(cudnn::bn_bw_1C11_args<T1>)", "normalization"),
        ("void <unnamed>::softmax_warp_forward<float, float, float, (int)10>(T2 *)", "softmax"),
        ("void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float>>(T3)", "reduction"),
        ("void at::native::vectorized_gather_kernel<(int)16, long>(char *)", "index"),
        ("void at::native::elementwise_kernel<(int)128, direct_copy_kernel_cuda>(int)", "copy"),
        ("void at::native::vectorized_elementwise_kernel<(int)4, FillFunctor<float>>(int)", "elementwise"),
        ("my_own_stencil", "other"),
        (None, "other"),
    ],
)
def test_a_name_tells_what_a_kernel_does(name: str | None, expected: str) -> None:
    assert family(name) == expected
