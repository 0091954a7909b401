"""The cost of a step: memory, operations, bytes, and copies of the inputs and weights."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.common.errors import HpcprofError
from hpcprof.workloads.sequence_parallel.buffers import Buffers, allocate, check_device
from hpcprof.workloads.sequence_parallel.cost_model import (
    Rotation,
    link_bytes,
    memory,
    point_plan,
    rotation,
    step_flops,
)
from hpcprof.workloads.sequence_parallel.parameters import PointParameters

L2 = 50 << 20


def test_a_plan_counts_what_the_formulas_of_the_pattern_say() -> None:
    shape = PointParameters(8192, 8192, dtype="bfloat16")
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
    shape = PointParameters(96, 64, dtype=dtype, direction=direction)
    buffers = allocate(shape, 0, 2, torch.device("cpu"))
    assert (len(buffers.inputs), len(buffers.weights.first)) == (turns.inputs, turns.weights)
    assert sum(memory(shape, 2, turns).values()) == sum(t.nbytes for t in tensors(buffers))


def test_what_does_not_fit_into_a_gpus_free_memory_is_refused_with_the_bytes_of_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=L2))
    shape = PointParameters(8192, 8192, mode="auto", direction="both")
    needed = sum(memory(shape, 4, rotation(shape, 4, L2)).values())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (needed, 139 << 30))
    check_device(shape, 4, gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (needed - 1, 139 << 30))
    with pytest.raises(HpcprofError) as caught:
        check_device(shape, 4, gpu)
    assert str(caught.value) == (
        f"a rank needs {needed / 2**30:.1f} GiB, but cuda:1 has {needed / 2**30:.1f} GiB free: use a smaller "
        "shape, more ranks, or fewer modes (--plan RANKS lists what needs the memory)."
    )


@given(
    st.builds(
        PointParameters,
        sequence_length=st.integers(1, 2000).map(lambda rows: 4 * rows),
        hidden_size=st.integers(1, 3000),
        ffn_multiplier=st.sampled_from([1, 4]).map(lambda times: 4 * times),
        dtype=st.sampled_from(["float32", "bfloat16", "float8"]),
    )
)
def test_twice_the_cache_is_read_before_an_input_or_a_copy_of_the_weights_comes_again(
    shape: PointParameters,
) -> None:
    turns = rotation(shape, 4, L2)
    one = memory(shape, 4, Rotation(1, 1))
    assert turns.inputs >= 2
    assert turns.inputs % turns.weights == 0
    assert turns.inputs * one["inputs"] >= 2 * L2
    assert turns.weights * (one["inputs"] + one["weights"]) >= 2 * L2
    # And no more than necessary.
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
        shape = PointParameters(rows, hidden, ffn_multiplier=times, dtype="bfloat16")
        assert rotation(shape, 4, L2).weights == copies
    # Without a cache one copy is enough.
    assert rotation(PointParameters(512, 256), 4, 0) == Rotation(2, 1)


def tensors(buffers: Buffers) -> list[torch.Tensor]:
    """Return all tensors in the buffers, except the scales of a few bytes."""
    backward = buffers.backward
    more = (
        [] if backward is None else [backward.sources, backward.gathered, backward.inner, *backward.gradients]
    )
    found = [getattr(buffers, field.name) for field in fields(buffers)]
    more += [*buffers.weights.first, *buffers.weights.second]
    return more + [tensor for tensor in found if isinstance(tensor, torch.Tensor)]
