"""The workload on one rank: measure every point, check it, and write the results."""

import dataclasses
import gc
from typing import Any

import torch
from mpi4py import MPI

from hpcprof.common.errors import UsageError
from hpcprof.workloads.distributed import World, connect, disconnect, run_workload
from hpcprof.workloads.failure import print_once
from hpcprof.workloads.rankenv import RankEnvironment
from hpcprof.workloads.schema import RankResult, write
from hpcprof.workloads.sequence_parallel import correctness
from hpcprof.workloads.sequence_parallel.buffers import check_device
from hpcprof.workloads.sequence_parallel.parameters import Sweep, at_point, errors_at
from hpcprof.workloads.sequence_parallel.point_benchmark import Checks, measure_point
from hpcprof.workloads.sequence_parallel.result_table import ResultFormatter


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
            result, checks = measure_point(name, parameters, environment, world)
        results.append(result)
        # Keep the results so far, whatever happens at later points.
        whole = dataclasses.replace(results[0], points=results) if wanted.swept else result
        write(whole, environment.results_dir)
        if world.rank == 0:
            print(printed.text(result, parameters, world.nodes, _worst(checks)), flush=True)
        wrong += [at_point(name, sentence) for sentence in _wrong(checks)]
        _free_memory(world)
    if world.rank == 0:
        print(f"results: {environment.results_dir}", flush=True)
    return wrong[0] if wrong else None


def _wrong(checks: Checks) -> list[str]:
    """Return a message for each mode whose results are wrong."""
    messages = ((mode, correctness.error_message(found)) for mode, found in checks.items())
    return [f"{mode}: {message}" for mode, message in messages if message]


def _worst(checks: Checks) -> dict[str, float]:
    """Return the largest error over the ranks, by mode; torch's maximum, unlike Python's, keeps NaN."""
    return {
        mode: float(torch.tensor([c.relative_error for c in found], dtype=torch.float64).max())
        for mode, found in checks.items()
    }


def _free_memory(world: World) -> None:
    """Free the memory of a point, which no peer reads after the checks were gathered."""
    gc.collect()
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
