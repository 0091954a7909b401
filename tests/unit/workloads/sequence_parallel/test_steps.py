"""A step goes through autograd and yields the gradients that autograd computes itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from hpcprof.workloads.sequence_parallel import buffers as memory
from hpcprof.workloads.sequence_parallel.buffers import Buffers, allocate
from hpcprof.workloads.sequence_parallel.cost_model import Rotation, phases
from hpcprof.workloads.sequence_parallel.modes import Mode, chunked, serial
from hpcprof.workloads.sequence_parallel.modes.chunked import Chunked
from hpcprof.workloads.sequence_parallel.modes.serial import Serial
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.sequence_parallel.steps import GraphedStep, Outputs, Step
from hpcprof.workloads.timing import HostClock, Timer, UntimedPhases


def copy(output: torch.Tensor, source: torch.Tensor, async_op: bool = False) -> SimpleNamespace:
    """Stand in for a collective of a single rank."""
    output.copy_(source)
    return SimpleNamespace(wait=lambda: None)


def made(
    monkeypatch: pytest.MonkeyPatch, mode: type[Mode], parameters: PointParameters
) -> tuple[Step, Buffers]:
    monkeypatch.setattr(serial, "all_gather", copy)
    monkeypatch.setattr(chunked, "all_gather", copy)
    buffers = allocate(parameters, 0, 1, torch.device("cpu"))
    world = SimpleNamespace(reduce_scatter=copy)
    return Step(parameters, buffers, mode(parameters, world, buffers)), buffers  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [Serial, Chunked])
@pytest.mark.parametrize("direction", ["backward", "both"])
@pytest.mark.parametrize("keep_gathered", [False, True])
@pytest.mark.parametrize("copies", [1, 2])
def test_the_gradients_are_those_of_autograd(
    mode: type[Mode], direction: str, keep_gathered: bool, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "rotation_on", lambda *_: Rotation(4, copies))
    parameters = PointParameters(24, 16, direction=direction, keep_gathered=keep_gathered, chunks=3)
    with torch.no_grad():
        step, buffers = made(monkeypatch, mode, parameters)
        assert buffers.backward is not None
        for index in range(5):
            step.poison()
            outputs = step(index, UntimedPhases())
            # Without the forward, the gradients belong to the forward of the first input.
            forward = index if direction == "both" else 0
            weights = buffers.weights.first[index % copies], buffers.weights.second[index % copies]
            leaves = [tensor.double().requires_grad_() for tensor in (buffers.input(forward), *weights)]
            gradient = buffers.backward.source(index).double()
            with torch.enable_grad():
                product = leaves[0] @ leaves[1] @ leaves[2]
            expected = list(torch.autograd.grad(product, leaves, gradient))
            # The gradient of the second weight uses the rows between the matmuls, from the forward.
            inner = leaves[0] @ buffers.weights.first[forward % copies].double()
            expected[2] = inner.t() @ gradient
            assert outputs.gradients is not None
            for found, right in zip(outputs.gradients, expected, strict=True):
                torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)
            if direction == "both":
                assert outputs.output is not None
                torch.testing.assert_close(outputs.output.double(), product, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_the_serial_mode_times_every_phase_of_its_direction_once_a_step(
    direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = PointParameters(24, 16, direction=direction)
    with torch.no_grad():
        step, _ = made(monkeypatch, Serial, parameters)
        timer = Timer(HostClock(), step.phases)
        for index in range(2):
            with timer.step():
                step(index, timer)
    times = timer.read()
    assert tuple(times.phase_ns) == phases(parameters)
    assert all(len(found) == 2 for found in times.phase_ns.values())
    for index, whole in enumerate(times.step_ns):
        # A phase lasts until the next begins, and the first begins with the step.
        assert sum(found[index] for found in times.phase_ns.values()) == whole


def test_a_gradient_that_the_peers_do_not_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        step, buffers = made(monkeypatch, Serial, PointParameters(24, 16, direction="backward"))
        assert buffers.backward is not None
        step(0, UntimedPhases())
        with pytest.raises(RuntimeError, match="not in the memory that the peers read"):
            torch.autograd.grad(step._output, step._leaves(0), buffers.backward.source(0).clone())


@pytest.mark.parametrize("direction", ["forward", "both"])
def test_a_step_without_autograd_takes_the_same_copy_of_the_weights(
    direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "rotation_on", lambda *_: Rotation(4, 2))
    with torch.no_grad():
        step, _ = made(monkeypatch, Serial, PointParameters(24, 16, direction=direction))
        for index in (3, 0, 5):
            plain = [tensor.clone() for tensor in step.run_untimed(index).tensors()]
            step.poison()
            # A step with another copy would give other results.
            for found, right in zip(step(index, UntimedPhases()).tensors(), plain, strict=True):
                assert torch.equal(found, right)
        assert not torch.equal(step.run_untimed(4).tensors()[0], plain[0])


def test_there_is_a_graph_for_every_input_and_a_step_replays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[tuple[str, int]] = []
    captured: list[int] = []

    class Graph:
        def replay(self) -> None:
            happened.append(("replay", captured[graphs.index(self)]))

    graphs: list[Graph] = []

    @contextmanager
    def capturing(graph: Graph, capture_error_mode: str) -> Iterator[None]:
        graphs.append(graph)
        yield
        captured.append(happened[-1][1])

    def run_untimed(index: int) -> Outputs:
        happened.append(("run", index))
        return Outputs(torch.tensor(index), None)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    step = SimpleNamespace(run_untimed=run_untimed, poison=lambda: None)
    graphed = GraphedStep(step, 3)  # type: ignore[arg-type]
    # Each runs once to allocate what is created on first use, then once into a graph.
    assert happened == [("run", 0), ("run", 1), ("run", 2)] * 2
    for index in (0, 4, 8):
        output = graphed(index, UntimedPhases()).output
        assert output is not None
        assert happened[-1] == ("replay", index % 3) == ("replay", int(output))
