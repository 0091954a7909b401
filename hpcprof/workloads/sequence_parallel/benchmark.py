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

from hpcprof.errors import UsageError
from hpcprof.workloads.capture import Capture, synchronize
from hpcprof.workloads.distributed import World, check_launch, connect, disconnect
from hpcprof.workloads.failure import run_or_abort
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
from hpcprof.workloads.sequence_parallel.modes import MODES, Mode, Unavailable
from hpcprof.workloads.sequence_parallel.modes.symmetric import symmetric_memory
from hpcprof.workloads.sequence_parallel.options import Parameters
from hpcprof.workloads.sequence_parallel.table import table
from hpcprof.workloads.timing import Timer, Times, clock_for
from hpcprof.workloads.versions import device_name, versions


def run(parameters: Parameters) -> int:
    """Run the workload on all ranks and return the exit status.

    Status 1 stands for a failed correctness check, 2 for a shape that the ranks cannot share; both are
    found on every rank, so all end in an orderly way and rank 0 speaks. Any other failure aborts the job.
    """
    comm = MPI.COMM_WORLD
    return run_or_abort(comm, functools.partial(_run, parameters, comm))


def _run(parameters: Parameters, comm: Any) -> int:
    environment = RankEnvironment.from_environment(os.environ)
    check_launch(comm, environment)
    try:
        parameters.validate(comm.size)
    except UsageError as error:
        return refuse(error)
    world = connect(comm, device=parameters.device, backend=parameters.backend)
    with torch.inference_mode():
        wrong = _measure_and_write(parameters, environment, world)
    disconnect(world)
    return _say(wrong, 1) if wrong else 0


def refuse(error: UsageError) -> int:
    """Print the sentence on rank 0 alone, since every rank was given the same arguments."""
    return _say(str(error), error.exit_code)


def _say(sentence: str, code: int) -> int:
    if MPI.COMM_WORLD.rank == 0:
        print(sentence, file=sys.stderr, flush=True)
    return code


def _measure_and_write(parameters: Parameters, environment: RankEnvironment, world: World) -> str | None:
    """Return what is wrong with the results, None if nothing is."""
    if parameters.dtype == "tf32":
        torch.set_float32_matmul_precision("high")
    buffers = allocate(parameters, world.rank, world.size, world.device, _input_memory(parameters, world))
    modes, notes = _make(parameters, world, buffers)
    times = _measure(parameters, environment, world, modes)
    checks = {name: _check(parameters, world, buffers, mode) for name, mode in modes.items()}
    result = _result(parameters, environment, world, times, checks, notes)
    write(result, environment.results_dir)
    everyone = {name: world.comm.allgather(check) for name, check in checks.items()}
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


def _make(parameters: Parameters, world: World, buffers: Buffers) -> tuple[dict[str, Mode], list[str]]:
    """Make the modes that can run here, and say why the others cannot.

    Raises
    ------
    UsageError
        If none can.
    """
    modes: dict[str, Mode] = {}
    notes = list(world.notes)
    for name in parameters.modes:
        try:
            modes[name] = MODES[name](parameters, world, buffers)
        except Unavailable as why:
            notes.append(f"{name} is left out: {why}.")
    if not modes:
        raise UsageError(" ".join(notes))
    return modes, notes + [mode.note for mode in modes.values() if mode.note]


def _measure(
    parameters: Parameters, environment: RankEnvironment, world: World, modes: dict[str, Mode]
) -> dict[str, Times]:
    """Measure the modes in turns, so that a change of the clocks meets all of them."""

    def timers() -> dict[str, Timer]:
        # A profile's steps are those of one mode; those of several get names of their own.
        single = len(modes) == 1
        clock = clock_for(world.device)
        return {
            name: Timer(clock, mode.phases, "iteration" if single else f"iteration {name}")
            for name, mode in modes.items()
        }

    # Warm-up takes the very path that is measured; its times are dropped.
    warmup, measured = timers(), timers()
    for index in range(parameters.warmup):
        _round(modes, index, warmup)
    with Capture(environment, rank=world.rank, barrier=world.comm.Barrier) as capture:
        for index in range(parameters.warmup, parameters.warmup + parameters.steps):
            with capture.step():
                _round(modes, index, measured)
    return {name: timer.read() for name, timer in measured.items()}


def _round(modes: dict[str, Mode], index: int, timers: dict[str, Timer]) -> None:
    for name, mode in modes.items():
        with timers[name].step():
            mode.step(index, timers[name])


def _check(parameters: Parameters, world: World, buffers: Buffers, mode: Mode) -> Correctness:
    mode.poison()
    output = mode.step(0, Timer(clock_for(world.device), mode.phases))
    synchronize()
    return correctness.check(
        buffers, buffers.input(0), output, world.comm, dtype=parameters.dtype, seed=parameters.seed
    )


def _result(
    parameters: Parameters,
    environment: RankEnvironment,
    world: World,
    times: dict[str, Times],
    checks: dict[str, Correctness],
    notes: list[str],
) -> RankResult:
    modes = {
        name: ModeResult(
            step_ns=found.step_ns,
            phase_ns=found.phase_ns,
            # A step ends when its last rank ends it.
            latency_ns=slowest(world.comm.allgather(found.step_ns)),
            correctness=checks[name],
        )
        for name, found in times.items()
    }
    name, first = next(iter(modes.items()))
    return RankResult(
        schema_version=SCHEMA_VERSION,
        workload="sequence-parallel",
        mode=name,
        rank=world.rank,
        world_size=world.size,
        local_rank=world.local_rank,
        host=world.host,
        device=device_name(world.device),
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
        notes=notes,
        modes=modes if len(modes) > 1 else {},
        bound_ns=_bound(world, modes["serial"]) if len(modes) > 1 and "serial" in modes else None,
    )


def _bound(world: World, serial: ModeResult) -> int:
    """Return the time of a step whose communication and compute overlap perfectly, in nanoseconds."""
    part = {
        name: summarize(slowest(world.comm.allgather(times))).p50_ns
        for name, times in serial.phase_ns.items()
    }
    return max(part["matmul_1"] + part["matmul_2"], part["allgather"] + part["reduce_scatter"])


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
