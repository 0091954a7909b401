"""The workload on one rank: measure the modes at every point, check them, and write the results."""

import dataclasses
import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from mpi4py import MPI

from hpcprof.common.errors import UsageError
from hpcprof.workloads import schema
from hpcprof.workloads.capture import synchronize
from hpcprof.workloads.distributed import World, connect, disconnect, run_workload
from hpcprof.workloads.failure import print_once
from hpcprof.workloads.rankenv import RankEnvironment
from hpcprof.workloads.schema import Correctness, ModeResult, RankResult, slowest_rank_ns, summarize
from hpcprof.workloads.sequence_parallel import correctness, efficiency
from hpcprof.workloads.sequence_parallel.buffers import Buffers, allocate, check_device
from hpcprof.workloads.sequence_parallel.cost_model import link_bytes
from hpcprof.workloads.sequence_parallel.measurement import Measured, Measurement, ModeSteps, state_change
from hpcprof.workloads.sequence_parallel.modes import MODES, Mode, Unavailable
from hpcprof.workloads.sequence_parallel.modes.symmetric import symmetric_memory
from hpcprof.workloads.sequence_parallel.parameters import PointParameters, Sweep, at_point, errors_at
from hpcprof.workloads.sequence_parallel.probes import probes
from hpcprof.workloads.sequence_parallel.result_table import ResultFormatter
from hpcprof.workloads.sequence_parallel.steps import GraphedStep, Step
from hpcprof.workloads.timing import UntimedPhases

EAGER = " (eager)"
"""Suffix for the name of a mode that is also measured without a CUDA graph."""

Checks = dict[str, list[Correctness]]
"""The checks of all ranks, by mode."""


def run(wanted: Sweep | UsageError) -> int:
    """Run the workload, or report the error in its arguments; return the exit status.

    The status is 1 if a correctness check fails, and 2 if an argument is wrong or the ranks cannot share the
    shape. Every rank finds these errors, so all ranks exit normally and rank 0 prints the message. Any other
    failure aborts the job.
    """
    return run_workload(MPI.COMM_WORLD, wanted, _run)


def _run(wanted: Sweep, environment: RankEnvironment, comm: Any) -> int:
    common = wanted.first
    world = connect(comm, device=common.device, backend=common.backend, max_ctas=common.comm_max_ctas)
    if common.cuda_graph and world.device.type != "cuda":
        raise UsageError("--cuda-graph needs CUDA.")
    for name, parameters in wanted.points.items():
        with errors_at(name):
            check_device(parameters, world.size, world.device)
    with torch.no_grad():
        wrong = _measure_and_write(wanted, environment, world)
    disconnect(world)
    return print_once(comm, wrong, 1) if wrong else 0


def _measure_and_write(wanted: Sweep, environment: RankEnvironment, world: World) -> str | None:
    """Return the first error in the results, None if they are correct."""
    results: list[RankResult] = []
    wrong: list[str] = []
    printed = ResultFormatter(wanted)
    for name, parameters in wanted.points.items():
        with errors_at(name):
            result, checks = _measure_point(name, parameters, environment, world)
        results.append(result)
        # Keep the results so far, whatever happens at later points.
        whole = dataclasses.replace(results[0], points=results) if wanted.swept else result
        schema.write(whole, environment.results_dir)
        if world.rank == 0:
            print(printed.text(result, parameters, world.nodes, _worst(checks)), flush=True)
        messages = ((mode, correctness.error_message(ranks)) for mode, ranks in checks.items())
        wrong += [at_point(name, f"{mode}: {message}") for mode, message in messages if message]
        # No peer reads the memory of the point after the checks were gathered.
        gc.collect()
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
    if world.rank == 0:
        print(f"results: {environment.results_dir}", flush=True)
    return wrong[0] if wrong else None


def _worst(checks: Checks) -> dict[str, float]:
    """Return the largest error over the ranks, by mode; torch's maximum, unlike Python's, keeps NaN."""
    return {
        mode: float(torch.tensor([check.relative_error for check in ranks], dtype=torch.float64).max())
        for mode, ranks in checks.items()
    }


def _measure_point(
    name: str, parameters: PointParameters, environment: RankEnvironment, world: World
) -> tuple[RankResult, Checks]:
    """Measure and check every mode at the point ``name``; a collective call.

    Nothing of the point stays in the memory of the GPU. Raises HpcprofError if the data do not fit or are not
    finite, or no mode can run.
    """
    # float32 must mean float32, also after a point in TF32.
    torch.set_float32_matmul_precision("high" if parameters.dtype == "tf32" else "highest")
    empty: Callable[..., torch.Tensor] = torch.empty
    if "copy-engine" in parameters.modes:  # it reads the inputs of peers
        with suppress(Unavailable):
            empty = symmetric_memory(world).empty
    buffers = allocate(parameters, world.rank, world.size, world.device, empty)
    steps, modes, notes = _make(parameters, world, buffers)
    # Without the serial mode next to others there is no bound.
    bounded = len(modes) > 1 and "serial" in parameters.modes
    parts = dict(probes(parameters, world, buffers, modes) if bounded else ())
    measured = Measurement(parameters, environment, world, steps, parts).run()
    checks = {mode: _check(parameters, world, buffers, step, measured.steps) for mode, step in steps.items()}
    for mode in modes:
        mode.close()
    result = _result(parameters, environment, world, measured, checks, notes)
    checks_of_ranks = {mode: world.comm.allgather(check) for mode, (check, _) in checks.items()}
    return dataclasses.replace(result, point=name), checks_of_ranks


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
        mode_buffers = buffers if parameters.forward or not steps else _separate_buffers(buffers, parameters)
        try:
            mode = MODES[name](parameters, world, mode_buffers)
        except Unavailable as why:
            notes.append(f"{name} is left out: {why}.")
            continue
        if mode.note:
            notes.append(mode.note)
        modes.append(mode)
        step = Step(parameters, mode_buffers, mode)
        if parameters.cuda_graph and mode.phases:
            # The phases of a graph cannot be timed, and the bound needs them.
            steps[f"{name}{EAGER}"] = step
        steps[name] = GraphedStep(step, len(buffers.inputs)) if parameters.cuda_graph else step
    if not steps:
        raise UsageError(" ".join(notes))
    return steps, modes, notes


def _separate_buffers(buffers: Buffers, parameters: PointParameters) -> Buffers:
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
        # Without the forward, all steps compute the gradients of the first one.
        forward = index if parameters.forward else 0
        checks.append(correctness.check(parameters, buffers, outputs, world.comm, index, forward))
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
    checks_of_ranks = {name: world.comm.allgather(times.step_ns) for name, times in measured.times.items()}
    # A step ends when its last rank finishes.
    latencies = {name: slowest_rank_ns(ranks) for name, ranks in checks_of_ranks.items()}
    marked = _of_slowest(world, measured.marked_ns)
    parts = _parts(world, measured)
    alone = efficiency.alone_bound_ns(parts) if parts and len(measured.times) > 1 else None
    bound = None if alone is None else _find_bound(parameters, world, measured, alone, parts)
    modes = {}
    for name, times in measured.times.items():
        check, peak = checks[name]
        figures = efficiency.mode_figures(
            checks_of_ranks[name],
            parameters,
            device=device,
            backend=world.backend,
            bound=bound,
            alone=alone,
            serial_ns=latencies.get("serial"),
            marks_pct=measured.marks_pct[name],
            overlaps=not name.startswith("serial"),
            marked_ns=marked.get(name),
        )
        marks = measured.marked_ns.get(name, [])
        modes[name] = ModeResult(
            times.step_ns, times.phase_ns, latencies[name], check, peak, figures, marked_ns=marks
        )
    name, only = next(iter(modes.items()))
    # With several modes, the times and figures are those of the modes.
    single: dict[str, Any] = {"step_ns": [], "phase_ns": {}, "latency_ns": None, "correctness": None}
    if len(modes) == 1:
        single = {key: getattr(only, key) for key in (*single, "figures", "marked_ns")}
    times_ns = {"step": single["step_ns"], **single["phase_ns"]} if len(modes) == 1 else {}
    change = state_change(measured.gpu_before, measured.gpu_after)
    shape = {"rows": parameters.rows, "inner_size": parameters.inner_size}
    return RankResult(
        schema_version=schema.SCHEMA_VERSION,
        workload="sequence-parallel",
        mode=name,
        rank=world.rank,
        world_size=world.size,
        local_rank=world.local_rank,
        host=world.host,
        device=device,
        backend=world.backend,
        parameters={**dataclasses.asdict(parameters), **shape},
        versions=world.versions(),
        profiler=environment.profiler.value,
        **single,
        summary={name: summarize(times) for name, times in times_ns.items()},
        notes=notes + _unseen(modes) + _conditions(world.comm.allgather(change), measured.stable),
        modes={} if len(modes) == 1 else modes,
        bound_ns=bound.p50_ns if bound else None,
        alone_bound_ns=alone,
        bound_parts_ns=bound.parts_ns if bound else {},
        parts_ns=parts,
        rates=efficiency.part_rates(parts, parameters, world.size, world.backend),
        gpu_before=measured.gpu_before,
        gpu_after=measured.gpu_after,
        warmup_steps=measured.warmup_steps,
        stable=measured.stable,
    )


def _unseen(modes: dict[str, ModeResult]) -> list[str]:
    """Return a note for each mode that should overlap but does not, or that is faster than the bound."""
    measured = {name: mode.figures for name, mode in modes.items() if mode.figures is not None}
    checks = (efficiency.no_overlap, efficiency.beyond_bound)
    notes = [check(name, figures) for check in checks for name, figures in measured.items()]
    return [note for note in notes if note]


def _find_bound(
    parameters: PointParameters, world: World, measured: Measured, alone: int, parts: dict[str, int]
) -> efficiency.Bound:
    """Return the time that no mode can beat; in a profiled run, it is estimated from the serial mode."""
    latencies = _of_slowest(world, measured.probes)
    if not latencies:
        return efficiency.Bound([alone] * parameters.steps, {})
    return efficiency.step_bound(latencies, parts, link_bytes(parameters, world.size))


def _parts(world: World, measured: Measured) -> dict[str, int]:
    """Return the median of each phase of the serial mode, over the maxima of the ranks."""
    times = measured.times.get(f"serial{EAGER}") or measured.times.get("serial")
    phases = _of_slowest(world, times.phase_ns if times else {})
    return {name: summarize(durations).p50_ns for name, durations in phases.items()}


def _of_slowest(world: World, times_ns: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the maxima over the ranks of each time, by name; a collective call."""
    return {name: slowest_rank_ns(world.comm.allgather(times)) for name, times in times_ns.items()}


def _conditions(changes: list[str | None], stable: bool | None) -> list[str]:
    """Return warnings about conditions that make the figures doubtful."""
    warnings = [
        f"WARNING: while rank {rank}'s GPU was measured, {change}"
        for rank, change in enumerate(changes)
        if change
    ]
    if stable is False:
        warnings.append("WARNING: the warm-up ended before the step times were stable; try --burn-in")
    return warnings
