"""Metrics, peaks and the roofline from Nsight Compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.hardware.kernel_advice import ncu_occupancy, ncu_rules
from hpcprof.analysis.hardware.kernel_counters import dram_bytes, flops, ncu_kernels, tensor_flops
from hpcprof.analysis.hardware.roofline import ncu_peaks, roofline, roofline_of_run
from hpcprof.analysis.summaries.kernels import kernels_by_shape
from hpcprof.profiles.kernel_names import without_namespaces
from hpcprof.profiles.kernel_report import Advice, KernelReport, MeasuredKernel
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.readers.ncu.reader import read
from hpcprof.profiles.timeline import Origin, Timeline

DATA = Path(__file__).parents[3] / "data/ncu"
OPS = "smsp__sass_thread_inst_executed_op"


def kernels_of(name: str) -> pd.DataFrame:
    return ncu_kernels(read(DATA / name)).rows


def peaks_of(name: str) -> dict[str, float]:
    rows = ncu_peaks(read(DATA / name)).rows
    return dict(zip(rows["resource"], rows["peak_per_s"], strict=True))


def test_the_metrics_of_a_kernel_are_those_of_the_details_page() -> None:
    row = kernels_of("ddp.raw.csv.gz").iloc[6]
    printed = kernels_of("ddp.details.csv.gz").iloc[6]
    # Copied from the details page by hand.
    expected = {
        "compute_throughput_pct": 4.40,
        "memory_throughput_pct": 41.12,
        "dram_throughput_pct": 41.12,
        "sm_count": 132,
        "achieved_occupancy_pct": 44.30,
        "theoretical_occupancy_pct": 100,
        "l1_hit_pct": 0,
        "l2_hit_pct": 36.35,
        "duration_ns": 6400,
    }
    assert {name: row[name] for name in expected} == expected
    assert {name: printed[name] for name in expected} == expected
    assert row["dram_bytes"] == 12_588_544 + 2_816


def test_what_was_not_collected_is_null_and_named() -> None:
    outcome = ncu_kernels(read(DATA / "sp.details.csv.gz"))
    row = outcome.rows.iloc[0]
    assert (row["id"], row["grid"], row["block"], row["duration_ns"]) == (0, "2 66 1", "384 1 1", 2_750_000)
    unknown = [
        "l1_hit_pct",
        "l2_hit_pct",
        "flops_fp16",
        "flops_fp32",
        "flops_fp64",
        "flops_tensor",
        "dram_bytes",
    ]
    assert [name for name in outcome.rows.columns.tolist() if row[name] is None] == [
        *unknown[:-1],
        "tensor_type",
        unknown[-1],
    ]
    assert outcome.reason == f"sp.details.csv.gz has no {', '.join(unknown)}"


def test_the_tensor_pipe_is_not_taken_for_products_of_matrices() -> None:
    rows = kernels_of("ddp.raw.csv.gz")
    # Flash attention in fp32 uses the tensor cores, whose operations this report did not count. In
    # kernels 2, 3 and 5 the pipe ran other instructions.
    assert rows["flops_tensor"].tolist() == [0, 0, 0, 0, None, 0, 0, 0, 0, 0, 0, 0]


# A product of two n x n matrices is 2 n^3 operations, and n^2 more where the result is scaled.
KNOWN = [
    ("nvjet_sm90_tst", "flops_tensor", "bf16", 2 * 4096**3, 0),
    ("nvjet_sm90_hsh", "flops_tensor", "fp16", 2 * 4096**3, 0),
    ("void cutlass", "flops_fp32", None, 2 * 2048**3, 2048**2),
    ("sm90_xmma_gemm_f64", "flops_tensor", "fp64", 2 * 2048**3, 0),
    ("sm90_xmma_gemm_f32f32_tf32", "flops_tensor", "tf32", 2 * 2048**3, 0),
    ("void at::vectorized", "flops_fp32", None, 2 * 2**24, 0),
]


@pytest.mark.parametrize(("name", "column", "tensor_type", "operations", "more"), KNOWN)
def test_kernels_of_known_work_do_that_many_operations(
    name: str, column: str, tensor_type: str | None, operations: int, more: int
) -> None:
    rows = kernels_of("roofline.raw.csv.gz")
    (row,) = (row for _, row in rows.iterrows() if row["name"].startswith(name))
    assert row[column] == pytest.approx(operations + more, rel=1e-6)
    assert row["tensor_type"] == tensor_type
    others = {"flops_fp16", "flops_tensor"} - {column}
    assert all(row[other] == 0 for other in others)


def test_the_vectors_of_a_sum_pass_through_memory_once() -> None:
    (row,) = (
        row for _, row in kernels_of("roofline.raw.csv.gz").iterrows() if "CUDAFunctor_add" in row["name"]
    )
    # Two are read and one is written, of which up to 60 MB stay in the L2 cache.
    assert 2 * 4 * 2**24 < row["dram_bytes"] < 3 * 4 * 2**24


def test_the_peaks_are_those_of_the_device() -> None:
    peaks = peaks_of("roofline.raw.csv.gz")
    # TARGET_INFO_GPU.memoryBandwidth of nsys on the same machine.
    assert peaks["dram"] == pytest.approx(4_814_304_000_000)
    # An H200 has 132 SMs at up to 1.98 GHz; each does in a cycle:
    per_cycle = {
        "fp16": 512,
        "fp32": 256,
        "fp64": 128,
        "tensor_fp64": 256,
        "tensor_tf32": 2048,
        "tensor_fp16": 4096,
        "tensor_bf16": 4096,
        "tensor_fp8": 8192,
        "tensor_int8": 8192,
    }
    assert {name: peaks[name] for name in per_cycle} == pytest.approx(
        {name: each * 132 * 1.98e9 for name, each in per_cycle.items()}
    )


def test_peaks_of_sparse_operations_are_not_taken_for_dense_ones() -> None:
    metrics = {
        "device__attribute_max_gpu_frequency_khz": 1e6,
        "device__attribute_compute_capability_major": 9,
        "sm__ops_path_tensor_src_bf16_dst_fp32.sum.peak_sustained": 200.0,
        "sm__ops_path_tensor_src_fp64.sum.peak_sustained": 10.0,
    }
    assert ncu_peaks(report(metrics)).rows["resource"].tolist() == ["tensor_fp64"]
    older = metrics | {"device__attribute_compute_capability_major": 7}
    assert ncu_peaks(report(older)).rows["resource"].tolist() == ["tensor_bf16", "tensor_fp64"]


def test_a_details_page_has_no_peaks_and_says_so() -> None:
    outcome = ncu_peaks(read(DATA / "ddp.details.csv.gz"))
    assert outcome.rows.empty
    assert outcome.reason.startswith("no peaks in ddp.details.csv.gz: they are in ncu's roofline sections")


def report(*kernels: dict[str, float]) -> KernelReport:
    origin = Origin(Path("rank00000.ncu-rep"), "ncu")
    return KernelReport(
        origin, tuple(MeasuredKernel(i, "k", "1 1 1", "32 1 1", metrics) for i, metrics in enumerate(kernels))
    )


def test_a_launch_has_its_waves_and_what_limits_its_blocks() -> None:
    limit = "launch__occupancy_limit_"
    small = {"launch__waves_per_multiprocessor": 0.1838, f"{limit}registers": 4.0, f"{limit}warps": 8.0}
    rows = ncu_occupancy(report(small, {}, {f"{limit}shared_mem": 2.0, f"{limit}warps": 2.0})).rows
    assert rows[["id", "waves_per_sm", "blocks_per_sm", "limited_by"]].to_numpy().tolist() == [
        [0, 0.18, 4, "registers"],
        [2, None, 2, "shared memory, warps of an SM"],
    ]
    assert ncu_occupancy(report({})).reason.startswith("no occupancy in rank00000.ncu-rep; ncu collects it")


def test_rules_count_by_kernel_with_the_text_of_the_largest_estimate() -> None:
    (first, second) = report({}, {}).kernels
    launches = (
        replace(first, advice=(Advice("A", "small", 3.0), Advice("B", "other", None))),
        replace(second, advice=(Advice("A", "large", 20.0),)),
    )
    rows = ncu_rules(replace(report(), kernels=launches)).rows.to_dict("records")
    assert [(row["rule"], row["count"], row["advice"]) for row in rows] == [
        ("A", 2, "large"),
        ("B", 1, "other"),
    ]
    assert rows[0]["speedup_pct"] == 20.0
    assert ncu_rules(report({})).reason.startswith("no advice of ncu's rules in rank00000.ncu-rep")


def test_a_report_without_kernels_gives_no_row_and_one_sentence() -> None:
    assert ncu_kernels(report()).reason == "no kernels in rank00000.ncu-rep"
    assert ncu_kernels(report()).rows.empty


def test_operations_are_counted_from_counters_or_from_rates() -> None:
    counters = {f"{OPS}_{op}_pred_on.sum": value for op, value in (("fadd", 5), ("fmul", 7), ("ffma", 11))}
    assert flops(counters, "fp32") == 5 + 7 + 2 * 11
    assert flops({name.replace("smsp", "sm"): value for name, value in counters.items()}, "fp32") == 34
    rates = {f"{name}.per_cycle_elapsed": value / 10 for name, value in counters.items()}
    assert flops(rates, "fp32") is None
    assert flops(rates | {"smsp__cycles_elapsed.avg": 10}, "fp32") == 34
    per_second = {"smsp__cycles_elapsed.avg.per_second": 2e9, "gpu__time_duration.sum": 5}
    assert flops(rates | per_second, "fp32") == 34
    del counters[f"{OPS}_fmul_pred_on.sum"]
    assert flops(counters, "fp32") is None
    halves = {f"{OPS}_{op}_pred_on.sum": 1.0 for op in ("hadd", "hmul", "hfma")}
    assert flops(halves, "fp16") == 2 + 2 + 4
    assert flops({"sm__inst_executed_pipe_fp16.sum": 0.0}, "fp16") == 0
    assert flops({"sm__inst_executed_pipe_fp16.sum": 1.0}, "fp16") is None


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({}, (None, None)),
        ({"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 0.0}, (0, None)),
        ({"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 0.1}, (None, None)),
        ({"sm__ops_path_tensor_src_bf16_dst_fp32.sum": 0.0}, (0, None)),
        # The whole and its parts: only the whole counts.
        (
            {
                "sm__ops_path_tensor_src_bf16_dst_fp32.sum": 8.0,
                "sm__ops_path_tensor_src_bf16_dst_fp32_sparsity_off.sum": 8.0,
                "sm__ops_path_tensor_src_bf16_dst_fp32_sparsity_on.sum": 0.0,
                "sm__ops_path_tensor_op_hmma_src_bf16_dst_fp32.sum": 8.0,
                "sm__ops_path_tensor_src_bf16_dst_fp32.sum.per_second": 1e9,
            },
            (8, "bf16"),
        ),
        (
            {
                "sm__ops_path_tensor_src_fp8_sparsity_off.sum": 3.0,
                "sm__ops_path_tensor_src_fp8_sparsity_on.sum": 4.0,
            },
            (7, "fp8"),
        ),
        (
            {"sm__ops_path_tensor_src_fp16.sum": 8.0, "sm__ops_path_tensor_src_fp16_dst_fp32.sum": 8.0},
            (8, "fp16"),
        ),
        # Older chips tell fp16 apart by what is written.
        (
            {
                "sm__ops_path_tensor_src_fp16_dst_fp16.sum": 3.0,
                "sm__ops_path_tensor_src_fp16_dst_fp32.sum": 4.0,
                "sm__ops_path_tensor_src_int8.sum": 5.0,
            },
            (12, "fp16+int8"),
        ),
    ],
)
def test_operations_of_the_tensor_cores_are_counted_once(
    metrics: dict[str, float], expected: tuple[int | None, str | None]
) -> None:
    assert tensor_flops(metrics) == expected


def test_bytes_of_memory_come_from_whatever_tells_them() -> None:
    assert dram_bytes({"dram__bytes.sum": 7, "dram__bytes_read.sum": 1, "dram__bytes_write.sum": 1}) == 7
    assert dram_bytes({"dram__bytes_read.sum": 3, "dram__bytes_write.sum": 4}) == 7
    assert dram_bytes({"dram__bytes.sum.per_second": 7e9, "gpu__time_duration.sum": 1}) == 7
    assert dram_bytes({"dram__bytes.sum.per_second": 7e9}) is None
    assert dram_bytes({"dram__bytes_read.sum": 3}) is None


PEAKS = pd.DataFrame({"resource": ["dram", "fp32", "tensor_bf16"], "peak_per_s": [1e12, 1e13, 1e14]})
SHAPES = pd.DataFrame(columns=["rank", "name", "grid", "block", "med_ns"])


def launch(**values: object) -> dict[str, object]:
    """Return a row of ncu_kernels: 1 000 000 operations of fp32, 100 000 bytes, 200 ns."""
    row: dict[str, object] = {"rank": 0, "id": 0, "name": "k", "grid": "1 1 1", "block": "32 1 1"}
    row |= {"duration_ns": 200, "flops_fp16": 0, "flops_fp32": 1_000_000, "flops_fp64": 0, "flops_tensor": 0}
    return row | {"tensor_type": None, "dram_bytes": 100_000} | values


def rows_of(*launches: dict[str, object], shapes: pd.DataFrame = SHAPES, peaks: pd.DataFrame = PEAKS) -> Any:
    return roofline(pd.DataFrame(launches), shapes, peaks)


def test_a_roofline_computed_by_hand() -> None:
    outcome = rows_of(launch())
    # 10 operations a byte. Memory needs 100 ns and the units of fp32 need 100 ns of the 200: the ridge.
    (row,) = outcome.rows.to_dict("records")
    assert row["ai_flop_per_byte"] == 10
    assert row["achieved_flops"] == 5e12
    assert row["pct_of_bound"] == 50
    assert (row["ncu_ns"], row["in_situ_ns"]) == (200, None)
    (memory,) = rows_of(launch(dram_bytes=150_000)).rows.to_dict("records")
    assert (memory["bound"], memory["pct_of_bound"]) == ("dram", 75)
    (compute,) = rows_of(launch(flops_fp32=1_800_000)).rows.to_dict("records")
    assert (compute["bound"], compute["pct_of_bound"]) == ("fp32", 90)
    (tensor,) = rows_of(launch(flops_tensor=15_000_000, tensor_type="bf16")).rows.to_dict("records")
    assert (tensor["bound"], tensor["pct_of_bound"]) == ("tensor_bf16", 75)
    assert tensor["achieved_flops"] == 16_000_000 / 200e-9


def test_times_of_several_devices_of_a_rank_are_said_to_count_together() -> None:
    shape = {"rank": 1, "name": "k", "grid": "1 1 1", "block": "32 1 1", "med_ns": 150.0}
    tables = {"ncu_kernels": pd.DataFrame([launch()]), "ncu_peaks": PEAKS}
    tables["kernels_by_shape"] = pd.DataFrame([shape])
    one = pd.DataFrame({"rank": [0, 1], "device": [0, 0]})
    two = pd.DataFrame({"rank": [0, 1, 1], "device": [0, 0, 3]})
    assert roofline_of_run(tables | {"device_breakdown": one}).reason == ""
    outcome = roofline_of_run(tables | {"device_breakdown": two})
    assert outcome.reason == "in_situ_ns of rank 1 is the median over all launches on 2 devices of a rank"
    assert outcome.rows["in_situ_ns"].tolist() == [150]


def test_a_kernel_that_only_copies_is_bound_by_memory() -> None:
    (row,) = rows_of(launch(flops_fp32=0)).rows.to_dict("records")
    assert (row["ai_flop_per_byte"], row["achieved_flops"], row["bound"]) == (0, 0, "dram")


@pytest.mark.parametrize(
    "lacking",
    [
        launch(flops_tensor=None),
        launch(dram_bytes=None),
        launch(flops_fp64=5),
        launch(flops_tensor=5, tensor_type="bf16+fp16"),
        launch(duration_ns=None),
    ],
)
def test_no_bound_is_guessed_where_something_is_unknown(lacking: dict[str, object]) -> None:
    outcome = rows_of(lacking, launch(name="known"))
    rows = outcome.rows.set_index("name")
    assert (rows.loc["k", "bound"], rows.loc["k", "pct_of_bound"]) == (None, None)
    assert rows.loc["known", "bound"] is not None
    assert "1 of 2 kernels have no bound" in outcome.reason
    assert "SpeedOfLight_HierarchicalTensorRooflineChart" in outcome.reason


def test_operations_of_one_precision_are_not_taken_for_all() -> None:
    rows = rows_of(launch(flops_tensor=None), launch(name="known")).rows.set_index("name")
    assert (rows.loc["k", "ai_flop_per_byte"], rows.loc["k", "achieved_flops"]) == (None, None)


def test_without_any_bound_there_is_a_reason_and_no_table_of_names() -> None:
    outcome = rows_of(launch(flops_tensor=None))
    assert not len(outcome.rows) and "1 of 1 kernels have no bound" in outcome.reason


def test_without_peaks_there_is_intensity_and_no_bound() -> None:
    (row,) = rows_of(launch(), peaks=PEAKS.iloc[:0]).rows.to_dict("records")
    assert (row["ai_flop_per_byte"], row["bound"]) == (10, None)


def test_launches_of_one_kernel_count_by_their_median() -> None:
    launches = [launch(id=i, duration_ns=time) for i, time in enumerate((100, 200, 900))]
    outcome = rows_of(*launches, launch(id=3, grid="2 1 1", duration_ns=300))
    assert outcome.rows["ncu_ns"].tolist() == [300, 200]


def test_the_time_in_situ_is_the_median_over_ranks_of_the_same_kernel_grid_and_block() -> None:
    shapes = pd.DataFrame(
        [
            {"rank": 0, "name": "k", "grid": "1 1 1", "block": "32 1 1", "med_ns": 250.0},
            {"rank": 1, "name": "k", "grid": "1 1 1", "block": "32 1 1", "med_ns": 251.0},
            {"rank": 1, "name": "k", "grid": "2 1 1", "block": "32 1 1", "med_ns": 999.0},
            {"rank": 1, "name": "k", "grid": "1 1 1", "block": "64 1 1", "med_ns": 999.0},
            {"rank": 1, "name": None, "grid": "1 1 1", "block": "32 1 1", "med_ns": 999.0},
        ]
    )
    outcome = rows_of(launch(), launch(name="other"), shapes=shapes)
    row, other = outcome.rows.to_dict("records")
    assert (row["name"], row["ncu_ns"], row["in_situ_ns"]) == ("k", 200, 250)
    assert row["achieved_flops"] == 1_000_000 / 250e-9
    assert row["pct_of_bound"] == 40
    assert (other["in_situ_ns"], other["pct_of_bound"]) == (None, 50)
    assert outcome.reason == "1 of 2 kernels are not in the timeline of Nsight Systems"


def test_without_a_timeline_the_time_in_situ_is_null_with_a_reason() -> None:
    assert rows_of(launch()).reason == (
        "in_situ_ns is unknown, because no rank has a timeline of Nsight Systems"
    )


FULL = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::AUnaryFunctor<float, float, float, "
    "at::native::binary_internal::MulFunctor<float>>, std::array<char *, (unsigned long)2>>(int, T2, T3)"
)
SHORT = (
    "void at::vectorized_elementwise_kernel<4, at::AUnaryFunctor<float, float, float, "
    "binary_internal::MulFunctor<float>>, std::array<char *, 2>>(int, T2, T3)"
)


def test_a_name_that_ncu_shortened_is_found_by_what_is_left_of_it() -> None:
    assert without_namespaces(FULL) == without_namespaces(SHORT)
    assert without_namespaces(FULL) != without_namespaces(FULL.replace("(int)4", "(int)2"))
    shape = {"rank": 0, "grid": "1 1 1", "block": "32 1 1"}
    shapes = pd.DataFrame([{**shape, "name": FULL, "med_ns": 70.0}, {**shape, "name": "k", "med_ns": 80.0}])
    assert rows_of(launch(name=SHORT), shapes=shapes).rows["in_situ_ns"].tolist() == [70]
    # Two kernels that differ only in what was shortened: neither is taken.
    twin = {**shape, "name": FULL.replace("native", "other"), "med_ns": 90.0}
    shapes = pd.DataFrame([{**shape, "name": FULL, "med_ns": 70.0}, twin])
    assert rows_of(launch(name=SHORT), shapes=shapes).rows["in_situ_ns"].tolist() == [None]
    assert rows_of(launch(name=FULL), shapes=shapes).rows["in_situ_ns"].tolist() == [70]


def test_a_real_kernel_is_found_in_its_timeline(sequence_parallel: Timeline) -> None:
    kernels, shapes = kernels_of("sp.details.csv.gz"), kernels_by_shape(sequence_parallel).rows
    outcome = roofline(kernels, shapes, pd.DataFrame(columns=["resource", "peak_per_s"]))
    # The timeline is of a run with other sizes, which has one of the two kernels: 1425933.5 ns by nsys stats.
    times = dict(zip(outcome.rows["name"].str[:22], outcome.rows["in_situ_ns"], strict=True))
    assert times == {"nvjet_sm90_tst_320x128": 1_425_934, "nvjet_sm90_tst_192x192": None}
    assert outcome.rows["ncu_ns"].tolist() == [2_760_000, 2_760_000]
    assert "1 of 2 kernels are not in the timeline" in outcome.reason


def test_a_real_roofline_is_near_what_ncu_says_of_the_units() -> None:
    report = read(DATA / "roofline.raw.csv.gz")
    outcome = roofline(ncu_kernels(report).rows, SHAPES, ncu_peaks(report).rows)
    bounds = {
        row["name"][:18]: (row["bound"], row["pct_of_bound"]) for row in outcome.rows.to_dict("records")
    }
    assert {name: bound for name, (bound, _) in bounds.items()} == {
        "void cutlass::Kern": "fp32",
        "sm90_xmma_gemm_f64": "tensor_fp64",
        "nvjet_sm90_hsh_256": "tensor_fp16",
        "nvjet_sm90_tst_256": "tensor_bf16",
        "sm90_xmma_gemm_f32": "tensor_tf32",
        "void at::vectorize": "dram",
    }
    # ncu's DRAM throughput of the sum is 81.74 % at the clock that the memory really has.
    assert bounds["void at::vectorize"][1] == pytest.approx(81.74, abs=0.5)
    assert all(50 < share < 100 for _, share in bounds.values())


def test_no_kernel_of_ncu_gives_no_roofline_and_one_sentence() -> None:
    outcome = roofline(pd.DataFrame(), SHAPES, PEAKS)
    assert outcome.rows.empty
    assert outcome.reason.startswith("roofline needs a profile of Nsight Compute")


@pytest.mark.parametrize("name", ["kernels", "breakdown", "phases"])
def test_an_analysis_of_timelines_gives_one_sentence_for_a_report_of_ncu(name: str) -> None:
    outcome = analyze_rank(ANALYSES[name], read(DATA / "sp.details.csv.gz"), 0)
    assert outcome.frame.empty
    assert outcome.reasons[0] == (
        f"{name} needs {ProfileContent.TIMELINE.value}, and sp.details.csv.gz is not one"
    )


def test_an_analysis_of_ncu_gives_one_sentence_for_a_timeline(sequence_parallel: Timeline) -> None:
    outcome = analyze_rank(ANALYSES["ncu_kernels"], sequence_parallel, 0)
    assert outcome.frame.empty
    assert (
        outcome.reasons[0] == "ncu_kernels needs a profile of Nsight Compute, and rank00000.sqlite is not one"
    )
