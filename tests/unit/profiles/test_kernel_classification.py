"""Kernel classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.profiles.kernel_classification import built_in_rules, classify, family, kernel_operation, load
from hpcprof.profiles.timeline import Category


@pytest.mark.parametrize(
    ("name", "category"),
    [
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
            Category.COMM,
        ),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", Category.COMM),
        ("ncclSymDevKernel_AllGather_ST", Category.COMM),
        ("rcclGenericKernel", Category.COMM),
        ("void nvshmemi_reduce_kernel<float>(int)", Category.COMM),
        ("void c10d::symmetric_memory::one_shot_all_reduce_kernel<float, 8>(float**)", Category.COMM),
        ("void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", Category.COMM),
        ("void vllm::cross_device_reduce_1stage<float, 8>(vllm::RankData*)", Category.COMM),
        ("void oneapi::ccl::reduce_kernel<float>()", Category.COMM),
        ("nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT", Category.COMP),
        ("void at::native::reduce_kernel<512, 1>(ReduceOp)", Category.COMP),
        ("my_nccl_like_kernel", Category.COMP),
        ("", Category.COMP),
        (None, Category.COMP),
    ],
)
def test_a_kernel_is_classified_by_its_name(name: str | None, category: Category) -> None:
    assert classify([name]).tolist() == [category]


def test_the_users_rules_come_first(tmp_path: Path) -> None:
    path = tmp_path / "classes.yaml"
    path.write_text("- {pattern: ^my_halo, class: comm}\n- {pattern: ^nccl, class: mem}\n")
    assert classify(["my_halo_exchange", "ncclDevKernel", "gemm"], load(path)).tolist() == [1, 2, 0]


def test_kernels_of_public_code_have_their_class_and_operation() -> None:
    lines = (Path(__file__).parents[2] / "data" / "kernel_names.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    assert len({name for *_, name in rows}) == len(rows) > 150
    found = []
    for _, _, source, name in rows:
        carried = kernel_operation(name, built_in_rules())
        category = Category(int(classify([name])[0]))
        kind = carried.operation if carried and category is not Category.COMP else "-"
        found.append([category.name.lower(), kind, source, name])
    assert found == rows


def test_a_send_lets_its_rank_go_on_and_the_calls_of_nccl_are_recorded() -> None:
    rules = built_in_rules()
    send, receive, nccl = (
        kernel_operation(name, rules)
        for name in ("a2a_dispatch_send_kernel", "a2a_dispatch_recv_kernel", "ncclDevKernel_AllReduce_Sum")
    )
    assert send and receive and nccl
    assert (send.waits, receive.waits, nccl.waits) == (False, True, True)
    assert (send.recorded, nccl.recorded) == (False, True)


@pytest.mark.parametrize(
    "name",
    [
        "kernel_consumer_gemm_persistent",
        "kernel_gemm_rs_producer_persistent",
        "void bytedance::flux::GemmV2AGKernel<int>(int)",
        "deep_gemm::sm100_fp8_fp4_mega_moe_impl",
        "fused_matmul_reduce_scatter_kernel",
        "void (anonymous namespace)::gemm_allreduce_kernel<float>(int)",
        "void cublasmp::gemm_ag_kernel<float>(int)",
        "ring_attention_fwd_kernel",
    ],
)
def test_a_kernel_that_computes_and_communicates_is_fused(name: str) -> None:
    assert classify([name]).tolist() == [Category.FUSED]


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused__to_copy_all_gather_into_tensor_wait_tensor_3",
        "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*)",
        "moeA2APrepareDispatchKernel(int*)",
        "void block_all_reduce_kernel<float>(float*)",
        "void oneflow::layernorm::warpAllReduceKernel<float>(float*)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>(float*)",
        "void cub::DeviceReduceKernel<Policy<Nccl>>(float*)",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<AllReduce>>(int)",
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)",
        "void moe::dispatch_experts_kernel<float>(float*)",
        "void scatter_gather_elementwise_kernel<128>(int)",
    ],
)
def test_kernels_with_words_of_communication_compute(name: str) -> None:
    assert classify([name]).tolist() == [Category.COMP]


def test_rccl_communicates_and_the_kernels_that_hip_copies_with_move_memory() -> None:
    names = ["ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "__amd_rocclr_copyBuffer"]
    assert classify([*names, "__amd_rocclr_fillBufferAligned", "Cijk_Ailk"]).tolist() == [1, 2, 2, 0]


def test_the_users_own_folder_is_read_when_no_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load() == built_in_rules()
    (tmp_path / "hpcprof").mkdir()
    (tmp_path / "hpcprof" / "kernel_classes.yaml").write_text("- {pattern: halo, class: comm}\n")
    assert len(load()) == len(built_in_rules()) + 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- {pattern: x, class: network}", "class 'network' is not one of comp, comm, mem"),
        ("- {pattern: '(', class: comm}", "is not a regular expression"),
        ("- {pattern: x, clas: comm}", "unknown key 'clas'"),
        ("pattern: x", "expected a list"),
        ("- [", "cannot be read"),
    ],
)
def test_a_mistake_in_the_users_file_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "classes.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=reason) as error:
        load(path)
    assert "classes.yaml" in str(error.value)


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
        ("Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x256_MI16x16x1", "matrix product"),
        ("void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl>(T1)", "matrix product"),
        ("ck_tile::FmhaFwdKernel<ck_tile::TileFmhaShape>", "attention"),
        ("attn_fwd", "attention"),
        ("bwd_kernel_fuse", "attention"),
        ("_ZN5aiter33mla_a8w8_qh16_qseqlen1_gqaratio16E", "attention"),
        ("_ZN5aiter44PA_A16W8_BLK256_1TG_4W_16mx1_64nx4_MTP_PS_PBE", "attention"),
        ("_ZN5aiter49fmoe_bf16_blockscaleFp8_g1u1_novs_silu_1tg_32x128E", "matrix product"),
        ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1", "matrix product"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_cat_transpose_view_10", "copy"),
        ("triton_red_fused__to_copy_addmm_convolution_mean_24", "reduction"),
        ("triton_red_fused_add_addmm_mul_native_layer_norm_16", "normalization"),
        ("void split_embedding_codegen_forward_kernel<float>(fbgemm_gpu::Weights)", "index"),
        ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", "convolution"),
        (
            "void at::native::(anonymous namespace)::cuComputeGradInput<float, float, false>(long)",
            "normalization",
        ),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long>(long)", "index"),
        ("void tensorTransformGeneric<float, float>(cudnnTensorTransformStruct)", "other"),
        (
            "void rocprim::detail::trampoline_kernel<rocprim::detail::partition_config_selector>()",
            "sort and scan",
        ),
        ("_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16E", "elementwise"),
        ("my_own_stencil", "other"),
        (None, "other"),
    ],
)
def test_a_name_tells_what_a_kernel_does(name: str | None, expected: str) -> None:
    assert family(name) == expected
