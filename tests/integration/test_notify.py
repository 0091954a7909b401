"""Jobs that tell of their start, their stall and their end."""

from __future__ import annotations

import email
import json
import time
from pathlib import Path
from typing import Any

import pytest

from hpcprof.node import notify
from hpcprof.runs.directory import all_runs
from tests.conftest import Hpcprof
from tests.waiting import until

pytestmark = pytest.mark.slow

ENDED = {"event": "ended", "run": "20261124-1", "text": "a run <with> a & b failed"}


@pytest.fixture
def told(tmp_path: Path, hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that gets a line for each message of the target ``me``."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    tell = tmp_path / "tell-s3cret"
    tell.write_text(f"#!/bin/sh\ncat >>{tmp_path}/told; echo >>{tmp_path}/told\n")
    tell.chmod(0o755)
    done = hpcprof("config", "set", "notify.me", str(tell))
    assert done.returncode == 0 and "s3cret" not in done.stdout
    assert "s3cret" not in hpcprof("config", "show").stdout
    return tmp_path / "told"


def messages(told: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []


def test_a_job_tells_that_it_started_and_how_it_ended(hpcprof: Hpcprof, told: Path, tmp_path: Path) -> None:
    job = ("--notify", f"{tmp_path}/tell-s3cret", "--notify", "nobody-there", "--wait")
    assert "unknown name 'nobody-there'" in hpcprof("submit", *job, "--", "true").stderr
    done = hpcprof("submit", "--notify", "me", "--notify", f"{tmp_path}/gone-s3cret", "--wait", "--", "false")
    assert done.returncode == 1
    (run,) = all_runs(tmp_path / "runs")
    first, last = messages(told)
    assert (first["event"], last["event"]) == ("started", "ended")
    assert last["run"] == run.id and last["exit_code"] == 1 and "failed with exit code 1" in last["text"]
    assert "not told: given-" in hpcprof("status", "last").stderr
    written = [file for file in run.path.rglob("*") if file.is_file()]
    assert not [file for file in written if "s3cret" in file.read_text(errors="replace")]


def test_a_dry_run_writes_no_target(hpcprof: Hpcprof, told: Path, tmp_path: Path) -> None:
    target = f"{tmp_path}/tell-s3cret"
    for words in (["submit", "--dry-run"], ["render"]):
        assert hpcprof(*words, "--notify", target, "--", "true").returncode == 0
    assert [file.name for file in (tmp_path / "settings").rglob("*") if file.is_file()] == ["config.yaml"]


def test_a_job_that_is_cancelled_tells_it(hpcprof: Hpcprof, told: Path) -> None:
    hpcprof("submit", "--notify", "me", "--", "sleep", "300")
    until(lambda: messages(told))
    hpcprof("cancel", "last")
    until(lambda: len(messages(told)) == 2)
    assert "was ended by the scheduler" in messages(told)[1]["text"]


def test_a_target_in_the_settings_of_a_folder_is_refused(hpcprof: Hpcprof, tmp_path: Path) -> None:
    (tmp_path / "hpcprof.yaml").write_text("notify: {me: /bin/cat}\n")
    assert "hpcprof.yaml: notify belongs into" in hpcprof("submit", "--notify", "me", "--", "true").stderr


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_command_gets_the_document_on_its_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = script(tmp_path / "tell it", f'cat >"{tmp_path}/$1"')
    assert notify.send(f"'{command}' got", ENDED) == ""
    assert json.loads((tmp_path / "got").read_text()) == ENDED
    assert notify.send(script(tmp_path / "no", "exit 3"), ENDED) == "its command ended with exit code 3"
    assert notify.send(str(tmp_path / "nothing"), ENDED) == "No such file or directory"
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert notify.send("mail:me@example.org", ENDED) == "the node has no sendmail"


def test_a_command_that_takes_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "SECONDS", 0.2)
    began = time.monotonic()
    assert "took more than" in notify.send(script(tmp_path / "slow", "sleep 100"), ENDED)
    assert time.monotonic() - began < 60


def test_a_mail_is_handed_to_sendmail_with_its_address_in_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_sendmail", lambda: [script(tmp_path / "sm", f"cat >{tmp_path}/mail"), "-t"])
    assert notify.send("mail:me@example.org", {**ENDED, "run": "a\nBcc: x@example.org"}) == ""
    mail = email.message_from_string((tmp_path / "mail").read_text())
    assert mail["To"] == "me@example.org" and mail["Bcc"] is None
    assert str(mail.get_payload()).startswith(ENDED["text"])
