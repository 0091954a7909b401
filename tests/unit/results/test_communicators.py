"""The collectives of many ranks, matched communicator by communicator."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.results import communicator_tasks, communicators
from hpcprof.results.analysis_table import AnalysisTable
from hpcprof.results.communicator_tasks import AccountTask, Task
from hpcprof.results.executors.interface import Executor, Lost, ResultT, TaskT, serially
from hpcprof.results.over_ranks import analyze_over_ranks
from hpcprof.results.store.database import store_url
from hpcprof.results.store.store import Store
from tests.data.parallel_program import Program
from tests.data.stored_program import RUN, store_program

PROGRAM = Program(
    16, 600, tensor=2, pipeline=2, slow={5: 4.0}, missing=frozenset({3}), dropped={8: 0.05}, seed=4
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """What the analyses over ranks read of a program in overlapping groups."""
    return store_program(tmp_path_factory.mktemp("ranks"), PROGRAM)[0]


def tables(store: Store, executor: Executor = serially) -> dict[str, AnalysisTable]:
    """Return the analyses that span the ranks, as values that can be compared."""
    found = analyze_over_ranks(RUN, store, executor)
    return {name: AnalysisTable.from_outcome(outcome) for name, outcome in found.items()}


@pytest.fixture(scope="module")
def at_once(store: Store) -> dict[str, AnalysisTable]:
    """What matching the rows of all ranks at once gives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(communicators, "match_by_communicator", lambda *_: None)
        return tables(store)


@pytest.mark.parametrize("together", [2, 5, 1000])
def test_matching_by_communicator_gives_what_matching_at_once_gives(
    store: Store, at_once: dict[str, AnalysisTable], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicator_tasks, "RANKS_A_TASK", together)
    monkeypatch.setattr(communicators, "_RANKS_AT_ONCE", 3)
    assert tables(store) == at_once
    assert at_once["skew"].columns["verdict"].count("straggler") == 1
    assert len(at_once["collectives"].rows) > 50 and len(at_once["point_to_point"].rows) > 50


def test_no_task_has_the_collectives_of_more_ranks_than_it_was_given(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicator_tasks, "RANKS_A_TASK", 4)
    asked: list[int] = []

    def counted(
        function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost]]:
        for task in reversed(tasks):
            assert isinstance(task, Task)
            if task.communicators or function is not communicators._match_or_others:
                asked.append(len(task))
            yield task, function(task)

    analyze_over_ranks(RUN, store, counted)
    assert len(asked) > 8 and max(asked) == 4


def test_what_other_processes_lose_or_cannot_read_this_one_computes(
    store: Store, at_once: dict[str, AnalysisTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicator_tasks, "RANKS_A_TASK", 4)

    def lossy(
        function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost | None]]:
        for number, task in enumerate(tasks):
            yield task, (Lost("its process was killed"), None, function(task))[number % 3]

    assert tables(store, lossy) == at_once  # type: ignore[arg-type]


def test_a_full_folder_for_temporary_files_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communicator_tasks, "RANKS_A_TASK", 8)

    def full(*_: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hpcprof.results.shelf.pickle.dump", full)
    with pytest.raises(HpcprofError, match=f"cannot write to {tempfile.gettempdir()}: No space left"):
        analyze_over_ranks(RUN, store)


def test_a_process_that_sees_another_file_at_the_same_path_reads_nothing_from_it(
    store: Store, tmp_path: Path
) -> None:
    seen: list[Task] = []

    def kept(
        function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost]]:
        seen.extend(task for task in tasks if isinstance(task, Task))
        yield from serially(function, tasks)

    analyze_over_ranks(RUN, store, kept)
    other = Store(store_url(str(tmp_path / "other.db"), tmp_path))
    other.prepare()
    matched = next(task for task in seen if task.communicators)
    assert communicators._match(matched) is not None
    assert communicators._match(replace(matched, url=other.url)) is None
    others = next(task for task in seen if len(task) == len(store.profiles(RUN)) and not task.communicators)
    assert communicators._match_or_others(replace(others, url=other.url)) is None
    account = next(task for task in seen if isinstance(task, AccountTask))
    assert communicators._divide(account) is None  # Its shelf has gone.
    none = store_url(str(tmp_path / "none.db"), tmp_path)
    assert communicators._survey(replace(seen[0], url=none)) is None
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    "changed",
    [{"comm_id": None}, {"op": "SendRecv"}, {"world_ranks": 17}],
    ids=["an unknown communicator", "sends that look like receives", "another world"],
)
def test_rows_that_do_not_tell_communicators_apart_are_matched_at_once(
    store: Store, changed: Mapping[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Store.read_parts

    def with_an_odd_row(
        self: Store, run_id: str, name: str, ranks: Sequence[int] | None = None
    ) -> Iterator[dict[str, list[object]]]:
        for part in read(self, run_id, name, ranks):
            if name == "rank_collectives" and part["rank"][0] == 0:
                for column, value in changed.items():
                    part[column][0] = value
            yield part

    monkeypatch.setattr(Store, "read_parts", with_an_odd_row)
    assert communicators.match_by_communicator(RUN, store, serially) is None
