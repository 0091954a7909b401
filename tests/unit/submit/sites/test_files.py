"""Site files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.sites.files import load_site, load_site_file, site_files
from hpcprof.submit.sites.model import Site, recorded_site


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
    assert site.scheduler == "local"
    assert (site.node.cores, site.node.gpus, site.modules) == (8, 4, ["b"])
    assert site.environment == {"A": "1", "B": "3"}


def test_a_key_of_a_former_version_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "s.yaml", "scheduler: slurm\npreemption: cancel\n")
    assert load_site_file(path) == load_site_file(write(tmp_path / "s.yaml", "scheduler: slurm\n"))
    keys = {**msgspec.to_builtins(load_site_file(path)), "preemption": "cancel"}
    manifest: Any = SimpleNamespace(id="r", site_keys=msgspec.json.encode(keys))
    recorded = recorded_site(manifest)
    assert recorded.scheduler_keys == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("scheduler: local\nworktime: 5\n", r"unknown key 'worktime' in .*s\.yaml; did you mean .*Valid: "),
        (
            "scheduler: local\nnode: {gpuz: 4}\n",
            r"unknown key 'gpuz' in .*under node; did you mean 'gpu' or 'gpus'",
        ),
        ("scheduler: local\nnode: {gpus: four}\n", r"s\.yaml: node\.gpus = 'four': expected a whole number"),
        (
            "scheduler: sge\n",
            r"unknown scheduler 'sge' in .*s\.yaml\. Valid: flux, kubernetes, local, lsf, pbs, slurm",
        ),
        ("description: x\n", r"s\.yaml: the file: object missing required field scheduler"),
        (
            "scheduler: local\nenvironment: {'A B': x}\n",
            r"s\.yaml: a key under environment: expected .*matching regex",
        ),
        ("scheduler: local\nname: other\n", "the file's name is the name of the site"),
        ("scheduler: [local\n", r"s\.yaml, line 2: not valid YAML"),
        (
            "scheduler: local\nwalltime: 1h\nscheduler: pbs\n",
            r"line 3: .*the key .scheduler. is duplicated",
        ),
        ("- a\n", "must be a mapping"),
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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("queue: debgu\nqueues: {debug: {}}\n", r"queue = 'debgu': it is not one of queues: debug"),
        ("queues: {prod: {routes: [small]}}\n", r"queues\.prod\.routes: 'small' is not one of queues: prod"),
        ("walltime: soon\n", r"walltime: walltime 'soon' is not a time"),
        ("queues: {a: {max_walltime: 5h5}}\n", r"queues\.a\.max_walltime: walltime '5h5' is not a time"),
        ("queues: {a: {walltime_by_nodes: {9: x}}}\n", r"a\.walltime_by_nodes\[9\]: walltime 'x' is not"),
        ("profilers: [nsight]\n", r"profilers = 'nsight': there is no such profiler; valid: none, nsys"),
        ("tmpdir: /tmp/$(id)\n", r"the node replaces \$NAME and \$\{NAME\}; write no other \$"),
        ("tmpdir: scratch\n", r"tmpdir = 'scratch': write an absolute path of at most 48 characters"),
        (f"tmpdir: /{'x' * 48}\n", "sockets below it, and the path of a socket must be short"),
        (
            "options: {q: {help: h, valid: [a], default: 'a:b'}}\n",
            r"options\.q\.default = 'a:b': valid: a",
        ),
        ("requires: [acount]\n", r", requires\[0\]; did you mean 'account'"),
        ("launcher: {cpu_bind: ['0-']}\n", r"launcher\.cpu_bind\[0\] = '0-': write core numbers and spans"),
        (
            "node: {reserved_cores: [0]}\nlauncher: {cpu_bind: ['0-7']}\n",
            "core 0 is one of node.reserved_cores",
        ),
        (
            "node: {cores: 7, reserved_cores: [0], threads: 2}\nlauncher: {cpu_bind: ['1-16']}\n",
            "a node has hardware threads 0 to 15",
        ),
        ("launcher: {name: srun, cpu_bind: ['a-7']}\n", "write core numbers and spans"),
    ],
)
def test_parts_of_a_site_file_that_do_not_fit_together_are_one_sentence(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(UsageError, match=rf"s\.yaml.*{says}"):
        load_site_file(write(tmp_path / "s.yaml", f"scheduler: local\n{text}"))


def test_a_file_that_is_only_a_base_is_no_site_but_can_be_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "polaris" in site_files()
    assert not [name for name in site_files() if name.startswith("_")]
    with pytest.raises(UsageError, match="unknown site '_alcf'"):
        load_site("_alcf")
    mine = write(tmp_path / "site_configs/mine.yaml", "extends: _alcf\ndescription: a new machine there\n")
    assert load_site_file(mine).directives == ["-k doe"]


def test_a_site_is_the_same_after_it_has_been_written_to_a_manifest() -> None:
    for name in site_files():
        site = load_site(name)
        assert msgspec.json.decode(msgspec.json.encode(site), type=Site) == site


def test_a_time_without_quotes_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "here.yaml"
    path.write_text("extends: generic-slurm\nwalltime: 0:30:00\nqueues: {debug: {max_walltime: 1:00:00}}\n")

    site = load_site_file(path)

    assert (site.walltime, site.queues["debug"].max_walltime) == ("0:30:00", "1:00:00")
