"""Collectives: of one rank with their kernels, and matched over ranks."""

from __future__ import annotations

import lzma
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpcprof.analysis.collectives.per_rank import rank_collectives
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.collective_operations import bus_factor, operation, whole_bytes
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import Timeline
from tests.unit.analysis.over_all_ranks import collectives, of_run
from tests.unit.analysis.simulated import JITTER, TRANSFER, Program, sequence_parallel
from tests.unit.analysis.timelines import COMM, COMP, timeline

DATA = Path(__file__).parents[3] / "data"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    """The input of the analyses over ranks, of a real run on four H200."""
    folder = tmp_path_factory.mktemp("profiles")
    parts = []
    for rank in range(4):
        path = folder / f"rank{rank}.sqlite"
        path.write_bytes(lzma.decompress((DATA / f"sp_bf16_rank{rank}.sqlite.xz").read_bytes()))
        parts.append(analyze_rank(ANALYSES["rank_collectives"], read_profile(path), rank).frame)
    return {"rank_collectives": pd.concat(parts, ignore_index=True)}


def test_the_bandwidth_of_a_real_run_is_the_one_computed_independently(real: dict[str, pd.DataFrame]) -> None:
    outcome = collectives(real)
    assert outcome.reason == ""
    rows = outcome.frame
    assert len(rows) == 86
    assert set(rows["bytes"]) == {134_217_728}
    assert set(rows["ranks"]) == {4}
    medians = rows.groupby("op")["busbw_gbps"].apply(lambda column: column.astype(float).median())
    assert medians.round(1).to_dict() == {"AllGather": 285.8, "ReduceScatter": 287.5}
    assert rows["op"].tolist() == ["AllGather", "ReduceScatter"] * 43
    assert rows["seq"].tolist() == [seq for seq in range(43) for _ in range(2)]


def test_the_summary_has_a_row_for_each_operation_and_size(real: dict[str, pd.DataFrame]) -> None:
    summary = of_run("collectives_summary", real).frame
    assert summary["op"].tolist() == ["AllGather", "ReduceScatter"]
    assert summary["count"].tolist() == [43, 43]
    assert [round(value, 1) for value in summary["busbw_p50_gbps"]] == [285.8, 287.5]
    assert [round(value, 1) for value in summary["algbw_p50_gbps"]] == [381.1, 383.3]
    assert summary["latency_p50_ns"].tolist() == [352_156, 350_139]


def test_sizes_in_the_summary_stay_whole_beside_unknown_ones() -> None:
    program = Program(2)
    for op in ("AllReduce", "AlltoAllV"):
        program.collective(op, message=4096)
    summary = of_run("collectives_summary", program.results()).frame
    sizes = dict(zip(summary["op"], summary["bytes"].tolist(), strict=True))
    assert sizes == {"AllReduce": 4096, "AlltoAllV": None}
    assert type(sizes["AllReduce"]) is int


def different_steps(first: int) -> dict[str, pd.DataFrame]:
    """Return all-reduces of two ranks, two in each of twelve steps, of which rank 1 lacks the first three."""
    program = Program(2)
    for _ in range(24):
        program.collective("AllReduce", message=4096)
    rows = program.results()["rank_collectives"]
    rows["step"] = first + rows["seq"] // 2
    rows = rows[(rows["rank"] == 0) | (rows["seq"] >= 6)]
    return {"rank_collectives": rows.assign(seq=rows.groupby("rank").cumcount())}


def test_ranks_that_recorded_different_steps_are_matched_by_their_numbers() -> None:
    rows = collectives(different_steps(first=100)).frame
    assert (len(rows), rows["seq"].tolist()) == (18, [*range(18)])
    assert rows["spread_ns"].max() <= 2 * JITTER
    # From 0 on, they may be places in the capture.
    unknown = collectives(different_steps(first=0))
    assert (len(unknown.frame), "rank 1 recorded 18 and rank 0 24" in unknown.reason) == (0, True)


def test_a_step_counts_in_which_all_ranks_have_equally_many_collectives() -> None:
    found = different_steps(first=100)["rank_collectives"]
    cut = found[~((found["rank"] == 0) & (found["step"] == 105) & (found["seq"] % 2 == 0))]
    rows = collectives({"rank_collectives": cut.assign(seq=cut.groupby("rank").cumcount())}).frame
    assert len(rows) == 16


def row_of(profile: Timeline) -> list[dict[Hashable, Any]]:
    """Return the rows of one rank."""
    rows: list[dict[Hashable, Any]] = rank_collectives(profile).rows.to_dict("records")
    return rows


def test_a_collective_has_the_kernel_that_was_launched_inside_its_call_on_its_thread() -> None:
    operations = [
        (100, 150, COMM, 12),
        (150, 160, COMP, 13),
        (200, 280, COMM, 25),
        (300, 333, COMM, 25, 1),
    ]
    asked = [(10, 20, "AllReduce", "c", 8), (24, 30, "AllGather", "c", 4), (24, 30, "AllReduce", "d", 2, 1)]
    outcome = rank_collectives(timeline(operations, [(0, 22, "iteration")], asked, world=2))
    rows = outcome.rows
    assert rows[["op", "comm_id", "seq", "bytes", "start_ns", "end_ns"]].values.tolist() == [
        ["AllReduce", "c", 0, 8, 100, 150],
        ["AllGather", "c", 0, 4, 200, 280],
        ["AllReduce", "d", 0, 2, 300, 333],
    ]
    assert rows["step"].tolist() == [0, None, None]
    assert rows["world_ranks"].tolist() == [2, 2, 2]
    assert rows["fused"].tolist() == [1, 1, 1]
    assert outcome.reason == ""


def test_exposed_is_the_time_without_compute_on_the_device() -> None:
    operations = [
        (100, 200, COMM, 12),
        (90, 120, COMP, 1),
        (110, 130, COMP, 2),
        (190, 900, COMP, 3),
        (100, 200, COMP, 4, 0, 1),
    ]
    (row,) = row_of(timeline(operations, [], [(10, 20, "AllReduce", "c", 8)]))
    assert row["exposed_ns"] == 60


def test_calls_of_a_group_share_their_kernels() -> None:
    # The call that ends the group bounds all three; two kernels carry them out.
    group = [(50, 60, op, "c", 8) for op in ("AllReduce", "AllReduce", "AllGather")]
    found = row_of(timeline([(100, 150, COMM, 55), (150, 170, COMM, 56)], [], group))
    assert [(r["op"], r["seq"], r["fused"], r["part"]) for r in found] == [
        ("AllReduce", 0, 3, 0),
        ("AllReduce", 1, 3, 1),
        ("AllGather", 0, 3, 2),
    ]
    assert {(r["start_ns"], r["end_ns"]) for r in found} == {(100, 170)}


def test_a_group_over_several_communicators_with_several_kernels_is_left_out_and_said() -> None:
    group = [(50, 60, "AllReduce", comm, 8) for comm in ("c", "d")]
    later = (70, 80, "AllReduce", "c", 8)
    outcome = rank_collectives(
        timeline([(100, 150, COMM, 55), (150, 170, COMM, 56), (200, 210, COMM, 75)], [], [*group, later])
    )
    assert outcome.rows[["comm_id", "seq", "start_ns"]].values.tolist() == [["c", 1, 200]]
    assert outcome.reason.startswith("2 collectives of rank00000.sqlite have no kernel of their own")


def test_a_call_without_a_kernel_keeps_its_number() -> None:
    asked = [(10, 20, "AllReduce", "c", 8), (30, 40, "AllReduce", "c", 8)]
    outcome = rank_collectives(timeline([(100, 150, COMM, 35)], [], asked))
    assert outcome.rows["seq"].tolist() == [1]
    assert outcome.reason.startswith("1 collectives of")


def test_without_calls_of_the_library_the_kernels_names_tell_the_operations() -> None:
    profile = timeline([(100, 150, COMM, 5), (60, 70, COMM), (200, 250, COMP, 8)], [(0, 9, "iteration")])
    profile.strings[0] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    outcome = rank_collectives(profile)
    rows = outcome.rows
    assert rows[["op", "comm_id", "seq", "bytes", "start_ns", "step"]].values.tolist() == [
        ["AllReduce", None, 0, None, 60, None],
        ["AllReduce", None, 1, None, 100, 0],
    ]
    assert "rank00000.sqlite has no calls of NCCL (nsys --trace=nvtx records them)" in outcome.reason
    profile.strings[0] = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    assert rank_collectives(profile).reason == (
        "no communication kernel in rank00000.sqlite belongs to a recorded collective"
    )


def test_a_real_trace_without_records_has_its_kernels_in_their_order(torch_step: Timeline) -> None:
    outcome = rank_collectives(torch_step)
    assert outcome.rows["op"].tolist() == ["AllReduce"] * 13
    assert outcome.rows["start_ns"].is_monotonic_increasing
    assert set(outcome.rows["step"]) == {5}
    assert outcome.reason == (
        "ddp_step_rank0.pt.trace.json.gz has no record of its collectives: operations come from the "
        "kernels' names, and sizes and communicators are unknown"
    )


def test_kernels_that_belong_to_no_call_are_counted() -> None:
    operations = [(100, 150, COMM, 12), (200, 210, COMM, 90), (300, 310, COMM)]
    outcome = rank_collectives(timeline(operations, [], [(10, 20, "AllReduce", "c", 8)]))
    assert outcome.rows["start_ns"].tolist() == [100]
    assert outcome.reason == (
        "2 communication kernels of rank00000.sqlite belong to no recorded collective and are left out"
    )


def test_no_communication_gives_no_row_and_a_sentence() -> None:
    outcome = rank_collectives(timeline([(0, 5, COMP, 0)]))
    assert (len(outcome.rows), outcome.reason) == (0, "no communication kernels in rank00000.sqlite")


def test_without_payloads_sizes_and_communicators_are_null_and_a_sentence_says_why() -> None:
    profile = timeline([(100, 150, COMM, 12)], [], [(10, 20, "AllReduce", None)])
    outcome = rank_collectives(profile)
    assert outcome.rows[["comm_id", "bytes"]].values.tolist() == [[None, None]]
    assert "--include-blobs=true" in outcome.reason


def test_all_ranks_share_an_unknown_communicator_which_is_said() -> None:
    program = sequence_parallel(3, late=[1], extra=500_000, comm=None)
    outcome = collectives(program.results())
    assert "communicators are unknown: all ranks are assumed to share one" in outcome.reason
    rows = outcome.frame
    assert set(rows["comm_id"]) == {None}
    assert set(rows["busbw_gbps"]) == {None}
    assert len(rows) == 80


def test_the_latency_is_the_shortest_duration_over_the_ranks() -> None:
    rows = collectives(sequence_parallel(3, late=[1], extra=500_000).results()).frame
    assert rows["latency_ns"].between(TRANSFER, TRANSFER + 2 * JITTER).all()
    first = rows.iloc[0]
    assert first["bytes"] == 3 * (32 << 20)
    assert first["algbw_gbps"] == pytest.approx(first["bytes"] / first["latency_ns"])
    assert first["busbw_gbps"] == pytest.approx(first["algbw_gbps"] * 2 / 3)


def test_communicators_are_matched_apart() -> None:
    program = Program(4)
    for _ in range(6):
        program.collective("AllReduce", message=100, comm="rows 0", members=[0, 1])
        program.collective("AllReduce", message=200, comm="rows 1", members=[2, 3])
        program.collective("AllReduce", message=300, comm="all")
    rows = collectives(program.results()).frame
    counted = rows.groupby(["comm_id", "bytes", "ranks"]).size().to_dict()
    assert counted == {("rows 0", 100, 2): 6, ("rows 1", 200, 2): 6, ("all", 300, 4): 6}
    assert rows["busbw_gbps"].notna().all()


def test_unequal_counts_are_not_matched_and_named() -> None:
    results = sequence_parallel(3).results()
    rows = results["rank_collectives"]
    last = (rows["rank"] == 2) & (rows["op"] == "AllGather") & (rows["seq"] == 39)
    outcome = collectives({"rank_collectives": rows[~last]})
    assert set(outcome.frame["op"]) == {"ReduceScatter"}
    assert outcome.reason.startswith(
        "AllGather of communicator c is not matched: rank 2 recorded 39 and rank 0 40 of them"
    )
    absent = (rows["rank"] == 2) & (rows["op"] == "AllGather")
    outcome = collectives({"rank_collectives": rows[~absent]})
    assert "rank 2 recorded 0 and rank 0 40" in outcome.reason


def test_many_failures_are_three_sentences_and_a_count() -> None:
    program = Program(2)
    for number in range(9):
        program.collective("AllReduce", comm=f"comm {number}")
    rows = program.results()["rank_collectives"].assign(step=None)
    outcome = collectives({"rank_collectives": pd.concat([rows, rows[rows["rank"] == 0].assign(seq=1)])})
    assert len(outcome.frame) == 0
    assert outcome.reason.count("is not matched") == 3
    assert outcome.reason.endswith("6 more are not matched for similar reasons")


def test_a_collective_whose_kernel_one_rank_lacks_is_left_out_on_all() -> None:
    rows = sequence_parallel(3).results()["rank_collectives"]
    gap = (rows["rank"] == 2) & (rows["op"] == "AllGather") & (rows["seq"] == 7)
    found = collectives({"rank_collectives": rows[~gap]}).frame
    assert found[found["op"] == "AllGather"]["seq"].tolist() == [*range(7), *range(8, 40)]


def test_messages_that_differ_in_size_are_not_matched() -> None:
    rows = sequence_parallel(3).results()["rank_collectives"]
    rows.loc[(rows["rank"] == 1) & (rows["op"] == "AllGather") & (rows["seq"] == 3), "bytes"] = 5
    outcome = collectives({"rank_collectives": rows})
    assert set(outcome.frame["op"]) == {"ReduceScatter"}
    assert "AllGather of communicator c is not matched: the size of its messages differs" in outcome.reason


def test_with_a_rank_missing_the_size_of_a_communicator_is_not_guessed() -> None:
    program = sequence_parallel(3)
    outcome = collectives(program.results(without=[1]))
    assert set(outcome.frame["ranks"]) == {2}
    assert set(outcome.frame["busbw_gbps"]) == {None}
    assert "1 of 3 ranks have no profile: latencies may include waiting for them" in outcome.reason
    assert "the sizes of communicators, and so bandwidths, are unknown" in outcome.reason
    results = program.results(without=[1])
    results["rank_collectives"]["comm_ranks"] = 3
    outcome = collectives(results)
    assert set(outcome.frame["bytes"]) == {3 * (32 << 20)}
    assert outcome.frame["busbw_gbps"].notna().all()
    assert "bandwidths, are unknown" not in outcome.reason


def test_of_one_rank_alone_the_order_of_ranks_is_unknown() -> None:
    outcome = collectives(sequence_parallel(2).results(without=[1]))
    assert set(outcome.frame["spread_ns"]) == {None}
    assert "clocks are aligned from 2 ranks" in outcome.reason


def test_a_shared_kernel_gives_no_bandwidth() -> None:
    program = sequence_parallel(2)
    for rank in program.ranks:
        rank.asked += [row for row in rank.asked if row[2] == "AllGather"]
    outcome = collectives(program.results())
    shared = outcome.frame["op"] == "AllGather"
    assert shared.sum() == 80
    assert outcome.frame["busbw_gbps"][shared].isna().all()
    assert outcome.frame["busbw_gbps"][~shared].notna().all()
    assert outcome.reason.startswith("80 collectives were launched in groups that share a kernel")


def test_sends_and_receives_are_not_matched() -> None:
    program = Program(2)
    program.collective("Send")
    outcome = collectives(program.results())
    assert (len(outcome.frame), outcome.reason) == (
        0,
        "all recorded operations are sends and receives, which are not matched",
    )


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclAllReduce", "AllReduce"),
        ("allreduce_coalesced", "AllReduce"),
        ("_allgather_base", "AllGather"),
        ("all_gather_into_tensor_coalesced", "AllGather"),
        ("_reduce_scatter_base", "ReduceScatter"),
        ("ncclReduce", "Reduce"),
        ("ncclBcast", "Broadcast"),
        ("ncclAlltoAll", "AlltoAll"),
        ("all_to_allv", "AlltoAllV"),
        ("ncclGather", "Gather"),
        ("ncclSend", "Send"),
        ("barrier", "Barrier"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "SendRecv"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "AllReduce"),
        ("ncclSymkDevKernel_AllGather_LL", "AllGather"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", None),
        ("ncclGroupEnd", None),
        ("ncclCommInitRankConfig", None),
        ("ncclRedOpCreatePreMulSum", None),
        ("", None),
    ],
)
def test_operations_are_known_by_any_of_their_names(name: str, op: str | None) -> None:
    assert operation(name) == op


def test_sizes_and_factors_are_those_of_nccl_tests() -> None:
    assert [bus_factor(op, 4) for op in ("AllReduce", "AllGather", "ReduceScatter", "Broadcast")] == [
        *(1.5, 0.75, 0.75, 1.0)
    ]
    assert bus_factor("Barrier", 4) is None and bus_factor("AllReduce", 1) is None
    assert [whole_bytes(op, 10, 4) for op in ("AllReduce", "AllGather", "Broadcast", "Barrier")] == [
        *(10, 40, 10, None)
    ]
    assert (whole_bytes("AllReduce", 10, None), whole_bytes("AllGather", 10, None)) == (10, None)
