"""Warm up, measure, check, and write the results: what every rank does."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI

from hpcprof.errors import UsageError
from hpcprof.workloads.capture import Capture, synchronize
from hpcprof.workloads.distributed import World, check_launch, connect, disconnect
from hpcprof.workloads.failure import run_or_abort
from hpcprof.workloads.rankenv import RankEnvironment
from hpcprof.workloads.schema import SCHEMA_VERSION, Correctness, RankResult, summarize, write
from hpcprof.workloads.sequence_parallel import correctness, serial
from hpcprof.workloads.sequence_parallel.buffers import Buffers, allocate
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
    buffers = allocate(parameters, world.rank, world.size, world.device)
    times = _measure(parameters, environment, world, buffers)
    check = _check(parameters, world, buffers)
    result = _result(parameters, environment, world, times, check)
    write(result, environment.results_dir)
    checks: list[Correctness] = world.comm.allgather(check)
    if world.rank == 0:
        _print(result, parameters, world, checks, environment.results_dir)
    return correctness.sentence(checks)


def _measure(parameters: Parameters, environment: RankEnvironment, world: World, buffers: Buffers) -> Times:
    clock = clock_for(world.device)
    # Warm-up takes the very path that is measured; its times are dropped.
    warmup, measured = Timer(clock, serial.PHASES), Timer(clock, serial.PHASES)
    for index in range(parameters.warmup):
        _step(buffers, index, world, warmup)
    with Capture(environment, rank=world.rank, barrier=world.comm.Barrier) as capture:
        for index in range(parameters.warmup, parameters.warmup + parameters.steps):
            with capture.step():
                _step(buffers, index, world, measured)
    return measured.read()


def _step(buffers: Buffers, index: int, world: World, timer: Timer) -> None:
    source = buffers.input(index)
    with timer.step():
        serial.step(buffers, source, world.reduce_scatter, timer)


def _check(parameters: Parameters, world: World, buffers: Buffers) -> Correctness:
    source = buffers.input(0)
    buffers.poison()
    serial.step(buffers, source, world.reduce_scatter, Timer(clock_for(world.device), serial.PHASES))
    synchronize()
    return correctness.check(buffers, source, world.comm, dtype=parameters.dtype, seed=parameters.seed)


def _result(
    parameters: Parameters, environment: RankEnvironment, world: World, times: Times, check: Correctness
) -> RankResult:
    everyone: list[list[int]] = world.comm.allgather(times.step_ns)
    return RankResult(
        schema_version=SCHEMA_VERSION,
        workload="sequence-parallel",
        mode=parameters.mode,
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
        step_ns=times.step_ns,
        phase_ns=times.phase_ns,
        summary={
            "step": summarize(times.step_ns),
            **{name: summarize(values) for name, values in times.phase_ns.items()},
        },
        # A step ends when its last rank ends it.
        latency_ns=[max(step) for step in zip(*everyone, strict=True)],
        correctness=check,
        notes=list(world.notes),
    )


def _print(
    result: RankResult, parameters: Parameters, world: World, checks: list[Correctness], folder: Path
) -> None:
    errors = torch.tensor([check.relative_error for check in checks], dtype=torch.float64)
    # torch's maximum, unlike Python's, is NaN when one of the values is.
    print(table(result, parameters, world.nodes, float(errors.max())))
    print(f"results: {folder}", flush=True)
