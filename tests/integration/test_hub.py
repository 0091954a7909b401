"""A hub, ``hpcprof serve --accept``: pushes, those that break off, and those that it has to refuse."""

from __future__ import annotations

import gzip
import http.client
import io
import json
import lzma
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser

from hpcprof.cli.main import cli
from hpcprof.common.errors import StoreError, UsageError
from hpcprof.profiles.event_folders import remove_shared_events
from hpcprof.results.across import package as package_module
from hpcprof.results.across.listing import list_runs
from hpcprof.results.across.package import Package, describe, unpacked, write_package
from hpcprof.results.ask.event_query import find_events
from hpcprof.results.store.store import Store, open_store
from hpcprof.runs.directory import Run
from hpcprof.serve import hub as hub_module
from hpcprof.serve.grants import Grant
from hpcprof.serve.hub import PushRefused, UploadProgress, Uploads
from hpcprof.serve.server import listen_on_file
from tests.command_server import Command, CommandServer
from tests.conftest import Hpcprof
from tests.integration.chromium import OpenPage, barriers
from tests.integration.chromium import web_packages as web_packages

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data"
HOSTILE = "<img src=x onerror=alert(1)>"
SERVE = ["serve", "--accept"]
Members = list[tuple[tarfile.TarInfo, bytes]]
Pushing = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class Hub:
    """A hub at work, with tokens of the project ``train`` and one of another project."""

    port: int
    folder: Path
    push: str
    read: str
    other: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, path: str, token: str | None, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, str]:
        """Send a request and return the status and the text of the answer."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def put(
        self, package: bytes, token: str | None, offset: int = 0, length: int | None = None, digest: str = ""
    ) -> tuple[int, Any]:
        """Push a part of a package, by default all of it."""
        status, text = self.ask(
            f"/api/push/{digest or sha256(package).hexdigest()}",
            token,
            "PUT",
            package[offset:length],
            Upload_Offset=str(offset),
            Upload_Length=str(len(package)),
        )
        return status, json.loads(text) if text.startswith("{") else text

    def signed_in(self, token: str, wanted: str, **headers: str) -> tuple[str, str]:
        """Sign in on the way to a page, and return where the answer leads, and its cookie."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent["Content-Type"] = "application/x-www-form-urlencoded"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", f"/sign-in?{urlencode({'next': wanted})}", f"token={token}", sent)
        answer = connection.getresponse()
        connection.close()
        return answer.headers["Location"], answer.headers["Set-Cookie"]

    def runs(self, token: str) -> list[str]:
        """Return the ids of the runs that a token shows."""
        status, text = self.ask("/api/runs", token)
        assert status == 200, text
        return sorted(run["run"] for run in json.loads(text)["runs"])


def token(folder: Path, name: str, *options: str) -> str:
    return tokens("create", name, "--runs-dir", str(folder), *options)


def tokens(*words: str) -> str:
    """Run a command of ``hpcprof serve token`` in this process, and return what it printed."""
    done = CliRunner().invoke(cli, ["serve", "token", *words])
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


@contextmanager
def hub(command_server: CommandServer, folder: Path, *options: str) -> Iterator[Hub]:
    """Start a hub, and end it."""
    made = [
        token(folder, name, "--project", project, "--may", may)
        for name, project, may in (
            ("ci", "train", "push"),
            ("bob", "train", "read"),
            ("eve", "other", "push"),
        )
    ]
    command = [*SERVE, "--port", "0", "--runs-dir", str(folder), *options]
    with command_server.start(command, Path.cwd()) as running:
        try:
            yield Hub(port_of(running), folder, *made)
        finally:
            running.send_signal(signal.SIGINT)
            assert (running.wait(60), running.printed()[1]) == (0, "")


def port_of(server: Command) -> int:
    """Return the port of a server when it listens."""
    return int(re.findall(r":(\d+)/", server.first_line())[0])


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory, command_server: CommandServer) -> Path:
    """A folder with a collected run of a program with a hostile name."""
    place = tmp_path_factory.mktemp("pushing")
    profiles = place / "profiles"
    profiles.mkdir()
    for rank in (0, 1):
        packed = (DATA / f"ddp_cap2_rank{rank}.sqlite.xz").read_bytes()
        (profiles / f"rank{rank}.sqlite").write_bytes(lzma.decompress(packed))
    done = command_server.run(["collect", "profiles", "--program", HOSTILE], place, 480)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def package(collected: Path) -> bytes:
    """The package of that run."""
    store = open_store(str(collected / "runs/hpcprof.db"), collected / "runs")
    (row,) = list_runs(collected / "runs", str(store.url.database))
    find_events([Run(row.run, collected / "profiles")], store)
    path = collected / "package.tar.gz"
    write_package(path, row.run, describe(row, HOSTILE), store)
    again = collected / "again.tar.gz"
    write_package(again, row.run, describe(row, HOSTILE), store)
    assert path.read_bytes() == again.read_bytes()
    return path.read_bytes()


@pytest.fixture(scope="module")
def sqlite_hub(tmp_path_factory: pytest.TempPathFactory, command_server: CommandServer) -> Iterator[Hub]:
    with hub(command_server, tmp_path_factory.mktemp("hub")) as made:
        yield made


@pytest.fixture
def pushing(collected: Path, command_server: CommandServer, monkeypatch: pytest.MonkeyPatch) -> Pushing:
    def push(hub: Hub, token: str, *options: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("HPCPROF_TOKEN", token)
        return command_server.run(["push", hub.url, *options], collected, 480)

    return push


def test_a_pushed_run_has_the_figures_of_its_own_report(
    sqlite_hub: Hub, collected: Path, pushing: Pushing
) -> None:
    done = pushing(sqlite_hub, sqlite_hub.push)
    assert done.returncode == 0, done.stderr
    (run,) = sqlite_hub.runs(sqlite_hub.read)
    assert done.stdout == f"{run}: {sqlite_hub.url}/runs/{run}\n" and sqlite_hub.push not in done.stderr
    assert pushing(sqlite_hub, sqlite_hub.push).stdout == done.stdout
    assert sqlite_hub.runs(sqlite_hub.other) == []
    status, _ = sqlite_hub.ask(f"/runs/{run}", sqlite_hub.other)
    assert status == 404
    assert "was pushed here" in sqlite_hub.ask(f"/api/runs/{run}/live", sqlite_hub.read)[1]
    store = open_store(str(collected / "runs/hpcprof.db"), collected / "runs")
    for name in ("kernels", "breakdown", "collectives", "skew"):
        status, text = sqlite_hub.ask(f"/api/runs/{run}/tables/{name}", sqlite_hub.read)
        assert json.loads(text)["columns"] == json.loads(json.dumps(store.table(run, name).columns))
    levels = json.loads(sqlite_hub.ask(f"/api/runs/{run}/timeline", sqlite_hub.read)[1])["levels"]
    status, text = sqlite_hub.ask(f"/api/runs/{run}/timeline/{levels - 1}/0?ranks=0,1", sqlite_hub.read)
    assert status == 200 and len(json.loads(text)["tiles"]) == 2
    status, text = sqlite_hub.ask(
        "/api/sql",
        sqlite_hub.read,
        "POST",
        json.dumps({"sql": "SELECT count(*) FROM kernels", "runs": [run]}).encode(),
        Content_Type="application/json",
    )
    assert status == 200 and json.loads(text)["rows"][0][0] > 0


def test_a_scrubbed_run_has_no_path_of_the_sender(sqlite_hub: Hub, collected: Path, pushing: Pushing) -> None:
    assert pushing(sqlite_hub, sqlite_hub.other, "--scrub").returncode == 0
    (run,) = sqlite_hub.runs(sqlite_hub.other)
    shown = sqlite_hub.ask(f"/api/runs/{run}", sqlite_hub.other)[1]
    files = [path for path in (sqlite_hub.folder / "other").rglob("*") if path.is_file()]
    texts = [shown, *(path.read_bytes().decode("latin-1") for path in files)]
    assert not [text for text in texts if str(collected) in text or "hpcprof-push-" in text]


def test_a_scrubbed_run_has_no_host_user_or_tag_of_the_sender(
    sqlite_hub: Hub, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch puts the host into the names of its traces, and the program is a path of the sender."""
    (tmp_path / "traces").mkdir()
    trace = tmp_path / "traces/secrethost_4711.1764000000000.pt.trace.json.gz"
    shutil.copy(DATA / "ddp_step_rank0.pt.trace.json.gz", trace)
    assert hpcprof("collect", "traces", "--program", "/home/sekret/train.py").returncode == 0
    made = token(sqlite_hub.folder, "scrub", "--project", "scrub", "--may", "push")
    monkeypatch.setenv("HPCPROF_TOKEN", made)
    done = hpcprof("push", sqlite_hub.url, "--scrub")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(sqlite_hub.ask("/api/runs", made)[1])["runs"]
    assert run["program"] == "train.py"
    files = [path.read_bytes() for path in (sqlite_hub.folder / "scrub").rglob("*") if path.is_file()]
    texts = [*files, *(sqlite_hub.ask(path, made)[1].encode() for path in ("/runs", f"/runs/{run['run']}"))]
    assert not [text for text in texts if b"secrethost" in text or b"sekret" in text]


def test_a_page_shows_hostile_names_as_text_and_edits_tags_and_note(
    sqlite_hub: Hub, package: bytes, browser: Browser, web_packages: Path
) -> None:
    assert sqlite_hub.put(package, sqlite_hub.push)[0] == 200
    page = browser.new_context(bypass_csp=True).new_page()
    page.goto(f"{sqlite_hub.url}/runs")
    page.fill("input[name=token]", "wrong")
    page.click("button[type=submit]")
    assert "no token of this hub" in page.inner_text("main")
    page.fill("input[name=token]", sqlite_hub.push)
    page.click("button[type=submit]")
    page.click("a:has-text('edit')")
    page.fill("input[name=tags]", "v2 slow")
    page.fill("textarea", HOSTILE)
    assert barriers(OpenPage(page), web_packages) == []
    page.click("button:has-text('Keep')")
    assert HOSTILE in page.inner_text("table.runs")
    assert page.locator("a.tag").all_inner_texts() == ["slow", "v2"]
    assert page.locator("main img").count() == 0
    assert "token" not in page.url and barriers(OpenPage(page), web_packages) == []
    assert sqlite_hub.put(package, sqlite_hub.push)[0] == 200
    (run,) = json.loads(sqlite_hub.ask("/api/runs", sqlite_hub.read)[1])["runs"]
    assert run["tags"] == ["slow", "v2"]


@pytest.mark.parametrize("shown", [None, "x" * 43, "", "Bearer"])
def test_nothing_is_shown_or_taken_without_a_token(
    sqlite_hub: Hub, package: bytes, shown: str | None
) -> None:
    assert sqlite_hub.ask("/api/runs", shown)[0] == 401
    assert sqlite_hub.put(package, shown)[0] == 401
    assert sqlite_hub.ask("/runs", shown)[0] == 303
    assert sqlite_hub.ask("/metrics", shown)[0] == 401
    assert sqlite_hub.ask(f"/runs?token={sqlite_hub.push}", None)[0] == 303
    assert sqlite_hub.ask("/api/runs", None, Cookie="hpcprof_0=; hpcprof_1=x")[0] == 401


def test_a_removed_token_is_refused_and_one_that_reads_pushes_nothing(
    sqlite_hub: Hub, package: bytes
) -> None:
    made = token(sqlite_hub.folder, "gone", "--project", "gone", "--may", "push")
    assert made not in (sqlite_hub.folder / "grants.json").read_text()
    assert (sqlite_hub.folder / "grants.json").stat().st_mode & 0o777 == 0o600
    assert sqlite_hub.put(package, made)[0] == 200
    remove(sqlite_hub, "gone")
    assert sqlite_hub.ask("/api/runs", made)[0] == 401
    assert sqlite_hub.put(package, sqlite_hub.read)[0] == 403


def test_a_push_that_broke_off_goes_on_and_is_not_seen_before(sqlite_hub: Hub, package: bytes) -> None:
    made = token(sqlite_hub.folder, "slow", "--project", "slow", "--may", "push")
    half = len(package) // 2
    address = f"/api/push/{sha256(package).hexdigest()}"
    assert sqlite_hub.put(package, made, 0, half) == (200, {"offset": half, "run": None, "address": None})
    assert sqlite_hub.runs(made) == []
    assert json.loads(sqlite_hub.ask(address, made)[1])["offset"] == half
    # A part that is sent twice, or does not follow what is there, is not added.
    assert sqlite_hub.put(package, made, 0, half)[0] == 409
    assert sqlite_hub.put(package, made, half + 1)[1]["offset"] == half
    status, answer = sqlite_hub.put(package, made, half)
    assert status == 200 and sqlite_hub.runs(made) == [answer["run"]]
    assert not list((sqlite_hub.folder / "slow/.incoming").iterdir())


def test_a_token_pushes_no_more_than_its_quota(sqlite_hub: Hub, package: bytes) -> None:
    made = token(sqlite_hub.folder, "small", "--project", "small", "--may", "push", "--quota", "8M")
    large = package + os.urandom(8 << 20)
    status, answer = sqlite_hub.put(large, made, 0, 10)
    assert status == 413 and "quota of 8.389 MB" in answer["error"]
    # What another token of a similar name has begun does not count.
    beside = token(sqlite_hub.folder, "small-2", "--project", "small", "--may", "push")
    assert sqlite_hub.put(large, beside, 0, 8 << 20)[0] == 200
    # Neither does it help that a package is small until it is unpacked.
    swollen = repacked(package, added("origins/9.jsonl", bytes(9 << 20)))
    assert len(swollen) < 4 << 20
    status, answer = sqlite_hub.put(swollen, made)
    assert status == 400 and "when it is unpacked" in answer["error"]
    assert sqlite_hub.put(package, made)[0] == 200


def test_no_other_token_replaces_a_run(sqlite_hub: Hub, package: bytes) -> None:
    first, second = (
        token(sqlite_hub.folder, name, "--project", "shared", "--may", "push") for name in ("ann", "ben")
    )
    changed = repacked(package, edited("run.json", lambda run: run["listed"].update(reason="forged")))
    assert sqlite_hub.put(package, first)[0] == 200
    status, answer = sqlite_hub.put(changed, second)
    assert status == 403 and "was pushed by ann" in answer["error"]
    assert sqlite_hub.put(changed, first)[0] == 200


def test_a_run_that_is_pushed_again_keeps_no_file_of_before(sqlite_hub: Hub, package: bytes) -> None:
    made = token(sqlite_hub.folder, "twice", "--project", "twice", "--may", "push")

    def without_events(members: Members) -> None:
        members[:] = [one for one in members if one[0].name.endswith(".json")]

    events = sqlite_hub.folder / "twice/events"
    assert sqlite_hub.put(package, made)[0] == 200 and [*events.rglob("*.parquet")]
    assert sqlite_hub.put(repacked(package, without_events), made)[0] == 200
    assert not [*events.rglob("*.parquet")]


def test_a_session_ends_with_its_token_whether_removed_or_expired(sqlite_hub: Hub) -> None:
    def sign_in(value: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", sqlite_hub.port, timeout=60)
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", "/sign-in", f"token={value}", form)
        cookie = connection.getresponse().headers["set-cookie"]
        connection.close()
        assert "HttpOnly" in cookie and "SameSite=lax" in cookie
        return str(cookie.partition(";")[0])

    grants = sqlite_hub.folder / "grants.json"
    made = token(sqlite_hub.folder, "short", "--project", "train", "--may", "push", "--days", "1")
    cookie = sign_in(made)
    assert sqlite_hub.ask("/api/runs", None, Cookie=cookie)[0] == 200
    grants.write_text(re.sub(r'("expires": *)"\d+', r'\1"2020', grants.read_text()))
    assert sqlite_hub.ask("/api/runs", None, Cookie=cookie)[0] == 401
    assert sqlite_hub.ask("/api/runs", made)[0] == 401 and sqlite_hub.put(b"x", made)[0] == 401
    remove(sqlite_hub, "short")
    whole = grants.read_text()
    grants.write_text("[")
    assert sqlite_hub.ask("/api/runs", made) == (503, '{"error":"the hub cannot read its grants."}')
    grants.write_text(whole)
    for again in ((), ("--proxied",)):
        grant = ("--project", "train", "--may", "read")
        cookie = sign_in(token(sqlite_hub.folder, "leaked", *grant))
        assert sqlite_hub.ask("/api/runs", None, Cookie=cookie)[0] == 200
        remove(sqlite_hub, "leaked")
        token(sqlite_hub.folder, "leaked", *grant, *again)
        assert sqlite_hub.ask("/api/runs", None, Cookie=cookie)[0] == 401
        remove(sqlite_hub, "leaked")


def remove(hub: Hub, name: str) -> None:
    tokens("rm", name, "--runs-dir", str(hub.folder))


def repacked(package: bytes, change: Callable[[Members], None]) -> bytes:
    """Return a package with other members."""
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        members = [(one, archive.extractfile(one).read()) for one in archive]
    change(members)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=1) as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def added(name: str, content: bytes = b"x", kind: bytes = tarfile.REGTYPE) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        members.append((member, content if kind == tarfile.REGTYPE else b""))

    return change


def edited(name: str, edit: Callable[[Any], None]) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        for place, (member, content) in enumerate(members):
            if member.name == name:
                values = json.loads(content)
                edit(values)
                members[place] = member, json.dumps(values).encode()

    return change


def events_of_another_kind(members: Members) -> None:
    for place, (member, _) in enumerate(members):
        if member.name == "events/kernels/0.parquet":
            other = next(content for one, content in members if one.name == "events/api/0.parquet")
            members[place] = member, other


def damaged_events(members: Members) -> None:
    for place, (member, _) in enumerate(members):
        if member.name == "events/kernels/0.parquet":
            members[place] = member, b"PAR1 no"


def nested(members: Members) -> None:
    """Replace the results by some that are too deep for a reader that calls itself."""
    members[1] = members[1][0], b"[" * 1_000_000


def numbers() -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.table({"number": [1]}), made)
    return made.getvalue()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (added("../../evil"), "an unexpected file"),
        (added("/etc/cron.d/evil"), "an unexpected file"),
        (added("events/../../x/0.parquet"), "an unexpected file"),
        (added("page.html", b"<script>"), "an unexpected file"),
        (
            edited("run.json", lambda run: run.update(program="x" * (2 << 20))),
            "run.json exceeds 1,048,576 bytes",
        ),
        (added("events/kernels/9.parquet", kind=tarfile.SYMTYPE), "not a plain file"),
        (added("events/kernels/9.parquet", kind=tarfile.LNKTYPE), "not a plain file"),
        (added("events/kernels/9.parquet", kind=tarfile.FIFOTYPE), "not a plain file"),
        (damaged_events, "damaged"),
        (added("events/kernels/9.parquet", b"PAR1 no"), "an unexpected file"),
        (events_of_another_kind, "other columns"),
        (edited("run.json", lambda run: run["listed"].update(run="../x")), "invalid characters"),
        (edited("run.json", lambda run: run.update(html="<script>")), "damaged"),
        (edited("run.json", lambda run: run.update(format=9)), "format 9"),
        (edited("results.json", lambda rows: rows["runs"].update(id=["other"])), "another run"),
        (
            edited("results.json", lambda rows: rows.update(hpcprof_schema={"version": [1]})),
            "unknown columns",
        ),
        (edited("results.json", lambda rows: rows["profiles"].update(evil=[1, 2])), "unknown columns"),
        (edited("results.json", lambda rows: rows["profiles"].update(rank=["0", "1"])), "another type"),
        (edited("results.json", lambda rows: rows["profiles"].update(bytes=[1 << 64, 1])), "another type"),
        (edited("results.json", lambda rows: rows["profiles"].update(sha256=["../x", "y"])), "checksum"),
        (edited("results.json", lambda rows: rows["profiles"].update(rank=[0])), "different lengths"),
        (edited("results.json", lambda rows: rows.pop("runs")), "are not of one run"),
        (
            edited("run.json", lambda run: run["listed"].update(started="2026-01-01T00:00:00")),
            "impossible time",
        ),
        (edited("run.json", lambda run: run["listed"].update(submitted="0001-01-01T00:00:00+05:00")), "time"),
        (edited("run.json", lambda run: run["listed"].update(duration_s=1e300)), "impossible duration"),
        (edited("run.json", lambda run: run["listed"].update(run="\N{SNOWMAN}r" * 60)), "characters"),
        (nested, "Expected `object`"),
        (added("communication/description.json", b"{}", kind=tarfile.XHDTYPE), "not a plain file"),
        (added("events/communication/0.parquet", numbers()), "an unexpected file"),
        (added("communication/part-7.parquet", numbers()), "other columns"),
        (lambda members: members.pop(0), "lacks run.json"),
    ],
)
def test_a_package_that_is_none_is_refused_and_leaves_nothing(
    sqlite_hub: Hub, package: bytes, change: Callable[[Members], None], says: str
) -> None:
    before = sqlite_hub.runs(sqlite_hub.other)
    status, answer = sqlite_hub.put(repacked(package, change), sqlite_hub.other)
    assert status == 400 and says in answer["error"], answer
    assert sqlite_hub.runs(sqlite_hub.other) == before
    assert not [*(sqlite_hub.folder / "other/.incoming").iterdir()]
    assert not [*sqlite_hub.folder.rglob("evil")]


def test_bytes_that_are_no_package_are_refused(sqlite_hub: Hub, package: bytes) -> None:
    bomb = gzip.compress(bytes(64 << 20), 9)
    for content in (b"x", package[: len(package) // 2], bomb, gzip.compress(b"")):
        assert sqlite_hub.put(content, sqlite_hub.other)[0] == 400
    assert sqlite_hub.put(package, sqlite_hub.other, digest="0" * 64)[0] == 400
    assert sqlite_hub.put(package, sqlite_hub.other, digest="../../x")[0] in (400, 404)
    address = f"/api/push/{'0' * 64}"
    assert (
        sqlite_hub.ask(address, sqlite_hub.other, "PUT", b"x", Upload_Offset="-1", Upload_Length="9")[0]
        == 400
    )
    assert sqlite_hub.ask(address, sqlite_hub.other, "PUT", bytes(9 << 20), Upload_Offset="0")[0] == 413
    assert sqlite_hub.ask("/api/runs", sqlite_hub.other, "POST", bytes(70_000))[0] == 413
    assert sqlite_hub.ask("/api/runs", sqlite_hub.other, Origin="https://evil.example")[0] == 403
    assert sqlite_hub.ask("/api/runs", sqlite_hub.other, Host="evil.example")[0] == 400


@pytest.mark.parametrize("kind", ["SQLite", "PostgreSQL"])
def test_pushes_at_once_are_all_there(
    kind: str,
    package: bytes,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    command_server: CommandServer,
) -> None:
    packages = [repacked(package, partial(_renamed, f"run-{number:02}")) for number in range(4)]
    with ExitStack() as stack:
        options: tuple[str, ...] = ()
        if kind == "PostgreSQL":
            folder = request.getfixturevalue("postgresql")
            options = ("--db", f"postgresql+psycopg://hpcprof@/postgres?host={folder}")
        one = stack.enter_context(hub(command_server, tmp_path / "hub", *options))
        with ThreadPoolExecutor(8) as pool:
            projects = [one.push, one.other]
            done = list(pool.map(lambda i: one.put(packages[i // 2], projects[i % 2]), range(8)))
        assert {status for status, _ in done} == {200}
        for shown in (one.read, one.other):
            assert one.runs(shown) == [f"run-{number:02}" for number in range(4)]
        assert one.ask("/runs/run-03", one.read)[0] == 200
        secret = repacked(packages[0], partial(_renamed, "secret-run"))
        secret = repacked(secret, edited("run.json", lambda run: run.update(program="secret")))
        secret = repacked(
            secret, edited("results.json", lambda rows: rows["runs"].update(program=["secret"]))
        )
        assert one.put(secret, one.push)[0] == 200
        asked_for = "baseline=run-03&candidate=secret-run"
        for path in ("/runs", "/history", "/metrics", "/api/runs", f"/compare?{asked_for}"):
            assert "secret" in one.ask(path, one.read)[1]
        # Others see nothing of it, also where they name it.
        for path in ("/runs", "/history", "/metrics", "/api/runs"):
            assert "secret" not in one.ask(path, one.other)[1]
        for path in ("/runs/secret-run", f"/compare?{asked_for}", "/api/runs/secret-run/timeline"):
            status, text = one.ask(path, one.other)
            assert status == 404 or "unknown run" in text, (status, text)
        asked = json.dumps({"sql": "SELECT count(*) FROM runs"}).encode()
        status, text = one.ask("/api/sql", one.read, "POST", asked, Content_Type="application/json")
        assert (status == 200 and json.loads(text)["rows"] == [[5]]) if kind == "SQLite" else status == 403


def _renamed(name: str, members: Members) -> None:
    edited("run.json", lambda run: run["listed"].update(run=name))(members)
    edited("results.json", lambda rows: _with_run(rows, name))(members)


def _with_run(rows: dict[str, dict[str, list[Any]]], name: str) -> None:
    for table, columns in rows.items():
        key = "id" if table == "runs" else "run_id"
        columns[key] = [name] * len(columns[key])


def test_a_killed_push_and_a_killed_hub_leave_no_half_of_a_run(
    package: bytes, tmp_path: Path, pushing: Pushing, command_server: CommandServer
) -> None:
    folder = tmp_path / "hub"
    made = token(folder, "ci", "--project", "train", "--may", "push")
    command = [*SERVE, "--port", "0", "--runs-dir", str(folder)]
    with command_server.start(command, tmp_path) as running:
        one = Hub(port_of(running), folder, made, made, made)
        assert one.put(package, made, 0, len(package) // 3)[0] == 200
        running.send_signal(signal.SIGKILL)
        assert running.wait(60) == -signal.SIGKILL
    with command_server.start(command, tmp_path) as running:
        one = Hub(port_of(running), folder, made, made, made)
        assert one.runs(made) == []
        done = pushing(one, made)
        assert done.returncode == 0 and len(one.runs(made)) == 1, done.stderr
        running.send_signal(signal.SIGTERM)
        running.wait(60)


def test_the_command_that_waits_for_a_job_pushes_its_run(
    sqlite_hub: Hub, collected: Path, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = token(sqlite_hub.folder, "jobs", "--project", "jobs", "--may", "push")
    monkeypatch.setenv("HPCPROF_TOKEN", made)
    program = f"cp {collected}/profiles/rank0.sqlite $HPCPROF_RUN_DIR/profiles/rank00000.sqlite; exit 3"
    job = ("--push", sqlite_hub.url, "--", "sh", "-c", program)
    refused = hpcprof("submit", *job)
    assert refused.returncode == 2 and "--push is for --wait" in refused.stderr
    done = hpcprof("submit", "--wait", *job)
    (run,) = sqlite_hub.runs(made)
    assert done.returncode == 1 and done.stdout.endswith(f"{run}: {sqlite_hub.url}/runs/{run}\n")
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert not [path for path in files if made.encode() in path.read_bytes()]
    assert hpcprof("collect", "--push", sqlite_hub.url).stdout.endswith(f"/runs/{run}\n")
    monkeypatch.setenv("HPCPROF_TOKEN", "x" * 43)
    done = hpcprof("status", "--watch", "--push", sqlite_hub.url)
    assert done.returncode == 1 and f"{run} was not pushed: {sqlite_hub.url} refused (401)" in done.stderr


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    """The uploads of a project, in this process."""
    store = open_store(str(tmp_path / "hpcprof.db"), tmp_path)
    store.prepare()
    return Uploads(tmp_path, store)


def receive(uploads: Uploads, package: bytes, grant: Grant, upto: int | None = None) -> UploadProgress:
    return uploads.receive(sha256(package).hexdigest(), grant, 0, len(package), package[:upto])


def grant_of(name: str, quota_bytes: int = 1 << 30) -> Grant:
    return Grant(name, "train", "push", "", "", quota_bytes)


def test_the_run_of_before_is_whole_until_the_new_one_is(
    uploads: Uploads, package: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill may come when the new events are there, and their rows are not."""
    run = receive(uploads, package, grant_of("ci")).run
    store = open_store(str(tmp_path / "hpcprof.db"), tmp_path)
    (before, *_) = store.rank_events(run).values()

    def folders() -> set[Path]:
        return {events.folder for events in store.rank_events(run).values() if events.written()}

    again = repacked(package, edited("run.json", lambda run: run["listed"].update(reason="again")))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Store, "replace_run", killed)
        receive(uploads, again, grant_of("ci"))
    assert all(
        events.written() and events.folder == before.folder for events in store.rank_events(run).values()
    )
    (tmp_path / ".incoming/.unpacking-x").mkdir()
    Uploads(tmp_path, store)  # beside the hub of before, which may just be keeping a package
    assert len([*(tmp_path / "events").iterdir()]) == 2
    os.close(uploads._running)
    uploads = Uploads(tmp_path, store)
    assert folders() == {before.folder} and [*(tmp_path / "events").iterdir()] == [before.folder.parent]
    assert not [*(tmp_path / ".incoming").glob(".unpacking-*")]
    size, digest = len(again), sha256(again).hexdigest()
    assert uploads.progress(digest, grant_of("ci")).offset == size
    assert uploads.receive(digest, grant_of("ci"), size, size, b"").run == run
    assert all(events.written() for events in store.rank_events(run).values())
    assert not before.folder.exists() and len([*(tmp_path / "events").iterdir()]) == 1
    remove_shared_events(tmp_path, run)
    assert not [*tmp_path.rglob("*.parquet")]


def test_a_package_that_does_not_fit_on_the_disk_leaves_nothing(
    uploads: Uploads, package: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("the disk is full.")

    grant, size = grant_of("ci"), len(package)
    with monkeypatch.context() as patched, pytest.raises(StoreError):
        patched.setattr(Store, "replace_run", full)
        receive(uploads, package, grant)
    assert not [*(tmp_path / "events").iterdir()]
    # The client sends nothing twice.
    assert uploads.progress(sha256(package).hexdigest(), grant).offset == size
    assert uploads.receive(sha256(package).hexdigest(), grant, size, size, b"").run


def test_a_large_package_holds_up_no_other(
    uploads: Uploads, package: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = (repacked(package, partial(_renamed, name)) for name in ("large", "small"))
    unpacking, go_on = Event(), Event()
    digest = sha256(large).hexdigest()

    @contextmanager
    def slow(path: Path, *others: Any) -> Iterator[Package]:
        if path.name.endswith(digest):
            unpacking.set()
            assert go_on.wait(60)
        with unpacked(path, *others) as found:
            yield found

    monkeypatch.setattr(hub_module, "unpacked", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(receive, uploads, large, grant_of("ci"))
        assert unpacking.wait(60)
        again = pool.submit(receive, uploads, large, grant_of("ci"))  # a client that had no answer
        assert receive(uploads, small, grant_of("ci")).run == "small" and not first.done()
        go_on.set()
        assert first.result(60).run == again.result(60).run == "large"


def test_a_token_begins_a_hundred_packages_at_most(uploads: Uploads) -> None:
    for number in range(100):
        assert receive(uploads, b"%03d" % number, grant_of("ci"), 1).offset == 1
    with pytest.raises(PushRefused, match="begun 100 packages"):
        receive(uploads, b"another", grant_of("ci"), 1)
    assert receive(uploads, b"another", grant_of("ben"), 1).offset == 1
    assert uploads.receive(sha256(b"007").hexdigest(), grant_of("ci"), 1, 3, b"0").offset == 2


def test_what_nobody_finishes_is_removed_after_a_week(uploads: Uploads, tmp_path: Path) -> None:
    receive(uploads, b"new", grant_of("ci"), 1)
    incoming = tmp_path / ".incoming"
    (incoming / ".unpacking-old/events").mkdir(parents=True)
    (incoming / "ci-old").write_bytes(b"x")
    for name in (".unpacking-old", "ci-old"):
        os.utime(incoming / name, (0, time.time() - 8 * 24 * 3600))
    receive(uploads, b"newer", grant_of("ci"), 1)
    assert sorted(one.name.rpartition("-")[2] for one in incoming.iterdir()) == sorted(
        sha256(one).hexdigest() for one in (b"new", b"newer")
    )


def test_equal_values_that_fill_the_memory_are_refused(
    uploads: Uploads, package: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of one value takes some bytes of a file, however many rows it has."""

    def many_rows(members: Members) -> None:
        for place, (member, content) in enumerate(members):
            if member.name == "events/kernels/0.parquet":
                table = pq.read_table(io.BytesIO(content)).slice(0, 1)
                made = io.BytesIO()
                pq.write_table(table.take([0] * 200_000), made, compression="zstd")
                members[place] = member, made.getvalue()

    swollen = repacked(package, many_rows)
    monkeypatch.setattr(package_module, "MAX_EVENT_BYTES", 8 << 20)
    assert len(swollen) < 1 << 20
    with pytest.raises(PushRefused, match="the events exceed 8,388,608 bytes"):
        receive(uploads, swollen, grant_of("ci"))


def test_the_reader_of_a_link_sees_what_it_names_after_the_sign_in(
    sqlite_hub: Hub, package: bytes, browser: Browser
) -> None:
    status, answer = sqlite_hub.put(package, sqlite_hub.push)
    assert status == 200
    address = f"{sqlite_hub.url}/runs/{answer['run']}"
    page = browser.new_context().new_page()
    page.goto(f"{address}?token=stale#rank=1")
    assert page.url == f"{sqlite_hub.url}/sign-in?next=%2Fruns%2F{answer['run']}#rank=1"
    page.fill("input[name=token]", "wrong")
    page.click("button[type=submit]")
    page.fill("input[name=token]", sqlite_hub.read)
    page.click("button[type=submit]")
    page.wait_for_selector("html[data-ready]")
    assert page.url.startswith(f"{address}#rank=1")
    assert "Secure" not in sqlite_hub.signed_in(sqlite_hub.read, "/")[1]
    assert sqlite_hub.signed_in(sqlite_hub.read, "//evil.example/x")[0] == "/evil.example/x"
    assert "Secure" in sqlite_hub.signed_in(sqlite_hub.read, "/", X_Forwarded_Proto="https")[1]


def test_a_proxy_comes_by_a_socket_that_only_its_user_can_open(
    tmp_path: Path, command_server: CommandServer
) -> None:
    token(tmp_path, "alice", "--project", "train", "--may", "read", "--proxied")
    path = tmp_path / "hub.socket"
    command = [*SERVE, "--runs-dir", str(tmp_path), "--unix", str(path), "--user-header", "X-Remote-User"]
    with command_server.start(command, tmp_path) as running:
        assert running.first_line() == f"http://localhost/ by {path}"
        assert path.stat().st_mode & 0o777 == 0o600
        for header, status in (("alice", 200), ("mallory", 403)):
            connection = http.client.HTTPConnection("localhost")
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(str(path))
            connection.request("GET", "/api/runs", headers={"X-Remote-User": header})
            assert connection.getresponse().status == status
            connection.close()
        with pytest.raises(UsageError, match="a server listens there already"):
            listen_on_file(path)
        running.send_signal(signal.SIGINT)
        assert (running.wait(60), running.printed()[1]) == (0, "")
    assert not path.exists()
    with listen_on_file(path):
        pass
    listen_on_file(path).close()  # one that a killed server left is no obstacle
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot listen there"):
        listen_on_file(tmp_path / "file")


def test_the_user_comes_from_the_header_of_the_proxy_alone(
    tmp_path: Path, package: bytes, command_server: CommandServer
) -> None:
    folder = tmp_path / "hub"
    assert "where the proxy names that user" in token(
        folder, "alice", "--project", "train", "--may", "read", "--proxied"
    )
    for proxy, allowed in (("127.0.0.1", True), ("10.1.2.3", False)):
        shutil.rmtree(folder / "x", ignore_errors=True)
        with hub(command_server, folder / "x", "--user-header", "X-Remote-User", "--proxy", proxy) as one:
            token(folder / "x", "alice", "--project", "train", "--may", "read", "--proxied")
            assert (one.ask("/api/runs", None, X_Remote_User="alice")[0] == 200) is allowed
            for user in ("ci", "mallory", "<i>"):  # a token, and no users
                for path in ("/api/runs", "/metrics", "/runs/x", "/sign-in"):
                    status, text = one.ask(path, None, X_Remote_User=user)
                    said = f"{user} has no access here; whoever runs this hub can grant it."
                    assert (status == 403 and said in str(text) and "train" not in str(text)) is allowed
            assert one.ask("/api/runs", None)[0] == 401
            assert one.put(package, None)[0] == 401


def test_wrong_addresses_and_tokens_are_one_sentence(
    hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HPCPROF_TOKEN", raising=False)
    for url, says in (
        ("http://example.org", "over https only"),
        ("ftp://example.org", "write the hub's address alone"),
        ("https://me:pw@example.org", "write the hub's address alone"),
        ("https://:pw@example.org", "write the hub's address alone"),
        ("http://[::1", "write the hub's address alone"),
        ("https://example.org", "$HPCPROF_TOKEN has no token"),
    ):
        done = hpcprof("push", url)
        assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1
    done = hpcprof("serve", "token", "create", "a", "--project", "p", "--may", "push", "--quota", "2")
    assert done.returncode == 2 and "--quota 2: write" in done.stderr
    for options in (("--user-header", "X"), ("--proxy", "::1"), ("--unix", "x", "--user-header", "X")):
        accepts = ("--accept",) if options[0] != "--unix" else ()
        assert "--user-header NAME is for --accept" in hpcprof("serve", *accepts, *options).stderr
    done = hpcprof("serve", "--accept", "--user-header", "X-User", "--proxy", "front.example.org")
    assert done.returncode == 2 and "--proxy front.example.org: write an IP address" in done.stderr
