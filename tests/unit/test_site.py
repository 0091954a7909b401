"""Site files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.errors import UsageError
from hpcprof.site import load_site, load_site_file, site_files
from hpcprof.site_model import SchedulerName


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", sorted(site_files()))
def test_every_packaged_site_loads(name: str) -> None:
    assert load_site(name).name == name


def test_a_site_of_the_working_directory_comes_before_the_packaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "site_configs/local.yaml", "scheduler: local\ndescription: mine\n")
    assert load_site("local").description == "mine"


def test_a_site_that_extends_another_replaces_values_and_merges_mappings(tmp_path: Path) -> None:
    write(
        tmp_path / "parent.yaml",
        "scheduler: local\nnode: {cores: 8, gpus: 2}\nmodules: [a]\nenvironment: {A: '1', B: '2'}\n",
    )
    child = write(
        tmp_path / "child.yaml", "extends: parent\nnode: {gpus: 4}\nmodules: [b]\nenvironment: {B: '3'}\n"
    )
    site = load_site_file(child)
    assert site.scheduler is SchedulerName.LOCAL
    assert (site.node.cores, site.node.gpus, site.modules) == (8, 4, ["b"])
    assert site.environment == {"A": "1", "B": "3"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("scheduler: local\nworktime: 5\n", r"unknown key 'worktime' in .*s\.yaml; did you mean .*Valid: "),
        (
            "scheduler: local\nnode: {gpuz: 4}\n",
            r"unknown key 'gpuz' in .*under node; did you mean 'gpu' or 'gpus'",
        ),
        ("scheduler: local\nnode: {gpus: four}\n", r"s\.yaml: node\.gpus = 'four': expected a whole number"),
        ("scheduler: lsf\n", r"unknown value 'lsf' in .*s\.yaml, scheduler.*Valid: .*local"),
        ("description: x\n", r"s\.yaml: the file: object missing required field scheduler"),
        (
            "scheduler: local\nenvironment: {'A B': x}\n",
            r"s\.yaml: a key under environment: expected .*matching regex",
        ),
        ("scheduler: local\nname: other\n", "a site is named by its file"),
        ("scheduler: [local\n", r"s\.yaml, line 2: not valid YAML"),
        ("- a\n", "holds no mapping"),
        ("extends: nowhere\n", r"unknown site 'nowhere' in .*s\.yaml, under extends"),
        ("extends: s\n", "leads back to itself"),
        ("scheduler: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
    ],
)
def test_a_wrong_site_file_is_one_sentence_with_the_file_the_key_and_the_value(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        load_site_file(write(tmp_path / "s.yaml", text))


def test_an_unknown_site_names_the_close_ones() -> None:
    with pytest.raises(UsageError, match="unknown site 'locl'; did you mean 'local'"):
        load_site("locl")
