"""Generated programs with exact truth: ``python benchmarks/programs.py [SEEDS] [NAME…]``.

Each program is simulated twice, with a planted cause and without it, by the simulator of the tests of
`explain`. The difference of the elapsed times per step, from the begin of the first to that of the last, is
what the cause costs, exactly. Prints for each kind of program, number of ranks and seed this cost, what the
first finding says it saves with its interval (``!``: the cost lies outside), and the first finding with its
alternatives. The last lines count the programs whose first finding is right, those where it is among the
alternatives, and the intervals that contain the cost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from hpcprof.analysis.explain.explain import explain_run  # noqa: E402
from hpcprof.analysis.explain.explanation import Cause, Finding  # noqa: E402
from hpcprof.analysis.explain.inputs import ExplainInputs  # noqa: E402
from tests.unit.analysis.explain.programs import (  # noqa: E402
    MS,
    US,
    Host,
    Instruction,
    Launch,
    Memory,
    Once,
    Place,
    StreamWait,
    Wait,
    inputs_of,
    simulate,
)

STEPS = 20
RANKS = (1, 2, 4, 8)
HEAD = f"{'program':26} ranks seed  cost ms  says ms      interval ms     first finding"


@dataclass(frozen=True)
class Truth:
    """The finding that an explanation should have first.

    Attributes
    ----------
    cause : Cause or None
        None: nothing.
    where : str
        A part of the place that it names.
    ranks : tuple of int or None
        None: all of them.
    kind : int or None
        The kind of steps that it names, if that matters.
    """

    cause: Cause | None
    where: str = ""
    ranks: tuple[int, ...] | None = None
    kind: int | None = None

    def fits(self, finding: Finding, every: tuple[int, ...]) -> bool:
        """Return whether a finding says this; ``every`` are the profiled ranks."""
        same = finding.cause is self.cause and self.where in finding.where
        same &= self.kind is None or finding.kind == self.kind
        return same and finding.ranks == (every if self.ranks is None else self.ranks)


RankPrograms = list[list[Instruction]]


@dataclass(frozen=True, eq=False)
class Program:
    """The instructions of each rank with and without a cause, and what should be said about them.

    ``profiled`` is the number of ranks that have a profile, None for all of them.
    """

    planted: RankPrograms
    clean: RankPrograms
    truth: Truth
    profiled: int | None = None

    def inputs(self) -> ExplainInputs:
        """Return what an explanation is computed from."""
        timelines = simulate(self.planted, STEPS)
        profiled = len(timelines) if self.profiled is None else self.profiled
        found = inputs_of({rank: timelines[rank] for rank in range(profiled)})
        return replace(found, world_size=len(timelines))

    def cost_ns(self) -> float:
        """Return what a step gains without the cause."""
        return elapsed_ns(self.planted) - elapsed_ns(self.clean)


def elapsed_ns(ranks: RankPrograms) -> float:
    """Return the time per step from the begin of the first one on the GPUs to that of the last one."""
    moments = []
    for timeline in simulate(ranks, STEPS).values():
        kernels = timeline.kernels
        launched = timeline.calls.start[np.searchsorted(timeline.calls.correlation, kernels.correlation)]
        steps = timeline.ranges.start[timeline.strings[timeline.ranges.name] == "iteration"]
        moments.append([kernels.start[launched >= steps[number]].min() for number in (0, STEPS - 1)])
    first, last = np.max(moments, axis=0).tolist()
    return float(last - first) / (STEPS - 1)


@dataclass(frozen=True)
class Step:
    """A step of training; every part is drawn anew for each rank and step.

    Attributes
    ----------
    layers : int
        The number of kernels of the forward pass, and of the backward pass.
    kernel_ns : int or tuple of int
        The time of a kernel, or of each.
    between_ns : int
        What the host does between two calls.
    data, forward, backward, layer, log : tuple
        More instructions in the ranges of these names; of ``layer``, after each kernel of the forward pass.
    slower : float
        By so much the kernels are slower.
    """

    layers: int = 10
    kernel_ns: int | tuple[int, ...] = MS
    between_ns: int = 50 * US
    data: tuple[Instruction, ...] = ()
    forward: tuple[Instruction, ...] = ()
    backward: tuple[Instruction, ...] = ()
    layer: tuple[Instruction, ...] = ()
    log: tuple[Instruction, ...] = ()
    slower: float = 1.0


class Loop:
    """Draws the steps of a program; the noise is the same with and without a cause."""

    def __init__(self, seed: int, ranks: int) -> None:
        self.seed, self.ranks = seed, ranks
        self.drawn = np.random.default_rng(seed)

    def programs(self, of: Callable[[int, int], Step]) -> RankPrograms:
        """Return the instructions of each rank; ``of`` returns the step of a rank and a number."""
        found: RankPrograms = []
        for rank in range(self.ranks):
            noise = np.random.default_rng((self.seed, rank))
            found.append([Once(step, self._step(of(rank, step), noise)) for step in range(STEPS)])
        return found

    def _step(self, one: Step, noise: np.random.Generator) -> tuple[Instruction, ...]:
        times = [one.kernel_ns] * one.layers if isinstance(one.kernel_ns, int) else list(one.kernel_ns)
        # Drawn in the same number whatever is planted.
        jitter = noise.normal(1, 0.01, 2 * len(times)) * one.slower
        between = noise.lognormal(0, 0.1, 2 * len(times))

        def passed(first: int, name: str, inside: Sequence[Instruction]) -> list[Instruction]:
            parts: list[Instruction] = []
            for i, time in enumerate(times, first):
                kernel = Launch(round(time * jitter[i]), name=name)
                parts += [Host(round(one.between_ns * between[i])), kernel, *inside]
            return parts

        forward = [*passed(0, "gemm_forward", one.layer), *one.forward]
        backward = passed(len(times), "gemm_backward", ())
        half = len(backward) // 2
        reduction = (StreamWait(17, 7), Launch(2 * MS, 17, collective=True))
        reductions = reduction if self.ranks > 1 else ()
        joined = (StreamWait(7, 17),) if self.ranks > 1 else ()
        return (
            Place("data", (Host(100 * US), *one.data)),
            Place("forward", tuple(forward)),
            Place("backward", (*backward[:half], *reductions, *backward[half:], *one.backward, *joined)),
            Place("optimizer", (Launch(MS, name="adamw"),)),
            *((Place("log", one.log),) if one.log else ()),
        )


def clean(loop: Loop) -> Program:
    """Nothing is planted: kernels vary by 1 %, the host by 10 %."""
    same = loop.programs(lambda rank, step: Step())
    return Program(same, same, Truth(None))


def python_everywhere(loop: Loop) -> Program:
    """The host takes long between all calls, more than the GPU for most kernels."""
    kernels = tuple(loop.drawn.integers(10 * US, 300 * US, 40).tolist())
    between = int(loop.drawn.integers(180, 300)) * US
    return Program(
        loop.programs(lambda rank, step: Step(kernel_ns=kernels, between_ns=between)),
        loop.programs(lambda rank, step: Step(kernel_ns=kernels, between_ns=US)),
        Truth(Cause.HOST_BOUND, "backward, forward"),
    )


def python_in_forward(loop: Loop) -> Program:
    """The host takes long between the calls of the forward pass."""
    extra = [
        part
        for time in loop.drawn.integers(20 * US, 60 * US, 60).tolist()
        for part in (Host(500 * US), Launch(int(time), name="norm"))
    ]
    quick = [part for part in extra if isinstance(part, Launch)]
    drained = (Wait(),)
    return Program(
        loop.programs(lambda rank, step: Step(forward=tuple(extra), log=drained)),
        loop.programs(lambda rank, step: Step(forward=tuple(quick), log=drained)),
        Truth(Cause.HOST_BOUND, "forward"),
    )


def absent_rank(loop: Loop) -> Program:
    """The loader of the last rank is late, and only the first half of the ranks is profiled."""
    last = loop.ranks - 1
    late = (Host(int(loop.drawn.integers(25, 45)) * MS),)
    return Program(
        loop.programs(lambda rank, step: Step(data=late if rank == last else ())),
        loop.programs(lambda rank, step: Step()),
        Truth(Cause.CAPTURE_INCOMPLETE if loop.ranks > 1 else Cause.HOST_WORK),
        profiled=max(1, loop.ranks // 2),
    )


def allocation_on_one_rank(loop: Loop) -> Program:
    """One rank allocates memory for long in ``data``; the host waits for the GPU at the end of each step."""
    one = int(loop.drawn.integers(loop.ranks))
    long, drained = (Memory(int(loop.drawn.integers(8, 16)) * MS),), (Wait(),)
    return Program(
        loop.programs(lambda rank, step: Step(data=long if rank == one else (), log=drained)),
        loop.programs(lambda rank, step: Step(log=drained)),
        Truth(Cause.DEVICE_ALLOCATION, "data", (one,)),
    )


def allocations_in_layers(loop: Loop) -> Program:
    """One rank frees and allocates memory in each layer."""
    one = int(loop.drawn.integers(loop.ranks))
    each = (Memory(300 * US, frees=True), Memory(int(loop.drawn.integers(300, 900)) * US))
    return Program(
        loop.programs(lambda rank, step: Step(layer=each if rank == one else ())),
        loop.programs(lambda rank, step: Step()),
        Truth(Cause.DEVICE_ALLOCATION, "forward", (one,)),
    )


def long_launch_on_one_rank(loop: Loop) -> Program:
    """One launch of one rank takes long in each step, as where a module is loaded."""
    one = int(loop.drawn.integers(loop.ranks))
    calls = [
        Launch(20 * US, name="late", call_ns=ns) for ns in (int(loop.drawn.integers(8, 16)) * MS, 4 * US)
    ]
    return Program(
        loop.programs(lambda rank, step: Step(data=(calls[0 if rank == one else 1],), log=(Wait(),))),
        loop.programs(lambda rank, step: Step(data=(calls[1],), log=(Wait(),))),
        Truth(Cause.LATE_RANK_HOST if loop.ranks > 1 else Cause.HOST_WORK, "data", (one,)),
    )


def synchronized_loader(loop: Loop) -> Program:
    """The loader is slow, and the host waits for the GPU at the end of each step."""
    slow, drained = (Host(int(loop.drawn.integers(5, 12)) * MS),), (Wait(),)
    return Program(
        loop.programs(lambda rank, step: Step(data=slow, log=drained)),
        loop.programs(lambda rank, step: Step(log=drained)),
        Truth(Cause.HOST_WORK, "data"),
    )


def synchronized_late_loader(loop: Loop) -> Program:
    """The loader of one rank is slow, and the host waits for the GPU at the end of each step."""
    one = int(loop.drawn.integers(loop.ranks))
    slow, drained = (Host(int(loop.drawn.integers(5, 12)) * MS),), (Wait(),)
    return Program(
        loop.programs(lambda rank, step: Step(data=slow if rank == one else (), log=drained)),
        loop.programs(lambda rank, step: Step(log=drained)),
        Truth(Cause.LATE_RANK_HOST if loop.ranks > 1 else Cause.HOST_WORK, "data", (one,)),
    )


def stalled_in_slow_steps(loop: Loop) -> Program | None:
    """The loader of one rank stalls in each step, which costs time only in steps where its host is slow."""
    if loop.ranks == 1:
        return None
    one, first = int(loop.drawn.integers(loop.ranks)), int(loop.drawn.integers(3, 6))
    stall = (Host(int(loop.drawn.integers(10, 14)) * MS),)

    def planted(rank: int, step: int) -> Step:
        slow = rank == one and first <= step < first + 9
        return Step(data=stall if rank == one else (), between_ns=1200 * US if slow else 50 * US)

    return Program(
        loop.programs(planted),
        loop.programs(lambda rank, step: Step()),
        Truth(Cause.LATE_RANK_HOST, ranks=(one,)),
    )


def synchronized_evaluation(loop: Loop) -> Program:
    """Every fourth step also evaluates the model, and waits for the GPU after each of its layers."""

    def of(step: int, inside: tuple[Instruction, ...]) -> Step:
        evaluates = step % 4 == 3
        return Step(20 if evaluates else 10, between_ns=400 * US, layer=inside if evaluates else ())

    return Program(
        loop.programs(lambda rank, step: of(step, (Wait(),))),
        loop.programs(lambda rank, step: of(step, ())),
        Truth(Cause.HOST_SYNC, "forward", kind=2),
    )


def loading_evaluation(loop: Loop) -> Program:
    """Every fourth step also evaluates the model, on data that take long to load.

    The GPU waits for them before the front of these steps, so the steps before are a kind of their own.
    """
    slow = (Wait(), Host(int(loop.drawn.integers(20, 40)) * MS))

    def of(step: int, data: tuple[Instruction, ...]) -> Step:
        evaluates = step % 4 == 3
        return Step(20 if evaluates else 10, data=data if evaluates else ())

    return Program(
        loop.programs(lambda rank, step: of(step, slow)),
        loop.programs(lambda rank, step: of(step, ())),
        Truth(Cause.HOST_WORK, "data", kind=3),
    )


def slow_in_some_steps(loop: Loop) -> Program:
    """The loader of all ranks is slow in some of the steps."""
    some = set(loop.drawn.choice(np.arange(2, STEPS - 1), 8, replace=False).tolist())
    slow = (Host(int(loop.drawn.integers(40, 60)) * MS),)
    return Program(
        loop.programs(lambda rank, step: Step(data=slow if step in some else ())),
        loop.programs(lambda rank, step: Step()),
        Truth(Cause.HOST_WORK, "data"),
    )


def drifting(loop: Loop) -> Program:
    """The kernels of all ranks get slower and slower."""
    most = float(loop.drawn.uniform(0.1, 0.3))
    return Program(
        loop.programs(lambda rank, step: Step(slower=1 + most * step / (STEPS - 1))),
        loop.programs(lambda rank, step: Step()),
        Truth(Cause.STEP_DRIFT),
    )


def level_change(loop: Loop) -> Program:
    """The kernels of all ranks are slower from some step on."""
    more, first = float(loop.drawn.uniform(0.08, 0.25)), int(loop.drawn.integers(6, 14))
    return Program(
        loop.programs(lambda rank, step: Step(slower=1 + more * (step >= first))),
        loop.programs(lambda rank, step: Step()),
        Truth(Cause.STEP_DRIFT),
    )


def rotating_gpu(loop: Loop) -> Program:
    """In each step another rank has more work on its GPU."""
    more = (Launch(int(loop.drawn.integers(3, 8)) * MS, name="expert"),)
    late = loop.drawn.permutation(np.arange(STEPS) % loop.ranks).tolist()
    return Program(
        loop.programs(lambda rank, step: Step(forward=more if late[step] == rank else ())),
        loop.programs(lambda rank, step: Step()),
        Truth(Cause.LATE_RANK_GPU if loop.ranks > 1 else None, "forward"),
    )


def rotating_host(loop: Loop) -> Program:
    """In each step the loader of another rank is late."""
    more, drained = (Host(int(loop.drawn.integers(5, 12)) * MS),), (Wait(),)
    late = loop.drawn.permutation(np.arange(STEPS) % loop.ranks).tolist()
    return Program(
        loop.programs(lambda rank, step: Step(data=more if late[step] == rank else (), log=drained)),
        loop.programs(lambda rank, step: Step(log=drained)),
        Truth(Cause.LATE_RANK_HOST if loop.ranks > 1 else Cause.HOST_WORK, "data"),
    )


def late_loader(loop: Loop) -> Program:
    """The loader of one rank is late in each step."""
    one = int(loop.drawn.integers(loop.ranks))
    late = (Host(int(loop.drawn.integers(25, 45)) * MS),)
    return Program(
        loop.programs(lambda rank, step: Step(data=late if rank == one else ())),
        loop.programs(lambda rank, step: Step()),
        Truth(Cause.LATE_RANK_HOST if loop.ranks > 1 else Cause.HOST_WORK, "data", (one,)),
    )


def more_work(loop: Loop) -> Program:
    """One rank has more work on its GPU in each step."""
    one = int(loop.drawn.integers(loop.ranks))
    more = (Launch(int(loop.drawn.integers(3, 9)) * MS, name="expert"),)
    return Program(
        loop.programs(lambda rank, step: Step(forward=more if rank == one else ())),
        loop.programs(lambda rank, step: Step()),
        Truth(Cause.LATE_RANK_GPU if loop.ranks > 1 else None, "forward", (one,)),
    )


Kind = Callable[[Loop], Program | None]

KINDS: tuple[Kind, ...] = (
    clean,
    python_everywhere,
    python_in_forward,
    absent_rank,
    allocation_on_one_rank,
    allocations_in_layers,
    long_launch_on_one_rank,
    synchronized_loader,
    synchronized_late_loader,
    stalled_in_slow_steps,
    synchronized_evaluation,
    loading_evaluation,
    slow_in_some_steps,
    drifting,
    level_change,
    rotating_gpu,
    rotating_host,
    late_loader,
    more_work,
)
"""The kinds of programs; some need several ranks."""


def judged(kind: Kind, ranks: int, seed: int) -> tuple[bool, bool, bool | None] | None:
    """Print what is said of a program.

    Returns
    -------
    right : bool
        Whether the first finding is the planted cause.
    among : bool
        Whether it or one of its alternatives is.
    contains : bool or None
        Whether the interval of a right finding contains the cost.

    Without a program of this kind on so many ranks, None.
    """
    program = kind(Loop(seed, ranks))
    if program is None:
        return None
    inputs, cost = program.inputs(), program.cost_ns()
    shown = explain_run(inputs)[0].shown()
    first = shown[0] if shown else None
    truth = program.truth
    right = truth.fits(first, inputs.ranks) if first else truth.cause is None
    others = getattr(first, "alternatives", ()) if first else ()
    among = right or any(truth.fits(one, inputs.ranks) for one in others)
    contains: bool | None = None
    said = f"{'-':>8} {'-':>16} "
    if first and first.saving_ns is not None:
        low, high = first.saving_low_ns or 0, first.saving_high_ns or 0
        contains = low <= cost <= high
        said = f"{first.saving_ns / 1e6:8.2f} {low / 1e6:8.2f}..{high / 1e6:6.2f}{' ' if contains else '!'}"
    mark = "ok   " if right else "or   " if among else "WRONG"
    named = " or: ".join(
        f"{one.cause.value}, {one.where}, {list(one.ranks)}" for one in (first, *others) if one
    )
    print(
        f"{kind.__name__:26} {ranks:5} {seed:4} {cost / 1e6:8.2f} {said} {mark} {named or 'none'}", flush=True
    )
    return right, among, contains if right else None


def explain_programs(seeds: int = 1, names: Sequence[str] = ()) -> None:
    """Explain programs of each kind, or of those that are named, and print what is right."""
    kinds = [one for one in KINDS if not names or one.__name__ in names]
    print(HEAD)
    every = [judged(one, ranks, seed) for one in kinds for ranks in RANKS for seed in range(seeds)]
    found = [one for one in every if one is not None]
    intervals = [one for *_, one in found if one is not None]
    print(f"first finding right: {sum(one for one, *_ in found)} of {len(found)}")
    print(f"right, or among the alternatives: {sum(one for _, one, _ in found)} of {len(found)}")
    print(f"interval contains the cost: {sum(intervals)} of {len(intervals)} of the right ones")


if __name__ == "__main__":
    explain_programs(int(sys.argv[1]) if len(sys.argv) > 1 else 1, sys.argv[2:])
