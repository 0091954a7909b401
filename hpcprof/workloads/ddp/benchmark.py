"""The workload on one rank: train, time the steps, check the results, and write them."""

import contextlib
import dataclasses
import itertools
import math
import os
import random
import sys
from typing import Any

import torch

from hpcprof.common.errors import UsageError
from hpcprof.common.units import counted, format_bytes
from hpcprof.workloads import schema
from hpcprof.workloads.capture import Capture
from hpcprof.workloads.communicator import communicator
from hpcprof.workloads.ddp.options import TrainingParameters, check_blocks, check_on_device
from hpcprof.workloads.ddp.program import configured_ddp, load_program
from hpcprof.workloads.ddp.training import PHASES, Trainer, batches, bucket_sizes, peak_memory, work_per_step
from hpcprof.workloads.distributed import World, connect, disconnect, run_workload
from hpcprof.workloads.failure import print_once
from hpcprof.workloads.rankenv import RankEnvironment, RankProfiler
from hpcprof.workloads.schema import Correctness, RankResult, slowest_rank_ns, summarize
from hpcprof.workloads.timing import MeasuredTimes, Timer, clock_for

# DDP rebuilds its buckets when the second step begins.
_STEPS_TO_REBUILD = 2
_MAX_CAPTURED_STEPS, _MIN_CAPTURED_STEPS, _MAX_CAPTURE_NS = 20, 3, 10_000_000_000
_MAX_COMPARED_VALUES = 4096
_TOLERANCE = 1e-6

StepSpans = tuple[tuple[int, int], ...]


def run(wanted: TrainingParameters | UsageError) -> int:
    """Train, or report the error in the arguments; return the exit status.

    The status is 2 if an option or setting is wrong, and 1 if a loss is not finite or the parameters of the
    ranks differ. Every rank finds these errors, so all ranks exit normally and rank 0 prints the message. Any
    other failure aborts the job.
    """
    if isinstance(wanted, TrainingParameters) and wanted.cuda_visible_devices is not None:
        # A launcher that assigns GPUs to ranks takes precedence.
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", wanted.cuda_visible_devices)
    try:
        comm = communicator(os.environ)
    except ImportError as error:
        print(
            f"{sys.executable}: {error}. Ranks started by MPI need mpi4py: name a Python that has it with "
            "-o python=PATH, or start the ranks with torchrun.",
            file=sys.stderr,
        )
        return 1
    return run_workload(comm, wanted, _run)


def _run(wanted: TrainingParameters, environment: RankEnvironment, comm: Any) -> int:
    world = connect(comm, device=wanted.device, backend=wanted.backend, timeout_s=wanted.timeout)
    wrong = _Benchmark(wanted, environment, world).run()
    disconnect(world)
    return print_once(comm, wrong, 1) if wrong else 0


def check_cuda_version(wanted: str | None, version: str | None) -> None:
    """Check that PyTorch was built with the CUDA version ``wanted``; ``12`` matches every ``12.x``."""
    if wanted is None or version is None:
        return
    parts = wanted.split(".")
    if version.split(".")[: len(parts)] != parts:
        raise UsageError(f"cuda_version_check is {wanted}, but PyTorch was built with CUDA {version}.")


class _Benchmark:
    """The training of one rank: its program, data and results."""

    def __init__(self, parameters: TrainingParameters, environment: RankEnvironment, world: World) -> None:
        self._parameters, self._environment, self._world = parameters, environment, world
        self._notes: list[str] = []
        cuda = world.device.type == "cuda"
        if cuda:
            check_cuda_version(parameters.cuda_version, torch.version.cuda)
        elif parameters.cuda_version:
            self._notes.append(
                f"cuda_version_check {parameters.cuda_version} is not checked: the run does not use CUDA."
            )
        rank = world.device.index if cuda else world.device
        check_on_device(parameters, world.device.type)
        _seed(parameters.seed)
        job = load_program(parameters, configured_ddp(parameters, world.device))
        self._trainer = Trainer(parameters, job, rank, world.device)
        # Different data on every rank, the same in every run.
        _seed(parameters.seed + 1 + world.rank)
        with job.errors_in("get_dataloader raised"):
            self._loader = job.get_dataloader(rank, parameters.batch_size)
        self._steps = _steps(self._loader, world)
        check_blocks(parameters, self._steps)

    def run(self) -> str | None:
        """Train, write and print the results; return the first error in them, None if they are correct."""
        # Steps that do not exist are refused before the warm-up.
        self._select_capture()
        captured = self._select_capture(self._warm_up())
        result = self._result(self._measure(captured), captured)
        wrong = _find_error(result, self._world)
        schema.write(result, self._environment.results_dir)
        if self._world.rank == 0:
            print(result_table(result, self._world.nodes))
            print(f"results: {self._environment.results_dir}", flush=True)
        return wrong

    def _select_capture(self, step_ns: int = 0) -> StepSpans:
        """Select the measured steps to capture, unless the job did; ``step_ns`` is the time of one."""
        parameters, environment, steps = self._parameters, self._environment, self._steps
        measured = steps * (parameters.epochs - parameters.warmup)
        span: StepSpans = ((0, measured - 1),)
        # Barriers would disturb blocks of steps that are compared.
        if not (self._scheduled() or parameters.fault_blocks):
            count = parameters.capture_steps or captured_by_default(step_ns)
            span = middle_steps(count, measured - steps, measured)
        chosen = environment.capture_steps or span
        if chosen[-1][1] >= measured:
            raise UsageError(
                f"steps {chosen[-1][0]} to {chosen[-1][1]} are selected for capture, but the measured steps "
                f"are 0 to {measured - 1} ({measured // steps} of {parameters.epochs} epochs of {steps} "
                "steps)."
            )
        return chosen

    def _scheduled(self) -> bool:
        """Return whether the PyTorch profiler of any rank selects the steps: all pass the same barriers."""
        environment = self._environment
        records = environment.profiler is RankProfiler.TORCH and bool(environment.torch_options.get("active"))
        return any(self._world.comm.allgather(records))

    def _warm_up(self) -> int:
        """Train the epochs before the measured ones; return the slowest rank's median step, 0 without any."""
        trainer, timer = self._trainer, Timer(clock_for(self._world.device), PHASES)
        if not self._parameters.warmup:
            # Otherwise the first measured steps would use buckets that DDP rebuilds later.
            source = batches(itertools.cycle(self._loader), _STEPS_TO_REBUILD)
            for index in range(_STEPS_TO_REBUILD):
                trainer.fault_injection.begin_step(-1, index, _STEPS_TO_REBUILD)
                trainer.step(source, f"warm-up step {index}", timer, contextlib.nullcontext)
            return 0
        for epoch in range(self._parameters.warmup):
            self._train(epoch, timer, contextlib.nullcontext, contextlib.nullcontext)
        slowest: float = max(self._world.comm.allgather(summarize(timer.read().step_ns).p50_ns))
        return round(slowest)

    def _measure(self, captured: StepSpans) -> MeasuredTimes:
        parameters, world = self._parameters, self._world
        timer = Timer(clock_for(world.device), PHASES)
        environment = self._environment
        if not self._scheduled():
            environment = dataclasses.replace(environment, capture_steps=captured)
        self._trainer.losses.clear()
        if world.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(world.device)
        with Capture(environment, rank=world.rank, barrier=world.comm.Barrier) as capture:
            contexts = (capture.step, contextlib.nullcontext)
            around_step, around_backward = contexts if parameters.capture == "step" else reversed(contexts)
            for epoch in range(parameters.warmup, parameters.epochs):
                self._train(epoch, timer, around_step, around_backward)
        return timer.read()

    def _train(self, epoch: int, timer: Timer, around_step: Any, around_backward: Any) -> None:
        source = batches(self._loader, self._steps)
        for index in range(self._steps):
            self._trainer.fault_injection.begin_step(epoch - self._parameters.warmup, index, self._steps)
            with around_step(), timer.step():
                self._trainer.step(source, f"epoch {epoch}, step {index}", timer, around_backward)

    def _result(self, times: MeasuredTimes, captured: StepSpans) -> RankResult:
        parameters, world, trainer, notes = self._parameters, self._world, self._trainer, self._notes
        work, unit = work_per_step(next(batches(self._loader, 1)), parameters.batch_size)
        latency = slowest_rank_ns(world.comm.allgather(times.step_ns))
        losses = [value if math.isfinite(value) else None for value in map(float, trainer.losses)]
        sizes, rebuilt = bucket_sizes(trainer.ddp)
        if not losses:
            notes.append("the loss is unknown: neither backward_pass nor the output provides one.")
        if parameters.replicas_differ:
            notes.append("the parameters of the ranks are not compared: their gradients are not summed.")
        named = {"step": times.step_ns, **times.phase_ns}
        options = {key: value for key, value in dataclasses.asdict(parameters).items() if key != "tools"}
        return RankResult(
            schema_version=schema.SCHEMA_VERSION,
            workload="ddp",
            mode=parameters.comm_hook,
            rank=world.rank,
            world_size=world.size,
            local_rank=world.local_rank,
            host=world.host,
            device=world.device_name,
            backend=world.backend,
            parameters={**options, "measured_steps": len(times.step_ns)},
            versions=world.versions(),
            profiler=self._environment.profiler.value,
            step_ns=times.step_ns,
            phase_ns=times.phase_ns,
            summary={name: summarize(values) for name, values in named.items()},
            latency_ns=latency,
            correctness=None if parameters.replicas_differ else _agreement(trainer, world),
            notes=notes,
            training=schema.Training(
                loss=losses,
                rate=work * world.size / summarize(latency).p50_ns * 1e9,
                unit=unit,
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
    """Return the batches in an epoch, the fewest on any rank; UsageError without a length, or without any."""
    try:
        length = len(loader)
    except TypeError:
        length = -1
    least: int = min(world.comm.allgather(length))
    if length < 0:
        raise UsageError(
            f"get_dataloader returned a {type(loader).__name__} without a length: return a list or a "
            "DataLoader of a data set with a known length."
        )
    if least < 1:
        raise UsageError("get_dataloader returned no batches.")
    return least


def middle_steps(count: int, first: int, end: int) -> StepSpans:
    """Return the middle ``count`` steps of those from ``first`` to ``end - 1``, or all if there are fewer."""
    count = min(count, end - first)
    start = first + (end - first - count + 1) // 2
    return ((start, start + count - 1),)


def captured_by_default(step_ns: int) -> int:
    """Return the default number of steps to capture: 20, or the number in 10 s if less, but at least 3."""
    return min(_MAX_CAPTURED_STEPS, max(_MIN_CAPTURED_STEPS, _MAX_CAPTURE_NS // max(step_ns, 1)))


def _agreement(trainer: Trainer, world: World) -> Correctness:
    """Compare the parameters with rank 0's; they must be equal, since all ranks apply the same gradients."""
    flat = torch.cat([parameter.detach().flatten().double() for parameter in trainer.ddp.parameters()])
    cpu = flat[:: max(1, len(flat) // _MAX_COMPARED_VALUES)].cpu()
    reference = torch.tensor(world.comm.bcast(cpu.tolist() if world.rank == 0 else None))
    error = float((cpu - reference).norm() / reference.norm())
    return Correctness(error <= _TOLERANCE, error, _TOLERANCE, len(cpu), "rank 0's parameters")


def _find_error(result: RankResult, world: World) -> str | None:
    """Return a message on the first rank whose loss is not finite or whose parameters differ."""
    training, check = result.training, result.correctness
    assert training is not None
    nan = training.loss.index(None) if None in training.loss else None
    checks_of_ranks = world.comm.allgather([nan, check is None or check.passed])
    for rank, (step, _) in enumerate(checks_of_ranks):
        if step is not None:
            return f"rank {rank}: the loss is not finite from measured step {step} on."
    for rank, (_, passed) in enumerate(checks_of_ranks):
        if not passed:
            return f"rank {rank}: the parameters differ from those of rank 0 after the last step."
    return None


def result_table(result: RankResult, nodes: int) -> str:
    """Return the table of rank 0's result as text; ``nodes`` is the number of nodes."""
    training = result.training
    assert training is not None
    rows = {
        "step, maximum over ranks": summarize(result.latency_ns or result.step_ns),
        **{f"{name}, rank {result.rank}": result.summary[name] for name in result.phase_ns},
    }
    return "\n".join(
        [
            f"ddp ({result.parameters['model']}, hook {result.mode}): "
            f"{counted(result.world_size, 'rank')} on {counted(nodes, 'node')}, {result.device}, "
            f"{result.backend}",
            "",
            f"{'':<32}{'p50 ms':>10}{'p95 ms':>10}{'n':>6}",
            *(
                f"{name:<32}{times.p50_ns / 1e6:>10.3f}{times.p95_ns / 1e6:>10.3f}{times.n:>6}"
                for name, times in rows.items()
            ),
            "",
            f"{training.rate:.1f} {training.unit}/s over all ranks",
            _loss(training.loss),
            _buckets(training.bucket_bytes, training.buckets_rebuilt),
            *(f"peak memory, {name}: {format_bytes(size)}" for name, size in training.memory_bytes.items()),
            *(f"captured: steps {first} to {last}" for first, last in training.captured),
            *(f"note: {note}" for note in result.notes),
        ]
    )


def _loss(losses: list[float | None]) -> str:
    if not losses:
        return "loss: unknown"
    first, last = (("not finite" if value is None else f"{value:.4f}") for value in (losses[0], losses[-1]))
    return f"loss: {first} at the first measured step, {last} at the last"


def _buckets(sizes: list[int], rebuilt: bool) -> str:
    if not sizes:
        return "buckets: unknown"
    state = "rebuilt" if rebuilt else "as first built"
    return f"buckets ({state}): {', '.join(map(format_bytes, sizes))}"
