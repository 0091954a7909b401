"""Profiles of JAX: a made-up program on GPUs, and a real one on CPU devices."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hpcprof.analysis.account.call_kinds import CallKind, kind_of_call
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.host_memory import HostMemory
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.readers.xplane.wire import Damage, columns_of, fields_of
from hpcprof.profiles.timeline import NO_CORRELATION, Category, Timeline
from hpcprof.profiles.waiting_calls import host_waits
from tests.data import xplane_profile as made


def read(path: Path, content: bytes) -> Timeline:
    path.write_bytes(content)
    timeline = read_profile(path)
    assert isinstance(timeline, Timeline)
    return timeline


@pytest.fixture
def timeline(tmp_path: Path) -> Timeline:
    return read(tmp_path / "rank00003.xplane.pb", made.profile(gpus=2))


def test_work_is_at_the_times_of_its_line_and_counts_from_the_start_of_the_profile(
    timeline: Timeline,
) -> None:
    kernels, copies = timeline.kernels, timeline.memops
    assert timeline.origin.start_utc_ns == made.BASE_NS
    assert len(kernels) == 2 * made.STEPS * len(made.KERNELS)
    assert {*(kernels.end - kernels.start).tolist()} == {made.KERNEL_NS}
    # The events of a line are relative to its own start, 1 µs.
    assert kernels.start.min() == 1000 + 4000 + 600
    assert {*zip(kernels.device.tolist(), kernels.stream.tolist(), strict=True)} == {(0, 14), (1, 14)}
    assert {*map(tuple, kernels.grid.tolist())} == {(16, 2, 1)}
    assert Counter(kernels.category.tolist()) == {Category.COMP: 12, Category.COMM: 6}
    assert {*timeline.names(copies.name)} == {"[CUDA memcpy Host-to-Device]"}
    assert {*copies.bytes.tolist()} == {4096}
    assert {*copies.host_memory.tolist()} == {int(HostMemory.PINNED)}


def test_launches_join_their_work_on_the_thread_that_the_program_runs_on(timeline: Timeline) -> None:
    assert {*timeline.kernels.correlation.tolist()} <= {*timeline.calls.correlation.tolist()}
    # XLA puts calls and marks of one thread on two lines.
    modules = [name == "XlaModule:#hlo_module=jit_step#" for name in timeline.names(timeline.ranges.name)]
    assert {*timeline.ranges.thread[modules].tolist()} == {*timeline.calls.thread.tolist()}
    assert len({*timeline.calls.thread.tolist()}) == 2


def test_operators_have_the_shapes_operations_and_bytes_of_the_program(timeline: Timeline) -> None:
    rows = analyze_rank(ANALYSES["operators_by_shape"], timeline, 0).frame.set_index("name")
    product = rows.loc[made.OPS[0]]
    assert (product["calls"], product["gpu_ops"]) == (2 * made.STEPS, 2 * made.STEPS)
    assert (product["input_dims"], product["input_types"]) == ("[[64, 32], [32, 16]]", '["f32", "f32"]')
    assert product["flops"] == 2 * made.STEPS * 2 * 64 * 32 * 16
    assert product["bytes"] == 2 * made.STEPS * 4 * (64 * 32 + 32 * 16 + 64 * 16)
    kernels = analyze_rank(ANALYSES["operator_kernels"], timeline, 0).frame
    assert {*zip(kernels["operator"], kernels["kernel"], strict=True)} == {
        *zip(made.OPS, made.KERNELS, strict=True)
    }


def test_a_collective_between_devices_of_one_process_is_its_own(timeline: Timeline) -> None:
    calls = timeline.collectives
    assert {*timeline.names(calls.operation)} == {"AllReduce"}
    assert {*timeline.names(calls.communicator)} == {f"devices 0,1 of process {made.PID}"}
    assert ({*calls.bytes.tolist()}, {*calls.ranks.tolist()}) == ({4 * 64 * 16}, {2})
    rows = analyze_rank(ANALYSES["rank_collectives"], timeline, 0).frame
    assert ({*rows["op"]}, len(rows)) == ({"AllReduce"}, 2 * made.STEPS)
    assert {*(rows["end_ns"] - rows["start_ns"])} == {made.KERNEL_NS}


def test_a_collective_with_another_process_counts_ranks(tmp_path: Path) -> None:
    calls = read(tmp_path / "a.xplane.pb", made.profile(gpus=1)).collectives
    alone = read(tmp_path / "b.xplane.pb", made.profile(gpus=1))
    assert {*alone.names(alone.collectives.communicator)} == {"devices 0,1"}
    assert {*calls.ranks.tolist()} == {2}


def test_steps_are_those_that_the_program_marks_else_executions_of_its_program(tmp_path: Path) -> None:
    marked = steps_of(read(tmp_path / "a.xplane.pb", made.profile()))
    assert (marked.name, marked.number.tolist()) == ("train#step_num=N#", [0, 1, 2])
    found = steps_of(read(tmp_path / "b.xplane.pb", made.profile(marked=False)))
    # The last execution begins a step that may not be whole.
    assert (found.name, len(found)) == ("XlaModule:#hlo_module=jit_step#", made.STEPS - 1)
    assert (found.ranges.end - found.ranges.start).tolist() == [made.STEP_NS] * 2


def test_ranges_are_what_the_program_marks_and_its_calls_of_jitted_functions(timeline: Timeline) -> None:
    names = Counter(timeline.names(timeline.ranges.name))
    assert names["load"] == names["PjitFunction(step)"] == made.STEPS
    assert not {"ParseArguments", "$train.py:12 main", *made.OPS} & names.keys()


def test_a_process_beside_others_numbers_executions_as_they_do(tmp_path: Path) -> None:
    found = read(tmp_path / "a.xplane.pb", made.profile(marked=False, run_id=70))
    steps = steps_of(found)
    # The recording began inside the first call, whose number is not recorded.
    assert (steps.name, steps.number.tolist()) == ("XlaModule:#hlo_module=jit_step#", [70, 71])
    names = Counter(found.names(found.ranges.name))
    assert {name for name, count in names.items() if count < made.STEPS - 1} == {
        f"XlaModule:#hlo_module=jit_step,run_id={70 + step}#" for step in range(made.STEPS)
    }


def test_a_wait_for_an_array_is_one_call_that_the_host_waits_in(tmp_path: Path) -> None:
    found = read(tmp_path / "a.xplane.pb", made.profile(waits=True))
    waiting = [bool(host_waits(name or "")) for name in found.names(found.calls.name)]
    calls = found.calls.take(np.array(waiting))
    assert (len(calls), {*found.names(calls.name)}) == (made.STEPS, {"block_until_ready"})
    assert {*(calls.end - calls.start).tolist()} == {3000}
    (thread,) = {*found.ranges.thread[[name == "load" for name in found.names(found.ranges.name)]].tolist()}
    assert {*calls.thread.tolist()} == {thread}
    assert kind_of_call("block_until_ready") == kind_of_call("CommonPjRtBuffer::Await") == CallKind.WAIT


def test_calls_have_the_operation_of_what_they_launch(tmp_path: Path) -> None:
    found = read(tmp_path / "a.xplane.pb", made.profile(run_id=70))
    alone = read(tmp_path / "b.xplane.pb", made.profile())
    for one in (found, alone):
        assert Counter(one.names(one.operators.name)) == dict.fromkeys(made.OPS, made.STEPS)
    assert {*found.names(found.collectives.communicator)} == {"devices 0,1"}


def test_the_gpu_is_the_one_that_works_by_its_own_name(tmp_path: Path) -> None:
    found = read(tmp_path / "a.xplane.pb", made.profile(run_id=70))
    assert [(gpu.device, gpu.name) for gpu in found.origin.gpus] == [(0, "NVIDIA H100 80GB HBM3")]


def test_programs_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    spoilt = made.profile().replace(made.hlo(), b"\xff" * len(made.hlo()))
    timeline = read(tmp_path / "a.xplane.pb", spoilt)
    (loss,) = timeline.origin.losses
    assert "HLO" in loss.sentence
    assert (len(timeline.operators), len(timeline.collectives)) == (9, 0)


def test_the_columns_of_messages_are_those_of_each_message() -> None:
    messages = [made.message([(1, 300), (2, "text"), (3, 1.5), (1, -7)]), b"", made.message([(4, 1 << 62)])]
    data = b"".join(messages)
    end = np.cumsum([len(one) for one in messages])
    begin = end - [len(one) for one in messages]
    found = columns_of(np.frombuffer(data, np.uint8), begin, end)
    assert found.last(1, 3, 5).tolist() == [-7, 5, 5]
    assert found.last(4, 3).tolist() == [0, 0, 1 << 62]
    assert found.last(3, 3).view(float)[0] == 1.5
    ((row,), (first,), (last,)) = (part.tolist() for part in found.parts(2))
    assert (row, data[first:last]) == (0, b"text")
    for message in (messages[0][:-1], b"\x08", b"\x0a\x7f", b"\x0b", b"\xff" * 11, b"\x00\x00"):
        with pytest.raises(Damage):
            list(fields_of(message, 0, len(message)))
        if message[0]:
            with pytest.raises(Damage):
                columns_of(np.frombuffer(message, np.uint8), np.array([0]), np.array([len(message)]))


def test_a_file_that_is_no_profile_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DamagedInput, match=r"a\.xplane\.pb is damaged, truncated, or not a JAX profile"):
        read(tmp_path / "a.xplane.pb", b"\x0a\x05\x12\x03abc"[:-1])


def test_values_of_operators_are_json(timeline: Timeline) -> None:
    for text in timeline.names(timeline.operators.values):
        assert json.loads(text or "{}").keys() == {"flops", "bytes"}


def operations(timeline: Timeline) -> list[tuple[object, ...]]:
    """Return what the first core does in the first step, relative to its execution."""
    found = []
    for table in (timeline.kernels, timeline.memops):
        rows = np.flatnonzero((table.device == 0) & (table.start < made.STEP_NS))
        columns = (table.start[rows] - 3000, (table.end - table.start)[rows], table.stream[rows])
        texts, kinds = timeline.names(table.name[rows]), table.category[rows].tolist()
        found += list(zip(texts, kinds, *(column.tolist() for column in columns), strict=True))
    return sorted(found, key=lambda one: (one[2:], one[0]))


def test_cores_of_a_tpu_have_their_operations_and_what_is_under_way_beside_them(tmp_path: Path) -> None:
    timeline = read(tmp_path / "rank0.xplane.pb", made.of_tpu(unread=True))
    comp, comm, mem = map(int, (Category.COMP, Category.COMM, Category.MEM))
    assert operations(timeline) == [
        ("fusion.1 [convolution fusion]", comp, 0, 4000, 0),
        ("copy.5", mem, 3000, 5100, 1),
        ("all-reduce-start.2", comm, 4000, 100, 0),
        ("all-reduce.2", comm, 4000, 4000, 2),
        ("fusion.3 [loop fusion]", comp, 4100, 2900, 0),
        ("all-reduce-done.2", comm, 7100, 900, 0),
        ("copy-done.5", mem, 8000, 200, 0),
    ]
    assert {*timeline.kernels.device.tolist()} == {0, 1}
    assert [gpu.name for gpu in timeline.origin.gpus] == ["TPU v5 lite"] * 2
    unread = {loss.detail: loss.count for loss in timeline.origin.losses}
    assert unread == {"/device:TPU:0 SparseCore 0": 1, "Scalar Unit": 2 * made.STEPS}
    rows = analyze_rank(ANALYSES["rank_collectives"], timeline, 0).frame
    assert [*zip(rows["op"], rows["end_ns"] - rows["start_ns"], rows["exposed_ns"], strict=True)] == [
        ("AllReduce", 4000, 1100)
    ] * (2 * made.STEPS)


def test_calls_that_enqueue_programs_launch_their_operations(tmp_path: Path) -> None:
    timeline = read(tmp_path / "rank0.xplane.pb", made.of_tpu())
    calls, kernels = timeline.calls, timeline.kernels
    assert len(calls) == 2 * made.STEPS
    # An execution of all cores has one launch: the earliest of their calls.
    first = calls.correlation[np.argsort(calls.start)][::2].tolist()
    for core in range(2):
        assert [*dict.fromkeys(kernels.correlation[kernels.device == core].tolist())] == first
    assert steps_of(timeline).name == "train#step_num=N#"


def test_a_tpu_without_a_line_of_what_is_under_way_waits_at_the_end_of_collectives(tmp_path: Path) -> None:
    timeline = read(tmp_path / "rank0.xplane.pb", made.of_tpu(asynchronous=False))
    names = {name for name, *_ in operations(timeline) if "reduce" in str(name)}
    assert names == {"all-reduce-start.2", "all-reduce.2"}
    rows = analyze_rank(ANALYSES["rank_collectives"], timeline, 0).frame
    assert {*(rows["end_ns"] - rows["start_ns"])} == {900}


def test_steps_of_a_tpu_are_those_of_its_core_if_no_call_is_recorded(tmp_path: Path) -> None:
    timeline = read(tmp_path / "rank0.xplane.pb", made.of_tpu(enqueued=False, marked=False))
    steps = steps_of(timeline)
    assert (steps.name, steps.ranges.end.tolist()) == ("TPU step#step_num=N#", [12_000, 32_000, 52_000])
    assert not len(timeline.calls)
    assert {*timeline.kernels.correlation.tolist()} == {NO_CORRELATION}
