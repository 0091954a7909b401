"""``hpcprof serve`` as browsers and programs reach it: one server for the whole file."""

from __future__ import annotations

import http.client
import json
import lzma
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import hpcprof as package
from tests.command_server import CommandServer
from tests.integration.chromium import barriers, open_page
from tests.waiting import until

DATA = Path(__file__).parents[1] / "data"
HOSTILE = "<img src=x onerror=alert(1)>"


@dataclass(frozen=True)
class Server:
    """A server at work."""

    port: int
    place: Path
    address: str

    def ask(self, path: str, method: str = "GET", body: str = "", **headers: str) -> tuple[int, str]:
        """Send a request exactly as it is given, and return the status and the text of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8")
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        """Return what an address of the API answers."""
        status, text = self.ask(path)
        assert status == 200, text
        return json.loads(text)


@contextmanager
def serving(
    command_server: CommandServer,
    place: Path,
    ends: signal.Signals = signal.SIGINT,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[Server]:
    """Start a server in a folder, and end it by a signal, by default as Ctrl-C does."""
    with command_server.start(["serve", "--port", "0"], place, environment=environment) as running:
        address = running.first_line()
        try:
            yield Server(int(re.findall(r":(\d+)/", address)[0]), place, address)
        finally:
            running.send_signal(ends)
            code = running.wait(60)
        said = running.printed()[1]
    assert (code, said) == (-ends if ends == signal.SIGKILL else 0, "")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, command_server: CommandServer) -> Iterator[Server]:
    """A server over a run, and over collected profiles of another tool in a folder with a hostile name."""
    place = tmp_path_factory.mktemp("served")
    profiles = place / HOSTILE
    profiles.mkdir()
    for rank in (0, 1):
        packed = (DATA / f"ddp_cap2_rank{rank}.sqlite.xz").read_bytes()
        (profiles / f"rank{rank}.sqlite").write_bytes(lzma.decompress(packed))
    package.collect_profiles(profiles, runs_dir=place / "runs", jobs=1)
    submitted = command_server.run(
        ["submit", "--wait", "--job-name", "hello", "--", "echo", HOSTILE], place, 480
    )
    assert submitted.returncode == 0, submitted.stderr
    with serving(command_server, place) as found:
        yield found


@pytest.fixture(scope="module")
def run_id(server: Server) -> str:
    """The id of the collected profiles."""
    (found,) = server.json("/api/runs?state=imported")["runs"]
    return str(found["run"])


def test_the_list_is_filtered_by_its_address(server: Server, run_id: str) -> None:
    listed = server.json("/api/runs?search=hello")["runs"]
    place = f"/runs/{listed[0]['run']}"
    status, page = server.ask(place)
    assert (status, "was not profiled" in page, f'href="{place}/live"' in page) == (200, True, True)
    assert [run["state"] for run in listed] == ["completed"]
    assert listed[0]["command"] == f"echo '{HOSTILE}'"
    status, page = server.ask("/runs?state=imported")
    assert status == 200
    assert f'href="/runs/{quote(run_id, safe="")}"' in page
    assert "1 of 2 runs" in page
    # These runs have no finding, and the list says why.
    assert '#findings">not explained yet</a>' in page
    assert '#findings">not profiled</a>' in server.ask("/runs?search=hello")[1]
    status, page = server.ask("/runs?since=soon")
    assert (status, "write a date" in page) == (400, True)


def test_the_api_gives_the_figures_of_the_report(server: Server, run_id: str) -> None:
    place = f"/api/runs/{quote(run_id, safe='')}"
    run = package.open(server.place / HOSTILE, runs_dir=server.place / "runs")
    assert "breakdown" in server.json(place)["tables"]
    columns = server.json(f"{place}/tables/kernels")["columns"]
    assert columns["total_ns"] == run.kernels()["total_ns"].tolist()
    status, text = server.ask(f"{place}/tables/kernels?format=csv")
    assert (status, len(text.splitlines())) == (200, len(run.kernels()) + 1)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/static/../../../etc/passwd",
            "/static/..%2f..%2fsetup.cfg",
            "/static//etc/passwd",
            "/static/page.py",
        ),
        *(
            "/runs/..%2f..%2fetc",
            "/runs/%2fetc%2fpasswd",
            "/runs/../../etc/passwd",
            "/api/runs/..%2f..%2fetc",
        ),
        *("/runs/last", "/runs/%00", "/api/runs/x/tables/runs", "/nothing", "/etc/passwd", "/runs/%ff"),
    ],
)
def test_no_address_leads_to_a_file(server: Server, path: str) -> None:
    status, text = server.ask(path)
    assert status == 404, text
    assert "root:" not in text
    assert "Traceback" not in text


def test_prometheus_reads_the_metrics(server: Server) -> None:
    status, text = server.ask("/metrics")
    names = {family.name for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
    assert status == 200 and {"hpcprof_run", "hpcprof_step_seconds"} <= names


def test_nothing_can_be_changed(server: Server, run_id: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        for path in ("/runs", f"/api/runs/{quote(run_id, safe='')}", "/static/page.css"):
            assert server.ask(path, method)[0] == 405
    assert server.ask("/runs", Host="evil.example")[0] == 400


def test_a_browser_shows_hostile_names_as_text(server: Server, run_id: str, browser: Browser) -> None:
    opened = open_page(browser, server.address)
    dialogs: list[str] = []
    opened.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    assert opened.page.locator("tbody tr").count() == 2
    opened.page.get_by_role("link", name=run_id).click()
    opened.page.wait_for_selector("html[data-ready]", state="attached")
    assert run_id in opened.page.locator("h1").inner_text()
    assert opened.page.locator("img").count() == 0
    assert (dialogs, opened.complaints) == ([], [])
    assert all(request.startswith(server.address) for request in opened.requests)


def test_the_timeline_of_a_run_comes_in_tiles(server: Server, run_id: str, browser: Browser) -> None:
    opened = open_page(browser, f"{server.address}runs/{quote(run_id, safe='')}#rank=1&step=2")
    tiles = [request for request in opened.requests if "/timeline/" in request]
    assert tiles
    assert all("ranks=0,1" in request for request in tiles)
    timeline = opened.page.locator("[data-part='timeline']")
    view = timeline.evaluate("element => [element.timeline.view.start, element.timeline.view.end]")
    overview = server.json(f"/api/runs/{quote(run_id, safe='')}/timeline")
    _, start, end = overview["ranks"][1]["steps"][2]
    assert view[0] <= start < end <= view[1]
    models = "[...element.timeline.models.values()]"
    drawn = f"element => {models}.reduce((sum, one) => sum + one.slices.start.length, 0)"
    before = timeline.evaluate(drawn)
    assert before > 100
    # Narrower tiles show what was merged.
    timeline.evaluate("(element, at) => element.timeline.view.show(at, at + 2e6)", start)
    opened.page.wait_for_function(
        f"before => ({drawn})(document.querySelector('[data-part=timeline]')) !== before", arg=before
    )
    assert not timeline.get_by_text("is missing").count()
    assert opened.complaints == []


def test_readers_and_a_collect_get_the_same_answers(
    server: Server, run_id: str, command_server: CommandServer
) -> None:
    path = f"/api/runs/{quote(run_id, safe='')}/tables/kernels"
    before = server.ask(path)
    shutil.copytree(server.place / HOSTILE, server.place / "more" / "profiles")
    answers: list[tuple[int, str]] = []
    with ThreadPoolExecutor(10) as readers, ThreadPoolExecutor(1) as other:
        collect = other.submit(command_server.run, ["collect", "more"], server.place, 480)
        while not collect.done() or not answers:
            answers += readers.map(server.ask, [path, "/runs"] * 5)
    assert collect.result().returncode == 0
    assert {status for status, _ in answers} == {200}
    assert {*answers[::2]} == {before}


def post(server: Server, sql: str, runs: list[str], query: str = "") -> tuple[int, Any]:
    """Ask in SQL, and return the status and the answer."""
    headers = {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{server.port}"}
    body = json.dumps({"sql": sql, "runs": runs})
    status, text = server.ask(f"/api/sql{query}", "POST", body, **headers)
    return status, text if query and status == 200 else json.loads(text)


def test_sql_reads_the_results_and_the_events_of_runs(
    server: Server, run_id: str, command_server: CommandServer
) -> None:
    status, found = post(server, "SELECT rank, idle_pct FROM analysis_breakdown WHERE rank < 2", [])
    assert (status, found["columns"], found["truncated"]) == (200, ["rank", "idle_pct"], False)
    assert {row[0] for row in found["rows"]} == {0, 1}
    # The collect kept no events of these profiles; the server reads them into its cache, not into the runs.
    assert not (server.place / "runs/timeline/kernels").exists()
    status, text = post(server, "SELECT count(*) FROM kernels", [run_id], "?format=csv")
    assert status == 200
    assert not (server.place / "runs/timeline/kernels").exists()
    for table in ("steps", "matches"):
        status, found = post(server, f"SELECT count(*) FROM {table}", [run_id])
        assert (status, found["rows"][0][0] > 0) == (200, True)
    command = ["query", "--events", "SELECT count(*) FROM kernels", HOSTILE, "--format", "csv"]
    kept = command_server.run(command, server.place, 480)
    assert (kept.returncode, kept.stdout) == (0, text)


def test_each_example_of_the_sql_page_has_rows(server: Server, browser: Browser) -> None:
    opened = open_page(browser, f"{server.address}sql")
    examples = opened.page.locator("[data-example]")
    assert examples.count() == 3
    for number in range(examples.count()):
        examples.nth(number).click()
        opened.page.get_by_role("status").filter(has_text=re.compile(r"^[1-9]\d* rows?\.")).wait_for()
        assert not opened.page.get_by_role("alert").is_visible()
        opened.page.evaluate("document.querySelector('[data-sql-note]').textContent = ''")
    newest = next(run["run"] for run in json.loads(server.ask("/api/runs")[1])["runs"] if run["step_ns"])
    assert opened.page.get_by_label("Runs, for events").input_value() == newest
    # The address holds the query and its runs.
    again = open_page(browser, opened.page.url)
    again.page.get_by_role("cell").first.wait_for()
    assert opened.complaints == []


@pytest.mark.parametrize(
    "path",
    ["runs", "history", "sql", "runs/{run}", "runs/{run}/live", "runs/{run}/tables/kernels", "missing"],
)
def test_no_barrier_is_on_any_page(
    server: Server, run_id: str, browser: Browser, web_packages: Path, path: str
) -> None:
    address = f"{server.address}{path.format(run=quote(run_id, safe=''))}"
    opened = open_page(browser, address, viewport={"width": 390, "height": 800}, bypass_csp=True)
    assert barriers(opened, web_packages) == []


def test_a_phone_shows_the_state_and_the_step_of_each_run(
    server: Server, run_id: str, browser: Browser
) -> None:
    opened = open_page(browser, f"{server.address}runs", viewport={"width": 390, "height": 800}).page
    row = opened.get_by_role("row").filter(has=opened.get_by_role("link", name=run_id, exact=True))
    for text in ("imported", "126.4 ms"):
        box = row.get_by_role("cell", name=text).bounding_box()
        assert box and box["x"] + box["width"] <= 390


def test_a_query_comes_from_a_page_of_this_server(server: Server) -> None:
    body = json.dumps({"sql": "SELECT 1"})
    asked = [
        server.ask("/api/sql", "POST", body, **{"Content-Type": "text/plain"}),
        server.ask("/api/sql", "POST", body, **{"Content-Type": "application/json", "Origin": "http://evil"}),
        server.ask("/api/sql", "POST", "x" * 70_000, **{"Content-Type": "application/json"}),
        server.ask("/api/sql", "POST", "{", **{"Content-Type": "application/json"}),
        server.ask("/api/sql?sql=SELECT+1"),
    ]
    assert [status for status, _ in asked] == [400, 403, 413, 400, 405]


def test_a_reader_that_takes_its_time_holds_up_nobody(server: Server, run_id: str) -> None:
    path = f"/api/runs/{quote(run_id, safe='')}/tables/kernels"
    with ExitStack() as slow:
        for number in range(30):
            reader = slow.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
            # One half asks and does not read, the other never ends its question.
            asked = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n"
            reader.sendall((asked + "\r\n" * (number % 2)).encode())
        assert server.ask("/api/runs")[0] == 200


def test_a_hostile_log_line_is_text_in_the_page_of_a_running_job(server: Server, browser: Browser) -> None:
    (run,) = server.json("/api/runs?search=hello")["runs"]
    steps = Path(run["path"]) / "state" / "steps"
    steps.mkdir()
    began = int((Path(run["path"]) / "state" / "started").stat().st_mtime)
    for rank in (0, 1):
        lines = [
            {
                "time": began + second,
                "step": second,
                "steps": 1,
                "wall_ns": 10**8,
                "max_ns": 10**8 + rank * 10**9,
            }
            for second in range(30 - 25 * rank)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (steps / f"rank{rank:05d}.jsonl").write_text(text)
    opened = open_page(browser, f"{server.address}runs/{run['run']}/live")
    dialogs: list[str] = []
    opened.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    log = opened.page.locator("pre[data-name='rank00000.out']")
    assert log.inner_text() == HOSTILE
    warned = opened.page.locator("[data-live-warnings]").inner_text()
    assert "Rank 1 has ended no step for 25 s" in warned
    assert "11.0 times the median" in warned
    assert opened.page.locator("[data-live-steps] tbody tr").count() == 2
    assert opened.page.locator("img").count() == 0
    assert (dialogs, opened.complaints) == ([], [])


def test_the_list_renews_itself_until_all_runs_have_ended(
    server: Server, browser: Browser, tmp_path: Path, command_server: CommandServer
) -> None:
    waits = f"while [ ! -e {tmp_path}/told ]; do sleep 0.1; done"
    submit = ["submit", "--job-name", "patient", "--", "sh", "-c", waits]
    assert command_server.run(submit, server.place, 480).returncode == 0

    def listed() -> list[str]:
        return [run["state"] for run in server.json("/api/runs?search=patient")["runs"]]

    until(lambda: listed() == ["running"])
    opened = open_page(browser, f"{server.address}runs?search=patient")
    opened.page.clock.install()
    opened.page.reload()
    opened.page.wait_for_selector("html[data-ready]", state="attached")
    rows = opened.page.locator("table.runs tbody")
    assert rows.get_by_text("running", exact=True).count() == 1
    (tmp_path / "told").touch()
    until(lambda: listed() == ["completed"])
    opened.page.clock.run_for(15_000)
    rows.get_by_text("completed", exact=True).wait_for()
    asked = len(opened.requests)
    opened.page.clock.run_for(60_000)
    assert (len(opened.requests), opened.complaints) == (asked, [])


def test_a_killed_server_leaves_its_tiles_to_the_next(
    server: Server, run_id: str, tmp_path: Path, command_server: CommandServer
) -> None:
    path = f"/api/runs/{quote(run_id, safe='')}/timeline"
    cache = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    answers, kept = [], []
    for number in (signal.SIGKILL, signal.SIGTERM):
        with serving(command_server, server.place, ends=number, environment=cache) as other:
            answers.append([other.ask(path), other.ask(f"{path}/2/1?ranks=0-1")])
            kept.append({file.name: file.stat().st_mtime_ns for file in tmp_path.rglob("?-2-1")})
    assert [status for status, _ in answers[0]] == [200, 200]
    assert answers[0] == answers[1]
    assert kept[0] == kept[1]
    assert kept[0].keys() == {"0-2-1", "1-2-1"}


def test_a_taken_port_is_one_sentence(server: Server, command_server: CommandServer) -> None:
    done = command_server.run(["serve", "--port", str(server.port)], server.place, 120)
    assert done.returncode == 2
    assert done.stderr == (
        f"hpcprof: cannot listen on 127.0.0.1, port {server.port}: Address already in use; --port 0 takes a "
        "free port.\n"
    )
