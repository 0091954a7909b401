"""Messages: their targets, their forms, and what becomes of those that cannot be sent."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.common.masking import masked_command
from hpcprof.node import notify
from hpcprof.submit import notify as submitted

ENDED = {"event": "ended", "run": "20261124-1", "text": "a run <with> a & b failed"}


class Server(HTTPServer):
    """A server that keeps what it gets; the path says how it answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[Any] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        status = int(self.path.rpartition("/")[2] or 200)
        self.send_response(status)
        if status in (302, 307):
            self.send_header("Location", f"{self.server.address}/200")
        self.end_headers()

    def do_GET(self) -> None:
        self.server.bodies.append("followed")
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def test_an_address_gets_the_document_and_chats_get_their_own_form(server: Server) -> None:
    assert notify.send(f"{server.address}/", ENDED) == ""
    assert notify.send(f"slack:{server.address}/", ENDED) == ""
    assert notify.send(f"teams:{server.address}/", ENDED) == ""
    plain, slack, teams = server.bodies
    assert plain == ENDED
    assert slack == {"text": "a run &lt;with&gt; a &amp; b failed", "mrkdwn": False}
    (card,) = (attachment["content"] for attachment in teams["attachments"])
    assert card["type"] == "AdaptiveCard" and card["body"][0]["text"] == r"a run \<with\> a & b failed"
    assert {"title": "run", "value": "20261124-1"} in card["body"][1]["facts"]


def test_people_are_not_told_what_is_not_known() -> None:
    document = {**ENDED, "first_failed_rank": None, "baseline": ["run1", "run2"]}
    assert "first_failed_rank" not in json.dumps(notify._teams(document))
    assert b"first_failed_rank" not in notify._mail("me@example.org", document)
    assert b"\nbaseline: run1, run2\n" in notify._mail("me@example.org", document)


@pytest.mark.parametrize("status", [302, 307, 403, 500])
def test_a_server_that_refuses_or_leads_elsewhere_was_not_told(server: Server, status: int) -> None:
    assert notify.send(f"{server.address}/{status}", ENDED) == f"the server answered {status}"
    assert server.bodies == [ENDED]


def test_nobody_at_an_address_is_said_without_the_address() -> None:
    why = notify.send("http://127.0.0.1:9/secret", ENDED)
    assert "cannot be reached" in why and "secret" not in why


@pytest.mark.parametrize(
    "target",
    [
        "http://example.org/x",
        "slack:http://example.org/x",
        "teams:nothing",
        "https://",
        "mail:me",
        "mail:-oQ/tmp@example.org",
        "mail:a@b.org\nBcc: c@d.org",
        "tell me",
        "relative/program",
        "",
    ],
)
def test_other_targets_are_refused_and_not_repeated(target: str) -> None:
    with pytest.raises(ValueError, match=r"write|begins with") as refused:
        notify.kind_of(target)
    assert target in ("", "mail:me", "https://") or target not in str(refused.value)
    assert notify.send(target, ENDED) == "ValueError"


def test_a_run_has_names_and_only_the_user_can_read_what_they_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = submitted.targets(["team", "https://example.org/s3cret"], {"team": "mail:me@example.org"})
    names = submitted.remember(found)
    assert not submitted.folder().exists()
    submitted.write_targets(names)
    assert names[0] == "team" and names[1].startswith("given-") and "s3cret" not in names[1]
    files = [tmp_path / "hpcprof/notify" / name for name in names]
    assert [file.read_text() for file in files] == ["mail:me@example.org\n", "https://example.org/s3cret\n"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(files[0].parent.stat().st_mode) == 0o700


def test_an_unknown_name_and_an_address_in_a_job_file_are_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown name 'tema' of --notify.*Did you mean|Valid: team"):
        submitted.targets(["tema"], {"team": "mail:me@example.org"})
    with pytest.raises(UsageError, match=r"job.yaml, line 3: notify names targets of your own configuration"):
        submitted.targets(["https://example.org/x"], {}, "job.yaml, line 3")


@pytest.mark.parametrize("words", [["--notify", "/bin/tell x"], ["--notify=https://example.org/s"]])
def test_a_shown_command_has_no_target(words: list[str]) -> None:
    assert "'***'" in masked_command(["hpcprof", "submit", *words]) or "***" in masked_command(words)
    assert masked_command(["--notify", "team"]) == "--notify team"
    assert "example" not in masked_command(words) and "tell" not in masked_command(words)


def test_each_target_that_was_not_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def send(target: str, document: Any) -> str:
        if target == "slow":
            time.sleep(0.5)
        return "" if target == "good" else "refused"

    monkeypatch.setattr(notify, "SECONDS", 0.1)
    monkeypatch.setattr(notify, "send", send)
    for name in ("good", "bad", "slow"):
        (tmp_path / name).write_text(name)
    noted = {}
    job = SimpleNamespace(document=lambda event: {}, note=lambda name, text: noted.update({name: text}))
    notify.tell(cast(notify.ReportedJob, job), "ended", str(tmp_path), ["good", "slow", "gone", "bad"])
    assert noted["not_told"] == (
        f"bad (ended): refused; gone (ended): the node cannot read its file in {tmp_path}; "
        "slow (ended): it took more than 0 s"
    )
