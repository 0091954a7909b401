"""The pages of several runs, asked without a server."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from html import unescape
from pathlib import Path

import msgspec
import pytest
from starlette.testclient import TestClient

from hpcprof.results.across.listing import ListedRun
from hpcprof.results.across.named_baselines import named_baselines, set_baseline
from hpcprof.results.store.store import open_store
from hpcprof.runs.directory import Run
from hpcprof.serve import catalogue
from hpcprof.serve.across_runs import change, comparisons
from hpcprof.serve.app import serve_store
from hpcprof.serve.catalogue import Catalogue
from hpcprof.serve.guard import LOCAL_NAMES, Access, all_names
from tests.unit.results.across.test_history import timed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a program that becomes slower, and a newer one of another program."""
    place = tmp_path_factory.mktemp("runs")
    for minute in range(1, 9):
        timed(place, minute, 1_200_000 + minute if minute < 5 else 1_000_000 + minute)
    timed(place, 0, 2_000_000, "eval.py")
    return place


@pytest.fixture(scope="module")
def client(runs: Path) -> Iterator[TestClient]:
    app = serve_store(runs, None, Access(all_names(LOCAL_NAMES), False, None, port=8765))
    with TestClient(app, base_url="http://127.0.0.1:8765") as found:
        yield found


def test_a_run_without_profiles_asks_for_no_timeline_and_its_failure_is_in_the_list(tmp_path: Path) -> None:
    run = timed(tmp_path, 1, 1_000_000)
    (run.path / "state").mkdir(exist_ok=True)
    for name, text in (("started", "1"), ("finished", "139"), ("rank00000.exit", "139")):
        (run.path / "state" / name).write_text(text)
    app = serve_store(tmp_path, None, Access(all_names(LOCAL_NAMES), False, None, port=8765))
    with TestClient(app, base_url="http://127.0.0.1:8765") as client:
        assert 'id="timeline-data"' not in client.get("/runs/run01").text
        assert '<td class="text cause">' in (page := client.get("/runs").text)
        assert re.search(r'class="text cause">[^<]*exit code 139', page)


def test_a_history_is_that_of_the_newest_program_or_of_the_one_in_the_address(client: TestClient) -> None:
    (history,) = client.get("/api/history").json()["histories"]
    assert [point["run"] for point in history["points"]] == ["run00"]
    (history,) = client.get("/api/history?program=train").json()["histories"]
    assert [point["run"] for point in history["points"] if point["change_probability"]] == ["run04"]
    page = client.get("/history?program=train").text
    assert "<option selected>train</option>" in page
    assert 'id="history-data"' in page
    assert "from run04 on" in page


def test_a_wrong_choice_of_a_history_is_a_sentence_beside_the_form(client: TestClient) -> None:
    for path, sentence in (("program=none", "unknown program"), ("program=train&metric=x", "unknown metric")):
        answer = client.get(f"/history?{path}")
        assert (answer.status_code, sentence in answer.text) == (400, True)
        assert '<select name="program">' in answer.text
        assert client.get(f"/api/history?{path}").status_code == 400


def test_who_has_chosen_nothing_made_no_mistake(client: TestClient, tmp_path: Path) -> None:
    assert client.get("/compare").url.path == "/runs"
    app = serve_store(tmp_path, None, Access(all_names(LOCAL_NAMES), False, None, port=8765))
    with TestClient(app, base_url="http://127.0.0.1:8765") as empty:
        answers = [empty.get(f"/history{choice}") for choice in ("", "?metric=step_ns")]
        assert [answer.status_code for answer in answers] == [200, 400]
        assert all("has a step time" in answer.text for answer in answers)
        assert f"There are no runs in {tmp_path} yet." in empty.get("/runs").text


def test_a_comparison_has_the_runs_of_its_address(client: TestClient) -> None:
    address = "compare?baseline=run06&baseline=run05&candidate=run02&candidate=run01"
    found = client.get(f"/api/{address}").json()
    assert (found["a"], found["b"]) == (["run06", "run05"], ["run02", "run01"])
    assert found["conclusion"] == "Regression: elapsed per step, noted by the program."
    page = client.get(f"/{address}")
    assert "Regression: elapsed per step, noted by the program." in page.text
    assert page.headers["content-security-policy"] == client.get("/runs").headers["content-security-policy"]
    assert "<script>" not in page.text


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("baseline=gone&candidate=run01", 404, "there is no run &#39;gone&#39;."),
        ("baseline=run01&candidate=..%2fruns", 404, "there is no run"),
        ("candidate=run01", 400, "choose from 1 to 16 runs as the baseline (A)"),
        ("baseline=run01&candidate=run00", 400, "different programs (train, eval)"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_a_sentence(
    client: TestClient, path: str, status: int, sentence: str
) -> None:
    answer = client.get(f"/compare?{path}")
    assert (answer.status_code, sentence in answer.text) == (status, True)
    answer = client.get(f"/api/compare?{path}")
    assert (answer.status_code, [*answer.json()]) == (status, ["error"])


def test_a_database_of_an_earlier_version_is_one_sentence_with_the_command_that_migrates_it(
    tmp_path: Path,
) -> None:
    timed(tmp_path, 1, 1000)
    timed(tmp_path, 2, 1000)
    store = open_store(None, tmp_path)
    store.prepare()
    with closing(sqlite3.connect(tmp_path / "hpcprof.db")) as database, database:
        database.execute("UPDATE hpcprof_schema SET version = 4")
        database.execute("DROP TABLE baselines")
    app = serve_store(tmp_path, None, Access(all_names(LOCAL_NAMES), False, None, port=8765))
    with TestClient(app, base_url="http://127.0.0.1:8765") as client:
        pages = ("/runs", "/runs/run01", "/history", "/compare?baseline=run01&candidate=run02")
        for page in pages:
            text = unescape(client.get(page).text)
            assert text.count(f"hpcprof baseline list --db {tmp_path}/hpcprof.db migrates it") == 1
        assert named_baselines(store) == []
        assert [client.get(page).status_code for page in pages[2:]] == [200, 200]


def submitted(run: Run) -> datetime:
    """Return when a run was submitted."""
    assert run.manifest is not None
    return datetime.fromisoformat(run.manifest.created)


def test_a_run_is_compared_with_the_earlier_one_and_its_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [timed(tmp_path, minute, 10**6) for minute in (1, 2, 3)]
    listed = [
        ListedRun(run=run.id, state="completed", path=str(run.path), submitted=submitted(run)) for run in made
    ]
    monkeypatch.setattr(catalogue, "list_runs", lambda *arguments, **others: listed)
    store = open_store(None, tmp_path)
    set_baseline("main", ["run02", "run03"], store, tmp_path)
    set_baseline("itself", ["run01"], store, tmp_path)
    assert comparisons(Catalogue(tmp_path, None, store), made[0]) == [
        ("the earlier run run02", "/compare?baseline=run02&candidate=run01"),
        ("baseline main", "/compare?baseline=run02&baseline=run03&candidate=run01"),
    ]
    assert change(Catalogue(tmp_path, None, store), made[0]) is None
    listed[:2] = [
        msgspec.structs.replace(one, step_ns=ns) for one, ns in zip(listed, (9e6, 12e6), strict=False)
    ]
    assert change(Catalogue(tmp_path, None, store), made[0]) == (
        "Since the earlier run run02: 9.000 ms instead of 12.00 ms a step (-25.0 %).",
        "/compare?baseline=run02&candidate=run01",
    )
    first = listed[1]
    listed[1] = msgspec.structs.replace(first, profiler="nsys")
    assert change(Catalogue(tmp_path, None, store), made[0]) is None
    # Of the two earlier runs, none has the same command.
    listed[0] = msgspec.structs.replace(listed[0], command="train --new")
    listed[1] = first
    assert "run02, whose command was another: 9.000 ms" in str(
        change(Catalogue(tmp_path, None, store), made[0])
    )
    listed[0] = msgspec.structs.replace(listed[0], command=first.command)
    listed[1] = msgspec.structs.replace(first, command="train --batch 8")
    (earlier, *_) = comparisons(Catalogue(tmp_path, None, store), made[0])
    assert earlier == ("the earlier run run03", "/compare?baseline=run03&candidate=run01")
    listed[0] = msgspec.structs.replace(listed[0], state="running")
    assert comparisons(Catalogue(tmp_path, None, store), made[0]) == []


def test_a_sweep_is_one_table_by_parameter_with_its_best_point(tmp_path: Path) -> None:
    for size, step_ns in ((4, 3_000_000), (8, 1_000_000)):
        run = timed(tmp_path, size, step_ns, arguments=("--size", str(size)))
        member = run.path.rename(tmp_path / f"20261121-020000-train-0abc.{size}")
        manifest = member / "run.json"
        manifest.write_text(manifest.read_text().replace(run.id, member.name))
    app = serve_store(tmp_path, None, Access(all_names(LOCAL_NAMES), False, None, port=8765))
    with TestClient(app, base_url="http://127.0.0.1:8765") as client:
        page = client.get("/sweeps/20261121-020000-train-0abc").text
        grouped = client.get("/runs?group=sweep").text
        assert client.get("/sweeps/none").status_code == 404
    best, other = sorted(re.findall(r"<tr><td .*?</tr>", page), key=len, reverse=True)
    assert "<strong>size=8</strong>" in best and "<strong>shortest</strong>" in best
    assert "size=4" in other and "3.00 x" in other
    assert 'href="/runs/20261121-020000-train-0abc.8"' in best
    assert 'href="/sweeps/20261121-020000-train-0abc"' in grouped
    assert "<small>size=4</small>" in grouped and "<small>size=8</small>" in grouped


def test_only_readers_with_the_token_of_a_server_edit_tags_and_notes(tmp_path: Path) -> None:
    run = timed(tmp_path, 1, 1_000_000)
    form = {"tags": "slow b", "note": "<b>before</b> the upgrade"}
    address = f"/runs/{run.id}/note"
    hosts = all_names(LOCAL_NAMES)
    with TestClient(serve_store(tmp_path, None, Access(hosts)), base_url="http://127.0.0.1") as client:
        refused = client.post(address, data=form)
        assert (refused.status_code, "hpcprof serve --token" in refused.text) == (403, True)
        assert client.get(address).status_code == 403
        assert "edit</a>" not in client.get("/runs").text
    with TestClient(
        serve_store(tmp_path, None, Access(hosts, token="t")), base_url="http://127.0.0.1"
    ) as client:
        assert client.post(address, data=form).status_code == 401
        client.get("/runs?token=t")
        assert client.post(address, data=form, headers={"Origin": "http://evil.example"}).status_code == 403
        assert client.post(address, data={"tags": "a;b"}).status_code == 400
        shown = client.post(address, data=form).text
        assert "&lt;b&gt;before&lt;/b&gt; the upgrade" in shown and "edit</a>" in shown
        assert client.get("/api/runs?tag=slow").json()["runs"][0]["tags"] == ["b", "slow"]
        assert 'value="b slow"' in client.get(address).text
    assert (run.path / "tags").read_text() == "b\nslow\n"
