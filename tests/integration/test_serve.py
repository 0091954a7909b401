"""``hpcprof serve`` as browsers and programs reach it: one server for the whole file."""

from __future__ import annotations

import http.client
import json
import lzma
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

import hpcprof as package
from tests.integration.chromium import open_page

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
def serving(place: Path, *options: str) -> Iterator[Server]:
    """Start a server in a folder, and end it as Ctrl-C does."""
    command = [sys.executable, "-m", "hpcprof", "serve", "--port", "0", *options]
    with subprocess.Popen(
        command, cwd=place, stdout=subprocess.PIPE, stderr=(place / "stderr").open("w"), text=True
    ) as process:
        address = process.stdout.readline().strip()
        assert address, (place / "stderr").read_text()
        try:
            yield Server(int(re.findall(r":(\d+)/", address)[0]), place, address)
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
    assert (code, (place / "stderr").read_text()) == (0, "")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server over a run, and over collected profiles of another tool in a folder with a hostile name."""
    place = tmp_path_factory.mktemp("served")
    profiles = place / HOSTILE
    profiles.mkdir()
    for rank in (0, 1):
        packed = (DATA / f"ddp_cap2_rank{rank}.sqlite.xz").read_bytes()
        (profiles / f"rank{rank}.sqlite").write_bytes(lzma.decompress(packed))
    package.collect_profiles(profiles, runs_dir=place / "runs", jobs=1)
    submit = [
        sys.executable,
        "-m",
        "hpcprof",
        "submit",
        "--wait",
        "--job-name",
        "hello",
        "--",
        "echo",
        HOSTILE,
    ]
    subprocess.run(submit, cwd=place, check=True, capture_output=True)
    with serving(place) as found:
        yield found


@pytest.fixture(scope="module")
def run_id(server: Server) -> str:
    """The id of the collected profiles."""
    (found,) = server.json("/api/runs?state=imported")["runs"]
    return str(found["run"])


def test_the_list_is_filtered_by_its_address(server: Server, run_id: str) -> None:
    listed = server.json("/api/runs?search=hello")["runs"]
    assert [run["state"] for run in listed] == ["completed"]
    assert listed[0]["command"] == f"echo '{HOSTILE}'"
    status, page = server.ask("/runs?state=imported")
    assert status == 200
    assert f'href="/runs/{quote(run_id, safe="")}"' in page
    assert "1 of 2 runs" in page
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


def test_fifty_readers_and_a_collect_get_the_same_answers(server: Server, run_id: str) -> None:
    path = f"/api/runs/{quote(run_id, safe='')}/tables/kernels"
    before = server.ask(path)
    shutil.copytree(server.place / HOSTILE, server.place / "more" / "profiles")
    command = [sys.executable, "-m", "hpcprof", "collect", "more"]
    answers: list[tuple[int, str]] = []
    with (
        subprocess.Popen(command, cwd=server.place, stdout=subprocess.DEVNULL) as collect,
        ThreadPoolExecutor(50) as readers,
    ):
        while collect.poll() is None or not answers:
            answers += readers.map(server.ask, [path, "/runs"] * 25)
    assert collect.returncode == 0
    assert {status for status, _ in answers} == {200}
    assert {*answers[::2]} == {before}


def test_a_taken_port_is_one_sentence(server: Server) -> None:
    command = [sys.executable, "-m", "hpcprof", "serve", "--port", str(server.port)]
    done = subprocess.run(command, cwd=server.place, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr == (
        f"hpcprof: cannot listen on 127.0.0.1, port {server.port}: Address already in use; --port 0 takes a "
        "free port.\n"
    )
