"""Writes OTF2 archives as Score-P does: the steps of a stencil on all ranks, with everything that is read.

Each step of each rank takes `STEP` ns: 400 in the program's range, then a nonblocking send to the next rank
and a receive from the one before it, which end in one wait, a reduction over all ranks, a gather over half
of them, and a blocking exchange. A second thread runs a loop of OpenMP, and a stream of a GPU one kernel,
which has one more at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESOLUTION = 2_000_000_000
OFFSET = 1_000_000
STEP = 2_000
BYTES = 4096


def ticks(nanoseconds: int) -> int:
    """Return the time of an event in ticks of the archive's clock."""
    return OFFSET + nanoseconds * (RESOLUTION // 1_000_000_000)


class Program:
    """The definitions of an archive of several ranks."""

    def __init__(self, trace: Any, ranks: int, backwards: bool = False) -> None:
        from otf2.enums import (
            GroupType,
            LocationGroupType,
            LocationType,
            MetricMode,
            MetricType,
            Paradigm,
            RegionRole,
            Type,
        )

        self.trace = trace
        define = trace.definitions
        node = define.system_tree_node("node0", class_name="node")
        self.processes = [
            define.location_group(f"MPI Rank {rank}", system_tree_parent=node) for rank in range(ranks)
        ]
        self.threads = [define.location("Master thread", group=one) for one in self.processes]
        self.workers = [define.location("OMP thread 1", group=one) for one in self.processes]
        gpus = [
            define.location_group(
                "GPU 0",
                location_group_type=LocationGroupType.ACCELERATOR,
                system_tree_parent=node,
                creating_location_group=one,
            )
            for one in self.processes
        ]
        self.streams = [
            define.location("Stream 7", type=LocationType.ACCELERATOR_STREAM, group=one) for one in gpus
        ]
        self.regions: dict[str, Any] = {}
        paradigms = {"step": Paradigm.USER, "main": Paradigm.COMPILER, "loop": Paradigm.OPENMP}
        paradigms |= {"kernel": Paradigm.CUDA, "copy": Paradigm.CUDA, "cudaLaunchKernel": Paradigm.CUDA}
        names = (
            *("main", "step", "loop", "kernel", "copy", "cudaLaunchKernel", "MPI_Isend", "MPI_Irecv"),
            *("MPI_Waitall", "MPI_Allreduce", "MPI_Gather", "MPI_Sendrecv", "MPI_Comm_split", "MPI_Mprobe"),
            *("MPI_Imrecv", "MPI_Wait", "MPI_Cancel"),
        )
        for name in reversed(names) if backwards else names:
            role = RegionRole.DATA_TRANSFER if name == "copy" else RegionRole.FUNCTION
            self.regions[name] = define.region(
                name, paradigm=paradigms.get(name, Paradigm.MPI), region_role=role
            )
        instructions, cycles, other = (
            define.metric_member(
                name,
                metric_type=MetricType.PAPI,
                metric_mode=MetricMode.ACCUMULATED_START,
                value_type=Type.UINT64,
            )
            for name in ("PAPI_TOT_INS", "PAPI_TOT_CYC", "PAPI_L2_TCM")
        )
        self.counters = define.metric_class((other, instructions, cycles))
        define.group("", GroupType.COMM_LOCATIONS, Paradigm.MPI, members=self.threads)
        every = define.group("", GroupType.COMM_GROUP, Paradigm.MPI, members=self.threads)
        self.world = define.comm("MPI_COMM_WORLD", every)
        half = define.group("", GroupType.COMM_GROUP, Paradigm.MPI, members=self.threads[::2])
        self.half = define.comm("", half, self.world)
        self.twin = define.comm("twin", half, self.world)
        own = define.group("", GroupType.COMM_SELF, Paradigm.MPI, members=())
        self.alone = define.comm("MPI_COMM_SELF", own)

    def count(self, writer: Any, at: int, instructions: int, cycles: int) -> None:
        """Write the counters of a thread: cache misses, instructions and cycles since its start."""
        writer.metric(ticks(at), self.counters, (instructions // 100, instructions, cycles))

    def call(self, writer: Any, name: str, start: int, end: int) -> None:
        """Write a region that no event is in."""
        writer.enter(ticks(start), self.regions[name])
        writer.leave(ticks(end), self.regions[name])


def write_archive(
    folder: Path,
    ranks: int = 4,
    steps: int = 6,
    name: str = "traces",
    *,
    backwards: bool = False,
    unended: bool = False,
) -> Path:
    """Write an archive and return its anchor file.

    ``backwards`` defines its regions in another order, ``unended`` leaves the last kernels without an end.
    """
    import otf2

    with otf2.writer.open(str(folder), archive_name=name, timer_resolution=RESOLUTION) as trace:
        program = Program(trace, ranks, backwards)
        for rank in range(ranks):
            stream = _write_rank(program, rank, ranks, steps)
            stream.enter(ticks(1_000 + steps * STEP), program.regions["kernel"])
            if not unended:
                stream.leave(ticks(1_100 + steps * STEP), program.regions["kernel"])
    return folder / f"{name}.otf2"


def _write_rank(program: Program, rank: int, ranks: int, steps: int) -> Any:
    """Write the events of a rank, and return the writer of its stream."""
    from otf2.enums import CollectiveOp

    region, world = program.regions, program.world
    main = program.trace.event_writer_from_location(program.threads[rank])
    worker = program.trace.event_writer_from_location(program.workers[rank])
    stream = program.trace.event_writer_from_location(program.streams[rank])
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    main.enter(ticks(0), region["main"])
    for step in range(steps):
        at, request = 1_000 + step * STEP, 2 * step
        main.enter(ticks(at), region["step"])
        program.call(main, "cudaLaunchKernel", at + 10, at + 20)
        program.call(worker, "loop", at, at + 400)
        program.call(stream, "kernel", at + 30, at + 130)
        program.call(stream, "copy", at + 200, at + 260)
        main.enter(ticks(at + 400), region["MPI_Isend"])
        main.mpi_isend(ticks(at + 405), after, world, 7, BYTES, request)
        main.leave(ticks(at + 410), region["MPI_Isend"])
        main.enter(ticks(at + 420), region["MPI_Irecv"])
        main.mpi_irecv_request(ticks(at + 425), request + 1)
        main.leave(ticks(at + 430), region["MPI_Irecv"])
        main.enter(ticks(at + 500), region["MPI_Waitall"])
        main.mpi_irecv(ticks(at + 580), before, world, 7, BYTES, request + 1)
        main.mpi_isend_complete(ticks(at + 590), request)
        main.leave(ticks(at + 600), region["MPI_Waitall"])
        main.enter(ticks(at + 700), region["MPI_Allreduce"])
        main.mpi_collective_begin(ticks(at + 700))
        main.mpi_collective_end(
            ticks(at + 800), CollectiveOp.ALLREDUCE, world, 2**32 - 1, 8 * ranks, 8 * ranks
        )
        main.leave(ticks(at + 800), region["MPI_Allreduce"])
        if rank % 2 == 0:
            root, got = rank == 0, (ranks + 1) // 2 * 16
            main.enter(ticks(at + 900), region["MPI_Gather"])
            main.mpi_collective_end(
                ticks(at + 950), CollectiveOp.GATHER, program.half, 0, 16, got if root else 0
            )
            main.leave(ticks(at + 960), region["MPI_Gather"])
        main.enter(ticks(at + 1_000), region["MPI_Sendrecv"])
        main.mpi_send(ticks(at + 1_000), after, world, 9, 64)
        main.mpi_recv(ticks(at + 1_050), before, world, 9, 64)
        main.leave(ticks(at + 1_050), region["MPI_Sendrecv"])
        main.leave(ticks(at + 1_500), region["step"])
    main.leave(ticks(1_000 + steps * STEP), region["main"])
    return stream


def files_of_archive(anchor: Path) -> Sequence[Path]:
    """Return the files of an archive, the anchor file first."""
    return [anchor, anchor.with_suffix(".def"), *sorted(anchor.with_suffix("").iterdir())]
