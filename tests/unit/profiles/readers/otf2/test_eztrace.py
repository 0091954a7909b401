"""Archives of EZTrace 2.0, which records neither partners nor completions of nonblocking receives."""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.collectives.common_clock import connect
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.mpi.matching import aligned_by_mpi
from hpcprof.analysis.mpi.tables import mpi_tables
from hpcprof.profiles.readers.communicators import ALTERNATIVE, WORLD
from hpcprof.profiles.readers.declaration import ProfilePart
from hpcprof.profiles.readers.discovery import read_profile, several_ranks
from hpcprof.profiles.readers.otf2.archive import UNDEFINED
from hpcprof.profiles.readers.otf2.events import MpiEvents, MpiKind
from hpcprof.profiles.readers.otf2.mpi import CalledEvents, operations
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import NO_BYTES, NO_PEER, Timeline
from tests.unit.analysis.mpi.programs import run_lists

pytest.importorskip("otf2")
DATA = Path(__file__).parents[4] / "data"
RANKS = 4


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "eztrace_log.otf2"


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Rank 1 of a program that ends nonblocking messages in each way, and takes part in each collective."""
    anchor = unpacked("eztrace_kinds", tmp_path_factory.mktemp("kinds"))
    timeline = read_profile(anchor, ProfilePart(several_ranks(anchor), 1))  # type: ignore[arg-type]
    assert isinstance(timeline, Timeline)
    return timeline


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> list[Timeline]:
    """All ranks of 20 steps of a halo exchange on a line of ranks, of which rank 2 computes twice as long."""
    anchor = unpacked("eztrace_chain", tmp_path_factory.mktemp("chain"))
    several = several_ranks(anchor)
    assert several is not None
    assert several.ranks == (0, 1, 2, 3)
    found = [read_profile(anchor, ProfilePart(several, rank)) for rank in range(RANKS)]
    assert all(isinstance(one, Timeline) for one in found)
    return found  # type: ignore[return-value]


def test_a_nonblocking_message_ends_in_the_call_that_waits_for_it(kinds: Timeline) -> None:
    operations = kinds.mpi_operations
    ends = dict(zip(kinds.mpi_calls.end.tolist(), kinds.names(kinds.mpi_calls.name), strict=True))
    starts = dict(zip(kinds.mpi_calls.start.tolist(), kinds.names(kinds.mpi_calls.name), strict=True))
    begun, ended = (
        [calls[at] for at in times.tolist()]
        for calls, times in ((starts, operations.start), (ends, operations.end))
    )
    received = [end for begin, end in zip(begun, ended, strict=True) if begin == "MPI_Irecv"]
    sent = [end for begin, end in zip(begun, ended, strict=True) if begin == "MPI_Isend"]
    waited = ["MPI_Wait", "MPI_Wait", "MPI_Waitall", "MPI_Waitall", "MPI_Waitany", "MPI_Waitsome"]
    tested = ["MPI_Test", "MPI_Testall", "MPI_Testany", "MPI_Testsome"]
    # Then one that is cancelled, one from no rank, and one over another communicator.
    assert received == [*waited, *tested, "MPI_Wait", "MPI_Waitall", "MPI_Waitall"]
    # A message to no rank is not sent.
    assert sent == [*waited, *tested, "MPI_Wait", "MPI_Waitall"]
    assert [end for begin, end in zip(begun, ended, strict=True) if begin == "MPI_Startall"] == [
        "MPI_Waitall"
    ] * 4


def test_what_is_not_recorded_of_an_operation_is_unknown_and_counted(kinds: Timeline) -> None:
    assert [loss.sentence for loss in kinds.origin.losses] == [
        "2 MPI operations have no valid record (SendRecv) and are left out"
    ]
    operations = kinds.mpi_operations
    unnamed = operations.communicator < 0
    # 13 nonblocking and 2 persistent ones.
    assert Counter(kinds.names(operations.operation[unnamed])) == Counter(Recv=15)
    alternatives = [ALTERNATIVE in (name or "") for name in kinds.names(operations.communicator)]
    assert Counter(kinds.names(operations.operation[alternatives])) == Counter(
        AllReduce=1, Broadcast=1, Barrier=1, AlltoAll=1, Scan=1
    )
    unnamed |= alternatives
    assert np.all(operations.bytes[unnamed] == NO_BYTES)


def test_sizes_of_collectives_are_those_of_the_arguments(kinds: Timeline) -> None:
    operations = kinds.mpi_operations
    names = kinds.names(operations.operation)
    known = [row for row, name in enumerate(names) if operations.bytes[row] > 0 and operations.root[row] >= 0]
    found = {names[row]: (int(operations.bytes[row]), int(operations.received_bytes[row])) for row in known}
    # Rank 1 is the root of the broadcast over all ranks, and not that of the others.
    assert found == {"Broadcast": (112, 0), "Reduce": (32, 0), "Gather": (48, 0)}
    by_name = {
        name: (int(operations.bytes[row]), int(operations.received_bytes[row]))
        for row, name in enumerate(names)
        if operations.ranks[row] == RANKS
    }
    assert by_name["AllReduce"] == (40, 40)
    assert by_name["AllGather"] == (64, 64 * RANKS)
    assert by_name["AlltoAll"] == (72 * RANKS, 72 * RANKS)
    assert by_name["AllGatherV"] == (16, 80)
    assert by_name["Scatter"] == (0, 56)


def test_a_communicator_of_some_ranks_has_them_in_its_order(kinds: Timeline) -> None:
    operations = kinds.mpi_operations
    (row,) = [row for row, name in enumerate(kinds.names(operations.communicator)) if name == "ranks 3,1"][2:]
    assert (operations.comm_peer[row], operations.peer[row], operations.tag[row]) == (0, 3, 19)


def test_threads_of_eztrace_are_no_ranges_of_the_program(chain: list[Timeline]) -> None:
    assert [len(one.ranges) for one in chain] == [0] * RANKS
    assert [one.origin.losses for one in chain] == [()] * RANKS


def test_messages_of_all_ranks_match_and_the_late_rank_is_blamed(chain: list[Timeline]) -> None:
    lists: dict[str, pd.DataFrame] = {}
    for name in ("mpi_call_list", "mpi_operation_list", "mpi_regions"):
        found = [analyze_rank(ANALYSES[name], one, rank).frame for rank, one in enumerate(chain)]
        lists[name] = pd.concat(found, ignore_index=True)
    (alignment,) = connect(aligned_by_mpi(run_lists(lists)))
    clocks = alignment.clocks
    assert [*clocks] == [*range(RANKS)]
    tables = dict(
        mpi_tables(run_lists(lists), [lists["mpi_regions"]], clocks, dict.fromkeys(clocks, "node0"))
    )
    matrix = tables["mpi_matrix"].rows.set_index(["sender", "receiver"])
    # Each rank sends to the one before it and to the next one in each step; the ends have one neighbour.
    assert matrix["messages"].to_dict() == {
        (a, b): 20 for a in range(RANKS) for b in (a - 1, a + 1) if 0 <= b < RANKS
    }
    waits = tables["mpi_waits"].rows
    late = waits[waits["pattern"] == "late sender"].groupby("delaying_rank")["wait_ns"].sum()
    assert late.idxmax() == 2
    efficiency = tables["pop"].rows.set_index("scope").loc["run"]
    # The program measured 47.766, 45.749, 106.154 and 48.839 ms of computing.
    assert efficiency["load_balance_pct"] == pytest.approx(100 * 248.508 / 4 / 106.154, abs=2)


@pytest.mark.parametrize(
    ("members", "name", "ranks"),
    [([0, 1, 2], WORLD, 3), ([0, 1], f"{WORLD} or ranks 0,1", -1), ([0, 2], WORLD, 3)],
)
def test_a_collective_without_a_communicator_has_one_of_those_of_its_rank(
    members: list[int], name: str, ranks: int
) -> None:
    strings = StringTable()
    kinds = [MpiKind.CALL_BEGIN_COLLECTIVE, MpiKind.WAIT]
    columns = dict.fromkeys(MpiEvents.__match_args__, np.full(2, UNDEFINED)) | {
        **{"kind": np.array(kinds), "position": np.array([1, 3]), "time": np.array([10, 30])},
        **{"tag": np.full(2, strings.add("AlltoAll")), "request": np.zeros(2, np.int64)},
    }
    times = {"start": np.array([10, 20]), "end": np.array([11, 30]), "thread": np.zeros(2, np.int64)}
    groups = {0: (WORLD, [[0, 1, 2]]), 1: ("a", [members]), 2: ("self", None)}
    archive = SimpleNamespace(communicators=lambda: groups, world=[0, 1, 2], of_eztrace=True)
    events = CalledEvents(**columns, **times)
    read, lost = operations(events, archive, 1, 0, strings)  # type: ignore[arg-type]
    assert [strings.array()[number] for number in read.communicator.tolist()] == [name]
    assert (read.ranks.tolist(), lost) == ([ranks], [])


@pytest.mark.parametrize(("rows", "peer"), [([[1]], 2), ([[1, 2]], NO_PEER)])
def test_a_persistent_receive_names_its_sender_only_without_another_communicator(
    rows: list[list[int]], peer: int
) -> None:
    """The record has the sender's rank in the receive's communicator, and always that of all ranks."""
    kinds = [MpiKind.BEGIN_RECEIVE, MpiKind.END_RECEIVE, MpiKind.WAIT_ALL]
    columns = dict.fromkeys(MpiEvents.__match_args__, np.zeros(3, np.int64)) | {
        **{"kind": np.array(kinds), "position": np.array([1, 3, 4]), "time": np.array([10, 20, 30])},
        **{"request": np.array([7, 7, 0]), "tag": np.full(3, 3), "peer": np.array([UNDEFINED, 2, UNDEFINED])},
    }
    times = {"start": np.array([10, 15, 15]), "end": np.array([11, 30, 30]), "thread": np.zeros(3, np.int64)}
    groups = {0: (WORLD, [[0, 1, 2]]), 1: ("row", rows)}
    archive = SimpleNamespace(communicators=lambda: groups, world=[0, 1, 2], of_eztrace=True)
    read, _ = operations(CalledEvents(**columns, **times), archive, 1, 0, StringTable())  # type: ignore[arg-type]
    assert (read.peer.tolist(), read.end.tolist()) == ([peer], [30])
