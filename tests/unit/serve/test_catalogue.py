"""The list of runs: its filters, and how often it is made."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.results.across.listing import ListedRun
from hpcprof.results.store.store import open_store
from hpcprof.serve import catalogue
from hpcprof.serve.catalogue import Catalogue, Filters, KnownRun, Listing, UnknownRun

RUNS = Listing(
    [
        KnownRun(
            ListedRun(
                run="b",
                state="failed",
                site="here",
                profiler="nsys",
                tags=["Base", "x"],
                command="train.py -n 2",
            ),
            "train",
        ),
        KnownRun(
            ListedRun(
                run="a",
                state="completed",
                site="there",
                submitted=datetime(2026, 11, 1, tzinfo=timezone.utc),
                command="eval.py",
            ),
            "eval",
        ),
    ],
    [],
)


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (Filters(), "ba"),
        (Filters(search="TRAIN base"), "b"),
        (Filters(search="train eval"), ""),
        (Filters(program="eval"), "a"),
        (Filters(site="here"), "b"),
        (Filters(state="failed", tag="x"), "b"),
        (Filters(tag="Bas"), ""),
        (Filters(profiler="nsys"), "b"),
        (Filters(since="2026-10-31"), "a"),
        (Filters(since="2026-11-02"), ""),
        (Filters(sort="run"), "ab"),
        (Filters(sort="-run"), "ba"),
        (Filters(sort="profiler"), "ba"),
        (Filters(sort="-started"), "ab"),
        (Filters(sort="run", group="state"), "ab"),
    ],
)
def test_a_filter_chooses_runs(filters: Filters, names: str) -> None:
    assert "".join(run.listed.run for run in RUNS.chosen(filters)) == names


def test_a_wrong_date_is_named() -> None:
    with pytest.raises(UsageError, match="yesterday: write a date"):
        RUNS.chosen(Filters(since="yesterday"))


@pytest.mark.parametrize("filters", [Filters(sort="x"), Filters(sort="--run"), Filters(group="step")])
def test_an_unknown_order_is_named_with_those_there_are(filters: Filters) -> None:
    with pytest.raises(UsageError, match=r"is none of .*\bprogram\b"):
        RUNS.chosen(filters)


def test_a_group_keeps_its_runs_together_in_the_order_of_its_first_one() -> None:
    def known(name: str, program: str | None) -> KnownRun:
        return KnownRun(ListedRun(run=name, state="completed"), program)

    listing = Listing([known("1", "b"), known("2", None), known("3", "a"), known("4", "b")], [])
    assert "".join(run.listed.run for run in listing.chosen(Filters(group="program"))) == "1423"


def test_a_filter_offers_the_values_that_there_are() -> None:
    assert (RUNS.values("tag"), RUNS.values("site")) == (["Base", "x"], ["here", "there"])
    assert RUNS.values("profiler") == ["nsys"]


def test_the_runs_like_a_run_are_of_its_program_and_ended() -> None:
    def known(name: str, state: str = "completed", ranks: int = 2, program: str | None = "train") -> KnownRun:
        return KnownRun(ListedRun(run=name, state=state, ranks=ranks), program)

    listing = Listing(
        [
            *(known("new"), known("this"), known("failed", "failed"), known("larger", ranks=4)),
            *(known("eval", program="eval"), known("old", "imported"), known("oldest")),
            known("nameless", program=None),
        ],
        [],
    )
    assert listing.alike("this") == ({"new", "old", "oldest"}, "old")
    assert listing.alike("oldest")[1] is None
    assert listing.alike("nameless") == listing.alike("gone") == (set(), None)


def test_the_list_is_made_once_for_all_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, made = [0.0], []
    at_work, go_on = threading.Event(), threading.Event()

    def list_runs(*arguments: object, **others: object) -> list[ListedRun]:
        made.append(now[0])
        if len(made) == 2:
            at_work.set()
            assert go_on.wait(60)
        return [ListedRun(run=f"run{len(made)}", state="completed", path=str(tmp_path))]

    monkeypatch.setattr(catalogue, "list_runs", list_runs)
    runs = Catalogue(tmp_path, None, open_store(None, tmp_path, read_only=True), lambda: now[0])
    for _ in range(2):
        assert runs.listing().runs[0].listed.run == "run1"
    now[0] = 11.0
    refreshing = threading.Thread(target=runs.listing)
    refreshing.start()
    assert at_work.wait(60)
    # Meanwhile nobody waits.
    assert runs.listing().runs[0].listed.run == "run1"
    go_on.set()
    refreshing.join()
    assert runs.listing().runs[0].listed.run == "run2"
    assert made == [0.0, 11.0]


def test_runs_of_one_second_are_listed_the_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    when = datetime(2026, 11, 1, tzinfo=timezone.utc)
    rows = [ListedRun(run=name, state="completed", submitted=when, path=str(tmp_path)) for name in "abc"]
    monkeypatch.setattr(catalogue, "list_runs", lambda *_, **__: rows)
    runs = Catalogue(tmp_path, None, open_store(None, tmp_path, read_only=True)).listing().runs
    assert "".join(run.listed.run for run in runs) == "cba"


def test_a_path_is_not_the_name_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    runs = Catalogue(tmp_path / "runs", None, open_store(None, tmp_path, read_only=True))
    for name in (str(tmp_path / "secret"), "../secret", ".", "", "last"):
        with pytest.raises(UnknownRun):
            runs.find(name)
