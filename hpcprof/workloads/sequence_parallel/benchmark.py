"""Warm up, measure, check, and write the results: what every rank does."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI

from hpcprof.errors import HpcprofError, UsageError
from hpcprof.workloads.capture import synchronize
from hpcprof.workloads.distributed import World, check_launch, connect, disconnect
from hpcprof.workloads.failure import run_or_abort
from hpcprof.workloads.gpu_state import moved
from hpcprof.workloads.rankenv import RankEnvironment
from hpcprof.workloads.schema import (
    SCHEMA_VERSION,
    Correctness,
    ModeResult,
    RankResult,
    slowest,
    summarize,
    write,
)
from hpcprof.workloads.sequence_parallel import correctness
from hpcprof.workloads.sequence_parallel.buffers import Buffers, allocate
from hpcprof.workloads.sequence_parallel.figures import bound_ns, figures, rates
from hpcprof.workloads.sequence_parallel.measure import Measured, Measurement, Steps
from hpcprof.workloads.sequence_parallel.modes import MODES, Unavailable
from hpcprof.workloads.sequence_parallel.modes.symmetric import symmetric_memory
from hpcprof.workloads.sequence_parallel.options import Parameters
from hpcprof.workloads.sequence_parallel.steps import GraphedStep, Step
from hpcprof.workloads.sequence_parallel.table import table
from hpcprof.workloads.timing import Untimed
from hpcprof.workloads.versions import device_name, versions
from hpcprof.workloads.watch import STORE_TIMEOUT, Watch

EAGER = " (eager)"
"""Added to the name of a mode that is measured without a CUDA graph beside the one with it."""


def run(wanted: Parameters | UsageError) -> int:
    """Run the workload on all ranks, or say what is wrong with its arguments; return the exit status.

    Status 1 stands for a failed correctness check, 2 for wrong arguments or a shape that the ranks cannot
    share; these are found on every rank, so all end in an orderly way and rank 0 speaks. Any other failure
    aborts the job.
    """
    comm = MPI.COMM_WORLD
    return run_or_abort(comm, functools.partial(_run, wanted, comm))


def _run(wanted: Parameters | UsageError, comm: Any) -> int:
    environment = RankEnvironment.from_environment(os.environ)
    check_launch(comm, environment)
    try:
        if isinstance(wanted, UsageError):
            raise wanted
        wanted.validate(comm.size)
    except UsageError as error:
        return _say(comm, str(error), error.exit_code)
    parameters = wanted
    world = connect(
        comm, device=parameters.device, backend=parameters.backend, max_ctas=parameters.comm_max_ctas
    )
    if parameters.cuda_graph and world.device.type != "cuda":
        raise UsageError("--cuda-graph needs CUDA.")
    with torch.no_grad(), Watch(comm, world.store(STORE_TIMEOUT), parameters.step_timeout) as watch:
        try:
            wrong = _measure_and_write(parameters, environment, world, watch)
        except RuntimeError as error:
            # A collective fails when another rank is gone: then that is what must be said.
            if (lost := watch.lost()) is not None:
                raise HpcprofError(lost) from error
            raise
    disconnect(world)
    return _say(comm, wrong, 1) if wrong else 0


def _say(comm: Any, sentence: str, code: int) -> int:
    if comm.rank == 0:
        print(sentence, file=sys.stderr, flush=True)
    return code


def _measure_and_write(
    parameters: Parameters, environment: RankEnvironment, world: World, watch: Watch
) -> str | None:
    """Return what is wrong with the results, None if nothing is."""
    if parameters.dtype == "tf32":
        torch.set_float32_matmul_precision("high")
    watch.enter("the allocation")
    buffers = allocate(parameters, world.rank, world.size, world.device, _input_memory(parameters, world))
    watch.enter("the making of the modes")
    steps, notes = _make(parameters, world, buffers)
    measured = Measurement(parameters, environment, world, steps, watch).run()
    checks = {}
    for name, step in steps.items():
        watch.enter(f"the check of {name}")
        checks[name] = _check(parameters, world, buffers, step)
    watch.enter("the results")
    result = _result(parameters, environment, world, measured, checks, notes)
    write(result, environment.results_dir)
    everyone = {name: world.comm.allgather(check) for name, (check, _) in checks.items()}
    if world.rank == 0:
        _print(result, parameters, world, everyone, environment.results_dir)
    wrong = ((name, correctness.sentence(found)) for name, found in everyone.items())
    return next((f"{name}: {sentence}" for name, sentence in wrong if sentence), None)


def _input_memory(parameters: Parameters, world: World) -> Callable[..., torch.Tensor]:
    """Return what allocates the inputs: memory that the peers can read, where a mode reads theirs."""
    empty: Callable[..., torch.Tensor] = torch.empty
    if "copy-engine" in parameters.modes:
        with suppress(Unavailable):
            empty = symmetric_memory(world).empty
    return empty


def _make(parameters: Parameters, world: World, buffers: Buffers) -> tuple[Steps, list[str]]:
    """Make the steps of the modes that can run here, and say why the others cannot.

    Raises
    ------
    UsageError
        If none can.
    """
    steps: dict[str, Step | GraphedStep] = {}
    notes = list(world.notes)
    for name in parameters.modes:
        kept = buffers if parameters.forward or not steps else _apart(buffers, parameters)
        try:
            mode = MODES[name](parameters, world, kept)
        except Unavailable as why:
            notes.append(f"{name} is left out: {why}.")
            continue
        if mode.note:
            notes.append(mode.note)
        step = Step(parameters, kept, mode)
        if parameters.cuda_graph:
            if mode.phases:
                # A graph's phases cannot be timed, and the bound is made of them.
                steps[f"{name}{EAGER}"] = step
            steps[name] = GraphedStep(step, len(buffers.inputs))
        else:
            steps[name] = step
    if not steps:
        raise UsageError(" ".join(notes))
    return steps, notes


def _apart(buffers: Buffers, parameters: Parameters) -> Buffers:
    """Return buffers in which the results of one forward stay, whatever the other modes do."""
    gathered = torch.empty_like(buffers.gathered) if parameters.keep_gathered else buffers.gathered
    return dataclasses.replace(buffers, inner=torch.empty_like(buffers.inner), gathered=gathered)


def _check(
    parameters: Parameters, world: World, buffers: Buffers, step: Step | GraphedStep
) -> tuple[Correctness, int | None]:
    """Run one step on poisoned memory; return how right it is and the most memory that it needed."""
    on_gpu = world.device.type == "cuda"
    step.poison()
    # A rank whose memory is still to be poisoned must not be written to by its peers.
    synchronize()
    world.comm.Barrier()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    outputs = step(0, Untimed())
    synchronize()
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    return (
        correctness.check(buffers, outputs, world.comm, dtype=parameters.dtype, seed=parameters.seed),
        peak,
    )


def _result(
    parameters: Parameters,
    environment: RankEnvironment,
    world: World,
    measured: Measured,
    checks: dict[str, tuple[Correctness, int | None]],
    notes: list[str],
) -> RankResult:
    device = device_name(world.device)
    everyone = {name: world.comm.allgather(found.step_ns) for name, found in measured.times.items()}
    # A step ends when its last rank ends it.
    latencies = {name: slowest(ranks) for name, ranks in everyone.items()}
    parts = _parts(world, measured)
    bound = bound_ns(parts) if parts and len(measured.times) > 1 else None
    serial = summarize(latencies["serial"]).p50_ns if "serial" in latencies else None
    modes = {}
    for name, times in measured.times.items():
        check, peak = checks[name]
        modes[name] = ModeResult(
            step_ns=times.step_ns,
            phase_ns=times.phase_ns,
            latency_ns=latencies[name],
            correctness=check,
            peak_bytes=peak,
            figures=figures(
                everyone[name],
                parameters,
                device=device,
                backend=world.backend,
                bound=bound,
                serial=serial,
                marks_pct=measured.marks_pct[name],
            ),
        )
    name, first = next(iter(modes.items()))
    change = moved(measured.gpu_before, measured.gpu_after)
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
        versions=versions(world),
        profiler=environment.profiler.value,
        step_ns=first.step_ns,
        phase_ns=first.phase_ns,
        summary={
            "step": summarize(first.step_ns),
            **{name: summarize(values) for name, values in first.phase_ns.items()},
        },
        latency_ns=first.latency_ns,
        correctness=first.correctness,
        notes=notes + _conditions(world.comm.allgather(change), measured.stable),
        modes=modes if len(modes) > 1 else {},
        bound_ns=bound,
        figures=first.figures,
        parts_ns=parts,
        rates=rates(parts, parameters, world.size, world.backend),
        gpu_before=measured.gpu_before,
        gpu_after=measured.gpu_after,
        warmup_steps=measured.warmup_steps,
        stable=measured.stable,
    )


def _parts(world: World, measured: Measured) -> dict[str, int]:
    """Return the medians of the serial mode's phases, each step's maximum over the ranks."""
    times = measured.times.get(f"serial{EAGER}") or measured.times.get("serial")
    if times is None:
        return {}
    return {
        name: summarize(slowest(world.comm.allgather(mine))).p50_ns for name, mine in times.phase_ns.items()
    }


def _conditions(changes: list[str | None], stable: bool | None) -> list[str]:
    """Say what makes the figures doubtful."""
    found = [
        f"WARNING: while rank {rank}'s GPU was measured, {change}"
        for rank, change in enumerate(changes)
        if change
    ]
    if stable is False:
        found.append("WARNING: the warm-up ended before the step times were stable; try --burn-in")
    return found


def _print(
    result: RankResult,
    parameters: Parameters,
    world: World,
    checks: dict[str, list[Correctness]],
    folder: Path,
) -> None:
    # torch's maximum, unlike Python's, is NaN when one of the values is.
    worst = {
        name: float(torch.tensor([c.relative_error for c in found], dtype=torch.float64).max())
        for name, found in checks.items()
    }
    print(table(result, parameters, world.nodes, worst))
    print(f"results: {folder}", flush=True)
