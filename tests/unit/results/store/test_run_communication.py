"""The communication that ranks have in common."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.collectives.matches import MESSAGE, UNKNOWN
from hpcprof.analysis.framework.outcome import data_frame
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import StoreError
from hpcprof.results.collect import over_ranks
from hpcprof.results.collect.over_ranks import analyze_over_ranks, run_communication
from hpcprof.results.store.run_communication import RankCommunication, RunCommunication
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run
from tests.data.parallel_program import Program
from tests.data.stored_program import RUN, store_program
from tests.unit.analysis.over_all_ranks import match_collectives, match_pairs

RANKS = 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A program with pipelines of four ranks, whose profiles have partners within communicators."""
    store, _ = store_program(tmp_path_factory.mktemp("matched"), Program(RANKS, 300, pipeline=4))
    analyze_over_ranks(RUN, store)
    return store


@pytest.fixture(scope="module")
def kept(store: Store) -> RunCommunication:
    row = store.run(RUN)
    assert row is not None
    return run_communication(Run(RUN, Path(row.path)), store)


@pytest.fixture(scope="module")
def found(kept: RunCommunication) -> dict[int, RankCommunication]:
    return {rank: kept.of_rank(rank) for rank in range(RANKS)}


def ends(found: dict[int, RankCommunication], *ways: int) -> dict[int, list[tuple[int, int, int]]]:
    """Return rank, start and way of each end of what has these ways, by number."""
    by_number = defaultdict(list)
    for rank, own in found.items():
        for start, number, way in zip(own.start, own.number, own.way, strict=True):
            if way in ways:
                by_number[int(number)].append((rank, int(start), int(way)))
    return by_number


def test_a_message_has_one_number_where_it_is_sent_and_where_it_is_received(
    store: Store, found: dict[int, RankCommunication]
) -> None:
    analysis = ANALYSES["rank_collectives"]
    rows = data_frame(analysis.columns, store.table(RUN, analysis.name).columns)
    expected = {
        ((pair.sender, int(sent), 1), (pair.receiver, int(received), -1))
        for pair in match_pairs(rows)[0]
        for sent, received in pair.start
    }
    messages = ends(found, 1, -1).values()
    assert {tuple(sorted(one, key=lambda end: -end[2])) for one in messages} == expected
    assert len(messages) == len(expected) > 0


def test_a_collective_has_one_number_on_all_of_its_ranks(
    store: Store, found: dict[int, RankCommunication]
) -> None:
    analysis = ANALYSES["rank_collectives"]
    rows = data_frame(analysis.columns, store.table(RUN, analysis.name).columns)
    expected = {
        tuple((int(rank), int(start), 0) for rank, start in zip(one.ranks, starts, strict=True))
        for one in match_collectives(rows)[0]
        for starts in one.start
    }
    assert {tuple(sorted(one)) for one in ends(found, 0).values()} == expected != set()


def test_the_text_names_the_partner_and_the_size(found: dict[int, RankCommunication]) -> None:
    sent = [text for text, way in zip(found[0].texts, found[0].way, strict=True) if way == 1]
    assert sent[0].startswith("Send 0 to rank ") and sent[0].endswith("MB")


def test_what_a_collect_kept_is_read_and_not_computed_again(
    store: Store, kept: RunCommunication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_ranks, "_match_run", lambda *_: pytest.fail("computed"))
    row = store.run(RUN)
    assert row is not None
    again = run_communication(Run(RUN, Path(row.path)), store)
    assert again.clocks.notes() == kept.clocks.notes() and again.parts == kept.parts
    stamps = np.array([10**15, 10**18])
    for rank in range(RANKS):
        assert again.clocks.to_common(rank, stamps).tolist() == kept.clocks.to_common(rank, stamps).tolist()


def test_the_matches_of_some_ranks_are_those_among_all(kept: RunCommunication) -> None:
    every, some = kept.matches(), kept.matches([5, 2])
    inside = every.take(np.isin(every.rank, [2, 5]))
    key = np.lexsort((inside.row, inside.rank, inside.match))
    own = np.lexsort((some.row, some.rank, some.match))
    assert len(some) == len(inside) > 0
    for name in ("rank", "row", "match", "group", "start", "arrived"):
        assert getattr(inside, name)[key].tolist() == getattr(some, name)[own].tolist()


@pytest.mark.parametrize("batch", [1 << 18, 7])
def test_who_came_last_is_read_some_rows_at_a_time(
    kept: RunCommunication, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcprof.results.store.run_communication._BATCH_ROWS", batch)
    (found,) = kept.arrivals()
    every = kept.matches()
    rows = pd.DataFrame({name: getattr(every, name) for name in ("match", "rank", "op", "start", "arrived")})
    rows = rows[rows["arrived"] != UNKNOWN].assign(waited=rows["arrived"] - rows["start"])
    by_match = rows.sort_values("waited", kind="stable").groupby("match")
    assert found.last.tolist() == by_match["rank"].first().tolist()
    assert found.waited.tolist() == by_match["waited"].sum().tolist()
    assert found.longest.tolist() == by_match["waited"].max().tolist()
    assert found.collective.tolist() == (by_match["op"].first() != MESSAGE).tolist()
    assert len(found.last) > 50
    members = {*zip(found.group.tolist(), found.member.tolist(), strict=True)}
    assert members == {*zip(every.group.tolist(), every.rank.tolist(), strict=True)}


def test_the_number_of_ranks_of_the_program_is_kept(kept: RunCommunication) -> None:
    assert kept.size == RANKS


def test_files_of_other_profiles_do_not_count_and_damaged_ones_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = store_program(tmp_path, Program(4, 300))
    run = Run(RUN, tmp_path / "profiles")
    analyze_over_ranks(RUN, store)
    (folder,) = tmp_path.glob("timeline/communication/*")
    first = run_communication(run, store).matches()
    (folder / "clocks.parquet").write_bytes(b"no table")
    again = run_communication(run, store).matches()
    assert again.start.tolist() == first.start.tolist()
    assert sorted(path.name for path in folder.iterdir()) == [
        "clocks.parquet",
        "description.json",
        "part-0.parquet",
    ]
    description = folder / "description.json"
    description.write_text(description.read_text().replace('"profiles":"', '"profiles":"0'))
    monkeypatch.setattr(over_ranks, "run_clocks", lambda *_: pytest.fail("computed"))
    with pytest.raises(pytest.fail.Exception, match="computed"):
        run_communication(run, store)


def test_whoever_may_not_write_computes_the_communication_in_a_folder_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = store_program(tmp_path, Program(4, 300))
    save = RunCommunication.save

    def refused(self: RunCommunication) -> None:
        if tmp_path in self._folder.parents:
            raise PermissionError(13, "Permission denied")
        save(self)

    monkeypatch.setattr(RunCommunication, "save", refused)
    found = run_communication(Run(RUN, tmp_path / "profiles"), store)
    assert len(found.matches()) > 0
    place = found._folder
    assert tmp_path not in place.parents and place.is_dir()
    del found
    assert not place.exists()


def test_a_rank_whose_rows_are_gone_is_no_rank_without_communication(tmp_path: Path) -> None:
    store, _ = store_program(tmp_path, Program(4, 300))
    run = Run(RUN, tmp_path / "profiles")
    shutil.rmtree(next(tmp_path.glob("timeline/collectives/run=*/rank=2")))
    found = run_communication(run, store)
    assert len(found.of_rank(0).start) == 0
    with pytest.raises(StoreError, match=r"of rank 2 of .* are not in .*: collect the run again"):
        found.matches()
    with pytest.raises(StoreError, match=r"of rank 2 of .* are not in .*: collect the run again"):
        next(found.arrivals())
