"""Batches of calls of process groups in PyTorch traces, whose kernel has no record of its own.

The events are those of a real trace of ``batch_isend_irecv`` (PyTorch 2.11, NCCL 2.28).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpcprof.analysis.collectives.per_rank import rank_collectives
from hpcprof.profiles.readers.kineto.reader import read
from hpcprof.profiles.timeline import Timeline
from tests.unit.analysis.over_all_ranks import match_pairs

HOST = {"ph": "X", "pid": 3, "tid": 4}
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def communication(name: str, at: int, group: str = "0", *, peer: int | None = None, **fields: Any) -> Any:
    """Return the operator that PyTorch records for a call, or a wait, of a process group."""
    arguments = {"Collective name": name, "In msg nelems": 1000, "Group size": 2, "dtype": "Float"}
    arguments["Process Group Name"] = group
    if peer is not None:
        arguments["Dst Rank" if name == "send" else "Src Rank"] = peer
    return {
        **HOST,
        **{"cat": "cpu_op", "name": "record_param_comms", "ts": at, "dur": 8, "args": arguments},
        **fields,
    }


def launch(at: int, number: int, record: Any = None, *, name: str = SEND_RECV) -> list[Any]:
    """Return a launch and its kernel, which has the record of a call or none."""
    call = {"cat": "cuda_driver", "name": "cuLaunchKernelEx", "args": {"correlation": number}}
    arguments = {"device": 0, "stream": 17, "correlation": number}
    kernel = {"cat": "kernel", "name": name, "args": arguments | (record["args"] if record else {})}
    return [
        {**HOST, **call, "ts": at, "dur": 2},
        {"ph": "X", "pid": 0, "tid": 17, **kernel, "ts": at + 10, "dur": 50},
    ]


def trace(path: Path, events: Sequence[Any]) -> Timeline:
    path.write_text(json.dumps({"traceEvents": [*events], "distributedInfo": {"world_size": 2}}))
    return read(path)


def found(timeline: Timeline) -> list[tuple[Any, ...]]:
    """Return the operation, communicator, partner and size of the batch of each collective."""
    rows = rank_collectives(timeline).rows
    chosen = rows[["op", "comm_id", "peer", "fused"]]
    return [tuple(row) for row in chosen.itertuples(index=False)]


def test_the_kernel_of_a_batch_carries_out_the_calls_before_its_launch(tmp_path: Path) -> None:
    batch = [communication("send", 100, peer=1), communication("recv", 120, peer=1)]
    other = [communication("recv", 300, "7", peer=2)]
    events = [*batch, *launch(140, 9), communication("wait", 200), *other, *launch(340, 10)]
    timeline = trace(tmp_path / "rank0.trace.json", events)
    assert found(timeline) == [("Send", "0", 1, 2), ("Recv", "0", 1, 2), ("Recv", "7", 2, 1)]
    rows = rank_collectives(timeline).rows
    assert rows["start_ns"].tolist() == [150_000, 150_000, 350_000]
    assert rows["bytes"].tolist() == [4000, 4000, 4000]


def test_a_call_whose_kernel_has_its_record_is_in_no_batch(tmp_path: Path) -> None:
    single = communication("send", 100, peer=1)
    events = [single, *launch(102, 9, single), communication("recv", 200, peer=1), *launch(220, 10)]
    assert found(trace(tmp_path / "rank0.trace.json", events)) == [("Send", "0", 1, 1), ("Recv", "0", 1, 1)]


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(communication("wait", 150), id="a wait ends what came before"),
        pytest.param(communication("send", 150, "7", peer=1), id="another group"),
        pytest.param(communication("allreduce", 150), id="a kernel of another operation"),
        pytest.param(communication("send", 150, peer=1, tid=5), id="another thread"),
    ],
)
def test_a_batch_has_the_calls_of_one_thread_and_group_that_the_kernel_can_carry_out(
    before: Any, tmp_path: Path
) -> None:
    earlier = [communication("send", 100, peer=1)] if before["args"]["Collective name"] == "wait" else []
    events = [*earlier, before, communication("recv", 170, peer=1), *launch(200, 9)]
    assert found(trace(tmp_path / "rank0.trace.json", events)) == [("Recv", "0", 1, 1)]


@pytest.mark.parametrize("kernel", ["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "oneccl_allreduce_pcie"])
def test_a_kernel_that_alone_is_launched_during_a_call_carries_it_out(kernel: str, tmp_path: Path) -> None:
    # Kernels of oneCCL have no record: as XCCL calls it, the launch lies inside the call.
    earlier = communication("broadcast", 50)
    events = [earlier, communication("allreduce", 100, dur=30), *launch(110, 9, name=kernel)]
    rows = rank_collectives(trace(tmp_path / "rank0.trace.json", events)).rows
    assert rows[["op", "bytes", "fused"]].values.tolist() == [["AllReduce", 4000, 1]]


def test_kernels_that_together_are_launched_during_a_call_have_no_record(tmp_path: Path) -> None:
    events = [communication("allreduce", 100, dur=30)]
    events += [
        event for at, number in ((105, 9), (110, 10)) for event in launch(at, number, name="oneccl_copy")
    ]
    assert rank_collectives(trace(tmp_path / "rank0.trace.json", events)).rows.empty


def test_a_kernel_without_a_record_and_without_calls_is_counted(tmp_path: Path) -> None:
    events = [communication("send", 100, peer=1), *launch(120, 9), *launch(300, 10)]
    outcome = rank_collectives(trace(tmp_path / "rank0.trace.json", events))
    assert len(outcome.rows) == 1
    assert "1 communication kernel of rank0.trace.json belongs to no recorded collective" in outcome.reason


def test_batches_of_two_ranks_are_matched_by_pair_and_order(tmp_path: Path) -> None:
    tables = []
    for rank, partner in ((0, 1), (1, 0)):
        events: list[Any] = []
        for step in range(3):
            begin = 1000 * step + 5 * rank
            calls = [
                communication(name, begin + 20 * i, peer=partner) for i, name in enumerate(("send", "recv"))
            ]
            one_way = communication("send" if rank == 0 else "recv", begin + 300, peer=partner)
            events += [*calls, *launch(begin + 60, 10 * step + 1), communication("wait", begin + 200)]
            events += [one_way, *launch(begin + 340, 10 * step + 2)]
        rows = rank_collectives(trace(tmp_path / f"rank{rank}.trace.json", events)).rows
        tables.append(rows.assign(rank=rank))
    pairs, reasons = match_pairs(pd.concat(tables, ignore_index=True))
    assert reasons == []
    assert [(pair.sender, pair.receiver, pair.seq.tolist()) for pair in pairs] == [
        (0, 1, [0, 1, 2, 3, 4, 5]),
        (1, 0, [0, 1, 2]),
    ]
    assert pairs[0].fused.tolist() == [[2, 2], [1, 1]] * 3
    assert pairs[0].start[:2].tolist() == [[70_000, 75_000], [350_000, 355_000]]


def test_each_annotated_kernel_of_a_replayed_graph_is_a_collective_of_its_own(tmp_path: Path) -> None:
    # pytorch/pytorch#194854: kernels of one launch of a graph, in any order, have the fields of their calls.
    def kernel(at: int, name: str, group: str, elements: Any) -> Any:
        fields = {"Collective name": name, "Process Group Name": group, "In msg nelems": elements}
        arguments = {"device": 0, "stream": 60, "correlation": 9, "dtype": "bfloat16", "Group size": 2}
        nccl = f"ncclDevKernel_{'AllReduce' if name == 'allreduce' else 'AllGather'}_RING_LL()"
        return {
            **{"ph": "X", "pid": 0, "tid": 60, "cat": "kernel", "name": nccl, "ts": at, "dur": 50},
            "args": arguments | fields,
        }

    call = {**HOST, "cat": "cuda_runtime", "name": "cudaGraphLaunch", "args": {"correlation": 9}}
    kernels = [kernel(300, "allreduce", "tp", "500"), kernel(200, "_allgather_base", "dp", 1000)]
    timeline = trace(tmp_path / "rank0.trace.json", [{**call, "ts": 100, "dur": 5}, *kernels])
    rows = rank_collectives(timeline).rows
    assert rows[["op", "comm_id", "fused", "start_ns", "end_ns"]].values.tolist() == [
        ["AllGather", "dp", 1, 200_000, 250_000],
        ["AllReduce", "tp", 1, 300_000, 350_000],
    ]
    assert rows["bytes"].tolist() == [2000, 1000]


def test_operators_tell_collectives_that_calls_do_not_name(tmp_path: Path) -> None:
    # As PyTorch 2.1 writes them (traces of DLRM): the record of a call has no arguments.
    def called(name: str, at: int, number: int, kernel: str) -> list[Any]:
        operator = {**HOST, "cat": "cpu_op", "ts": at, "dur": 20}
        inside = {**operator, "name": "record_param_comms", "ts": at + 1, "dur": 18, "args": {}}
        return [{**operator, "name": name}, inside, *launch(at + 5, number, name=kernel)]

    exchanged = called(
        "c10d::alltoall_base_", 100, 9, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)"
    )
    reduced = called("c10d::allreduce_", 200, 10, "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)")
    path = tmp_path / "rank0.trace.json"
    all_told = found(trace(path, [*exchanged, *reduced]))
    assert [row[0] for row in all_told] == ["AlltoAll", "AllReduce"]
    # Where one operator is missing, the names of the kernels tell all.
    assert [row[0] for row in found(trace(path, [*exchanged, *reduced[2:]]))] == ["SendRecv", "AllReduce"]
