"""Runs tasks on the ranks of an MPI job."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed

from hpcprof.common.errors import UsageError
from hpcprof.results.collect.executors.interface import Lost, ResultT, TaskT


def over_mpi(
    function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
) -> Iterator[tuple[TaskT, ResultT | Lost]]:
    """Run on the other ranks of an MPI job started with ``python -m mpi4py.futures``.

    Raises UsageError if mpi4py is not installed.
    """
    try:
        from mpi4py.futures import MPIPoolExecutor
    except ImportError as error:
        raise UsageError(f"--executor mpi needs mpi4py: {error}.") from None
    with MPIPoolExecutor() as pool:
        futures = {pool.submit(function, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
