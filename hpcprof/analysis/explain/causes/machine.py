"""Waits for the machine: for files, for cores that others use, and for memory."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from hpcprof.analysis.explain.annotations import Scene
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, MachineWait, Trait
from hpcprof.analysis.explain.causes.messages import MIN_SHARE_OF_MOST
from hpcprof.profiles.os_calls import FILES


def _in_files(scene: Scene) -> Iterator[Candidate]:
    """Yield the ranks of a program with MPI that read and write files, where the profile has these calls."""
    graph, mpi = scene.graph, scene.mpi
    if mpi is None or not graph.is_of_host:
        return
    time = mpi.part.in_files
    if not time.any():
        return
    ranks = scene.ranks_of_most(graph.call_rank, time, MIN_SHARE_OF_MOST)
    less = np.where(np.isin(graph.call_rank, ranks), time, 0)
    calls = np.flatnonzero(less)
    where = scene.mostly_outside_mpi(np.bincount(graph.calls.place[calls], less[calls], len(graph.places)))
    remove = partial(scene.removals.less_before, less=less)
    yield scene.candidate(SLOW_IO, where, remove, graph.call_rank, less, ranks=ranks)


SLOW_IO = CauseDeclaration(
    name="slow_io",
    title="slow reads and writes",
    meaning="ranks wait for a file system or a disk",
    about="ranks wait for a file system or a disk: in long steps, or for at least half of the time of a "
    "pause of the host; in programs on CPUs with MPI, by replay without the calls, where nsys recorded "
    "them (`osrt`)",
    remedy="Read and write beside the steps: load ahead in workers, write checkpoints in a thread or a "
    "process of their own, or to the node's own disk first. Fewer and larger requests, and fewer calls of "
    "fsync, help a shared file system.",
    candidates=_in_files,
    figures=(Figures("os_calls", "ns_per_step", lambda table, _: table["kind"] == FILES),),
    traits=frozenset({Trait.ALL_RANKS, Trait.TELLING}),
    wait=MachineWait(
        "io", ("blocked_pct", "io_wait_s", "io_pressure_s"), ("written_bytes", "read_bytes", "io_calls")
    ),
)

BUSY_CORES = CauseDeclaration(
    name="busy_cores",
    title="waiting for busy cores",
    meaning="ranks wait for their cores, which other processes use",
    about="ranks wait for their cores, which processes that are not of the run use meanwhile, in 5 % of the "
    "time or more (runs without a profiler). The price is the share of the rank that waits longest, and "
    "at most what the CPU time of the others leaves of a step: ranks wait for each other",
    remedy="Ask for nodes or cores of your own (--exclusive, --cpus-per-rank), bind each rank to cores that "
    "nothing else uses (--cpu-bind), and look for what else the job starts there.",
    traits=frozenset({Trait.ALL_RANKS}),
    wait=MachineWait("cores"),
)

MEMORY_PRESSURE = CauseDeclaration(
    name="memory_pressure",
    title="waiting for memory",
    meaning="memory is short, and ranks wait until the kernel frees some or reads pages again",
    about="memory is short: all processes of the job wait until the kernel frees some (control groups of "
    "version 2), or a rank waits for pages that were taken away and are read again, in 3 % of the time or "
    "more (runs without a profiler), in long steps, or for at least half of the time of a pause of the "
    "host",
    remedy="Ask for more memory (--mem), put fewer ranks on a node, or keep less: fewer workers that load "
    "data, smaller caches. Pages of files that the program maps and reads count too.",
    traits=frozenset({Trait.ALL_RANKS}),
    wait=MachineWait(
        "memory",
        ("paging_pct", "memory_stall_s"),
        ("memory_pressure_s", "major_faults", "refaults", "swapped_pages"),
    ),
)
