"""``hpcprof config``, and commands that use what it sets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hpcprof.cli.main import cli
from hpcprof.common import logs


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(logs.VERBOSE, "0")  # -v sets it for good
    logger = logging.getLogger("hpcprof")
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before


def hpcprof(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=False)


def test_what_is_set_is_shown_with_its_source_and_used() -> None:
    hpcprof("config", "set", "site", "polaris")
    hpcprof("config", "set", "sites.polaris.options.filesystems", "home")
    hpcprof("config", "set", "--local", "queue", "debug")
    hpcprof("config", "set", "--local", "account", "mine")
    shown = {row["key"]: row for row in json.loads(hpcprof("config", "show", "--format", "json").stdout)}
    assert (shown["site"]["value"], shown["queue"]["source"]) == ("polaris", "./hpcprof.yaml")
    assert shown["site"]["source"].endswith("no-config/hpcprof/config.yaml")
    done = hpcprof("submit", "--dry-run", "--", "true")
    for line in ("#PBS -A mine", "#PBS -q debug", "#PBS -l filesystems=home"):
        assert line in done.stdout


def test_verbose_says_where_each_value_comes_from() -> None:
    hpcprof("config", "set", "--local", "runs_dir", "elsewhere")
    done = hpcprof("submit", "-v", "--dry-run", "--walltime", "5m", "--", "true")
    assert done.stderr == (
        "site = local  [built in]\n"
        "walltime = 00:05:00  [command line]\n"
        "runs_dir = elsewhere  [./hpcprof.yaml]\n"
    )
    assert hpcprof("list").stdout.startswith("no runs in elsewhere yet")
    assert hpcprof("list", "--runs-dir", "given").stdout.startswith("no runs in given yet")


def test_a_sweep_says_where_the_values_of_its_runs_come_from() -> None:
    done = hpcprof("sweep", "-v", "--dry-run", "-P", "a=1,2", "--", "echo", "{a}")
    assert done.stderr.startswith("site = local  [built in]\n")


def test_every_value_is_on_one_whole_line_however_narrow_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    long = f"/scratch/{'x' * 100}"
    hpcprof("config", "set", "--local", "runs_dir", long)
    lines = hpcprof("config", "show").stdout.splitlines()
    assert [line.split() for line in lines if line.startswith("runs_dir")] == [
        ["runs_dir", long, "./hpcprof.yaml"]
    ]


def test_the_paths_are_shown_even_if_a_file_is_broken(tmp_path: Path) -> None:
    Path("hpcprof.yaml").write_text("site: [\n")
    local, user = hpcprof("config", "path").stdout.splitlines()
    assert local == str(tmp_path / "hpcprof.yaml")
    assert user.endswith("hpcprof/config.yaml  (does not exist)")
    assert hpcprof("list", "--help").exit_code == 0


def test_other_commands_use_the_defaults_too() -> None:
    hpcprof("config", "set", "site", "sophia")
    hpcprof("config", "set", "container_engine", "podman")
    assert "DGX" in hpcprof("sites", "show").stdout
    assert hpcprof("container", "stop", "--dry-run").stdout == "podman stop hpcprof\n"
    assert hpcprof("container", "stop", "--dry-run", "--engine", "docker").stdout.startswith("docker")


def test_a_file_that_lost_its_comments_is_noted() -> None:
    Path("hpcprof.yaml").write_text("# mine\nsites: {polaris: {account: a}}\n")
    done = hpcprof("config", "set", "--local", "sites.polaris.queue", "debug")
    assert done.stdout == "wrote ./hpcprof.yaml: sites.polaris.queue = debug\n"
    assert done.stderr == "hpcprof: note: ./hpcprof.yaml was written anew, without its comments.\n"
