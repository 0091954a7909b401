"""The processes of the ranks in an nsys export that holds several, as where one nsys recorded mpiexec."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from hpcprof.profiles.readers.declaration import SeveralRanks
from hpcprof.profiles.readers.nsys.export import PROCESS_SHIFT, REQUIRED, NsysExport, open_export


def several_ranks(path: Path) -> SeveralRanks | None:
    """Return the processes of each rank in an export, or None if it holds one rank.

    Without MPI_RANKS, each process that ran kernels is a rank.

    Raises
    ------
    DamagedInput
        If the export cannot be read.
    """
    with open_export(path) as export:
        users = _gpu_users(export)
        by_rank = mpi_processes(export)
        if len(by_rank) > 1:
            ranks = sorted(by_rank)
            return SeveralRanks(tuple(tuple(sorted(by_rank[rank])) for rank in ranks), tuple(ranks))
        if by_rank or len(users) < 2:
            return None
        return SeveralRanks(tuple((process,) for process in users))


def mpi_processes(export: NsysExport) -> dict[int, set[int]]:
    """Return the processes of each MPI rank in an export; none where MPI was not traced."""
    table = export.table("MPI_RANKS")
    if table is None:
        return {}
    columns = table.integers({"globalTid": REQUIRED, "rank": REQUIRED})
    found: dict[int, set[int]] = defaultdict(set)
    for thread, rank in zip(columns["globalTid"].tolist(), columns["rank"].tolist(), strict=True):
        found[rank].add(thread >> PROCESS_SHIFT)
    return dict(found)


def _gpu_users(export: NsysExport) -> list[int]:
    """Return the processes that ran kernels, by their ids; exports before 2021 do not tell them."""
    table = export.table("CUPTI_ACTIVITY_KIND_KERNEL")
    if table is None or "globalPid" not in table.columns:
        return []
    owners = table.rows(["DISTINCT globalPid"])
    return sorted({owner >> PROCESS_SHIFT for (owner,) in owners if isinstance(owner, int)})
