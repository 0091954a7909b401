"""Generated programs with exact truth: ``python benchmarks/programs.py [SEEDS] [NAME…]``.

Each program is simulated twice, with a planted cause and without it, by the simulator of the tests of
`explain`. The difference of the elapsed times per step, from the begin of the first to that of the last, is
what the cause costs, exactly. Prints for each kind of program, number of ranks and seed this cost, what the
first finding says it saves with its interval (``!``: the cost lies outside), and the first finding with its
alternatives. Where another rank is late by another cause, what both findings save is added. The last lines
count the programs whose first finding is right, those where it is among the alternatives, and of the right
ones the savings within 10 % or 1 ms of the cost and the intervals that contain it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from hpcprof.analysis.explain.cause import Cause  # noqa: E402
from hpcprof.analysis.explain.explain import explain_run  # noqa: E402
from hpcprof.analysis.explain.explanation import Finding  # noqa: E402
from hpcprof.analysis.explain.inputs import ExplainInputs  # noqa: E402
from hpcprof.analysis.explain.whole_run import STREAM_WAITS  # noqa: E402
from hpcprof.profiles.timeline import Category, Timeline  # noqa: E402
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
_BOUNDS = ("saving_low_ns", "saving_high_ns")
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
    also : Truth or None
        A second cause, which is a finding of its own, or goes together with the first one.
    unjudged : str
        What is said not to be judged; empty if that does not matter.
    """

    cause: Cause | None
    where: str = ""
    ranks: tuple[int, ...] | None = None
    kind: int | None = None
    also: Truth | None = None
    unjudged: str = ""

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

    def timelines(self) -> dict[int, Timeline]:
        """Return what the profiled ranks record of the program with its cause."""
        timelines = simulate(self.planted, STEPS)
        return {rank: timelines[rank] for rank in range(self.profiled or len(timelines))}

    def inputs(self) -> ExplainInputs:
        """Return what an explanation is computed from."""
        return replace(inputs_of(self.timelines()), world_size=len(self.planted))

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
    shape : str
        Kernels of other shapes have other names.
    reduces : bool
        Whether gradients are reduced and weights are updated; not in a step that accumulates gradients.
    group : tuple of int
        The ranks among which gradients are reduced; all of them if empty.
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
    shape: str = ""
    reduces: bool = True
    group: tuple[int, ...] = ()


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
                kernel = Launch(round(time * jitter[i]), name=name + one.shape)
                parts += [Host(round(one.between_ns * between[i])), kernel, *inside]
            return parts

        forward = [*passed(0, "gemm_forward", one.layer), *one.forward]
        backward = passed(len(times), "gemm_backward", ())
        half = len(backward) // 2
        reduction = (StreamWait(17, 7), Launch(2 * MS, 17, collective=True, group=one.group))
        several = one.reduces and self.ranks > 1
        reductions = reduction if several else ()
        joined = (StreamWait(7, 17),) if several else ()
        return (
            Place("data", (Host(100 * US), *one.data)),
            Place("forward", tuple(forward)),
            Place("backward", (*backward[:half], *reductions, *backward[half:], *one.backward, *joined)),
            *((Place("optimizer", (Launch(MS, name="adamw"),)),) if one.reduces else ()),
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


def work_between_steps(loop: Loop) -> Program:
    """The host waits for the GPU and then works between the ranges of the steps, outside all ranges."""

    def after(works: tuple[Instruction, ...]) -> RankPrograms:
        ended = [Once(step, (Wait(), *works), after=True) for step in range(STEPS)]
        return [[*rank, *ended] for rank in loop.programs(lambda rank, step: Step())]

    works = (Host(int(loop.drawn.integers(5, 10)) * MS),)
    return Program(after(works), after(()), Truth(Cause.HOST_WORK, "code outside all ranges"))


def gpu_that_gets_slower(loop: Loop) -> Program | None:
    """The kernels of one rank get slower and slower, as those of a GPU that becomes hot."""
    if loop.ranks == 1:
        return None
    one, most = int(loop.drawn.integers(loop.ranks)), float(loop.drawn.uniform(0.3, 0.6))
    return Program(
        loop.programs(lambda rank, step: Step(slower=1 + most * step / (STEPS - 1) * (rank == one))),
        loop.programs(lambda rank, step: Step()),
        Truth(Cause.LATE_RANK_GPU, ranks=(one,)),
    )


def allocations_before_wait(loop: Loop) -> Program:
    """Each layer allocates memory, which the GPU hides but for the last ones, and the step ends in a wait."""
    each = (Memory(int(loop.drawn.integers(1100, 1600)) * US),)
    return Program(
        loop.programs(lambda rank, step: Step(layer=each, log=(Wait(),))),
        loop.programs(lambda rank, step: Step(log=(Wait(),))),
        Truth(Cause.DEVICE_ALLOCATION, "forward"),
    )


def unfused_on_one_rank(loop: Loop) -> Program:
    """One rank launches many short kernels where the others launch one; the host waits before that."""
    one, count = int(loop.drawn.integers(loop.ranks)), int(loop.drawn.integers(500, 800))
    many = tuple(part for _ in range(count) for part in (Host(8 * US), Launch(3 * US, name="adamw_single")))
    fused = (Launch(3 * US * count, name="adamw_fused"),)
    return Program(
        loop.programs(lambda rank, step: Step(log=(Wait(), *(many if rank == one else fused)))),
        loop.programs(lambda rank, step: Step(log=(Wait(), *fused))),
        Truth(Cause.SMALL_KERNELS, "log", (one,)),
    )


def hosts_late_in_two_places(loop: Loop) -> Program | None:
    """One rank loads data for long, and another one collects garbage, in each step."""
    if loop.ranks < 4:
        return None
    one, other = loop.drawn.choice(loop.ranks, 2, replace=False).tolist()
    late = int(loop.drawn.integers(8, 14))
    slow, collects = (Host(late * MS),), (Place("gc", (Host((late - 3) * MS),)),)

    def of(rank: int, step: int) -> Step:
        return Step(data=slow if rank == one else (), log=(Wait(), *(collects if rank == other else ())))

    return Program(
        loop.programs(of),
        loop.programs(lambda rank, step: Step(log=(Wait(),))),
        Truth(Cause.LATE_RANK_HOST, "data, log/gc", tuple(sorted((one, other)))),
    )


def late_in_turn_by_two_causes(loop: Loop) -> Program | None:
    """In each step another rank is late: in most steps by its loader, in the others by work on its GPU."""
    if loop.ranks == 1:
        return None
    drained = (Wait(),)
    slow = (Host(int(loop.drawn.integers(9, 13)) * MS),)
    more = (Launch(int(loop.drawn.integers(4, 7)) * MS, name="expert"),)
    late = loop.drawn.permutation(np.arange(STEPS) % loop.ranks).tolist()
    by_gpu = set(loop.drawn.choice(STEPS, STEPS // 3, replace=False).tolist())

    def of(rank: int, step: int, data: tuple[Instruction, ...]) -> Step:
        mine, gpu = late[step] == rank, step in by_gpu
        return Step(data=data if mine and not gpu else (), forward=more if mine and gpu else (), log=drained)

    return Program(
        loop.programs(lambda rank, step: of(rank, step, slow)),
        loop.programs(lambda rank, step: of(rank, step, ())),
        Truth(Cause.LATE_RANK_HOST, "data", tuple(sorted({late[step] for step in {*range(STEPS)} - by_gpu}))),
    )


def slow_while_accumulating(loop: Loop) -> Program | None:
    """Gradients are reduced in every fourth step; the loader of one rank is slow in the others only."""
    if loop.ranks == 1:
        return None
    one = int(loop.drawn.integers(loop.ranks))
    slow = (Host(int(loop.drawn.integers(12, 20)) * MS),)

    def of(rank: int, step: int, data: tuple[Instruction, ...]) -> Step:
        reduces = step % 4 == 3
        return Step(5, data=data if rank == one and not reduces else (), reduces=reduces, log=(Wait(),))

    return Program(
        loop.programs(lambda rank, step: of(rank, step, slow)),
        loop.programs(lambda rank, step: of(rank, step, ())),
        Truth(Cause.LATE_RANK_HOST, "data", (one,)),
    )


def slow_host_in_accumulation(loop: Loop) -> Program | None:
    """Each step accumulates gradients of four batches; the host of one rank is slow in all but the last."""
    if loop.ranks == 1:
        return None
    one = int(loop.drawn.integers(loop.ranks))
    slow = Host(int(loop.drawn.integers(5, 9)) * MS)

    def accumulated(extra: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        batch = (Launch(2 * MS, name="micro"), Launch(2 * MS, name="micro"), Wait(), *extra)
        return (Place("micro_batch", batch),) * 3

    return Program(
        loop.programs(lambda rank, step: Step(data=accumulated((slow,) if rank == one else ()))),
        loop.programs(lambda rank, step: Step(data=accumulated(()))),
        Truth(Cause.LATE_RANK_HOST, "micro_batch", (one,)),
    )


def two_late_ranks(loop: Loop) -> Program | None:
    """The loader of one rank is late, and another rank has somewhat less additional work on its GPU."""
    if loop.ranks < 4:
        return None
    one, other = loop.drawn.choice(loop.ranks, 2, replace=False).tolist()
    late = int(loop.drawn.integers(12, 16))
    slow, more = (Host(late * MS),), (Launch((late - 3) * MS, name="expert"),)

    def of(rank: int, slow: tuple[Instruction, ...]) -> Step:
        return Step(data=slow if rank == one else (), forward=more if rank == other else (), log=(Wait(),))

    return Program(
        loop.programs(lambda rank, step: of(rank, slow)),
        loop.programs(lambda rank, step: of(rank, ())),
        Truth(Cause.LATE_RANK_HOST, "data", (one,)),
    )


def two_ranks_late_alike(loop: Loop) -> Program | None:
    """In each step one rank is late by its loader, and another one as much by work on its GPU."""
    return _late_by_host_and_gpu(loop, {*range(STEPS)}, {*range(STEPS)}, 0)


def two_ranks_late_unlike(loop: Loop) -> Program | None:
    """The same, but the rank with the slow loader is later."""
    return _late_by_host_and_gpu(loop, {*range(STEPS)}, {*range(STEPS)}, int(loop.drawn.integers(3, 5)))


def two_ranks_late_in_other_steps(loop: Loop) -> Program | None:
    """One rank is late by its loader in some steps, another by work on its GPU in the other steps."""
    some = set(loop.drawn.choice(STEPS, 13, replace=False).tolist())
    return _late_by_host_and_gpu(loop, some, {*range(STEPS)} - some, 0)


def _late_by_host_and_gpu(loop: Loop, by_host: set[int], by_gpu: set[int], later_ms: int) -> Program | None:
    """Return a program in which both causes are planted, in these steps, and what both cost."""
    if loop.ranks < 4:
        return None
    one, other = loop.drawn.choice(loop.ranks, 2, replace=False).tolist()
    late = int(loop.drawn.integers(10, 14))
    slow, more = (Host((late + later_ms) * MS),), (Launch(late * MS, name="expert"),)

    def of(rank: int, step: int) -> Step:
        loads, works = rank == one and step in by_host, rank == other and step in by_gpu
        return Step(data=slow if loads else (), forward=more if works else (), log=(Wait(),))

    host = Truth(Cause.LATE_RANK_HOST, "data", (one,))
    gpu = Truth(Cause.LATE_RANK_GPU, "forward", (other,))
    return Program(
        loop.programs(of),
        loop.programs(lambda rank, step: Step(log=(Wait(),))),
        replace(host, also=gpu) if later_ms or by_host != by_gpu else replace(gpu, also=host),
    )


def lengths_of_all(loop: Loop) -> Program:
    """Sequences are longer in some steps, on all ranks alike: nothing to be mended."""
    lengths = loop.drawn.choice([0.6, 0.8, 1.0, 1.3, 1.8], STEPS).tolist()
    same = loop.programs(lambda rank, step: Step(slower=lengths[step]))
    return Program(same, same, Truth(None))


def lengths_of_each(loop: Loop) -> Program | None:
    """Each rank has sequences of other lengths, with kernels of their own; without the cause, equal ones."""
    if loop.ranks == 1:
        return None
    lengths = loop.drawn.choice([0.7, 0.8, 1.0, 1.1, 1.4], (STEPS, loop.ranks))
    equal = lengths.mean(axis=1).tolist()
    return Program(
        loop.programs(
            lambda rank, step: Step(slower=float(lengths[step, rank]), shape=f"_{lengths[step, rank]}")
        ),
        loop.programs(lambda rank, step: Step(slower=equal[step])),
        Truth(Cause.LATE_RANK_GPU),
    )


def tensor_groups(loop: Loop, of: Callable[[int], tuple[Sequence[Instruction], float]]) -> RankPrograms:
    """Return a program of tensor groups of two; ``of`` has what a rank does in ``data``, and its pace."""

    def step(rank: int) -> Step:
        pair = (rank // 2 * 2, rank // 2 * 2 + 1)
        data, slower = of(rank)
        return Step(
            layer=(StreamWait(13, 7), Launch(100 * US, 13, collective=True, group=pair), StreamWait(7, 13)),
            data=tuple(data),
            slower=slower,
            group=tuple(range(rank % 2, loop.ranks, 2)),
        )

    return loop.programs(lambda rank, _: step(rank))


def slow_gpu_in_tensor_group(loop: Loop) -> Program | None:
    """Tensor groups of two ranks beside data groups; the GPU of one rank is slower."""
    if loop.ranks < 4:
        return None
    one, slower = int(loop.drawn.integers(loop.ranks)), float(loop.drawn.uniform(1.15, 1.4))
    return Program(
        tensor_groups(loop, lambda rank: ((), slower if rank == one else 1.0)),
        tensor_groups(loop, lambda rank: ((), 1.0)),
        Truth(Cause.LATE_RANK_GPU, ranks=(one,)),
    )


def late_loader_in_tensor_group(loop: Loop) -> Program | None:
    """Tensor groups of two ranks beside data groups; the loader of one rank waits and is late."""
    if loop.ranks < 4:
        return None
    one = int(loop.drawn.integers(loop.ranks))
    late = Host(int(loop.drawn.integers(8, 15)) * MS)
    return Program(
        tensor_groups(loop, lambda rank: ((Wait(), late) if rank == one else (Wait(),), 1.0)),
        tensor_groups(loop, lambda rank: ((Wait(),), 1.0)),
        Truth(Cause.LATE_RANK_HOST, "data", (one,)),
    )


def pipeline(
    loop: Loop, work_ns: Sequence[float], first: tuple[Instruction, ...] = (), batches: int = 4
) -> RankPrograms:
    """Return a pipeline with a rank for each stage, which takes so long for a batch; ``first`` loads."""
    found: RankPrograms = []
    for stage, work in enumerate(work_ns):
        noise = np.random.default_rng((loop.seed, stage))

        def message(peer: int, sends: bool) -> list[Instruction]:
            if not 0 <= peer < loop.ranks:
                return []
            carried = Launch(50 * US, 21, peer=peer, sends=sends)
            return [StreamWait(21, 7), carried] if sends else [carried, StreamWait(7, 21)]

        def passed(
            name: str,
            times: float,
            source: int,
            target: int,
            work: float = work,
            noise: np.random.Generator = noise,
        ) -> list[Instruction]:
            parts: list[Instruction] = []
            for _ in range(batches):
                kernels = [
                    part
                    for jitter in noise.normal(1, 0.01, 4)
                    for part in (Host(20 * US), Launch(round(times * work / 4 * jitter), name=name))
                ]
                parts += [*message(source, False), *kernels, *message(target, True)]
            return parts

        program: list[Instruction] = []
        for step in range(STEPS):
            forward = passed("gemm_forward", 1, stage - 1, stage + 1)
            backward = passed("gemm_backward", 2, stage + 1, stage - 1)
            inside = (
                Place("data", first if stage == 0 else (Host(100 * US),)),
                Place("forward", tuple(forward)),
                Place("backward", tuple(backward)),
                Place("optimizer", (Launch(MS, name="adamw"), Wait())),
            )
            program.append(Once(step, inside))
        found.append(program)
    return found


def slow_stage(loop: Loop) -> Program | None:
    """One stage of a pipeline has more work; without the cause, all have as much."""
    if loop.ranks < 4:
        return None
    one, more = int(loop.drawn.integers(loop.ranks)), float(loop.drawn.uniform(1.6, 2.2))
    work = [MS * (more if stage == one else 1.0) for stage in range(loop.ranks)]
    return Program(
        pipeline(loop, work, (Host(100 * US),)),
        pipeline(loop, [float(np.mean(work))] * loop.ranks, (Host(100 * US),)),
        Truth(Cause.PIPELINE_BUBBLE, ranks=(one,)),
    )


def slow_loader_of_pipeline(loop: Loop) -> Program | None:
    """The first stage of a pipeline loads data slowly."""
    if loop.ranks < 4:
        return None
    work = [float(MS)] * loop.ranks
    return Program(
        pipeline(loop, work, (Host(int(loop.drawn.integers(8, 14)) * MS),)),
        pipeline(loop, work, (Host(100 * US),)),
        Truth(Cause.LATE_RANK_HOST, "data", (0,)),
    )


def late_host_in_one_of_two_kinds(loop: Loop) -> Program | None:
    """Every other step is longer by design; the loader of one rank is late in the longer ones only."""
    if loop.ranks == 1:
        return None
    one = int(loop.drawn.integers(loop.ranks))
    slow = (Host(int(loop.drawn.integers(12, 20)) * MS),)

    def of(rank: int, step: int, data: tuple[Instruction, ...]) -> Step:
        return Step(10 if step % 2 else 20, data=data if rank == one and not step % 2 else (), log=(Wait(),))

    return Program(
        loop.programs(lambda rank, step: of(rank, step, slow)),
        loop.programs(lambda rank, step: of(rank, step, ())),
        Truth(Cause.LATE_RANK_HOST, "data", (one,)),
    )


def late_ranks_of_two_groups(loop: Loop) -> Program | None:
    """Each half of the ranks reduces by itself, and then all reduce the loss; in each, one loader is late."""
    if loop.ranks < 4:
        return None
    half = loop.ranks // 2
    late = {int(loop.drawn.integers(half)): 16, int(loop.drawn.integers(half, loop.ranks)): 10}
    extra = int(loop.drawn.integers(0, 5))

    def of(rank: int, slow: bool) -> Step:
        mine = late.get(rank, 0) + extra if slow and rank in late else 0
        group = tuple(range(half)) if rank < half else tuple(range(half, loop.ranks))
        loss = (Launch(50 * US, collective=True, group=tuple(range(loop.ranks))), Wait())
        return Step(data=(Host(mine * MS),) if mine else (), log=loss, group=group)

    return Program(
        loop.programs(lambda rank, step: of(rank, True)),
        loop.programs(lambda rank, step: of(rank, False)),
        Truth(Cause.LATE_RANK_HOST, "data", tuple(sorted(late))),
    )


def _half(loop: Loop, rank: int) -> tuple[int, ...]:
    """Return the ranks of a rank's half, which reduces by itself."""
    half = loop.ranks // 2
    return tuple(range(half)) if rank < half else tuple(range(half, loop.ranks))


def late_ranks_of_groups_apart(loop: Loop) -> Program | None:
    """Each half of the ranks reduces by itself, and nothing joins them; in each, one loader is late."""
    if loop.ranks < 4:
        return None
    late = [
        int(loop.drawn.integers(*bounds)) for bounds in ((loop.ranks // 2,), (loop.ranks // 2, loop.ranks))
    ]
    slow = dict(zip(late, loop.drawn.integers(8, 16, 2).tolist(), strict=True))

    def of(rank: int, planted: bool) -> Step:
        data = (Host(slow[rank] * MS),) if planted and rank in slow else ()
        return Step(data=data, log=(Wait(),), group=_half(loop, rank))

    return Program(
        loop.programs(lambda rank, step: of(rank, True)),
        loop.programs(lambda rank, step: of(rank, False)),
        Truth(Cause.LATE_RANK_HOST, "data", tuple(late)),
    )


def late_by_two_causes_of_groups_apart(loop: Loop) -> Program | None:
    """Each half of the ranks reduces by itself: in one a loader is late, in the other a GPU has more work."""
    if loop.ranks < 4:
        return None
    host = int(loop.drawn.integers(loop.ranks // 2))
    gpu = int(loop.drawn.integers(loop.ranks // 2, loop.ranks))
    late = (Host(int(loop.drawn.integers(12, 18)) * MS),)
    more = (Launch(int(loop.drawn.integers(6, 10)) * MS, name="expert"),)

    def of(rank: int, planted: bool) -> Step:
        data, forward = late if planted and rank == host else (), more if planted and rank == gpu else ()
        return Step(data=data, forward=forward, log=(Wait(),), group=_half(loop, rank))

    return Program(
        loop.programs(lambda rank, step: of(rank, True)),
        loop.programs(lambda rank, step: of(rank, False)),
        Truth(
            Cause.LATE_RANK_HOST,
            "data",
            (host,),
            also=Truth(Cause.LATE_RANK_GPU, "forward", (gpu,)),
        ),
    )


def copy_that_blocks_a_stream(loop: Loop) -> Program:
    """The forward pass of all ranks waits for a copy from pinned memory on another stream."""
    long = int(loop.drawn.integers(6, 12)) * MS

    def copied(ns: int) -> tuple[Instruction, ...]:
        copy = Launch(ns, 21, name="HtoD", category=Category.MEM)
        return StreamWait(21, 7), copy, StreamWait(7, 21)

    return Program(
        loop.programs(lambda rank, step: Step(forward=copied(long), log=(Wait(),))),
        loop.programs(lambda rank, step: Step(forward=copied(US), log=(Wait(),))),
        Truth(Cause.BLOCKING_COPY, "forward"),
    )


def stream_that_blocks_another(loop: Loop) -> Program:
    """The forward pass of all ranks waits for a long kernel on another stream, as its data may need."""
    long = int(loop.drawn.integers(6, 12)) * MS
    blocked = (StreamWait(21, 7), Launch(long, 21, name="augment"), StreamWait(7, 21))
    beside = (StreamWait(21, 7), Launch(US, 21, name="augment"), StreamWait(7, 21))
    return Program(
        loop.programs(lambda rank, step: Step(forward=blocked, log=(Wait(),))),
        loop.programs(lambda rank, step: Step(forward=beside, log=(Wait(),))),
        Truth(None, unjudged=STREAM_WAITS),
    )


def waits_in_backward(loop: Loop) -> Program:
    """The host waits for the GPU after many short kernels of the backward pass."""
    count = int(loop.drawn.integers(12, 20))
    kernels = tuple(Launch(150 * US, name="grad") for _ in range(count))
    waiting = tuple(part for one in kernels for part in (one, Wait(), Host(400 * US)))
    free = tuple(part for one in kernels for part in (one, Host(400 * US)))
    return Program(
        loop.programs(lambda rank, step: Step(backward=waiting, log=(Wait(),))),
        loop.programs(lambda rank, step: Step(backward=free, log=(Wait(),))),
        Truth(Cause.HOST_SYNC, "backward"),
    )


def python_in_backward(loop: Loop) -> Program:
    """The host takes long between the calls of the backward pass only."""
    extra = [
        part
        for time in loop.drawn.integers(20 * US, 60 * US, 60).tolist()
        for part in (Host(450 * US), Launch(int(time), name="grad"))
    ]
    quick = tuple(part for part in extra if isinstance(part, Launch))
    return Program(
        loop.programs(lambda rank, step: Step(backward=tuple(extra), log=(Wait(),))),
        loop.programs(lambda rank, step: Step(backward=quick, log=(Wait(),))),
        Truth(Cause.HOST_BOUND, "backward"),
    )


def copy_in_every_third_step(loop: Loop) -> Program:
    """Every third step copies from pageable memory, which the host waits for, on all ranks."""
    copy = Launch(int(loop.drawn.integers(15, 25)) * MS, name="HtoD", category=Category.MEM, blocks=True)
    return Program(
        loop.programs(lambda rank, step: Step(data=(copy,) if step % 3 == 2 else ())),
        loop.programs(lambda rank, step: Step()),
        Truth(Cause.BLOCKING_COPY, "data"),
    )


def copy_on_one_rank(loop: Loop) -> Program:
    """One rank copies from pageable memory in each step."""
    one = int(loop.drawn.integers(loop.ranks))
    copy = Launch(int(loop.drawn.integers(8, 14)) * MS, name="HtoD", category=Category.MEM, blocks=True)
    return Program(
        loop.programs(lambda rank, step: Step(data=(copy,) if rank == one else (), log=(Wait(),))),
        loop.programs(lambda rank, step: Step(log=(Wait(),))),
        Truth(Cause.BLOCKING_COPY, "data", (one,)),
    )


def loader_that_gets_slower(loop: Loop) -> Program | None:
    """The loader of one rank gets slower and slower."""
    if loop.ranks == 1:
        return None
    one, most = int(loop.drawn.integers(loop.ranks)), int(loop.drawn.integers(12, 24))

    def of(rank: int, step: int) -> Step:
        late = Host(round(most * MS * step / (STEPS - 1)))
        return Step(data=(late,) if rank == one else (), log=(Wait(),))

    return Program(
        loop.programs(of),
        loop.programs(lambda rank, step: Step(log=(Wait(),))),
        Truth(Cause.LATE_RANK_HOST, "data", (one,)),
    )


def slow_kernel_in_some_steps(loop: Loop) -> Program | None:
    """One kernel of one rank is slow in a third of the steps, which follow no pattern."""
    if loop.ranks == 1:
        return None
    one, more = int(loop.drawn.integers(loop.ranks)), int(loop.drawn.integers(9, 14))
    some = set(loop.drawn.choice(np.arange(1, STEPS - 1), 7, replace=False).tolist())

    def of(rank: int, step: int, slow: bool) -> Step:
        late = slow and rank == one and step in some
        return Step(forward=(Launch((more if late else 1) * MS, name="attention"),), log=(Wait(),))

    return Program(
        loop.programs(lambda rank, step: of(rank, step, True)),
        loop.programs(lambda rank, step: of(rank, step, False)),
        Truth(Cause.LATE_RANK_GPU, "forward", (one,)),
    )


def late_gpu_of_two_ranks_in_turn(loop: Loop) -> Program | None:
    """In turn, one of two ranks has more work on its GPU; the others never."""
    if loop.ranks < 4:
        return None
    pair = sorted(loop.drawn.choice(loop.ranks, 2, replace=False).tolist())
    more = (Launch(int(loop.drawn.integers(4, 8)) * MS, name="expert"),)
    return Program(
        loop.programs(lambda rank, step: Step(forward=more if rank == pair[step % 2] else ())),
        loop.programs(lambda rank, step: Step()),
        Truth(Cause.LATE_RANK_GPU, "forward", tuple(pair)),
    )


def absent_late_rank_of_many(loop: Loop) -> Program | None:
    """The GPU of the last rank has more work, and it alone is not profiled."""
    if loop.ranks < 4:
        return None
    more = (Launch(int(loop.drawn.integers(8, 14)) * MS, name="expert"),)
    return Program(
        loop.programs(lambda rank, step: Step(forward=more if rank == loop.ranks - 1 else ())),
        loop.programs(lambda rank, step: Step()),
        Truth(Cause.CAPTURE_INCOMPLETE),
        profiled=loop.ranks - 1,
    )


def checkpoint_on_the_first_rank(loop: Loop) -> Program:
    """The first rank waits for its GPU and writes a checkpoint in every fifth step."""
    writes = (Wait(), Place("checkpoint", (Host(int(loop.drawn.integers(30, 50)) * MS),)))
    return Program(
        loop.programs(lambda rank, step: Step(log=writes if rank == 0 and step % 5 == 2 else (Wait(),))),
        loop.programs(lambda rank, step: Step(log=(Wait(),))),
        Truth(Cause.LATE_RANK_HOST if loop.ranks > 1 else Cause.HOST_WORK, "checkpoint", (0,)),
    )


def works_in_two_places_after_a_wait(loop: Loop) -> Program:
    """The host waits for the GPU in each step, works there, and loads data: without the wait, both hide."""
    data, log = (int(loop.drawn.integers(*bounds)) for bounds in ((8, 12), (3, 6)))
    works, loads = (Host(log * MS),), (Host(data * MS),)
    return Program(
        loop.programs(lambda rank, step: Step(data=loads, log=(Wait(), *works))),
        loop.programs(lambda rank, step: Step(data=loads, log=works)),
        Truth(Cause.HOST_SYNC, "log"),
    )


def late_loader_that_the_gpu_hides(loop: Loop) -> Program:
    """A rank's loader is late by less than its GPU is ahead: nothing."""
    one = int(loop.drawn.integers(loop.ranks))
    late = (Host(int(loop.drawn.integers(5, 9)) * MS),)
    programs = loop.programs(lambda rank, step: Step(data=late if rank == one else ()))
    return Program(programs, programs, Truth(None))


def pauses_without_ranges(loop: Loop) -> Program:
    """A rank pauses in each step, and the others launch ahead until their queues are full."""
    return _without_ranges(loop, 1)


def checkpoints_without_ranges(loop: Loop) -> Program:
    """A rank pauses in every fifth step, and the others launch ahead."""
    return _without_ranges(loop, 5)


def _without_ranges(loop: Loop, every: int) -> Program:
    one = int(loop.drawn.integers(loop.ranks))
    pause = (Host(int(loop.drawn.integers(60, 100)) * MS),)

    def programs(late: tuple[Instruction, ...]) -> RankPrograms:
        def of(rank: int, step: int) -> Step:
            data = late if rank == one and step % every == every // 2 else ()
            return Step(layers=150, kernel_ns=60 * US, between_ns=5 * US, data=data)

        return [[*_outside_ranges(program)] for program in loop.programs(of)]

    late = Cause.LATE_RANK_HOST if loop.ranks > 1 else Cause.HOST_WORK
    return Program(programs(pause), programs(()), Truth(late, "", (one,)))


def _outside_ranges(program: Sequence[Instruction]) -> Iterator[Instruction]:
    for one in program:
        if isinstance(one, Once):
            yield replace(one, inside=tuple(_outside_ranges(one.inside)))
        elif isinstance(one, Place):
            yield from one.inside
        else:
            yield one


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
    work_between_steps,
    gpu_that_gets_slower,
    allocations_before_wait,
    unfused_on_one_rank,
    hosts_late_in_two_places,
    late_in_turn_by_two_causes,
    slow_while_accumulating,
    slow_host_in_accumulation,
    two_late_ranks,
    two_ranks_late_alike,
    two_ranks_late_unlike,
    two_ranks_late_in_other_steps,
    lengths_of_all,
    lengths_of_each,
    slow_gpu_in_tensor_group,
    late_loader_in_tensor_group,
    slow_stage,
    slow_loader_of_pipeline,
    late_host_in_one_of_two_kinds,
    late_ranks_of_two_groups,
    late_ranks_of_groups_apart,
    late_by_two_causes_of_groups_apart,
    copy_that_blocks_a_stream,
    stream_that_blocks_another,
    waits_in_backward,
    python_in_backward,
    copy_in_every_third_step,
    copy_on_one_rank,
    loader_that_gets_slower,
    slow_kernel_in_some_steps,
    late_gpu_of_two_ranks_in_turn,
    absent_late_rank_of_many,
    checkpoint_on_the_first_rank,
    works_in_two_places_after_a_wait,
    late_loader_that_the_gpu_hides,
    pauses_without_ranges,
    checkpoints_without_ranges,
)
"""The kinds of programs; some need several ranks."""


class Verdict(NamedTuple):
    """The parts of an explanation that are right.

    Attributes
    ----------
    right : bool
        Whether the first finding is the planted cause.
    among : bool
        Whether it or one of its alternatives is.
    close, contains : bool or None
        Whether the saving of a right finding is within 10 % or 1 ms of the cost, and whether its interval
        contains it.
    """

    right: bool
    among: bool
    close: bool | None
    contains: bool | None


def judged(kind: Kind, ranks: int, seed: int) -> Verdict | None:
    """Print what is said of a program; return None if there is none of this kind on so many ranks."""
    program = kind(Loop(seed, ranks))
    if program is None:
        return None
    inputs, cost = program.inputs(), program.cost_ns()
    explanation = explain_run(inputs)[0]
    shown = explanation.shown()
    first = shown[0] if shown else None
    truth = program.truth
    right = truth.fits(first, inputs.ranks) if first else truth.cause is None
    right &= not truth.unjudged or truth.unjudged in {one.what for one in explanation.not_judged}
    second = None
    if first and truth.also:
        # Of two ranks that are late alike, either is the finding.
        every = (*shown, *first.together)
        pair = {one: [two for two in every if one.fits(two, inputs.ranks)] for one in (truth, truth.also)}
        right = all(pair.values()) and any(first in found for found in pair.values())
        second = next(
            (one for found in pair.values() for one in found if one in shown and one != first), None
        )
    others = getattr(first, "alternatives", ()) if first else ()
    among = right or any(truth.fits(one, inputs.ranks) for one in others)
    close = contains = None
    said = f"{'-':>8} {'-':>16} "
    if first and first.saving_ns is not None:
        priced = [one for one in (first, second) if one]
        saving = sum(one.saving_ns or 0 for one in priced)
        low, high = (sum(getattr(one, name) or 0 for one in priced) for name in _BOUNDS)
        contains = low <= cost <= high
        close = abs(saving - cost) <= max(0.1 * cost, MS)
        said = f"{saving / 1e6:8.2f} {low / 1e6:8.2f}..{high / 1e6:6.2f}{' ' if contains else '!'}"
    mark = "ok   " if right else "or   " if among else "WRONG"
    named = " or: ".join(
        f"{one.cause.value}, {one.where}, {list(one.ranks)}" for one in (first, *others) if one
    )
    for one in (*(first.together if first else ()), second):
        named += f" and {one.cause}, {one.where}, {list(one.ranks)}" if one else ""
    print(
        f"{kind.__name__:26} {ranks:5} {seed:4} {cost / 1e6:8.2f} {said} {mark} {named or 'none'}", flush=True
    )
    return Verdict(right, among, *(close, contains) if right else (None, None))


def explain_programs(seeds: int = 1, names: Sequence[str] = ()) -> None:
    """Explain programs of each kind, or of those that are named, and print what is right."""
    kinds = [one for one in KINDS if not names or one.__name__ in names]
    print(HEAD)
    every = [judged(one, ranks, seed) for one in kinds for ranks in RANKS for seed in range(seeds)]
    found = [one for one in every if one is not None]
    estimated = [one for one in found if one.contains is not None]
    print(f"first finding right: {sum(one.right for one in found)} of {len(found)}")
    print(f"right, or among the alternatives: {sum(one.among for one in found)} of {len(found)}")
    for what, count in (
        ("saving within 10 % or 1 ms", sum(one.close or False for one in estimated)),
        ("interval contains the cost", sum(one.contains or False for one in estimated)),
    ):
        print(f"{what}: {count} of {len(estimated)} of the right ones")


if __name__ == "__main__":
    explain_programs(int(sys.argv[1]) if len(sys.argv) > 1 else 1, sys.argv[2:])
