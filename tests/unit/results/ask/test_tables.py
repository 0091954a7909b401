"""Analyses that a collect leaves to whoever asks first."""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hpcprof.analysis.framework.declaration import Part, Policy, Scope
from hpcprof.analysis.framework.outcome import WHOLE_RUN, AnalysisTable, analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.report.contents import gather
from hpcprof.results.ask.query import query
from hpcprof.results.ask.tables import (
    VERDICTS,
    KeptRank,
    RunTables,
    complete_tables,
    incomplete_tables,
)
from hpcprof.results.collect import collection as collecting
from hpcprof.results.collect import over_ranks, rank_task
from hpcprof.results.collect.collection import collect
from hpcprof.results.collect.executors.interface import Lost, ResultT, TaskT, serially
from hpcprof.results.store.store import Store, open_store
from hpcprof.runs.directory import Run
from tests.unit.analysis.timelines import timeline

DATA = Path(__file__).parents[3] / "data"
LATER = {name for name, one in ANALYSES.items() if one.policy is Policy.LAZY and one.scope is Scope.RANK}
LISTS = [name for name, one in ANALYSES.items() if one.policy is Policy.LAZY and one.scope is Scope.RUN]


def test_every_analysis_of_hpcprof_is_kept() -> None:
    assert not [name for name, one in ANALYSES.items() if one.policy is Policy.EACH_TIME]


def write_profiles(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank in (0, 1):
        packed = (DATA / f"sp_bf16_rank{rank}.sqlite.xz").read_bytes()
        (folder / f"rank{rank}.sqlite").write_bytes(lzma.decompress(packed))


def as_of_large_profiles(patch: pytest.MonkeyPatch) -> None:
    """Let profiles count as large, and a collect keep their timelines."""
    patch.setattr(rank_task, "_MIN_THREADED_BYTES", 0)
    patch.setattr(over_ranks, "_MAX_EAGER_ROWS", 0)
    patch.setattr(collecting, "is_unpacked", lambda run: True)


def new_store(folder: Path, name: str = "results.db") -> Store:
    store = open_store(str(folder / name), folder)
    store.prepare()
    return store


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folder of a run of two ranks and its store after a collect, and a copy of it."""
    folder = tmp_path_factory.mktemp("collected")
    place, copy = folder / "place", folder / "copy"
    write_profiles(place / "profiles")
    with pytest.MonkeyPatch.context() as patch:
        as_of_large_profiles(patch)
        collect(Run("run", place / "profiles"), new_store(place))
    return place, shutil.copytree(place, copy)


@pytest.fixture
def store(collected: tuple[Path, Path]) -> Store:
    """Return the store as it is after the collect."""
    place, copy = collected
    shutil.rmtree(place)
    shutil.copytree(copy, place)
    return open_store(str(place / "results.db"), place)


@pytest.fixture
def run(store: Store, collected: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Run:
    as_of_large_profiles(monkeypatch)
    return Run("run", collected[0] / "profiles")


def test_what_is_asked_for_later_is_what_a_collect_would_have_computed(
    run: Run, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncomputed = {rank: {*names} for rank, names in store.uncomputed(run.id, ANALYSES).items()}
    # There are no messages, and that is stored.
    assert uncomputed == {0: LATER, 1: LATER, WHOLE_RUN: {"collectives"}}
    assert store.table(run.id, "idle").reasons[1].startswith("not computed yet: hpcprof report RUN")
    shutil.rmtree(run.path)  # The kept timelines are enough.
    later = {name: RunTables(run, store).table(name) for name in ANALYSES}
    assert store.uncomputed(run.id, ANALYSES) == {}
    assert {name: store.table(run.id, name) for name in ANALYSES} == later
    monkeypatch.undo()
    write_profiles(run.path)
    at_once = new_store(tmp_path, "at_once.db")
    collect(run, at_once)
    assert at_once.uncomputed(run.id, ANALYSES) == {}
    both = [*LATER, *LISTS, "collectives_summary"]
    assert {name: at_once.table(run.id, name) for name in both} == {name: later[name] for name in both}
    assert later["collectives"].count
    assert later["collectives_summary"].count


def test_all_analyses_of_a_report_come_from_one_reading_of_each_timeline_by_its_executor(
    run: Run, store: Store
) -> None:
    asked: list[KeptRank] = []

    def noted(
        function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost]]:
        asked.extend(one for one in tasks if isinstance(one, KeptRank))
        return serially(function, tasks)

    contents = gather(run, store, None, executor=noted)
    assert set(contents.analyses) == set(ANALYSES)
    assert [{*task.analyses} for task in asked] == [LATER, LATER]
    assert contents.table("idle").rows and len(asked) == 2


def test_without_a_kept_timeline_the_profile_is_read_and_without_both_the_row_has_a_reason(
    run: Run, store: Store
) -> None:
    (run.path / "rank1.sqlite").unlink()
    for events in store.rank_events(run.id).values():
        events.discard()
    found = RunTables(run, store).table("launches")
    assert set(found.columns["rank"]) == {0}
    assert found.reasons[1] == "rank 1 was not analyzed: its timeline is not kept, and its profile is gone"
    assert store.uncomputed(run.id, ["launches"]) == {1: ["launches"]}


def test_a_timeline_that_cannot_be_kept_leaves_nothing_for_later(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpcprof.results.collect.kept_events.keep_timeline", full)
    store = new_store(tmp_path)
    collect(run, store)
    assert store.uncomputed(run.id, ANALYSES).keys() == {WHOLE_RUN}


def test_sql_completes_the_tables_that_it_names(run: Run, store: Store) -> None:
    sql = "SELECT DISTINCT rank FROM Analysis_Idle WHERE run_id IN (SELECT id FROM runs)"
    assert incomplete_tables(sql, store) == [
        "analysis_idle of run lacks rows of ranks 0, 1: "
        "hpcprof query computes them where the timelines are kept"
    ]
    complete_tables(sql, store, run.path.parent)
    assert query(store, sql).rows == [(0,), (1,)]
    assert incomplete_tables(sql, store) == []
    assert store.uncomputed(run.id, LATER)[0] == sorted(LATER - {"idle"}, key=[*LATER].index)


def test_a_store_that_is_only_read_says_what_is_not_computed(run: Run, store: Store) -> None:
    read_only = open_store(str(store), run.path.parent, read_only=True)
    found = RunTables(run, read_only).table("queue_length")
    assert not found.count
    assert found.reasons[0].startswith("not computed yet")


def test_whoever_cannot_write_the_database_gets_the_rows(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "put_analyses", lambda *_: None)
    found = RunTables(run, store).table("launches")
    assert set(found.columns["rank"]) == {0, 1}
    assert not found.reasons


def test_rows_of_a_profile_that_was_replaced_are_not_stored(run: Run, store: Store) -> None:
    (tables, _) = RunTables(run, store).complete(["idle"]).values()
    store.put_analyses(run.id, 1, tables, {1: "the checksum of an earlier profile"})
    assert set(store.table(run.id, "idle").columns["rank"]) == {0, 1}
    store.put_analyses(
        run.id, WHOLE_RUN, RunTables(run, store).complete(LISTS)[WHOLE_RUN], {0: "another", 1: "one"}
    )
    assert store.uncomputed(run.id, LISTS) == {}


def test_a_list_over_the_ranks_whose_rows_are_gone_has_a_reason(run: Run, store: Store) -> None:
    sql = "SELECT count(*) FROM analysis_collectives"
    assert incomplete_tables(sql, store) == [
        "analysis_collectives of run lacks its rows: hpcprof query computes them where the timelines are kept"
    ]
    shutil.rmtree(store.rank_events(run.id)[0].folder)
    found = RunTables(run, store).table("collectives")
    assert not found.count
    assert found.reasons[WHOLE_RUN].startswith(
        "not computed: the rows of rank_collectives of rank 0 of run are"
    )
    assert store.uncomputed(run.id, ["collectives"]) == {WHOLE_RUN: ["collectives"]}


def test_a_lost_process_is_the_reason_of_its_rank(run: Run, store: Store) -> None:
    tables = RunTables(run, store, lambda function, tasks: ((t, Lost("it died")) for t in tasks))
    found = tables.complete(["idle"])
    assert found[0]["idle"].reasons[0] == "rank 0 was not analyzed: it died"


@pytest.mark.parametrize("name", sorted(LATER))
def test_there_is_a_reason_where_there_are_no_rows(name: str) -> None:
    outcome = analyze_rank(ANALYSES[name], timeline([]), 0)
    assert outcome.count or outcome.reasons[0]


def test_no_analysis_of_a_run_is_computed_from_one_that_comes_later() -> None:
    assert not {need for one in ANALYSES.values() for need in one.computed_from} & LATER
    # These are computed again, from what is matched alone.
    assert {(ANALYSES[name].map_over, ANALYSES[name].needs) for name in LISTS} == {(Part.COMMUNICATORS, ())}


def test_a_threshold_changes_which_late_ranks_are_stragglers_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = ["even", "late", "straggler", "unknown"]
    costs = {"skew_summary": [0.1, 3.0, 6.0, None]}
    monkeypatch.setattr(RunTables, "_step_set", None)
    monkeypatch.setattr(
        RunTables,
        "_stored_table",
        lambda _, analysis: AnalysisTable(
            {"verdict": verdicts} | ({"cost_pct": costs[analysis.name]} if analysis.name in costs else {})
        ),
    )
    store = open_store(None, tmp_path)
    for threshold, late in ((3.0, "straggler"), (6.1, "late")):
        tables = RunTables(Run("r", tmp_path), store, threshold=threshold)
        for name in VERDICTS:
            assert tables[name].columns["verdict"] == ["even", late, late, "unknown"]
    assert RunTables(Run("r", tmp_path), store)["skew"].columns["verdict"] == verdicts
