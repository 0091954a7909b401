"""A training program of many ranks in data, tensor and pipeline groups, simulated with its exact times.

Each step runs two microbatches forward and backward through the stages of a pipeline. Tensor groups reduce
after each microbatch, data groups once per step, and stages send each other activations and gradients. A
collective ends for all when the last rank has come and the data is through, a message when both ends have.
The times are the same for the same program on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

KERNELS_A_STEP = 100
_TRANSFER_NS = {"tensor": 200_000.0, "data": 2_000_000.0, "Send": 100_000.0}
_SHARES = {"forward": 0.3, "backward": 0.55, "optimizer": 0.15}
"""Shares of a step's phases in the time and the kernels of compute."""
_HOST_NS, _BETWEEN_STEPS_NS = 30_000.0, 40_000.0
_END_JITTER_NS = 1_500.0
_CLOCK_BEGIN_NS = 60e9


class Operation(NamedTuple):
    """One action of a stage in a step: a stretch of compute, a collective, or one end of a message.

    ``kind`` is compute, tensor, data, Send or Recv; ``peer`` is the other stage of a message.
    """

    kind: str
    phase: str
    kernels: int
    peer: int = -1


@dataclass(frozen=True)
class Program:
    """The program to simulate.

    Attributes
    ----------
    ranks, kernels : int
        All ranks, and the kernels of each, a hundred a step.
    tensor, pipeline : int
        The sizes of these groups; data groups have ``ranks / (tensor * pipeline)``.
    step_ms : float
        The compute of a step on a rank that is not late.
    noise : float
        The most that a stretch of compute differs from the usual, as a share of it.
    slow, stalled : mapping of int to float
        Ranks whose GPU, or whose host at the begin of the step, takes so many ms more in each step.
    missing : frozenset of int
        Ranks without a profile.
    dropped : mapping of int to float
        The share of the kernels that the profiles of these ranks lost.
    offset_s, drift_ppm : float
        The most that clocks are ahead or behind, and that they run fast or slow.
    seed : int
    """

    ranks: int
    kernels: int
    tensor: int = 1
    pipeline: int = 1
    step_ms: float = 50.0
    noise: float = 0.003
    slow: Mapping[int, float] = field(default_factory=dict)
    stalled: Mapping[int, float] = field(default_factory=dict)
    missing: frozenset[int] = frozenset()
    dropped: Mapping[int, float] = field(default_factory=dict)
    offset_s: float = 10.0
    drift_ppm: float = 50.0
    seed: int = 1

    @property
    def data(self) -> int:
        """The size of the data groups."""
        return self.ranks // (self.tensor * self.pipeline)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return max(1, self.kernels // KERNELS_A_STEP)

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return the stage of a rank, its place in its data group, and that in its tensor group."""
        rest, tensor = divmod(rank, self.tensor)
        return rest // self.data, rest % self.data, tensor

    def operations(self, stage: int) -> list[Operation]:
        """Return what a stage does in a step, in order."""
        batches = 2 if self.pipeline > 1 else 1
        before, after = stage - 1, stage + 1 if stage + 1 < self.pipeline else -1
        found = []
        for phase, source, target in (("forward", before, after), ("backward", after, before)):
            for _ in range(batches):
                found += [Operation("Recv", phase, 1, source)] * (source >= 0)
                found.append(Operation("compute", phase, 0))
                found += [Operation("tensor", phase, 1)] * (self.tensor > 1)
                found += [Operation("Send", phase, 1, target)] * (target >= 0)
        found += [Operation("data", "backward", 1)] * (self.data > 1)
        found.append(Operation("compute", "optimizer", 0))
        return _with_kernels(found, batches)

    def clocks(self) -> tuple[Floats, Floats]:
        """Return by how many ns the clock of each rank is ahead at moment 0, and how fast it runs."""
        draw = np.random.Generator(np.random.PCG64(self.seed)).random((2, self.ranks)) * 2 - 1
        return _CLOCK_BEGIN_NS + np.rint(draw[0] * self.offset_s * 1e9), 1 + draw[1] * self.drift_ppm * 1e-6


def _with_kernels(operations: list[Operation], batches: int) -> list[Operation]:
    """Give the stretches of compute the kernels of the step that the others leave."""
    left = KERNELS_A_STEP - sum(one.kernels for one in operations)
    counts = {phase: int(left * share) // batches for phase, share in _SHARES.items()}
    counts["optimizer"] = left - batches * (counts["forward"] + counts["backward"])
    return [one._replace(kernels=counts[one.phase]) if one.kind == "compute" else one for one in operations]


@dataclass(frozen=True)
class Times:
    """Times at which the ranks of one stage do what they do, in ns of the true time.

    Attributes
    ----------
    step : ndarray of float64, shape (steps, data, tensor)
        When the steps begin.
    begin, end : ndarray of float64, shape (steps, operations, data, tensor)
    """

    step: Floats
    begin: Floats
    end: Floats


class Simulation:
    """Runs a program; ``times`` has those of each stage."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.shape = (program.data, program.tensor)
        self.operations = [program.operations(stage) for stage in range(program.pipeline)]
        self._draw = np.random.Generator(np.random.PCG64([program.seed, 1]))
        self._slow, self._stalled = (self._by_stage(extra) for extra in (program.slow, program.stalled))
        self._now = [np.zeros(self.shape) for _ in self.operations]
        self.times = [
            Times(np.zeros((program.steps, *self.shape)), *np.zeros((2, program.steps, len(o), *self.shape)))
            for o in self.operations
        ]
        for step in range(program.steps):
            self._run_step(step)

    def _by_stage(self, extra: Mapping[int, float]) -> Floats:
        found = np.zeros((self.program.pipeline, *self.shape))
        for rank, ms in extra.items():
            found[self.program.place(rank)] = ms * 1e6
        return found

    def _run_step(self, step: int) -> None:
        """Let each stage go on until it waits for another one, over and over."""
        at = [0] * len(self.operations)
        for stage, now in enumerate(self._now):
            self.times[stage].step[step] = now
            self._now[stage] = now + _HOST_NS + self._stalled[stage]
        while any(place < len(all_of) for place, all_of in zip(at, self.operations, strict=True)):
            for stage, all_of in enumerate(self.operations):
                while at[stage] < len(all_of):
                    one = all_of[at[stage]]
                    if one.peer < 0:
                        self._run(stage, step, at[stage], one)
                    elif one.kind == "Recv" and self._is_sending(one.peer, at, stage):
                        self._message(step, (one.peer, at[one.peer]), (stage, at[stage]))
                        at[one.peer] += 1
                    else:
                        break
                    at[stage] += 1
        self._now = [now + _BETWEEN_STEPS_NS for now in self._now]

    def _is_sending(self, stage: int, at: list[int], receiver: int) -> bool:
        """Return whether a stage has come to a send to the receiver."""
        of_stage = self.operations[stage]
        return at[stage] < len(of_stage) and of_stage[at[stage]][::3] == ("Send", receiver)

    def _run(self, stage: int, step: int, place: int, one: Operation) -> None:
        now = self._now[stage]
        if one.kind == "compute":
            of_phase = sum(o[:2] == ("compute", one.phase) for o in self.operations[stage])
            share = _SHARES[one.phase] / of_phase
            noise = self._draw.random((2, *self.shape)).sum(axis=0) - 1
            usual = share * self.program.step_ms * 1e6
            end = now + usual * (1 + self.program.noise * noise) + share * self._slow[stage]
        else:
            last = now.max(axis=1 if one.kind == "tensor" else 0, keepdims=True)
            end = last + _TRANSFER_NS[one.kind] + self._jitter()
        self._record(stage, step, place, end)

    def _message(self, step: int, sent: tuple[int, int], received: tuple[int, int]) -> None:
        end = np.maximum(self._now[sent[0]], self._now[received[0]]) + _TRANSFER_NS["Send"]
        self._record(sent[0], step, sent[1], end)
        self._record(received[0], step, received[1], end + self._jitter())

    def _jitter(self) -> Floats:
        return -np.log1p(-self._draw.random(self.shape)) * _END_JITTER_NS

    def _record(self, stage: int, step: int, place: int, end: Floats) -> None:
        self.times[stage].begin[step, place] = self._now[stage]
        self.times[stage].end[step, place] = end
        self._now[stage] = end
