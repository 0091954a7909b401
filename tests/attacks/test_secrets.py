"""Secrets of command lines, and private words in names: where they may be read by others."""

from __future__ import annotations

import json
import lzma
import os
import sqlite3
import stat
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from hpcprof.cli.main import cli
from hpcprof.common.errors import SchedulerError
from hpcprof.common.processes import Completed
from hpcprof.profiles.scrub.files import scrub_files
from hpcprof.profiles.scrub.names import Names
from hpcprof.results.store.store import open_store
from hpcprof.runs.directory import create, new_run_id, open_run
from hpcprof.serve.app import serve_store
from hpcprof.serve.grants import Grant, create_grant
from hpcprof.serve.guard import LOCAL_NAMES, Access, all_names
from hpcprof.serve.hub import Uploads
from hpcprof.submit.runs.failures import tail
from hpcprof.submit.schedulers.pbs import parse_qsub
from hpcprof.submit.sites.files import load_site
from tests.attacks.packages import described, package
from tests.jobs import job

DATA = Path(__file__).parents[1] / "data"
_SECRET = "Xy7Secret"
_COMMANDS = [
    ["--api-key", _SECRET],
    [f"--api-key={_SECRET}"],
    ["--token", _SECRET],
    ["TOKEN", _SECRET],
    [f"PASSWORD={_SECRET}"],
    [f"DB_PASSWORD={_SECRET},{_SECRET};{_SECRET}"],
    [f"https://me:{_SECRET}@example.org/x"],
    [f"https://example.org/x?access_token={_SECRET}&a=1"],
    ["-H", f"Authorization: Bearer {_SECRET}"],
    ["-H", f"Authorization: token {_SECRET}"],
    ["sh", "-c", f"curl -H 'X-Api-Key: {_SECRET}' x; run --password {_SECRET}"],
    [f'{{"db": {{"password": "{_SECRET}"}}}}'],
    ["curl", "-u", f"me:{_SECRET}"],
    ["sshpass", "-p", _SECRET, "ssh"],
]


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs with secrets in their command lines, which were submitted and have ended."""
    folder = tmp_path / "runs"
    for words in _COMMANDS:
        run_id = new_run_id("t", folder)
        arguments = words if words[0] in ("curl", "sshpass") else ["train.py", *words]
        scripts = {"job.sh": "".join(f"# {word}\n" for word in words)}
        made = create(run_id, folder, load_site("local"), job(arguments=arguments), ["hpcprof"], scripts)
        (made.path / "state" / "finished").write_text("0\n")
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_runs_and_databases_are_for_their_owner_under_any_umask(runs: Path) -> None:
    store = open_store(None, runs)
    store.prepare()
    assert {mode(one) for one in (runs, *runs.glob("*-t-*"))} == {0o700}
    assert {mode(one) for one in (*runs.rglob("*.json"), *runs.rglob("job.sh"), runs / "hpcprof.db")} == {
        0o600
    }


def test_events_in_a_folder_that_all_may_read_are_for_their_owner(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "profiles").mkdir()
    name = "cpu_ddp_rank0.pt.trace.json.gz"
    (tmp_path / "profiles" / name).write_bytes((DATA / name).read_bytes())
    options = ["--runs-dir", str(tmp_path / "runs")]
    done = CliRunner().invoke(cli, ["collect", *options, str(tmp_path / "profiles")])
    assert done.exit_code == 0, done.output
    assert mode(tmp_path / "runs" / "timeline") == 0o700


def test_the_group_reads_what_is_shared_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hpcprof.yaml").write_text("access: group\n")
    folder = tmp_path / "runs"
    made = create(new_run_id("t", folder), folder, load_site("local"), job(), ["hpcprof"], {"job.sh": ""})
    open_store(None, folder).prepare()
    assert mode(made.path) & 0o777 == 0o750 and mode(folder) & 0o777 == 0o750
    assert (
        {mode(made.path / name) for name in ("run.json", "job.sh")}
        == {mode(folder / "hpcprof.db")}
        == {0o640}
    )


def test_no_list_page_metric_or_answer_shows_a_secret_of_a_command_line(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(path.name for path in runs.glob("*-t-*"))
    client = TestClient(serve_store(runs, None, Access(all_names(LOCAL_NAMES))), base_url="http://127.0.0.1")
    pages = ["/runs", "/api/runs", "/metrics"]
    pages += [f"{kind}{name}" for name in names for kind in ("/runs/", "/api/runs/")]
    shown = {page: client.get(page).text for page in pages}
    for words in (["list"], ["list", "--format", "json"], ["list", "--format", "csv"]):
        done = CliRunner().invoke(cli, [*words, "--runs-dir", str(runs)])
        assert done.exit_code == 0, done.output
        shown[" ".join(words)] = done.output
    for name in names:
        done = CliRunner().invoke(cli, ["status", "--runs-dir", str(runs), name])
        shown[f"status {name}"] = done.output
        log = runs / name / "logs" / "job.out"
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"+ train.py --token {_SECRET}\nended\n")
        shown[f"logs {name}"] = CliRunner().invoke(cli, ["logs", "--runs-dir", str(runs), name]).output
        assert "+ train.py --token ***\nended\n" in shown[f"logs {name}"]
    launched = ["mpirun", "-n", "2", "train.py", "--token", _SECRET]
    advice = CliRunner().invoke(cli, ["submit", "--site", "local", "--dry-run", "--", *launched])
    shown["submit"] = advice.output
    assert "--ranks-per-node 2 -- train.py --token '***'" in advice.output
    from hpcprof.mcp.server import make_server

    server = make_server(runs, None, None)
    shown["find_runs"] = str(anyio.run(lambda: server.call_tool("find_runs", {})))
    assert {where for where, text in shown.items() if _SECRET in text} == set()
    assert shown["/api/runs"].count("***") >= len(_COMMANDS)
    # A job that is submitted again needs it.
    assert all(_SECRET in "".join(open_run(runs / name).submission.job.arguments) for name in names)


@pytest.mark.parametrize("words", _COMMANDS, ids=lambda words: words[0][:12])
def test_scripts_are_printed_without_secrets_and_written_with_them(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = words if words[0] in ("curl", "sshpass") else ["train.py", *words]
    monkeypatch.setattr("sys.argv", ["hpcprof", "render", "--", *program])
    scripts, saved = tmp_path / "scripts", tmp_path / "job.yaml"
    for options in (["submit", "--dry-run"], ["render"]):
        done = CliRunner().invoke(cli, [*options, "--", *program])
        assert done.exit_code == 0, done.output
        assert _SECRET not in done.output and "***" in done.output
    CliRunner().invoke(cli, ["render", "--output", str(scripts), "--save", str(saved), "--", *program])
    for path in (scripts / "job.sh", saved):
        assert _SECRET in path.read_text() and not mode(path) & 0o077


def test_no_exception_and_last_line_of_a_rank_shows_a_secret(runs: Path) -> None:
    (run, *_) = sorted(runs.glob("*-t-*"))
    note = {"type": "ValueError", "message": f"no login at https://me:{_SECRET}@host with api_key={_SECRET}"}
    (run / "state" / "rank00000.exception").write_text(json.dumps(note))
    (run / "state" / "started").write_text("2026-01-01T00:00:00+0000\n")
    (run / "state" / "finished").write_text("1\n")
    (run / "state" / "setup_failed").write_text(f"login --token {_SECRET}: failed\n")
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / "rank00000.err").write_text(f"+ train --password {_SECRET}\nfailed\n")
    for words in (
        ["list", "--format", "csv"],
        ["status", run.name],
        ["report", run.name],
        ["explain", run.name],
    ):
        done = CliRunner().invoke(cli, [*words, "--runs-dir", str(runs)])
        assert _SECRET not in done.output and ("***" in done.output or words[0] == "explain"), words


def test_a_hub_shows_no_secret_that_an_older_client_sends(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "hpcprof.db"), tmp_path)
    store.prepare()
    run = described(command=f"train.py --token {_SECRET}", reason=f"PASSWORD={_SECRET}: failed")
    content = package(run=run)
    Uploads(tmp_path, store).receive(
        sha256(content).hexdigest(), Grant("eve", "train", "push", "", ""), 0, len(content), content
    )
    (row,) = store.pushed().values()
    assert _SECRET not in row.listed and row.listed.count("***") == 2


@pytest.mark.parametrize("words", _COMMANDS, ids=lambda words: words[0][:12])
def test_a_range_keeps_no_secret(words: list[str]) -> None:
    names = Names()
    cleaned = names.cleaned("step " + " ".join(words))
    if words[0] not in ("curl", "sshpass"):
        assert _SECRET not in cleaned and names.with_secrets


def test_different_secrets_stay_different_names_and_equal_ones_equal() -> None:
    names = Names()
    first, other, again = (names.cleaned(f"step token={value}") for value in ("abc", "def", "abc"))
    assert first == again == "step token=<secret 1>" and other == "step token=<secret 2>"


def test_texts_that_are_no_utf8_in_columns_of_bytes_and_numbers_are_left_out(tmp_path: Path) -> None:
    path, copy = tmp_path / "rank0.sqlite", tmp_path / "copies"
    path.write_bytes(lzma.decompress((DATA / "sp_bf16_rank0.sqlite.xz").read_bytes()))
    text = f"CAST(x'ff{_SECRET.encode().hex()}' AS TEXT)"
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE NVTX_EVENTS SET binaryData = {text} WHERE rowid % 3 = 0")
        connection.execute(f"UPDATE NVTX_EVENTS SET domainId = {text} WHERE rowid % 7 = 0")
        connection.execute(f"UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET name = {text} WHERE rowid % 2 = 0")
        connection.execute(f"UPDATE NVTX_EVENTS SET text = 'step --token {_SECRET}' WHERE rowid % 11 = 0")
    done = scrub_files([path], copy)
    assert done.skipped == []
    ((written, left_out),) = done.written
    assert _SECRET.encode() not in written.read_bytes()
    assert any(one.startswith("secrets in 1 name") for one in left_out)


def test_a_scheduler_that_quotes_the_command_of_a_job_exposes_no_secret() -> None:
    done = Completed(("qsub", "job.sh"), 1, "", f"qsub: train.py --token {_SECRET}: no such queue", 0.1)
    with pytest.raises(SchedulerError) as raised:
        parse_qsub(*done.answer)
    assert "such queue" in str(raised.value) and _SECRET not in str(raised.value)


def test_a_line_without_its_begin_is_not_shown(tmp_path: Path) -> None:
    log = tmp_path / "rank00000.err"
    log.write_text("first\n" + f"--token {_SECRET}".ljust((1 << 20) + len(_SECRET) // 2) + "\nlast\n")
    assert tail(log) == ["last"]


def test_the_log_that_an_agent_reads_shows_no_secret(runs: Path) -> None:
    run = next(path for path in runs.iterdir() if (path / "run.json").exists())
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / "rank00000.out").write_text(f"begin\ncurl --token {_SECRET} https://example.org\nend\n")
    from hpcprof.mcp.server import make_server

    server = make_server(runs, None, None)
    for search in ("", "curl", _SECRET[:5]):
        asked = {"run": run.name, "rank": 0, "search": search}
        said = str(anyio.run(partial(server.call_tool, "log_excerpt", asked)))
        assert _SECRET not in said and ("--token ***" in said) == (search != _SECRET[:5]), said


def test_the_folder_of_a_hub_is_for_its_owner(tmp_path: Path) -> None:
    os.umask(0)
    create_grant(tmp_path / "hub", "ci", "train", "push")
    assert mode(tmp_path / "hub") == 0o700
