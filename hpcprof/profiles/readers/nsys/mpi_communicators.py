"""Communicators of MPI in an nsys export: one text for each, the same on all of its ranks."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from hpcprof.profiles.columns.joins import latest_rows
from hpcprof.profiles.columns.unique import map_unique
from hpcprof.profiles.readers.communicators import UNKNOWN, WORLD, Communicator, numbered_text, ranks_in_short
from hpcprof.profiles.readers.nsys.export import MISSING, NO_ID, REQUIRED, NsysExport
from hpcprof.profiles.readers.nsys.origin import mpi_processes
from hpcprof.profiles.timeline import UNKNOWN_RANKS, Ints

_COLUMNS = {
    "commHandle": REQUIRED,
    "rank": NO_ID,
    "timestamp": MISSING,
    "parentHandle": 0,
    "localRank": NO_ID,
    "size": UNKNOWN_RANKS,
    "groupRoot": NO_ID,
    "groupRootUid": NO_ID,
}
_NO_PARENT = 0


class CommunicatorHandles:
    """The communicators of all ranks in an export, by handle and time: MPI uses a freed handle again."""

    def __init__(self, export: NsysExport) -> None:
        self._handle, self._owner, self._created = (np.empty(0, np.int64) for _ in range(3))
        self._found: list[Communicator] = []
        self._rank_of_process: dict[int, int] = {}
        table = export.table("MPI_COMMUNICATORS")
        if table is None:
            return
        columns, texts = table.read(_COLUMNS, texts=["members"])
        order = np.argsort(columns["timestamp"], kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
        if len(set(columns["rank"].tolist())) > 1:
            by_rank = mpi_processes(export)
            self._rank_of_process = {
                process: rank for rank, processes in by_rank.items() for process in processes
            }
        else:
            columns["rank"] = np.zeros(len(order), np.int64)
        self._owner, self._handle, self._created = (
            columns[name] for name in ("rank", "commHandle", "timestamp")
        )
        # The communicator of all ranks exists from the beginning.
        self._created = np.where(columns["parentHandle"] == _NO_PARENT, MISSING, self._created)
        members = texts["members"].texts()
        self._found = _communicators_of_rows(columns, [members[row] for row in order.tolist()])

    def world(self, process: Ints) -> Ints:
        """Return the handle of the communicator of all ranks in each process, `MISSING` if it is unknown."""
        by_all = self._created == MISSING
        handles = dict(zip(self._owner[by_all].tolist(), self._handle[by_all].tolist(), strict=True))
        return map_unique(self._owners(process), lambda owner: handles.get(owner, MISSING))

    def _owners(self, process: Ints) -> Ints:
        """Return the rank of each process; 0 for all where the export has one rank."""
        ranks = self._rank_of_process
        return (
            map_unique(process, lambda pid: ranks.get(pid, NO_ID))
            if ranks
            else np.zeros(len(process), np.int64)
        )

    def at(self, process: Ints, handle: Ints, time: Ints) -> tuple[list[Communicator], Ints]:
        """Return communicators, and which of them each handle of a process stands for at a time.

        The last one is `UNKNOWN`, for handles that the export does not describe: those of MPI_COMM_SELF and
        of intercommunicators are among them.
        """
        wanted = self._owners(process), handle
        row = latest_rows((self._owner, self._handle), self._created, wanted, time)
        return [*self._found, UNKNOWN], np.where(row < 0, len(self._found), row)


def _communicators_of_rows(columns: Mapping[str, Ints], members: list[str | None]) -> list[Communicator]:
    """Return the communicators of rows in the order of their creation."""
    communicators: list[Communicator] = []
    by_handle: dict[tuple[int, int], Communicator] = {}
    # The number of communicators that each rank has created with these members.
    count_by_name: Counter[tuple[int, str]] = Counter()
    names = ("rank", "commHandle", "parentHandle", "localRank", "size", "groupRoot", "groupRootUid")
    rows = zip(*(columns[name].tolist() for name in names), members, strict=True)
    for owner, handle, above, rank, size, root, uid, listed in rows:
        parent = by_handle.get((owner, above), UNKNOWN)
        if above == _NO_PARENT:
            communicator = Communicator(WORLD, rank, size, np.arange(size) if size > 0 else None)
        elif listed:
            ranks = np.array(listed.split(","), np.int64)
            text = ranks_in_short(ranks)
            communicator = Communicator(
                numbered_text(text, count_by_name[owner, text]), rank, len(ranks), ranks
            )
            count_by_name[owner, text] += 1
        elif root != NO_ID and uid != NO_ID:
            communicator = Communicator(f"group {uid} of rank {root}", rank, size)
        else:
            communicator = _like_parent(parent, rank, size)
        by_handle[owner, handle] = communicator
        communicators.append(communicator)
    return communicators


def _like_parent(parent: Communicator, rank: int, size: int) -> Communicator:
    """Return a communicator whose size at most is known.

    One without a size is a copy. Copies, and others with all ranks of the parent, are identified by their
    order of creation, which is the same on all ranks. Several parts of the parent cannot be identified.
    """
    copy = size == UNKNOWN_RANKS
    if parent.name is None or not (copy or size == parent.size):
        return Communicator(None, rank, size)
    kind = "copy" if copy else "whole"
    name = f"{parent.name}, {kind} {parent.children[kind]}"
    parent.children[kind] += 1
    return Communicator(name, parent.rank if copy else rank, parent.size, parent.members if copy else None)
