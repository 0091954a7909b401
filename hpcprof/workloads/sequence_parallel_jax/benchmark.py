"""The workload on one rank: measure the steps, check the output, and write the results.

Each rank holds a part of the rows and a part of the inner columns of the weights. A step is one compiled
program of all ranks. The ranks meet at ``MASTER_ADDR`` and ``MASTER_PORT``, which the rank wrapper sets.
"""

import dataclasses
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Partition

from hpcprof.common import __version__
from hpcprof.common.errors import UsageError
from hpcprof.workloads import schema
from hpcprof.workloads.rankenv import RankEnvironment
from hpcprof.workloads.schema import Correctness, RankResult, slowest_rank_ns, summarize
from hpcprof.workloads.sequence_parallel_jax.options import Parameters

_MESH_AXIS = "ranks"
_SAMPLED_ROWS = 64
_SECOND_NS = 1_000_000_000
# Bounds of the relative norm, as those of ``sequence-parallel``.
_ERROR_BOUNDS = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
_REFERENCE = "float64 matmuls of sampled rows on each rank, with the weights of all ranks"


def run(wanted: Parameters | UsageError) -> int:
    """Run the workload; return 0, 1 if the check of the output fails, and 2 if an argument is wrong."""
    environment = RankEnvironment.from_environment(os.environ)
    rank, size = environment.rank or 0, environment.world_size or 1
    try:
        if isinstance(wanted, UsageError):
            raise wanted
        wanted.validate(size)
    except UsageError as error:
        if rank == 0:
            print(f"hpcprof: {error}", file=sys.stderr)
        return error.exit_code
    if size > 1:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        jax.distributed.initialize(address, size, rank)
    result = _measure(wanted, environment, rank, size)
    schema.write(result, environment.results_dir)
    check = result.correctness
    assert check is not None
    if rank == 0:
        print(_text(result, wanted), flush=True)
        print(f"results: {environment.results_dir}", flush=True)
    if not check.passed:
        wrong = f"relative error {check.relative_error:.1e} is not below {check.bound:.0e}"
        print(f"hpcprof: rank {rank}: {wrong}.", file=sys.stderr)
    return 0 if check.passed else 1


class _Block:
    """The block over all ranks.

    Input, output and the gradient of the output have the shape [R, h]; each device holds R/N rows. The
    weights have the shapes [h, f] and [f, h]; each device holds f/N columns and rows. Gradients of input and
    weights are shared as these are.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._mesh = jax.make_mesh((jax.device_count(),), (_MESH_AXIS,))
        rows, columns = Partition(_MESH_AXIS, None), Partition(None, _MESH_AXIS)
        *self._inputs, self._gradient = map(self._array, range(4), (rows, columns, rows, rows))
        mapped = jax.shard_map(
            _block, mesh=self._mesh, in_specs=(rows, columns, rows), out_specs=rows, check_vma=False
        )
        self._forward = jax.jit(mapped)
        self._both = jax.jit(lambda gradient, *inputs: _with_gradients(mapped, gradient, inputs))
        if parameters.direction == "backward":
            # Results of the forward that the backward needs are kept, the gathered input too.
            self._kept = jax.vjp(self._forward, *self._inputs)[1]
            self._backward = jax.jit(lambda pullback, gradient: pullback(gradient))

    def __call__(self) -> tuple[Any, ...]:
        """Run a step, and wait for what it computes: the output, the gradients, or all of them."""
        if self._parameters.direction == "forward":
            results = (self._forward(*self._inputs),)
        elif self._parameters.direction == "backward":
            results = self._backward(self._kept, self._gradient)
        else:
            results = self._both(self._gradient, *self._inputs)
        return tuple(jax.block_until_ready(results))

    def values(self, number: int) -> Any:
        """Return the whole of the input, a weight or the gradient (3), the same on every rank."""
        parameters = self._parameters
        rows, h, f = parameters.rows, parameters.hidden_size, parameters.inner_size
        shape = ((rows, h), (h, f), (f, h), (rows, h))[number]
        scale = np.float32((1.0, h**-0.5, f**-0.5, 1.0)[number])
        chosen = np.random.default_rng([parameters.seed, number])
        return (chosen.standard_normal(shape, np.float32) * scale).astype(parameters.dtype)

    def _array(self, number: int, partition: Partition) -> Any:
        whole = self.values(number)
        sharding = NamedSharding(self._mesh, partition)
        return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])

    def check(self, results: Sequence[Any]) -> Correctness:
        """Compare some rows or columns of this rank's part of a step with products in float64."""
        source, weight_1, weight_2, gradient = (self.values(i).astype(np.float64) for i in range(4))
        # The sharded axis, and the values at some places along it.
        references: list[tuple[int, Callable[[Any], Any]]] = [
            (0, lambda rows: source[rows] @ weight_1 @ weight_2),
            (0, lambda rows: gradient[rows] @ weight_2.T @ weight_1.T),
            (1, lambda columns: source.T @ (gradient @ weight_2[columns].T)),
            (0, lambda rows: (source @ weight_1[:, rows]).T @ gradient),
        ]
        chosen = references[: len(results)] if len(results) != 3 else references[1:]
        errors = []
        for array, (axis, reference) in zip(results, chosen, strict=True):
            shard = array.addressable_shards[0]
            places = np.unique(np.linspace(0, shard.data.shape[axis] - 1, _SAMPLED_ROWS, dtype=np.int64))
            expected = reference((shard.index[axis].start or 0) + places)
            difference = np.take(np.asarray(shard.data), places, axis).astype(np.float64) - expected
            errors.append(float(np.linalg.norm(difference) / np.linalg.norm(expected)))
        bound = _ERROR_BOUNDS[self._parameters.dtype]
        return Correctness(max(errors) < bound, max(errors), bound, len(places), _REFERENCE)


def _with_gradients(block: Any, gradient: Any, inputs: Sequence[Any]) -> tuple[Any, ...]:
    output, pullback = jax.vjp(block, *inputs)
    return output, *pullback(gradient)


def _block(source: Any, weight_1: Any, weight_2: Any) -> Any:
    gathered = jax.lax.all_gather(source, _MESH_AXIS, tiled=True)
    # The sums of all products are as precise as those of the other workloads.
    precision = jax.lax.Precision.HIGHEST
    inner = jax.numpy.matmul(gathered, weight_1, precision=precision)
    partial = jax.numpy.matmul(inner, weight_2, precision=precision)
    return jax.lax.psum_scatter(partial, _MESH_AXIS, tiled=True)


def _measure(parameters: Parameters, environment: RankEnvironment, rank: int, size: int) -> RankResult:
    block = _Block(parameters)
    for _ in range(parameters.warmup):
        output = block()
    times = []
    if size > 1:
        multihost_utils.sync_global_devices("measure")
    for number in range(parameters.steps):
        with jax.profiler.StepTraceAnnotation("iteration", step_num=number):
            begin = time.perf_counter_ns()
            output = block()
            times.append(time.perf_counter_ns() - begin)
    everyone = _of_all_ranks(times, size)
    latency = slowest_rank_ns(everyone)
    device = jax.local_devices()[0]
    on_cpu = device.platform == "cpu"
    flops = _flops(parameters) * parameters.rows * parameters.hidden_size * parameters.inner_size / size
    over_ranks = summarize(latency)
    skew = [max(step) - min(step) for step in zip(*everyone, strict=True)]
    spread = 100 * over_ranks.stddev_ns / over_ranks.mean_ns
    shape = {"rows": parameters.rows, "inner_size": parameters.inner_size}
    python = platform.python_version()
    return RankResult(
        schema_version=schema.SCHEMA_VERSION,
        workload="sequence-parallel-jax",
        mode="shard_map",
        rank=rank,
        world_size=size,
        local_rank=environment.local_rank or 0,
        host=socket.gethostname(),
        device="cpu" if on_cpu else device.device_kind,
        backend="gloo" if on_cpu else "nccl",
        parameters={**dataclasses.asdict(parameters), **shape},
        versions={"hpcprof": __version__, "python": python, "jax": jax.__version__, "numpy": np.__version__},
        profiler=environment.profiler.value,
        step_ns=times,
        phase_ns={},
        summary={"step": summarize(times)},
        latency_ns=latency,
        correctness=block.check(output),
        notes=[],
        figures=schema.Figures(
            step=over_ranks,
            spread_pct=round(spread, 2),
            skew_p50_ns=round(statistics.median(skew)),
            tflops=flops / over_ranks.p50_ns * 1e-3,
            bus_gbps=None,
            of_bound_pct=None,
            hidden_pct=None,
            of_peak_pct=None,
            marks_pct=0.0,
        ),
        warmup_steps=parameters.warmup,
    )


def _flops(parameters: Parameters) -> int:
    """Return the floating-point operations of a step in R h f: two matmuls forward, four backward."""
    return {"forward": 4, "backward": 8, "both": 12}[parameters.direction]


def _of_all_ranks(times: list[int], size: int) -> list[list[int]]:
    # JAX keeps 32 bits of a number.
    parts = np.array([divmod(moment, _SECOND_NS) for moment in times], np.int32)
    everyone = np.asarray(multihost_utils.process_allgather(parts)).reshape(size, -1, 2)
    return [[seconds * _SECOND_NS + remainder for seconds, remainder in rank] for rank in everyone.tolist()]


def _text(result: RankResult, parameters: Parameters) -> str:
    figures, check = result.figures, result.correctness
    assert figures is not None
    assert check is not None
    step = figures.step
    return "\n".join(
        [
            f"{result.workload}: {result.world_size} rank{'s' * (result.world_size != 1)}, {result.device}, "
            f"{result.backend}, {parameters.dtype}, {parameters.direction}",
            f"R = {parameters.rows} rows, h = {parameters.hidden_size}, f = {parameters.inner_size}",
            f"{'':<32}{'p50 ms':>10}{'p95 ms':>10}{'p99 ms':>10}{'n':>6}",
            f"{'step, maximum over ranks':<32}{step.p50_ns / 1e6:>10.3f}{step.p95_ns / 1e6:>10.3f}"
            f"{step.p99_ns / 1e6:>10.3f}{step.n:>6}",
            f"{figures.tflops:.3f} TFLOP/s per rank: {_flops(parameters)} R h f / N over the p50 of a step",
            f"relative error {check.relative_error:.1e} on rank {result.rank}, bound {check.bound:.0e}; "
            f"n = {check.rows} rows; reference: {check.reference}",
        ]
    )
