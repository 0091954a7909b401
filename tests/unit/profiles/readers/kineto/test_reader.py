"""The reader of PyTorch profiler traces."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.steps.capture_losses import capture_losses
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.frames import BUILT_IN
from hpcprof.profiles.host_memory import HostMemory, host_memory_of_name
from hpcprof.profiles.losses import LossKind
from hpcprof.profiles.readers.declaration import SeveralRanks
from hpcprof.profiles.readers.kineto import rank_identity
from hpcprof.profiles.readers.kineto.rank_identity import several_ranks
from hpcprof.profiles.readers.kineto.reader import read
from hpcprof.profiles.readers.kineto.stamps import nanoseconds, times
from hpcprof.profiles.timeline import NO_CORRELATION, NO_PEER, Category
from tests.unit.profiles.readers.conftest import DATA

KERNEL_ARGUMENTS = {
    "device": 1,
    "stream": 20,
    "correlation": 9,
    "grid": [4, 2, 1],
    "block": [256, 1, 1],
}
KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "ncclDevKernel_AllReduce",
    "pid": 0,
    "tid": 7,
    "ts": 1.5,
    "dur": 2,
    "args": KERNEL_ARGUMENTS,
}


def write(path: Path, *events: Any, **top: Any) -> Path:
    """Write a trace."""
    path.write_text(json.dumps({"traceEvents": events, **top}))
    return path


def test_a_real_trace_tells_what_ran_where_and_when(torch_trace: Path) -> None:
    timeline = read(torch_trace)
    assert (len(timeline.kernels), len(timeline.memops)) == (911, 266)
    assert set(timeline.kernels.process.tolist()) == set(timeline.calls.process.tolist())
    origin = timeline.origin
    assert (origin.kind, origin.rank, origin.world_size) == ("torch", 0, 4)
    assert origin.start_utc_ns == 1790857026000000000
    assert origin.device_names == ("NVIDIA H200",) * 4
    assert origin.losses == ()
    names = set(timeline.names(timeline.ranges.name))
    assert "ProfilerStep#5" in names
    assert not any(name and name.startswith("aten::") for name in names)


def test_times_are_exact_where_a_double_is_not(tmp_path: Path) -> None:
    path = tmp_path / "rank0.trace.json"
    event = (
        '{"ph":"X","cat":"user_annotation","name":"x","pid":1,"tid":2,"ts":1790857026123456.789,"dur":0.001}'
    )
    path.write_text(f'{{"traceEvents": [{event}]}}')
    ranges = read(path).ranges
    assert ranges.start.tolist() == [1790857026123456789]
    assert ranges.end.tolist() == [1790857026123456790]


@given(st.decimals(-(10**15), 10**15, allow_nan=False, places=3))
def test_three_decimals_are_taken_digit_by_digit(time: Decimal) -> None:
    assert nanoseconds(str(time)) == int(time * 1000)


@given(st.decimals(-(10**12), 10**12, allow_nan=False, allow_infinity=False))
def test_other_spellings_round_to_the_nearest_nanosecond(time: Decimal) -> None:
    expected = int((time * 1000).to_integral_value(ROUND_HALF_EVEN))
    assert nanoseconds(f"{time:f}") == nanoseconds(f"{time:e}") == expected


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "Infinity",
        "",
        "1e400",
        "x",
        "null",
        "true",
        "1" + 30 * "0",
        "[1]",
        '"1.5"',
        "9223372036854775.808",
    ],
)
def test_what_is_no_time_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time|does not fit"):
        nanoseconds(value)


def test_one_odd_time_among_many_does_not_hold_up_the_others() -> None:
    written = [f"17{at:013d}.{at:03d}" for at in range(500)]
    column, valid = times([msgspec.Raw(text.encode()) for text in [*written, "x"]])
    assert column.tolist() == [*(nanoseconds(text) for text in written), 0]
    assert valid.tolist() == [True] * 500 + [False]


def test_a_kernel_has_device_stream_shape_and_class(tmp_path: Path) -> None:
    kernels = read(write(tmp_path / "rank2.trace.json", KERNEL)).kernels
    assert (kernels.start.tolist(), kernels.end.tolist()) == ([1500], [3500])
    assert (kernels.device.tolist(), kernels.stream.tolist(), kernels.correlation.tolist()) == (
        [1],
        [20],
        [9],
    )
    assert (kernels.grid.tolist(), kernels.block.tolist()) == ([[4, 2, 1]], [[256, 1, 1]])
    assert kernels.category.tolist() == [Category.COMM]


def test_names_keep_unicode_and_html(tmp_path: Path) -> None:
    names = ["größe → 核", "<b>a & b</b>", 'quote " back \\ slash', "half \ud800"]
    events = [{**KERNEL, "name": name} for name in names]
    timeline = read(write(tmp_path / "rank0.trace.json", *events))
    assert timeline.names(timeline.kernels.name) == [*names[:3], "half ?"]


def test_a_range_that_the_end_of_the_recording_cut_off_is_not_closed(tmp_path: Path) -> None:
    mark = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": 1, "tid": 2, "dur": 1}
    complete = [{**mark, "ts": 1}, {**mark, "ts": 2, "args": {"finished": "?"}}]
    cut_off = {**mark, "ts": 3, "args": {"External id": 1, "finished": False}}
    timeline = read(write(tmp_path / "rank0.trace.json", *complete, cut_off))
    assert timeline.ranges.closed.tolist() == [1, 1, 0]
    assert steps_of(timeline).rows.tolist() == [0, 1]


def test_events_that_lack_a_field_are_left_out_and_counted(tmp_path: Path) -> None:
    lacking = [{k: v for k, v in KERNEL.items() if k != key} for key in ("name", "ts", "dur", "ph")]
    call = {"ph": "X", "cat": "cuda_runtime", "name": "f", "pid": "Spans", "tid": 1, "ts": 1, "dur": 1}
    timeline = read(write(tmp_path / "rank0.trace.json", KERNEL, *lacking, call, "text", None))
    assert len(timeline.kernels) == 1
    assert [loss.sentence for loss in timeline.origin.losses] == [
        "1 of 1 API call has no valid pid and is left out",
        "2 events have no valid form and are left out",
        "1 of 5 kernels has no valid dur and is left out",
        "1 of 5 kernels has no valid name and is left out",
        "1 of 5 kernels has no valid ph and is left out",
        "1 of 5 kernels has no valid ts and is left out",
    ]


@pytest.mark.parametrize(
    ("argument", "odd"),
    [
        ("grid", [1, 2]),
        ("block", "wide"),
        ("device", {}),
        ("stream", 1.5),
        ("correlation", "x"),
        ("bytes", []),
    ],
)
def test_an_odd_argument_is_dropped_and_its_event_and_other_arguments_are_kept(
    tmp_path: Path, argument: str, odd: object
) -> None:
    usual = {"device": 0, "stream": 7, "correlation": 9, "grid": [4, 2, 1], "block": [256, 1, 1], "bytes": 8}
    events = [
        {**KERNEL, "cat": category, "args": usual | ({argument: odd} if at % 2 else {})}
        for category in ("kernel", "gpu_memcpy")
        for at in range(8)
    ]
    whole = read(write(tmp_path / "rank0.trace.json", *(event | {"args": usual} for event in events)))
    found = read(write(tmp_path / "rank1.trace.json", *events))
    for table in ("kernels", "memops"):
        for name, column in vars(getattr(whole, table)).items():
            changed = vars(getattr(found, table))[name]
            rows = slice(0, None, 2 if name == argument else 1)
            assert changed[rows].tolist() == column[rows].tolist(), (table, name)
    matters = {"grid": 1, "block": 1, "bytes": 1}.get(argument, 2)
    assert [(one.kind, one.count, one.of, one.detail) for one in found.origin.losses] == [
        (LossKind.FIELD, 4, 8, argument)
    ] * matters


def test_numbers_that_rocm_writes_as_text_are_read(tmp_path: Path) -> None:
    call = {"ph": "X", "cat": "cuda_runtime", "name": "hipMemcpyAsync", "pid": 1, "tid": 2, "ts": 1, "dur": 1}
    arguments = {"stream": "0x0", "correlation": 9, "kind": "HtoD", "bytes": "128"}
    events = [
        {**call, "args": {**arguments, "ptr": "0x7f0"}},
        {**KERNEL, "cat": "gpu_memcpy", "args": {**arguments, "device": "1"}},
        {**KERNEL, "args": {**KERNEL_ARGUMENTS, "stream": "0x7f10", "grid": ["4", 2, 1]}},
    ]
    timeline = read(write(tmp_path / "rank0.trace.json", *events))
    assert timeline.calls.correlation.tolist() == [9]
    assert timeline.memops.bytes.tolist() == [128]
    assert (timeline.memops.device.tolist(), timeline.memops.stream.tolist()) == ([1], [0])
    assert timeline.kernels.stream.tolist() == [0x7F10]
    assert [loss.detail for loss in timeline.origin.losses] == ["grid"]


@pytest.mark.parametrize("argument", ["stream", "bytes", "kind", "ptr"])
def test_of_the_arguments_of_a_call_only_the_correlation_matters(tmp_path: Path, argument: str) -> None:
    call = {"ph": "X", "cat": "cuda_runtime", "name": "f", "pid": 1, "tid": 2, "ts": 1, "dur": 1}
    timeline = read(
        write(tmp_path / "rank0.trace.json", {**call, "args": {"correlation": 9, argument: [{}]}})
    )
    assert timeline.calls.correlation.tolist() == [9]
    assert timeline.origin.losses == ()


def test_categories_in_capitals_of_pytorch_1_8_to_1_11_are_read(tmp_path: Path) -> None:
    host = {"ph": "X", "pid": 25738, "tid": "25738", "ts": 1623142623460111, "dur": 25}
    device = {**KERNEL, "tid": "stream 7"}
    names = ["ProfilerStep#5", "forward", "aten::empty", "AddmmBackward", "ReluBackward1", "detach_"]
    events = [
        *({**host, "cat": "Operator", "name": name} for name in names),
        {**host, "cat": "Runtime", "name": "cudaLaunchKernel", "args": {"correlation": 9, "external id": 3}},
        {**device, "cat": "Kernel"},
        *({**device, "cat": cat, "args": {**KERNEL_ARGUMENTS, "bytes": 4}} for cat in ("Memcpy", "Memset")),
        {**host, "cat": "Trace", "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "pid": "Traces"},
    ]
    timeline = read(write(tmp_path / "rank0.trace.json", *events))
    assert timeline.names(timeline.ranges.name) == ["ProfilerStep#5", "forward"]
    assert timeline.ranges.thread.tolist() == [25738, 25738]
    assert (timeline.calls.thread.tolist(), timeline.calls.correlation.tolist()) == ([25738], [9])
    assert (timeline.kernels.stream.tolist(), timeline.memops.bytes.tolist()) == ([20], [4, 4])
    assert timeline.origin.losses == ()


def test_events_of_other_devices_are_named_and_counted(tmp_path: Path) -> None:
    host = {"ph": "X", "name": "f", "pid": 1, "tid": 2, "ts": 1, "dur": 1}
    others = ["cpu_op", "python_function", "cuda_profiler_range"]
    categories = ["mtia_runtime", "mtia_ccp_events", "mtia_runtime", "hpu_op", *others]
    timeline = read(write(tmp_path / "rank0.trace.json", *({**host, "cat": name} for name in categories)))
    assert [loss.sentence for loss in timeline.origin.losses] == [
        "1 event of the category cuda_profiler_range (counters that PyTorch's profiler writes in place of "
        "kernels) is not supported and is left out",
        "1 event of the category hpu_op is not supported and is left out",
        "1 event of the category mtia_ccp_events is not supported and is left out",
        "2 events of the category mtia_runtime are not supported and are left out",
    ]
    assert "profiler_metrics" in timeline.origin.losses[0].remedy
    # Kernels that were counted instead of recorded are not lost.
    launch = {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": 9}}
    for counters, lost in (([], 1), ([{**host, "cat": "cuda_profiler_range"}], 0)):
        trace = read(write(tmp_path / "rank1.trace.json", {**host, "cat": "cpu_op"}, launch, *counters))
        assert sum(loss.kind is LossKind.MISSING for loss in capture_losses(trace)) == lost


def test_the_overhead_of_the_profiler_is_named_once(tmp_path: Path) -> None:
    host = {"ph": "X", "pid": 1, "tid": 2, "ts": 1, "cat": "overhead"}
    flush = [{**host, "name": "Buffer Flush", "dur": 900}, {**host, "name": "Buffer Flush", "dur": 600.5}]
    (loss,) = read(write(tmp_path / "rank0.trace.json", *flush)).origin.losses
    assert (loss.kind, loss.sentence) == (
        LossKind.NOTE,
        "the profiler reports: 2 events of its own overhead, 1.500 ms in all",
    )


def test_calls_on_intels_gpus_are_calls_and_launch_their_kernels(tmp_path: Path) -> None:
    host = {"ph": "X", "pid": 1, "tid": 2, "ts": 1, "dur": 1, "args": {"correlation": 7}}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 3, "ts": 5, "dur": 2}
    copy = {**kernel, "cat": "gpu_memcpy", "name": "Memcpy M2D (Host (User Allocated) -> Device)", "ts": 9}
    timeline = read(
        write(
            tmp_path / "rank0.trace.json",
            {**host, "cat": "xpu_runtime", "name": "urEnqueueKernelLaunch"},
            # libkineto gives it the number of the call that it is in.
            {**host, "cat": "xpu_driver", "name": "zeCommandListAppendLaunchKernel"},
            {**kernel, "args": {"device": 0, "sycl queue": 3, "l0 queue": "0x1", "correlation": 7}},
            {**host, "cat": "xpu_runtime", "name": "urEnqueueUSMMemcpy", "args": {"correlation": 8}},
            {**copy, "args": {"device": 0, "sycl queue": 3, "correlation": 8, "bytes": 4096}},
            {**host, "cat": "collective_comm", "name": "xccl::allreduce", "args": {"communicator id": 5}},
        )
    )
    calls = timeline.names(timeline.calls.name)
    assert calls == ["urEnqueueKernelLaunch", "zeCommandListAppendLaunchKernel", "urEnqueueUSMMemcpy"]
    assert [rows.tolist() for rows in launch_pairs(timeline)] == [[0, 1], [0, 2]]
    assert (timeline.kernels.stream.tolist(), timeline.memops.bytes.tolist()) == ([3], [4096])
    assert timeline.memops.host_memory.tolist() == [HostMemory.PAGEABLE]
    assert not timeline.origin.losses


def test_functions_of_the_users_code_are_read_from_stacks(tmp_path: Path) -> None:
    call = {"ph": "X", "cat": "python_function", "pid": 1, "tid": 2, "ts": 1.5, "dur": 2}
    names = ["train.py(7): load", "torch/nn/modules/module.py(1782): _call_impl", "<built-in function len>"]
    timeline = read(write(tmp_path / "rank0.trace.json", *({**call, "name": name} for name in names)))
    table = timeline.functions
    assert (timeline.names(table.function), timeline.names(table.file)) == (["load"], ["train.py"])
    assert (table.line.tolist(), table.start.tolist(), table.end.tolist()) == ([7], [1500], [3500])
    assert not timeline.origin.losses


def test_a_long_function_in_c_is_read_from_stacks(tmp_path: Path) -> None:
    call = {"ph": "X", "cat": "python_function", "pid": 1, "tid": 2, "ts": 1.5}
    name = "<built-in method acquire of _thread.lock object at 0x7f>"
    short, long = ({**call, "name": name, "dur": dur} for dur in (99.999, 100.5))
    timeline = read(write(tmp_path / "rank0.trace.json", short, long))
    table = timeline.functions
    assert (timeline.names(table.function), timeline.names(table.file)) == (["acquire"], [BUILT_IN])
    assert table.end.tolist() == [102000]


@pytest.mark.parametrize(("top", "name"), [({"hip_runtime_version": 7}, "AMD GPU with 304 units"), ({}, "")])
def test_a_gpu_of_amd_without_a_name_is_one_of_amd(top: Any, name: str, tmp_path: Path) -> None:
    devices = [{"id": 0, "name": "", "numSms": 304}]
    (gpu,) = read(write(tmp_path / "t.trace.json", KERNEL, deviceProperties=devices, **top)).origin.gpus
    assert gpu.name == name


@pytest.mark.parametrize("category", [None, "toplevel", "Op"])
def test_a_chrome_trace_of_another_program_is_refused(tmp_path: Path, category: str | None) -> None:
    event = {"ph": "X", "name": "jit_f", "pid": 1, "tid": 2, "ts": 1, "dur": 1}
    event |= {"cat": category} if category else {}
    path = write(
        tmp_path / "host.trace.json", event, {"ph": "M", "name": "process_name"}, displayTimeUnit="ns"
    )
    with pytest.raises(
        DamagedInput, match=r"host\.trace\.json is a Chrome trace, but not one of the PyTorch"
    ):
        read(path)
    with pytest.raises(DamagedInput, match="has no events, so nothing was recorded"):
        read(write(path))
    with pytest.raises(DamagedInput, match=r"is no trace: none of its 1 value is an event"):
        read(write(path, {"id": 1, "cat": category}))
    # Chrome's format allows the list alone.
    path.write_text(json.dumps([event]))
    with pytest.raises(DamagedInput, match="none of its 1 event has a category"):
        read(path)
    path.write_text(json.dumps([KERNEL]))
    assert len(read(path).kernels) == 1
    assert len(read(write(path, event, schemaVersion=1)).kernels) == 0
    assert len(read(write(path, event, {**event, "cat": "cpu_op"})).kernels) == 0


def test_a_kernel_without_arguments_uses_pid_and_tid(tmp_path: Path) -> None:
    kernels = read(write(tmp_path / "t.trace.json", {k: v for k, v in KERNEL.items() if k != "args"})).kernels
    assert (kernels.device.tolist(), kernels.stream.tolist()) == ([0], [7])
    assert kernels.correlation.tolist() == [NO_CORRELATION]


@pytest.mark.parametrize(
    ("top", "rank"), [({"distributedInfo": {"rank": 5}}, 5), ({"distributedInfo": {}}, 3), ({}, 3)]
)
def test_the_rank_comes_from_the_trace_before_the_file_name(tmp_path: Path, top: Any, rank: int) -> None:
    assert read(write(tmp_path / "rank3.pt.trace.json", KERNEL, **top)).origin.rank == rank


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\x1f\x8bnonsense", "damaged or truncated"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, "ends in the middle of an event"),
        (b"[]", "has no events"),
        (b"{}", "no list of traceEvents"),
        (b'{"traceEvents": {}}', "no list of traceEvents"),
    ],
)
def test_a_file_that_is_not_a_trace_is_named_so(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "rank0.trace.json"
    path.write_bytes(content)
    with pytest.raises(DamagedInput, match=rf"rank0\.trace\.json .*{reason}"):
        read(path)


RECORD = {
    "Collective name": "_allgather_base",
    "In msg nelems": 1000,
    "Out msg nelems": 4000,
    "Group size": 4,
    "dtype": "BFloat16",
    "In split size": "[]",
    "Out split size": "[]",
    "Process Group Name": "tp",
}
LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "pid": 3, "tid": 4, "ts": 1}


def recorded(path: Path, **changed: Any) -> tuple[Any, ...] | None:
    """Return operation, communicator, size and ranks of a kernel's record that differs from `RECORD`."""
    record = {key: value for key, value in (RECORD | changed).items() if value is not None}
    kernel = {**KERNEL, "args": {**KERNEL["args"], **record}}  # type: ignore[dict-item]
    timeline = read(write(path, {**LAUNCH, "dur": 2, "args": {"correlation": 9}}, kernel))
    table = timeline.collectives
    names = (timeline.names(table.operation), timeline.names(table.communicator))
    return next(zip(*names, table.bytes.tolist(), table.ranks.tolist(), strict=True), None)


def test_a_kernels_record_tells_its_collective_as_nccl_counts_it(tmp_path: Path) -> None:
    path = tmp_path / "rank0.trace.json"
    assert recorded(path) == ("AllGather", "tp", 2000, 4)
    names = {"Collective name": "_reduce_scatter_base", "In msg nelems": 4000, "Out msg nelems": 1000}
    assert recorded(path, **names) == ("ReduceScatter", "tp", 2000, 4)
    assert recorded(path, **{"Collective name": "allreduce", "dtype": "Float"}) == (
        *("AllReduce", "tp", 4000, 4),
    )
    exchange = {"Collective name": "all_to_all", "In msg nelems": 4000}
    assert recorded(path, **exchange) == ("AlltoAll", "tp", 2000, 4)


@pytest.mark.parametrize(
    ("record", "peer"),
    [
        ({"Collective name": "send", "Dst Rank": 3}, 3),
        ({"Collective name": "recv", "Src Rank": 0}, 0),
        ({"Collective name": "recv", "Src Rank": "2"}, 2),
        ({"Collective name": "recv", "Src Rank": "two"}, NO_PEER),
        ({"Collective name": "recv", "Src Rank": -1}, NO_PEER),
        ({"Collective name": "send"}, NO_PEER),
    ],
)
def test_sends_and_receives_name_their_partner_by_its_rank_in_the_program(
    record: dict[str, Any], peer: int, tmp_path: Path
) -> None:
    kernel = {**KERNEL, "args": {**KERNEL["args"], **RECORD, **record}}  # type: ignore[dict-item]
    path = write(tmp_path / "rank0.trace.json", {**LAUNCH, "dur": 2, "args": {"correlation": 9}}, kernel)
    table = read(path).collectives
    assert (table.peer.tolist(), table.comm_peer.tolist()) == ([peer], [NO_PEER])


def test_what_a_record_does_not_tell_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "rank0.trace.json"
    assert recorded(path, dtype="Quaternion") == ("AllGather", "tp", -1, 4)
    assert recorded(path, dtype=7) == ("AllGather", "tp", -1, 4)
    assert recorded(path, **{"In msg nelems": "many"}) == ("AllGather", "tp", -1, 4)
    assert recorded(path, **{"In split size": "[1, 999]"}) == ("AllGather", "tp", -1, 4)
    assert recorded(path, **{"Group size": None}) == ("AllGather", "tp", 2000, -1)
    assert recorded(path, **{"Process Group Name": None}) == ("AllGather", None, 2000, 4)
    assert recorded(path, **{"Collective name": "wait"}) is None
    assert recorded(path, **{"Collective name": None}) is None


def test_names_of_copies_tell_the_memory_of_the_host() -> None:
    timeline = read(DATA / "allocator_rank0.pt.trace.json.gz")
    names, kinds = timeline.names(timeline.memops.name), timeline.memops.host_memory.tolist()
    assert dict(zip(names, kinds, strict=True)) == {
        "Memcpy HtoD (Pageable -> Device)": HostMemory.PAGEABLE,
        "Memcpy DtoH (Device -> Pinned)": HostMemory.PINNED,
        "Memcpy DtoD (Device -> Device)": HostMemory.NONE,
    }
    assert host_memory_of_name("Memcpy H2D (Host (Driver Allocated) -> Device)") == HostMemory.PINNED
    assert host_memory_of_name("Memset (0 -> Device)") == HostMemory.NONE


@pytest.mark.parametrize(
    "labels", [("[TP00-DP01] ", "[TP01-DP00] "), ("rank1: ", "rank0: "), ("Rank 1 GPU ", "Rank 0 GPU ")]
)
def test_processes_with_labels_are_ranks_in_the_order_of_their_labels(
    labels: tuple[str, str], tmp_path: Path
) -> None:
    """Rebuilt from sgl-project/sglang#11413, whose merged traces have texts as pids."""

    def process(label: str, pid: int) -> list[dict[str, Any]]:
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": f"{label}{pid}"}
        return [
            {**call, "tid": pid, "ts": 1 + pid, "dur": 1, "args": {"correlation": 9}},
            {**KERNEL, "pid": f"{label}0", "ts": 10 + pid},
        ]

    path = write(tmp_path / "merged.json", *process(labels[0], 7), *process(labels[1], 900))
    several = several_ranks(path)
    assert several is not None
    (first,), (second,) = several.processes
    timeline = read(path)
    assert timeline.kernels.process.tolist() == [second, first] == timeline.calls.process.tolist()
    assert not timeline.origin.losses


def test_processes_that_a_tool_merged_into_a_trace_are_ranks_with_their_own_kernels(tmp_path: Path) -> None:
    def process(pid: int) -> list[dict[str, Any]]:
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": pid, "tid": pid}
        return [
            {**call, "ts": 1 + pid, "dur": 1, "args": {"correlation": 9}},
            {**KERNEL, "ts": 10 + pid, "args": {**KERNEL_ARGUMENTS, "Collective name": "allreduce"}},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": pid, "ts": 1, "dur": 2},
        ]

    path = write(tmp_path / "merged.json", *process(100), *process(200))
    several = several_ranks(path)
    assert several is not None and several.processes == ((100,), (200,))
    timeline = read(path)
    assert timeline.kernels.process.tolist() == [100, 200]
    assert launch_pairs(timeline)[0].tolist() == [0, 1]
    # Each process has its own collective, though both number theirs alike.
    assert timeline.collectives.process.tolist() == [100, 200]
    assert several_ranks(write(tmp_path / "one.json", *process(100))) is None


def test_the_ranks_that_a_tool_writes_into_the_events_of_a_merged_trace_are_those_of_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As TraceLens writes them, with processes in any order."""

    def process(pid: int, rank: int) -> list[dict[str, Any]]:
        call = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": pid, "tid": pid}
        arguments = {"correlation": pid, "grid": [1, 1, 1], "rank": rank, "pid_raw": pid}
        return [{**call, "ts": 1 + pid, "dur": 1, "args": arguments}, {**KERNEL, "ts": 10 + pid}]

    path = write(tmp_path / "merged.json", *process(100, 5), *process(200, 3))
    assert several_ranks(path) == SeveralRanks(((200,), (100,)), (3, 5))
    # The ranks are those of the events that are read as a whole.
    size = path.stat().st_size
    for cut in range(size + size // 2, 2 * size):
        monkeypatch.setattr(rank_identity, "_MAX_MERGED_BYTES", cut)
        write(path, *process(100, 5), *process(200, 3), *process(100, 5), *process(200, 3))
        assert several_ranks(path) == SeveralRanks(((200,), (100,)), (3, 5))
    # Ranks that do not tell the processes apart are not taken.
    path = write(tmp_path / "equal.json", *process(100, 5), *process(200, 5))
    assert several_ranks(path) == SeveralRanks(((100,), (200,)))


@pytest.mark.parametrize(
    ("key", "text", "lost"),
    [
        ("WARNING", "Dropped 12 activity records", True),
        ("WARNING", "Exceeded max GPU buffer count (128 > 128) - terminating tracing", True),
        ("ERROR", "State: CollectTrace stopped by GPU profiler. (Buffer size configured is 128MB)", True),
        ("WARNING", "Unexpected activity type: 51", True),
        # Child profilers record the GPUs of Intel.
        ("ERROR", "[Profiler = XpuptiActivityProfiler] child profiler failed to start", True),
        ("WARNING", "GPU op timestamp (17) < runtime timestamp (18) by 1us", False),
        ("WARNING", "Unrecognized config line: ACTIVITIES_ITERATIONS", False),
        ("WARNING", "CPU activity with pid 0 detected", False),
        ("ERROR", "Failed to calculate occupancy, status = 1", False),
    ],
)
def test_warnings_of_libkineto_are_losses_unless_they_are_known_to_be_harmless(
    tmp_path: Path, key: str, text: str, lost: bool
) -> None:
    found = read(write(tmp_path / "rank0.json", KERNEL, **{key: [text]})).origin.losses
    assert [loss.detail for loss in found] == [text] * lost
