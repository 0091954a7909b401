"""A measured step of a mode: forward, backward or both, eagerly or as a CUDA graph."""

from dataclasses import dataclass
from typing import Any

import torch

from hpcprof.workloads.sequence_parallel.buffers import Buffers, Gradients
from hpcprof.workloads.sequence_parallel.modes import Mode
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.timing import PhaseTimer, UntimedPhases


@dataclass
class Call:
    """The arguments of one step; they change from step to step, even if the autograd graph is kept."""

    mode: Mode
    index: int
    timer: PhaseTimer
    gradient: torch.Tensor | None = None


class Block(torch.autograd.Function):
    """``Block.apply(source, weight_1, weight_2, call)``: the block over all ranks, and its gradients.

    ``source`` and the weights belong to the buffers of the mode. The buffers also keep what the backward
    needs, so only one forward can be pending. The incoming gradient must be ``call.gradient``, which is
    `BackwardBuffers.source` of ``call.index``, because the peers may read it from there.
    """

    @staticmethod
    def forward(
        ctx: Any, source: torch.Tensor, weight_1: torch.Tensor, weight_2: torch.Tensor, call: Call
    ) -> torch.Tensor:
        """Run the mode forward; return the output, [R/N, h]."""
        ctx.call = call
        # Return another tensor on the same memory, since autograd stores its history in the returned tensor.
        return call.mode.forward(call.index, call.timer).detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Run the mode backward; return the gradients of input and weights."""
        call: Call = ctx.call
        if call.gradient is None or gradient.data_ptr() != call.gradient.data_ptr():
            raise RuntimeError("the gradient is not in the memory that the peers read")
        gradients = call.mode.backward(call.index, call.timer)
        return (*(tensor.detach() for tensor in gradients), None)


@dataclass(frozen=True)
class Outputs:
    """The results of a step: its output [R/N, h], its gradients, or both."""

    output: torch.Tensor | None
    gradients: Gradients | None

    def tensors(self) -> list[torch.Tensor]:
        """Return all result tensors."""
        output = [] if self.output is None else [self.output]
        return output + list(self.gradients or ())


class Step:
    """Runs a mode forward, backward or both; the backward goes through autograd, as in training."""

    def __init__(self, parameters: PointParameters, buffers: Buffers, mode: Mode) -> None:
        self.mode = mode
        self.phases = mode.phases
        self._buffers = buffers
        self._forward, self._backward = parameters.forward, parameters.backward
        if self._backward:
            weights = zip(buffers.weights.first, buffers.weights.second, strict=True)
            copies = [[tensor.detach().requires_grad_() for tensor in copy] for copy in weights]
            self._inputs = [
                [tensor.detach().requires_grad_(), *copies[index % len(copies)]]
                for index, tensor in enumerate(buffers.inputs)
            ]
            self._call = Call(mode, 0, UntimedPhases())
            if not self._forward:
                # One forward; every step computes its gradients.
                buffers.weights.use(0)
                self._output = self._apply(0)

    def __call__(self, index: int, timer: PhaseTimer) -> Outputs:
        """Run step ``index``; with CUDA this only enqueues work."""
        self._buffers.weights.use(index)
        if not self._backward:
            return Outputs(self.mode.forward(index, timer), None)
        self._call.index, self._call.timer = index, timer
        output = self._apply(index) if self._forward else self._output
        assert self._buffers.backward is not None
        self._call.gradient = self._buffers.backward.source(index)
        # Stay in this thread: threads of the autograd engine would mark phases where no profiler looks.
        with torch.autograd.set_multithreading_enabled(False):
            grad = torch.autograd.grad(
                output,
                self._leaves(index if self._forward else 0),
                self._call.gradient,
                retain_graph=not self._forward,
            )
        return Outputs(output.detach() if self._forward else None, Gradients(*grad))

    def run_untimed(self, index: int) -> Outputs:
        """Run the same work in the same order without autograd and without times."""
        self._buffers.weights.use(index)
        output = self.mode.forward(index, UntimedPhases()) if self._forward else None
        return Outputs(output, self.mode.backward(index, UntimedPhases()) if self._backward else None)

    def poison(self) -> None:
        """Fill everything that a step writes with NaN."""
        if self._forward:
            self.mode.poison()
        if self._backward:
            self.mode.poison_backward()

    def _apply(self, index: int) -> torch.Tensor:
        with torch.enable_grad():
            output: torch.Tensor = Block.apply(*self._leaves(index), self._call)  # type: ignore[no-untyped-call]
        return output

    def _leaves(self, index: int) -> list[torch.Tensor]:
        return self._inputs[index % len(self._inputs)]


class GraphedStep:
    """Replays a step, without phases, from a CUDA graph for each rotating input and its weights."""

    phases: tuple[str, ...] = ()

    def __init__(self, step: Step, inputs: int) -> None:
        self.poison = step.poison
        self._graphs = []
        # Everything that is allocated on first use must exist before a capture.
        for index in range(inputs):
            step.run_untimed(index)
        torch.cuda.synchronize()
        for index in range(inputs):
            graph = torch.cuda.CUDAGraph()
            # Other threads of the process may call CUDA meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outputs = step.run_untimed(index)
            self._graphs.append((graph, outputs))

    def __call__(self, index: int, timer: PhaseTimer) -> Outputs:
        """Replay the graph of step ``index``."""
        graph, outputs = self._graphs[index % len(self._graphs)]
        graph.replay()
        return outputs
