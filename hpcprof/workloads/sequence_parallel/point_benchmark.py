"""Measure one point of a sweep: create the modes for its shape, time them, and check their results."""

import dataclasses
from collections.abc import Callable
from contextlib import suppress

import torch

from hpcprof.common.errors import UsageError
from hpcprof.workloads.capture import synchronize
from hpcprof.workloads.distributed import World
from hpcprof.workloads.rankenv import RankEnvironment
from hpcprof.workloads.schema import (
    SCHEMA_VERSION,
    Correctness,
    ModeResult,
    RankResult,
    Summary,
    slowest_rank_ns,
    summarize,
)
from hpcprof.workloads.sequence_parallel import correctness
from hpcprof.workloads.sequence_parallel.buffers import Buffers, allocate
from hpcprof.workloads.sequence_parallel.cost_model import link_bytes
from hpcprof.workloads.sequence_parallel.efficiency import (
    Bound,
    alone_bound_ns,
    beyond_bound,
    mode_figures,
    no_overlap,
    part_rates,
    step_bound,
)
from hpcprof.workloads.sequence_parallel.measurement import Measured, Measurement, ModeSteps, state_change
from hpcprof.workloads.sequence_parallel.modes import MODES, Mode, Unavailable
from hpcprof.workloads.sequence_parallel.modes.symmetric import symmetric_memory
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.sequence_parallel.probes import probes
from hpcprof.workloads.sequence_parallel.steps import GraphedStep, Step
from hpcprof.workloads.timing import UntimedPhases

EAGER = " (eager)"
"""Suffix for the name of a mode that is also measured without a CUDA graph."""

Checks = dict[str, list[Correctness]]
"""The checks of all ranks, by mode."""


def measure_point(
    name: str, parameters: PointParameters, environment: RankEnvironment, world: World
) -> tuple[RankResult, Checks]:
    """Measure and check every mode at one point; a collective call.

    Nothing of the point stays in the memory of the GPU. ``name`` is that of the point, empty without a sweep;
    ``parameters`` are validated for the number of ranks. Raises HpcprofError if the data do not fit or are
    not finite, or no mode can run.
    """
    # float32 must mean float32, also after a point in TF32.
    torch.set_float32_matmul_precision("high" if parameters.dtype == "tf32" else "highest")
    buffers = allocate(parameters, world.rank, world.size, world.device, _input_memory(parameters, world))
    steps, modes, notes = _make(parameters, world, buffers)
    # Without the serial mode next to others there is no bound.
    bounded = len(modes) > 1 and "serial" in parameters.modes
    parts = dict(probes(parameters, world, buffers, modes) if bounded else ())
    measured = Measurement(parameters, environment, world, steps, parts).run()
    checks = {mode: _check(parameters, world, buffers, step, measured.steps) for mode, step in steps.items()}
    for one in modes:
        one.close()
    result = _result(parameters, environment, world, measured, checks, notes)
    everyone = {mode: world.comm.allgather(check) for mode, (check, _) in checks.items()}
    return dataclasses.replace(result, point=name), everyone


def _input_memory(parameters: PointParameters, world: World) -> Callable[..., torch.Tensor]:
    """Return the allocator of the inputs; if a mode reads the inputs of peers, it uses symmetric memory."""
    empty: Callable[..., torch.Tensor] = torch.empty
    if "copy-engine" in parameters.modes:
        with suppress(Unavailable):
            empty = symmetric_memory(world).empty
    return empty


def _make(
    parameters: PointParameters, world: World, buffers: Buffers
) -> tuple[ModeSteps, list[Mode], list[str]]:
    """Create the modes that can run here and their steps, and notes on the others."""
    steps: dict[str, Step | GraphedStep] = {}
    modes: list[Mode] = []
    notes = list(world.notes)
    copies = len(buffers.weights.first)
    if copies > 1:
        notes.append(f"the steps rotate through {copies} copies of the weights, more than the cache holds.")
    for name in parameters.modes:
        kept = buffers if parameters.forward or not steps else _apart(buffers, parameters)
        try:
            mode = MODES[name](parameters, world, kept)
        except Unavailable as why:
            notes.append(f"{name} is left out: {why}.")
            continue
        if mode.note:
            notes.append(mode.note)
        modes.append(mode)
        step = Step(parameters, kept, mode)
        if parameters.cuda_graph:
            if mode.phases:
                # The phases of a graph cannot be timed, and the bound needs them.
                steps[f"{name}{EAGER}"] = step
            steps[name] = GraphedStep(step, len(buffers.inputs))
        else:
            steps[name] = step
    if not steps:
        raise UsageError(" ".join(notes))
    return steps, modes, notes


def _apart(buffers: Buffers, parameters: PointParameters) -> Buffers:
    """Return buffers that keep the results of one forward apart from those of other modes."""
    gathered = torch.empty_like(buffers.gathered) if parameters.keep_gathered else buffers.gathered
    return dataclasses.replace(buffers, inner=torch.empty_like(buffers.inner), gathered=gathered)


def _check(
    parameters: PointParameters, world: World, buffers: Buffers, step: Step | GraphedStep, steps: int
) -> tuple[Correctness, int | None]:
    """Run a step on poisoned memory with each copy of the weights; return the worst check and peak bytes."""
    on_gpu = world.device.type == "cuda"
    checks, peaks = [], []
    for index in range(min(steps, len(buffers.weights.first))):
        step.poison()
        # Peers must not write into the memory of a rank that has not poisoned it yet.
        synchronize()
        world.comm.Barrier()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        outputs = step(index, UntimedPhases())
        synchronize()
        if on_gpu:
            peaks.append(torch.cuda.max_memory_allocated())
        checks.append(
            correctness.check(
                buffers,
                outputs,
                world.comm,
                dtype=parameters.dtype,
                seed=parameters.seed,
                index=index,
                # Without the forward, all steps compute the gradients of the first one.
                forward=index if parameters.forward else 0,
            )
        )
    return correctness.worst(checks), max(peaks, default=None)


def _result(
    parameters: PointParameters,
    environment: RankEnvironment,
    world: World,
    measured: Measured,
    checks: dict[str, tuple[Correctness, int | None]],
    notes: list[str],
) -> RankResult:
    device = world.device_name
    everyone = {name: world.comm.allgather(found.step_ns) for name, found in measured.times.items()}
    # A step ends when its last rank finishes.
    latencies = {name: slowest_rank_ns(ranks) for name, ranks in everyone.items()}
    marked = {name: slowest_rank_ns(world.comm.allgather(mine)) for name, mine in measured.marked_ns.items()}
    parts = _parts(world, measured)
    alone = alone_bound_ns(parts) if parts and len(measured.times) > 1 else None
    bound = None if alone is None else _bound(parameters, world, measured, parts)
    modes = {}
    for name, times in measured.times.items():
        check, peak = checks[name]
        modes[name] = ModeResult(
            step_ns=times.step_ns,
            phase_ns=times.phase_ns,
            latency_ns=latencies[name],
            correctness=check,
            peak_bytes=peak,
            figures=mode_figures(
                everyone[name],
                parameters,
                device=device,
                backend=world.backend,
                bound=bound,
                alone=alone,
                serial_ns=latencies.get("serial"),
                marks_pct=measured.marks_pct[name],
                overlaps=not name.startswith("serial"),
                marked_ns=marked.get(name),
            ),
            marked_ns=measured.marked_ns.get(name, []),
        )
    name, first = next(iter(modes.items()))
    only = first if len(modes) == 1 else None
    change = state_change(measured.gpu_before, measured.gpu_after)
    return RankResult(
        schema_version=SCHEMA_VERSION,
        workload="sequence-parallel",
        mode=name,
        rank=world.rank,
        world_size=world.size,
        local_rank=world.local_rank,
        host=world.host,
        device=device,
        backend=world.backend,
        parameters={
            **dataclasses.asdict(parameters),
            "rows": parameters.rows,
            "inner_size": parameters.inner_size,
        },
        versions=world.versions(),
        profiler=environment.profiler.value,
        step_ns=only.step_ns if only else [],
        phase_ns=only.phase_ns if only else {},
        summary=_summary(only) if only else {},
        latency_ns=only.latency_ns if only else None,
        correctness=only.correctness if only else None,
        notes=notes + _unseen(modes) + _conditions(world.comm.allgather(change), measured.stable),
        modes={} if only else modes,
        bound_ns=bound.p50_ns if bound else None,
        alone_bound_ns=alone,
        bound_parts_ns=bound.parts_ns if bound else {},
        figures=only.figures if only else None,
        parts_ns=parts,
        rates=part_rates(parts, parameters, world.size, world.backend),
        gpu_before=measured.gpu_before,
        gpu_after=measured.gpu_after,
        warmup_steps=measured.warmup_steps,
        stable=measured.stable,
        marked_ns=only.marked_ns if only else [],
    )


def _summary(mode: ModeResult) -> dict[str, Summary]:
    return {name: summarize(times) for name, times in {"step": mode.step_ns, **mode.phase_ns}.items()}


def _unseen(modes: dict[str, ModeResult]) -> list[str]:
    """Return a note for each mode that should overlap but does not, or that is faster than the bound."""
    known = {name: mode.figures for name, mode in modes.items() if mode.figures is not None}
    notes = [said(name, figures) for said in (no_overlap, beyond_bound) for name, figures in known.items()]
    return [note for note in notes if note]


def _bound(parameters: PointParameters, world: World, measured: Measured, parts: dict[str, int]) -> Bound:
    """Return the time that no mode can beat; in a profiled run, what the serial mode's phases tell of it."""
    latencies = {
        name: slowest_rank_ns(world.comm.allgather(times)) for name, times in measured.probes.items()
    }
    if not latencies:
        return Bound([alone_bound_ns(parts)] * parameters.steps, {})
    return step_bound(latencies, parts, link_bytes(parameters, world.size))


def _parts(world: World, measured: Measured) -> dict[str, int]:
    """Return the median of each phase of the serial mode, over the maxima of the ranks."""
    times = measured.times.get(f"serial{EAGER}") or measured.times.get("serial")
    if times is None:
        return {}
    return {
        name: summarize(slowest_rank_ns(world.comm.allgather(mine))).p50_ns
        for name, mine in times.phase_ns.items()
    }


def _conditions(changes: list[str | None], stable: bool | None) -> list[str]:
    """Return warnings about conditions that make the figures doubtful."""
    found = [
        f"WARNING: while rank {rank}'s GPU was measured, {change}"
        for rank, change in enumerate(changes)
        if change
    ]
    if stable is False:
        found.append("WARNING: the warm-up ended before the step times were stable; try --burn-in")
    return found
