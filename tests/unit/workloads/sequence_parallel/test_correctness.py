"""The check passes for correct results and fails for every wrong one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from mpi4py import MPI

from hpcprof.workloads.schema import Correctness
from hpcprof.workloads.sequence_parallel import buffers as memory
from hpcprof.workloads.sequence_parallel import correctness
from hpcprof.workloads.sequence_parallel.benchmark import _check
from hpcprof.workloads.sequence_parallel.buffers import Buffers, allocate
from hpcprof.workloads.sequence_parallel.cost_model import Rotation
from hpcprof.workloads.sequence_parallel.modes import Mode, serial
from hpcprof.workloads.sequence_parallel.modes.serial import Serial
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.sequence_parallel.steps import Outputs, Step
from hpcprof.workloads.timing import HostClock, Timer

CPU = torch.device("cpu")
SHAPE = PointParameters(sequence_length=96, hidden_size=64)


def copy(output: torch.Tensor, source: torch.Tensor) -> None:
    """Stand in for a collective of a single rank."""
    output.copy_(source)


def checked(
    monkeypatch: pytest.MonkeyPatch, parameters: PointParameters, damage: Callable[[Buffers], None]
) -> Correctness:
    monkeypatch.setattr(serial, "all_gather", copy)
    buffers = allocate(parameters, 0, 1, CPU)
    mode: Mode = Serial(parameters, SimpleNamespace(reduce_scatter=copy), buffers)  # type: ignore[arg-type]
    mode.poison()
    output = mode.forward(1, Timer(HostClock(), mode.phases))
    damage(buffers)
    outputs = Outputs(output, None)
    return correctness.check(parameters, buffers, outputs, MPI.COMM_SELF, 1, 1)


def nothing(_: Buffers) -> None:
    pass


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_right_step_passes(dtype: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    result = checked(monkeypatch, PointParameters(96, 64, dtype=dtype, seed=seed), nothing)
    assert result.passed
    assert 0 < result.relative_error < result.bound
    assert result.rows == 64


def test_a_float32_step_that_rounds_to_bfloat16_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(buffers: Buffers) -> None:
        buffers.output.copy_(buffers.output.bfloat16())

    assert not checked(monkeypatch, SHAPE, rounded).passed


@pytest.mark.parametrize("index", [1, 2])
def test_a_wrong_matmul_fails(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.mm
    calls = 0

    def wrong(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        nonlocal calls
        calls += 1
        right(a, b, out=out)
        if calls == index:
            out.mul_(1.001)

    monkeypatch.setattr(torch, "mm", wrong)
    result = checked(monkeypatch, SHAPE, nothing)
    assert not result.passed
    assert result.relative_error == pytest.approx(1e-3, rel=0.01)


def test_a_matmul_that_does_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "mm", lambda a, b, out: None)
    result = checked(monkeypatch, SHAPE, nothing)
    assert not result.passed
    assert result.relative_error != result.relative_error


def test_two_rows_that_changed_places_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(buffers: Buffers) -> None:
        buffers.output.copy_(buffers.output.roll(1, dims=0))

    assert not checked(monkeypatch, SHAPE, swapped).passed


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_value_that_is_not_finite_fails_even_outside_the_sampled_rows(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = set(correctness.sample_rows(96, 1, 0).tolist())
    row = next(row for row in range(96) if row not in sampled)

    def spoil(buffers: Buffers) -> None:
        buffers.output[row, 3] = value

    assert not checked(monkeypatch, SHAPE, spoil).passed


def test_values_stay_near_one_after_each_matmul(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(buffers: Buffers) -> None:
        for tensor in (buffers.inputs, buffers.inner, buffers.output):
            assert tensor.std().item() == pytest.approx(1, abs=0.1)

    checked(monkeypatch, SHAPE, look)


def test_a_step_leaves_its_input_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(buffers: Buffers) -> None:
        assert torch.equal(buffers.inputs, allocate(SHAPE, 0, 1, CPU).inputs)

    checked(monkeypatch, SHAPE, look)


def test_inputs_rotate_and_differ() -> None:
    buffers = allocate(SHAPE, 0, 1, CPU)
    assert buffers.input(0).data_ptr() == buffers.input(len(buffers.inputs)).data_ptr()
    assert not torch.equal(buffers.input(0), buffers.input(1))


def test_every_copy_of_the_weights_that_was_used_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "rotation_on", lambda *_: Rotation(4, 2))
    monkeypatch.setattr(serial, "all_gather", copy)
    buffers = allocate(SHAPE, 0, 1, CPU)
    assert not torch.equal(buffers.weights.first[0], buffers.weights.first[1])
    world = SimpleNamespace(reduce_scatter=copy, comm=MPI.COMM_SELF, device=CPU)
    step = Step(SHAPE, buffers, Serial(SHAPE, world, buffers))  # type: ignore[arg-type]
    right, product = _check(SHAPE, world, buffers, step, 9)[0], torch.mm  # type: ignore[arg-type]
    assert right.passed

    def wrong(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        product(a, b, out=out)
        if b is buffers.weights.second[1]:
            out.mul_(1.001)

    monkeypatch.setattr(torch, "mm", wrong)
    for rounds, passed in ((1, True), (2, False), (9, False)):
        check, peak = _check(SHAPE, world, buffers, step, rounds)  # type: ignore[arg-type]
        assert (check.passed, peak) == (passed, None)


def test_the_worst_of_several_checks_is_the_one_that_is_no_number() -> None:
    checks = [Correctness(error < 1e-5, error, 1e-5, 8, "r") for error in (1e-7, 1e-3, float("nan"), 1e-6)]
    assert correctness.worst(checks[:2]) is checks[1]
    assert correctness.worst(checks) is checks[2]


def test_every_rank_draws_its_own_part() -> None:
    first, second = (allocate(SHAPE, rank, 2, CPU) for rank in range(2))
    assert not torch.equal(first.weight_1, second.weight_1)
    assert not torch.equal(first.inputs, second.inputs)


def test_the_sentence_names_the_first_rank_that_fails() -> None:
    right = Correctness(True, 1e-7, 1e-5, 8, "r")
    wrong = Correctness(False, 2e-3, 1e-5, 8, "r")
    assert correctness.error_message([right, right]) is None
    assert correctness.error_message([right, wrong, wrong]) == (
        "rank 1: the results are wrong: relative error 2.00e-03 is not below 1e-05 (2 of 3 ranks fail)."
    )
    broken = Correctness(False, float("nan"), 1e-5, 8, "r")
    assert correctness.error_message([broken]) == (
        "rank 0: the results are wrong: the output contains NaN or infinity."
    )
