"""Values are set in a file with personal defaults, and the rest of it stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.common.errors import UsageError
from hpcprof.submit.config_edit import set_value

COMMENTED = """\
# Mine
site: polaris  # for now

sites:
    polaris:  # ALCF
        account: a  # my project

        # File systems
        options: {filesystems: home}
# The end
"""


def test_a_new_file_is_made_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.yaml"
    assert set_value(path, "sites.polaris.options.filesystems", "home")
    assert path.read_text() == "sites:\n  polaris:\n    options:\n      filesystems: home\n"


def test_a_file_with_a_target_of_messages_stays_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    set_value(path, "notify.me", "https://example.org/secret")
    set_value(path, "site", "local")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("site", "local", "site: polaris  #", "site: local  #"),
        ("sites.polaris.account", "b", "account: a  #", "account: b  #"),
        ("sites.polaris.options.filesystems", "eagle", "{filesystems: home}", "{filesystems: eagle}"),
        ("sites.polaris.queue", "debug", "home}\n", "home}\n        queue: debug\n"),
        ("sites.sophia.account", "a", "home}\n", "home}\n    sophia:\n      account: a\n"),
        ("account", "007", "home}\n", "home}\naccount: '007'\n"),
        ("sites.polaris.account", "", "        account: a  # my project\n", ""),
        ("site", "", "site: polaris  # for now\n", ""),
        ("queue", "", "", ""),
    ],
)
def test_only_the_line_of_the_value_changes(key: str, value: str, old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(COMMENTED)
    assert set_value(path, key, value)
    assert path.read_text() == COMMENTED.replace(old, new)


def test_what_cannot_be_changed_in_place_is_written_anew_and_said(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("# comment\nsites: {polaris: {account: a}}\nsite: x")
    assert not set_value(path, "sites.polaris.queue", "debug")
    assert yaml.safe_load(path.read_text()) == {
        "sites": {"polaris": {"account": "a", "queue": "debug"}},
        "site": "x",
    }
    path.write_text("sites: {polaris: {account: a}}\n")
    assert set_value(path, "sites.polaris.account", "")
    assert yaml.safe_load(path.read_text()) in ({}, None)


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles.yaml").write_text("site: polaris\n")
    path = tmp_path / "config.yaml"
    path.symlink_to("dotfiles.yaml")
    set_value(path, "site", "local")
    assert path.is_symlink()
    assert (tmp_path / "dotfiles.yaml").read_text() == "site: local\n"


@given(value=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1))
def test_any_text_is_read_as_it_was_set(value: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(COMMENTED)
    set_value(path, "account", value)
    set_value(path, "sites.polaris.account", value)
    data = yaml.safe_load(path.read_text())
    assert (data["account"], data["sites"]["polaris"]["account"]) == (value, value)
    assert "# my project" in path.read_text()


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("sit", "a", "unknown key 'sit'; did you mean 'site'"),
        ("sites.polaris", "a", r"unknown key 'sites.polaris'.*sites\.SITE\.account"),
        ("site", "polari", "unknown site 'polari'; did you mean 'polaris'"),
        ("sites.polari.account", "a", "unknown site 'polari'"),
        ("sites.polaris.options.filesystems", "grand", "the file system grand is gone; valid: home, eagle"),
        ("sites.polaris.queue", "debgu", "unknown queue 'debgu' of site polaris; did you mean 'debug'"),
        ("sites.polaris.host", "-x", "sites.polaris.host '-x': write a host"),
        ("sites.polaris.user", "-lx", "sites.polaris.user, user '-lx@host': write a host"),
        ("sites.polaris.runs_dir", "-r", "sites.polaris.runs_dir, runs_dir: '-r' begins with -"),
        ("container_engine", "dock", "unknown value 'dock' .*did you mean 'docker'"),
        ("db", "postgresql://me:pw@host/db", "db holds a password"),
    ],
)
def test_a_wrong_value_is_refused_and_the_file_stays(key: str, value: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(COMMENTED)
    with pytest.raises(UsageError, match=says):
        set_value(path, key, value)
    assert path.read_text() == COMMENTED


def test_the_queue_of_a_reservation_can_be_set(tmp_path: Path) -> None:
    assert set_value(tmp_path / "config.yaml", "sites.polaris.queue", "R1234567")
