"""Train, measure, check, and write the results: what every rank does."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import random
import sys
from typing import Any

import torch

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.workloads.capture import Capture
from hpcprof.workloads.communicator import communicator
from hpcprof.workloads.ddp.options import Parameters
from hpcprof.workloads.ddp.program import configured_ddp, program
from hpcprof.workloads.ddp.result_table import result_table
from hpcprof.workloads.ddp.training import (
    PHASES,
    Trainer,
    batches,
    bucket_sizes,
    make_trainer,
    peak_memory,
    work_per_step,
)
from hpcprof.workloads.distributed import World, check_launch, connect, disconnect
from hpcprof.workloads.failure import print_once, run_or_abort
from hpcprof.workloads.rankenv import Profiler, RankEnvironment
from hpcprof.workloads.schema import (
    SCHEMA_VERSION,
    Correctness,
    RankResult,
    Training,
    slowest_rank_ns,
    summarize,
    write,
)
from hpcprof.workloads.timing import Timer, Times, clock_for

# DDP rebuilds its buckets when the second step begins.
_STEPS_TO_REBUILD = 2
_COMPARED = 4096
_AGREE = 1e-6

Spans = tuple[tuple[int, int], ...]


def run(wanted: Parameters | UsageError) -> int:
    """Train on all ranks and return the exit status.

    A wrong option or setting is status 2; a loss that is no number, or ranks whose parameters differ, are
    status 1. Both are found on every rank, so all end in an orderly way and rank 0 speaks. Any other
    failure aborts the job.
    """
    if isinstance(wanted, Parameters) and wanted.cuda_visible_devices is not None:
        # A launcher that gives each rank its own GPUs knows better.
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", wanted.cuda_visible_devices)
    try:
        comm = communicator(os.environ)
    except ImportError as error:
        print(
            f"{sys.executable}: {error}. MPI's ranks need mpi4py: name a Python that has it by -o "
            "python=PATH, or start them by torchrun.",
            file=sys.stderr,
        )
        return 1
    return run_or_abort(comm, functools.partial(_run, wanted, comm))


def _run(wanted: Parameters | UsageError, comm: Any) -> int:
    environment = RankEnvironment.from_environment(os.environ)
    check_launch(comm, environment)
    try:
        if isinstance(wanted, UsageError):
            raise wanted
        wanted.validate(comm.size)
    except UsageError as error:
        return print_once(comm, str(error), error.exit_code)
    world = connect(comm, device=wanted.device, backend=wanted.backend, timeout_s=wanted.timeout)
    wrong = _train_and_write(wanted, environment, world)
    disconnect(world)
    return print_once(comm, wrong, 1) if wrong else 0


def check_cuda_version(wanted: str | None, found: str | None) -> None:
    """Refuse another CUDA version than the one asked for; ``12`` stands for every ``12.x``.

    Raises
    ------
    UsageError
        If PyTorch was built with another one.
    """
    if wanted is None or found is None:
        return
    parts = wanted.split(".")
    if found.split(".")[: len(parts)] != parts:
        raise UsageError(f"cuda_version_check is {wanted}, but PyTorch was built with CUDA {found}.")


def _train_and_write(parameters: Parameters, environment: RankEnvironment, world: World) -> str | None:
    """Return what is wrong with the results, None if nothing is."""
    cuda = world.device.type == "cuda"
    notes = []
    if cuda:
        check_cuda_version(parameters.cuda_version, torch.version.cuda)
    elif parameters.cuda_version:
        notes.append(f"cuda_version_check {parameters.cuda_version} is not checked: the run uses no CUDA.")
    rank = world.device.index if cuda else world.device
    _seed(parameters.seed)
    job = program(parameters, configured_ddp(parameters, world.device))
    trainer = make_trainer(parameters, job, rank, world.device)
    # Other data on every rank, the same in every run.
    _seed(parameters.seed + 1 + world.rank)
    with job.errors_in("get_dataloader raised"):
        loader = job.get_dataloader(rank, parameters.batch_size)
    steps = _steps(loader, world)
    measured = steps * (parameters.epochs - parameters.warmup)
    environment, captured = _captured(parameters, environment, world, measured, steps)
    timer = _measure(parameters, environment, world, trainer, loader, steps)
    work = work_per_step(next(batches(loader, 1)), parameters.batch_size)
    result = _result(parameters, environment, world, trainer, timer.read(), work, captured, notes)
    wrong = _wrong(result, world)
    write(result, environment.results_dir)
    if world.rank == 0:
        print(result_table(result, world.nodes))
        print(f"results: {environment.results_dir}", flush=True)
    return wrong


def _captured(
    parameters: Parameters, environment: RankEnvironment, world: World, measured: int, steps: int
) -> tuple[RankEnvironment, Spans]:
    """Choose the steps to capture of the measured ones, where the job has not.

    Raises
    ------
    UsageError
        If the job chose steps that are not measured.
    """
    # A schedule of the PyTorch profiler, on some rank, chooses for itself among all measured steps; the
    # others must pass the same barriers.
    own = environment.profiler is Profiler.TORCH and bool(environment.torch_options.get("active"))
    scheduled = any(world.comm.allgather(own))
    around = (
        ((0, measured - 1),)
        if scheduled
        else middle_steps(parameters.capture_steps, measured - steps, measured)
    )
    chosen = environment.capture_steps or around
    if chosen[-1][1] >= measured:
        raise UsageError(
            f"steps {chosen[-1][0]} to {chosen[-1][1]} are to be captured, but the measured steps are "
            f"0 to {measured - 1} ({measured // steps} of {parameters.epochs} epochs of {steps} steps)."
        )
    if not scheduled:
        environment = dataclasses.replace(environment, capture_steps=chosen)
    return environment, chosen


def _result(
    parameters: Parameters,
    environment: RankEnvironment,
    world: World,
    trainer: Trainer,
    times: Times,
    work: tuple[int, str],
    captured: Spans,
    notes: list[str],
) -> RankResult:
    latency = slowest_rank_ns(world.comm.allgather(times.step_ns))
    losses = [value if math.isfinite(value) else None for value in map(float, trainer.losses)]
    sizes, rebuilt = bucket_sizes(trainer.ddp)
    if not losses:
        notes.append("the loss is unknown: backward_pass returns none, and the output has none.")
    if parameters.replicas_differ:
        notes.append("the ranks' parameters are not compared: nothing sums the gradients.")
    return RankResult(
        schema_version=SCHEMA_VERSION,
        workload="ddp",
        mode=parameters.comm_hook,
        rank=world.rank,
        world_size=world.size,
        local_rank=world.local_rank,
        host=world.host,
        device=world.device_name,
        backend=world.backend,
        parameters={key: value for key, value in dataclasses.asdict(parameters).items() if key != "tools"}
        | {"measured_steps": len(times.step_ns)},
        versions=world.versions(),
        profiler=environment.profiler.value,
        step_ns=times.step_ns,
        phase_ns=times.phase_ns,
        summary={
            name: summarize(values) for name, values in {"step": times.step_ns, **times.phase_ns}.items()
        },
        latency_ns=latency,
        correctness=None if parameters.replicas_differ else _agreement(trainer, world),
        notes=notes,
        training=Training(
            loss=losses,
            rate=work[0] * world.size / summarize(latency).p50_ns * 1e9,
            unit=work[1],
            bucket_bytes=sizes,
            buckets_rebuilt=rebuilt,
            memory_bytes=peak_memory(world.device),
            captured=[list(span) for span in captured],
        ),
    )


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)


def _steps(loader: Any, world: World) -> int:
    """Return the batches of an epoch: as many as the rank with the fewest has, since all must take part.

    Raises
    ------
    UsageError
        If the loader has no length, or no batch.
    """
    try:
        own = len(loader)
    except TypeError:
        own = -1
    least: int = min(world.comm.allgather(own))
    if own < 0:
        raise UsageError(
            f"get_dataloader returned a {type(loader).__name__} without a length: return a list or a "
            "DataLoader of a data set whose length is known."
        )
    if least < 1:
        raise UsageError("get_dataloader returned no batches.")
    return least


def middle_steps(count: int, first: int, end: int) -> Spans:
    """Return the ``count`` steps in the middle of those from ``first`` to before ``end``, or all of them."""
    count = min(count, end - first)
    start = first + (end - first - count + 1) // 2
    return ((start, start + count - 1),)


def _measure(
    parameters: Parameters,
    environment: RankEnvironment,
    world: World,
    trainer: Trainer,
    loader: Any,
    steps: int,
) -> Timer:
    """Train through all epochs; return the timer of the measured steps."""
    clock = clock_for(world.device)
    warmup, timer = Timer(clock, PHASES), Timer(clock, PHASES)
    if not parameters.warmup:
        # Else the first measured steps would use buckets that later ones do not.
        for index, inputs in enumerate(batches(itertools.cycle(loader), _STEPS_TO_REBUILD)):
            trainer.step(inputs, f"warm-up step {index}", warmup, contextlib.nullcontext)
    for epoch in range(parameters.warmup):
        _epoch(trainer, loader, steps, epoch, warmup, contextlib.nullcontext, contextlib.nullcontext)
    trainer.losses.clear()
    if world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(world.device)
    with Capture(environment, rank=world.rank, barrier=world.comm.Barrier) as capture:
        around = (capture.step, contextlib.nullcontext)
        around_step, around_backward = around if parameters.capture == "step" else reversed(around)
        for epoch in range(parameters.warmup, parameters.epochs):
            _epoch(trainer, loader, steps, epoch, timer, around_step, around_backward)
    return timer


def _epoch(
    trainer: Trainer,
    loader: Any,
    steps: int,
    epoch: int,
    timer: Timer,
    around_step: Any,
    around_backward: Any,
) -> None:
    done = 0
    for index, inputs in enumerate(batches(loader, steps)):
        with around_step(), timer.step():
            trainer.step(inputs, f"epoch {epoch}, step {index}", timer, around_backward)
        done += 1
    if done < steps:
        raise HpcprofError(f"epoch {epoch}: the loader says that it has {steps} batches, but gave {done}.")


def _agreement(trainer: Trainer, world: World) -> Correctness:
    """Compare this rank's parameters with rank 0's: after the same sums of gradients they must be equal."""
    flat = torch.cat([parameter.detach().flatten().double() for parameter in trainer.ddp.parameters()])
    own = flat[:: max(1, len(flat) // _COMPARED)].cpu()
    reference = torch.tensor(world.comm.bcast(own.tolist() if world.rank == 0 else None))
    error = float((own - reference).norm() / reference.norm())
    return Correctness(
        passed=error <= _AGREE,
        relative_error=error,
        bound=_AGREE,
        rows=len(own),
        reference="rank 0's parameters",
    )


def _wrong(result: RankResult, world: World) -> str | None:
    """Return a sentence of the first rank whose loss is no number or whose parameters differ."""
    training, check = result.training, result.correctness
    assert training is not None
    nan = training.loss.index(None) if None in training.loss else None
    everyone = world.comm.allgather([nan, check is None or check.passed])
    for rank, (step, _) in enumerate(everyone):
        if step is not None:
            return f"rank {rank}: the loss is no finite number from measured step {step} on."
    for rank, (_, passed) in enumerate(everyone):
        if not passed:
            return f"rank {rank}: the parameters differ from rank 0's after the last step."
    return None
