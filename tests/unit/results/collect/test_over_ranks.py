"""The analyses over the ranks of many ranks, a part of the run at a time."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.common.errors import HpcprofError, StoreError
from hpcprof.results.collect import over_ranks
from hpcprof.results.collect.executors.interface import Executor, Lost, ResultT, TaskT, serially
from hpcprof.results.collect.over_ranks import (
    MatchTask,
    RankTask,
    Survey,
    analyze_over_ranks,
    groups_of_communicators,
    survey_ranks,
)
from hpcprof.results.store.rank_tables import kept_table
from hpcprof.results.store.store import Store
from hpcprof.results.store.tables import ProfileRow
from tests.data.parallel_program import Program
from tests.data.stored_program import RUN, store_program

PROGRAM = Program(
    16, 600, tensor=2, pipeline=2, slow={5: 4.0}, missing=frozenset({3}), dropped={8: 0.05}, seed=4
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The rows that the analyses over ranks read, of a program in overlapping groups."""
    return store_program(tmp_path_factory.mktemp("ranks"), PROGRAM)[0]


def tables(store: Store, executor: Executor = serially) -> dict[str, AnalysisTable]:
    """Return the analyses that span the ranks, as values that can be compared."""
    found = analyze_over_ranks(RUN, store, executor)
    return {name: replace(table, values=table.columns) for name, table in found.items()}


@pytest.fixture(scope="module")
def at_once(store: Store) -> dict[str, AnalysisTable]:
    """The result of matching the rows of all ranks at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(over_ranks, "groups_of_communicators", lambda _: None)
        return tables(store)


@pytest.mark.parametrize(
    ("hosts", "starts", "zeros"),
    [
        (("a", "a"), (70, 90), {0: 20, 1: 0}),
        # Whether the stamps are of one clock is for the causes and effects among them to say.
        (("a", "a"), (None, None), {0: 0, 1: 0}),
        (("a", "a"), (70, None), None),
        (("a", "b"), (None, None), None),
        ((None, None), (None, None), None),
    ],
)
def test_processes_of_a_host_may_share_its_clock(
    hosts: tuple[str | None, ...], starts: tuple[int | None, ...], zeros: dict[int, int] | None
) -> None:
    profiles = [
        ProfileRow("run", rank, f"rank{rank}", "", 0, "otf2", host, "", None, start, 1)
        for rank, (host, start) in enumerate(zip(hosts, starts, strict=True))
    ]
    assert over_ranks._zeros_of_node(profiles) == zeros


@pytest.mark.parametrize("together", [2, 5, 1000])
def test_matching_by_communicator_gives_what_matching_at_once_gives(
    store: Store, at_once: dict[str, AnalysisTable], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_ranks, "RANKS_PER_TASK", together)
    monkeypatch.setattr(over_ranks, "_RANKS_AT_ONCE", 3)
    assert tables(store) == at_once
    assert at_once["skew"].columns["verdict"].count("straggler") == 1
    assert len(at_once["collectives"].rows) > 50 and len(at_once["point_to_point"].rows) > 50


def test_no_task_has_more_ranks_than_it_was_given(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANKS_PER_TASK", "RANKS_PER_CHUNK"):
        monkeypatch.setattr(over_ranks, name, 4)
    asked: list[int] = []

    def counted(
        function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost]]:
        for task in reversed(tasks):
            assert isinstance(task, RankTask)
            asked.append(len(task))
            yield task, function(task)

    analyze_over_ranks(RUN, store, counted)
    assert len(asked) > 8 and max(asked) == 4


def test_what_other_processes_lose_or_cannot_read_this_one_computes(
    store: Store, at_once: dict[str, AnalysisTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANKS_PER_TASK", "RANKS_PER_CHUNK"):
        monkeypatch.setattr(over_ranks, name, 4)

    def lossy(
        function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost | None]]:
        for number, task in enumerate(tasks):
            yield task, (Lost("its process was killed"), None, function(task))[number % 3]

    assert tables(store, lossy) == at_once  # type: ignore[arg-type]


def test_a_full_disk_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hpcprof.results.store.run_communication.pq.write_table", full)
    with pytest.raises(HpcprofError, match=r"cannot write to .*/communication/run=run: No space left"):
        analyze_over_ranks(RUN, store)


def test_a_process_without_the_files_of_the_profiles_computes_nothing(store: Store, tmp_path: Path) -> None:
    seen: list[tuple[Any, RankTask]] = []

    def kept(
        function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost]]:
        seen.extend((function, task) for task in tasks if isinstance(task, RankTask))
        yield from serially(function, tasks)

    analyze_over_ranks(RUN, store, kept)
    assert {type(task) for _, task in seen} == {RankTask, MatchTask}
    for function, task in seen:
        assert function(task) is not None
        for change in ({"sha256": "another profile"}, {"folder": tmp_path}):
            elsewhere = tuple(replace(one, **change) for one in task.events)
            assert function(replace(task, events=elsewhere)) is None
    with pytest.raises(StoreError, match=r"rows of rank_collectives of rank 0 of run are not in .*: collect"):
        over_ranks._survey(replace(seen[0][1], events=elsewhere))


@pytest.mark.parametrize(
    "changed",
    [{"comm_id": None}, {"op": "SendRecv"}, {"world_ranks": 17}],
    ids=["an unknown communicator", "sends that look like receives", "another world"],
)
def test_rows_that_do_not_tell_communicators_apart_are_matched_at_once(
    store: Store, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = kept_table

    def with_an_odd_row(*given: Any) -> pa.Table:
        rows = read(*given)
        for column, value in changed.items():
            place, kind = rows.schema.get_field_index(column), rows.schema.field(column)
            values = pa.array([value, *rows[column].to_pylist()[1:]], kind.type)
            rows = rows.set_column(place, kind, values)
        return rows

    monkeypatch.setattr(over_ranks, "kept_table", with_an_odd_row)
    events = tuple(store.rank_events(RUN).values())
    survey = over_ranks._survey(RankTask(events, Path()))
    assert groups_of_communicators([survey]) is None
    monkeypatch.undo()
    whole = over_ranks._survey(RankTask(events, Path()))
    assert isinstance(whole, Survey) and groups_of_communicators([whole]) is not None


def test_ranks_that_were_surveyed_before_are_not_surveyed_again(store: Store) -> None:
    called: list[str] = []

    def named(
        function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost]]:
        called.append(function.function.__name__)  # type: ignore[attr-defined]
        yield from serially(function, tasks)

    survey = survey_ranks(store.rank_events(RUN), named)
    assert survey.calls.keys() == store.profiles(RUN).keys()
    analyze_over_ranks(RUN, store, named, survey=survey)
    assert called == ["_survey", "_match", "_map_ranks"]
    # Another collect has replaced a profile.
    of_others = replace(survey, events={**survey.events, 0: replace(survey.events[0], sha256="another")})
    analyze_over_ranks(RUN, store, named, survey=of_others)
    assert called[3:] == ["_survey", "_match", "_map_ranks"]
