"""Personal defaults: which file comes first, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.runs import config
from hpcprof.runs.config import ConfigValue, read_settings, shown_settings
from hpcprof.runs.directory import runs_directory


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file, which does not exist yet; the current folder is empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    (tmp_path / "settings" / "hpcprof").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "settings" / "hpcprof" / "config.yaml"


def test_without_files_hpcprofs_own_defaults_apply() -> None:
    assert read_settings() == {}
    assert config.default_site() == "local"
    assert config.default_engine() is None
    assert config.default_database() is None
    assert runs_directory() == Path("runs")


def test_the_file_of_the_folder_comes_before_the_users(user: Path) -> None:
    user.write_text(
        "site: polaris\nruns_dir: ~/runs\nsites: {polaris: {account: a, options: {filesystems: home}}}\n"
    )
    Path("hpcprof.yaml").write_text("site: sophia\nsites: {polaris: {account: b}}\n")
    values = {key: (setting.value, setting.source) for key, setting in read_settings().items()}
    assert values == {
        "site": ("sophia", "./hpcprof.yaml"),
        "runs_dir": ("~/runs", str(user)),
        "sites.polaris.account": ("b", "./hpcprof.yaml"),
        "sites.polaris.options.filesystems": ("home", str(user)),
    }
    assert config.default_runs_dir() == Path.home() / "runs"


def test_an_account_for_all_sites_in_the_folder_comes_before_the_users_for_one(user: Path) -> None:
    user.write_text("sites: {polaris: {account: a, queue: q, options: {account: kept}}}\n")
    Path("hpcprof.yaml").write_text("account: b\n")
    assert sorted(read_settings()) == ["account", "sites.polaris.options.account", "sites.polaris.queue"]


def test_an_environment_variable_comes_before_the_files(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user.write_text("runs_dir: of-the-file\ndb: file.db\n")
    assert (runs_directory(), config.default_database()) == (Path("of-the-file"), "file.db")
    monkeypatch.setenv("HPCPROF_RUNS", "of-the-variable")
    monkeypatch.setenv("HPCPROF_DB", "postgresql://me:topsecret@host/db")
    assert runs_directory() == Path("of-the-variable")
    shown = {setting.key: setting for setting in shown_settings()}
    assert shown["runs_dir"] == ConfigValue("runs_dir", "of-the-variable", "$HPCPROF_RUNS")
    assert shown["db"] == ConfigValue("db", "postgresql://me:***@host/db", "$HPCPROF_DB")
    assert runs_directory(Path("given")) == Path("given")


def test_a_file_of_comments_is_empty(user: Path) -> None:
    user.write_text("# nothing yet\n")
    assert read_settings() == {}


def test_a_path_below_the_home_folder_is_shown_as_people_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.shown_path(tmp_path / ".config" / "a.yaml") == "~/.config/a.yaml"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("site: [\n", r"hpcprof\.yaml, line 2: not valid YAML"),
        ("sit: a\n", r"unknown key 'sit' in \./hpcprof\.yaml; did you mean 'site'"),
        ("site: 3\n", r"\./hpcprof\.yaml: site = 3: expected text"),
        ("- a\n", r"hpcprof\.yaml is not a configuration: it must be a mapping"),
        ("site: a\nsite: b\n", r"hpcprof\.yaml, line 2: .*the key 'site' is duplicated"),
        (
            "sites: {a.b: {}, c: {acount: a}}\n",
            r"unknown key 'acount' in \./hpcprof\.yaml, under sites\.c; did",
        ),
        ("sites: {polaris: {options: {a: 1}}}\n", r"yaml: sites\.polaris\.options\.a = 1: expected text"),
        ("container_engine: dock\n", r"unknown value 'dock' in .*container_engine; did you mean 'docker'"),
        (
            "db: postgresql://me:topsecret@host/db\n",
            "db holds a password: leave it out, and put it into ~/.pgpass",
        ),
    ],
)
def test_a_wrong_file_is_one_sentence(text: str, says: str) -> None:
    Path("hpcprof.yaml").write_text(text)
    with pytest.raises(UsageError, match=says) as refused:
        read_settings()
    assert "topsecret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_database_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert config.database_file(str(tmp_path / "x.db"), tmp_path) == tmp_path / "x.db"
    with pytest.raises(UsageError, match=f"--db {tmp_path}/none/x.db: there is no folder {tmp_path}/none"):
        config.database_file(str(tmp_path / "none" / "x.db"), tmp_path)
