"""Modes of the benchmark: their names, their plans, and the table of several."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.common.errors import HpcprofError, InformationRequested, UsageError
from hpcprof.workloads.schema import SCHEMA_VERSION, Correctness, ModeResult, RankResult
from hpcprof.workloads.sequence_parallel.buffers import Buffers, allocate, check_device
from hpcprof.workloads.sequence_parallel.cost_model import (
    Rotation,
    link_bytes,
    memory,
    point_plan,
    rotation,
    step_flops,
)
from hpcprof.workloads.sequence_parallel.efficiency import mode_figures
from hpcprof.workloads.sequence_parallel.modes import MODES
from hpcprof.workloads.sequence_parallel.modes.copy_engine import (
    candidate_groups,
    matmul_order,
    split_by_peer,
)
from hpcprof.workloads.sequence_parallel.options import parse
from hpcprof.workloads.sequence_parallel.parameters import MODES as NAMES
from hpcprof.workloads.sequence_parallel.parameters import Parameters
from hpcprof.workloads.sequence_parallel.result_table import result_table

RIGHT = Correctness(True, 1e-6, 1e-5, 8, "float64")


def test_the_options_name_every_mode_and_no_other() -> None:
    # The submit side checks the names without loading torch.
    assert tuple(MODES) == NAMES


@pytest.mark.parametrize(
    ("text", "modes"),
    [
        ("serial", ("serial",)),
        ("copy-engine,serial", ("copy-engine", "serial")),
        ("auto", NAMES),
    ],
)
def test_several_modes_can_be_measured_in_one_run(text: str, modes: tuple[str, ...]) -> None:
    assert parse(["--mode", text]).first.modes == modes


@pytest.mark.parametrize("text", ["", "fast", "serial,", "serial,serial", "auto,serial"])
def test_what_names_no_mode_or_one_twice_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--mode"):
        parse(["--mode", text])


@given(st.integers(0, 15), st.integers(1, 20_000))
def test_every_grouping_holds_each_row_once_and_there_are_not_too_many_to_try(peers: int, rows: int) -> None:
    found = candidate_groups(peers, rows)
    assert 1 <= len(set(found)) == len(found) <= 33
    assert all(sum(groups) == peers * rows and 0 not in groups for groups in found)


def test_groups_are_tried_that_end_at_any_tile_of_a_matmul() -> None:
    cuts = {groups[0] for groups in candidate_groups(peers=3, rows=1152) if len(groups) == 2}
    assert cuts == set(range(128, 3 * 1152, 128))


@given(st.integers(1, 7), st.integers(1, 1000), st.data())
def test_a_plan_multiplies_every_row_twice_and_never_before_it_is_there(
    peers: int, rows: int, data: st.DataObject
) -> None:
    groups = st.sampled_from(candidate_groups(peers, rows))
    multiplied: tuple[list[int], list[int]] = ([], [])
    for which, part in matmul_order((data.draw(groups), data.draw(groups))):
        multiplied[which].extend(range(part.start, part.stop))
        assert len(multiplied[1]) <= len(multiplied[0])
    assert multiplied[0] == multiplied[1] == list(range(peers * rows))


@given(st.integers(1, 7), st.integers(1, 40), st.data())
def test_a_part_of_the_rows_is_cut_where_a_peers_end(peers: int, rows: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, peers * rows - 1))
    stop = data.draw(st.integers(start + 1, peers * rows))
    expected = [divmod(row, rows) for row in range(start, stop)]
    found = [
        (peer, row)
        for peer, theirs, _ in split_by_peer(slice(start, stop), rows)
        for row in range(theirs.start, theirs.stop)
    ]
    assert found == expected
    assert [
        r for _, _, here in split_by_peer(slice(start, stop), rows) for r in range(here.start, here.stop)
    ] == list(range(start, stop))


def result(serial_ns: int, other_ns: int, bound_ns: int) -> RankResult:
    modes = {
        name: ModeResult(
            [time] * 3,
            phases,
            [time] * 3,
            RIGHT,
            figures=mode_figures(
                [[time] * 3] * 4,
                Parameters(),
                device="NVIDIA H200",
                backend="nccl",
                bound=bound_ns,
                serial_ns=[serial_ns] * 3,
                marks_pct=0.1,
                marked_ns=[time + 20_000] * 3 if phases else None,
            ),
        )
        for name, time, phases in (
            ("serial", serial_ns, {"allgather": [10] * 3, "matmul_1": [30] * 3}),
            ("copy-engine", other_ns, {}),
        )
    }
    return RankResult(
        schema_version=SCHEMA_VERSION,
        workload="sequence-parallel",
        mode="serial",
        rank=0,
        world_size=4,
        local_rank=0,
        host="h",
        device="NVIDIA H200",
        backend="nccl",
        parameters={},
        versions={},
        profiler="none",
        step_ns=[],
        phase_ns={},
        summary={},
        latency_ns=None,
        correctness=None,
        notes=[],
        modes=modes,
        bound_ns=bound_ns,
    )


def test_the_table_of_several_modes_says_how_near_each_is_to_perfect_overlap() -> None:
    lines = result_table(
        result(4_000_000, 3_400_000, 3_200_000), Parameters(), 1, {"serial": 1e-6, "copy-engine": 2e-6}
    ).splitlines()
    (serial,) = [line.split() for line in lines if line.startswith("serial ")]
    (other,) = [line.split() for line in lines if line.startswith("copy-engine ")]
    # 3.2 / 4.0 and 3.2 / 3.4 of the bound; 0 and 0.6 of the 0.8 ms that can be hidden.
    assert serial[-2:] == ["80.0", "0.0"]
    assert other[-2:] == ["94.1", "75.0"]
    assert "fastest: copy-engine; n = 3 steps of each mode, in turns" in lines
    assert "serial: p50 4.020 ms with marked phases, 4.000 without" in lines
    assert all(len(line) <= 80 for line in lines if line.startswith(("serial ", "copy-engine ", "ms,")))


def test_a_plan_counts_what_the_formulas_of_the_pattern_say() -> None:
    shape = Parameters(8192, 8192, dtype="bfloat16")
    # 4 R h f / N, and (N - 1) / N R h e.
    assert step_flops(shape, 4) == 4 * 8192 * 8192 * 32768 // 4
    assert link_bytes(shape, 4) == dict.fromkeys(("allgather", "reduce_scatter"), 3 * 8192 * 8192 * 2 // 4)
    text = point_plan(shape, 4)
    assert "2.199 TFLOP" in text
    assert "allgather 100.7, reduce_scatter 100.7" in text
    # 2.199 TFLOP at 989 TFLOP/s and 2 x 100.7 MB at 450 GB/s.
    assert [float(x) for x in text.splitlines()[-1].split()[1:]] == [2.223, 0.447, 2.671, 2.223]


@pytest.mark.parametrize(
    ("dtype", "direction"),
    [("float32", "forward"), ("bfloat16", "both"), ("float32", "backward"), ("float8", "forward")],
)
@pytest.mark.parametrize("turns", [Rotation(4, 1), Rotation(6, 3)])
def test_a_plan_counts_the_bytes_that_are_allocated(
    dtype: str, direction: str, turns: Rotation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcprof.workloads.sequence_parallel.buffers.rotation_on", lambda *_: turns)
    monkeypatch.setattr("hpcprof.workloads.sequence_parallel.buffers._check_float8", lambda _: None)
    shape = Parameters(96, 64, dtype=dtype, direction=direction)
    buffers = allocate(shape, 0, 2, torch.device("cpu"))
    assert (len(buffers.inputs), len(buffers.weights.first)) == (turns.inputs, turns.weights)
    assert memory(shape, 2, turns).total == sum(t.nbytes for t in tensors(buffers))


L2 = 50 << 20


def test_what_does_not_fit_into_a_gpus_free_memory_is_refused_with_the_bytes_of_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=L2))
    shape = Parameters(8192, 8192, mode="auto", direction="both")
    needed = memory(shape, 4, rotation(shape, 4, L2)).total
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (needed, 139 << 30))
    check_device(shape, 4, gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (needed - 1, 139 << 30))
    with pytest.raises(HpcprofError) as caught:
        check_device(shape, 4, gpu)
    assert str(caught.value) == (
        f"a rank needs {needed / 2**30:.1f} GiB and cuda:1 has {needed / 2**30:.1f} GiB free: make the shape "
        "smaller, use more ranks, or fewer modes (--plan RANKS prints what needs it)."
    )


@given(
    st.builds(
        Parameters,
        sequence_length=st.integers(1, 2000).map(lambda rows: 4 * rows),
        hidden_size=st.integers(1, 3000),
        ffn_multiplier=st.sampled_from([1, 4]).map(lambda times: 4 * times),
        dtype=st.sampled_from(["float32", "bfloat16", "float8"]),
    )
)
def test_twice_the_cache_is_read_before_an_input_or_a_copy_of_the_weights_comes_again(
    shape: Parameters,
) -> None:
    turns = rotation(shape, 4, L2)
    one = memory(shape, 4, Rotation(1, 1)).parts
    assert turns.inputs >= 2
    assert turns.inputs % turns.weights == 0
    assert turns.inputs * one["inputs"] >= 2 * L2
    assert turns.weights * (one["inputs"] + one["weights"]) >= 2 * L2
    # And no more than is needed.
    assert turns.weights == 1 or (turns.weights - 1) * (one["inputs"] + one["weights"]) < 2 * L2
    assert turns.inputs < max(2, 2 * L2 / one["inputs"] + 1) + turns.weights


def test_large_weights_stay_the_same_and_small_ones_rotate_by_the_cache() -> None:
    # MiB of a rank's weights and of an input: 256 and 32, 81 and 20, 64 and 16, 20 and 4.5, 0.25 and 0.0625.
    shapes = {
        (8192, 8192, 4): 1,
        (4608, 9216, 1): 1,
        (8192, 4096, 4): 2,
        (4096, 2304, 4): 5,
        (512, 256, 4): 320,
    }
    for (rows, hidden, times), copies in shapes.items():
        shape = Parameters(rows, hidden, ffn_multiplier=times, dtype="bfloat16")
        assert rotation(shape, 4, L2).weights == copies
    # Without a cache one copy is enough.
    assert rotation(Parameters(512, 256), 4, 0) == Rotation(2, 1)


def tensors(buffers: Buffers) -> list[torch.Tensor]:
    """Return every tensor in the buffers, but for the scales of a few bytes."""
    backward = buffers.backward
    more = (
        [] if backward is None else [backward.sources, backward.gathered, backward.inner, *backward.gradients]
    )
    found = [getattr(buffers, field.name) for field in fields(buffers)]
    more += [*buffers.weights.first, *buffers.weights.second]
    return more + [tensor for tensor in found if isinstance(tensor, torch.Tensor)]


def test_a_model_gives_the_shape_and_a_plan_is_asked_for_instead_of_a_run() -> None:
    shape = parse(["--model", "llama3-70b"]).first
    assert (shape.hidden_size, shape.inner_size) == (8192, 28672)
    with pytest.raises(InformationRequested, match="h = 12288, f = 49152, N = 8 ranks"):
        parse(["--model", "gpt3-175b", "--plan", "8"])
    with pytest.raises(InformationRequested) as asked:
        parse(["--plan", "2", "--sweep", "hidden-size=32,64"])
    told = asked.value.text
    assert [told.count(text) for text in ("at hidden-size=32:", "h = 64, f = 256", "memory of a rank")] == [
        1,
        1,
        2,
    ]
    with pytest.raises(UsageError, match=r"--ffn-size 14336 is not divisible by 3 ranks: use 14334 or 14337"):
        parse(["-s", "300", "--model", "llama3-8b", "--plan", "3"])
