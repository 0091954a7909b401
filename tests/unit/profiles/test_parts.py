"""The ranks in a profile that holds several."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.losses import LossKind
from hpcprof.profiles.readers.declaration import ProfilePart, SeveralRanks
from hpcprof.profiles.readers.discovery import read_profile, several_ranks
from hpcprof.profiles.timeline import Timeline
from tests.data.generated_exports import MACHINE
from tests.data.many_ranks import write_all

KERNELS = 200
PROCESSES = [(MACHINE >> 24) + 1000 + rank for rank in range(3)]
TABLES = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "MPI_RANKS")

Write = Callable[..., Path]


@pytest.fixture
def together(tmp_path: Path) -> Write:
    """Write one export of the ranks 0 to 2, changed by statements."""

    def written(*statements: str) -> Path:
        path, made = tmp_path / "rank0.sqlite", tmp_path / "made"
        write_all(made, 3, KERNELS)
        shutil.copy(made / "rank00000.sqlite", path)
        for rank in (1, 2):
            with sqlite3.connect(path) as export:
                export.execute("ATTACH ? AS other", (str(made / f"rank{rank:05d}.sqlite"),))
                for table in TABLES:
                    export.execute(f"INSERT INTO {table} SELECT * FROM other.{table}")
            export.close()
        with sqlite3.connect(path) as export:
            for statement in statements:
                export.execute(statement)
        export.close()
        return path

    return written


def part(path: Path, several: SeveralRanks, position: int, merged: bool = False) -> Timeline:
    found = read_profile(path, ProfilePart(several, position, merged))
    assert isinstance(found, Timeline)
    return found


def test_the_ranks_of_one_export_have_the_figures_of_exports_of_their_own(
    together: Write, tmp_path: Path
) -> None:
    path = together()
    several = several_ranks(path)
    assert several == SeveralRanks(tuple((process,) for process in PROCESSES), (0, 1, 2))
    for rank in range(3):
        alone = tmp_path / "made" / f"rank{rank:05d}.sqlite"
        own, split = read_profile(alone), part(path, several, rank)
        assert split.origin.losses == ()
        for analysis in ANALYSES.values():
            if analysis.scope is Scope.RANK:
                expected, found = (analyze_rank(analysis, timeline, rank) for timeline in (own, split))
                assert found.columns == expected.columns, analysis.name


def test_without_mpi_ranks_each_process_with_kernels_is_a_rank_and_that_is_said(together: Write) -> None:
    path = together("DELETE FROM MPI_RANKS")
    several = several_ranks(path)
    assert several == SeveralRanks(tuple((process,) for process in PROCESSES))
    (loss,) = part(path, several, 1).origin.losses
    assert loss.kind is LossKind.NUMBERED and "numbered by process" in loss.sentence


def test_several_threads_and_processes_of_an_mpi_rank_are_one_rank(together: Write) -> None:
    path = together(
        "UPDATE MPI_RANKS SET rank = 1 WHERE rank = 2",
        "INSERT INTO MPI_RANKS SELECT globalTid + 1, rank FROM MPI_RANKS",
    )
    several = several_ranks(path)
    assert several == SeveralRanks(((PROCESSES[0],), tuple(PROCESSES[1:])), (0, 1))
    assert len(part(path, several, 1).kernels) == 2 * KERNELS


def test_one_mpi_rank_is_one_rank_whatever_its_processes(together: Write) -> None:
    assert several_ranks(together("UPDATE MPI_RANKS SET rank = 3")) is None


def test_a_process_without_kernels_is_no_rank(together: Write) -> None:
    path = together(
        "DELETE FROM MPI_RANKS",
        f"DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid >> 24 <> {PROCESSES[0]}",
    )
    assert several_ranks(path) is None


def test_what_the_export_lacks_counts_once_and_so_do_rows_without_a_rank(together: Write) -> None:
    path = together(
        "DELETE FROM MPI_RANKS WHERE rank = 2",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start + (1 << 60) WHERE rowid = 1",
    )
    several = several_ranks(path)
    assert several is not None and several.ranks == (0, 1)
    first, second = (part(path, several, at).origin.losses for at in (0, 1))
    assert second == ()
    assert [loss.sentence for loss in first if loss.subject.value == "kernel"] == [
        f"1 of {3 * KERNELS} kernels has no valid duration and is left out",
        f"{KERNELS} of {3 * KERNELS - 1} kernels belong to processes without a rank and are left out",
    ]


def test_each_rank_has_the_synchronizations_of_its_process(together: Write) -> None:
    path = together(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start, end, globalPid, syncType)",
        *(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES ({i}, 9, {process << 24}, 4)"
            for i, process in enumerate(PROCESSES)
        ),
    )
    several = several_ranks(path)
    assert several is not None
    assert [part(path, several, at).synchronizations.start.tolist() for at in range(3)] == [[0], [1], [2]]


def test_processes_that_count_as_one_rank_are_said(together: Write) -> None:
    path = together("DELETE FROM MPI_RANKS")
    several = several_ranks(path)
    assert several is not None
    merged = part(path, several, 0, merged=True)
    assert len(merged.kernels) == 3 * KERNELS
    (loss,) = merged.origin.losses
    assert loss.sentence == "3 processes used the GPU in profiles of one rank, and their figures are merged"


@pytest.mark.parametrize(
    ("busy", "listed", "used"),
    [
        ((1, 2), [(0, "H200"), (1, "H200"), (2, "")], ("H200", "unnamed GPU")),
        ((1, 2), [(0, "H200"), (1, "H200")], ("H200", "unnamed GPU")),
        ((1, 2), [], ("unnamed GPU", "unnamed GPU")),
        ((1, 2), [(7, "H200")], ("H200",)),  # numbered otherwise: all are named
        ((), [(0, "H200"), (1, "H200")], ()),
    ],
)
def test_gpus_that_ran_kernels_count_also_without_a_name(
    tmp_path: Path, busy: tuple[int, ...], listed: list[tuple[int, str]], used: tuple[str, ...]
) -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": device, "dur": 1, "pid": device, "tid": 7}
        | {"args": {"device": device, "stream": 7}}
        for device in busy
    ]
    properties = [{"id": number, "name": name} for number, name in listed]
    path = tmp_path / "rank0.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events}))
    timeline = read_profile(path)
    assert isinstance(timeline, Timeline)
    assert timeline.origin.device_names == used
