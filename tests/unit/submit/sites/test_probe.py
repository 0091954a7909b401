"""``hpcprof sites new``: a site file from what a machine shows, here from recorded outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcprof.cli.sites import command
from hpcprof.common.errors import UsageError
from hpcprof.submit.schedulers.command import Unreachable
from hpcprof.submit.schedulers.scheduler import Scheduler
from hpcprof.submit.sites.environment import added_folders
from hpcprof.submit.sites.files import load_site_file
from hpcprof.submit.sites.model import Node, Required
from hpcprof.submit.sites.probe import generic_site, new_site, parse_nvidia_smi
from tests.unit.submit.schedulers.recorded import recorded_machine

SLURM = {"sinfo --noheader --noconvert --format=%P|%a|%l|%s|%D": "sinfo.txt"}
SLURM["scontrol show nodes"] = "scontrol_show_nodes.txt"
PBS = {"qstat -Q -f -F json": "qstat_Q_json.json", "pbsnodes -a -F json": "pbsnodes_json.json"}
TWO_GPUS = "NVIDIA A100-SXM4-40GB\nNVIDIA A100-SXM4-40GB\n"


class Shown:
    """A machine on which these commands answer; ``asked`` holds what was asked."""

    def __init__(self, files: dict[str, str], gpus: str = "") -> None:
        self.files, self.gpus = files, gpus
        self.asked: list[str] = []

    def __call__(self, command: list[str]) -> str:
        self.asked.append(" ".join(command))
        if command[0] == "nvidia-smi":
            return self.gpus
        name = self.files.get(" ".join(command))
        return recorded_machine(name) if name else ""


def test_gpus_of_this_machine_are_counted() -> None:
    assert parse_nvidia_smi(TWO_GPUS) == Node(gpus=2, gpu="A100-SXM4-40GB")
    assert parse_nvidia_smi("") == Node()


@pytest.mark.parametrize(
    ("template", "files"), [("generic-slurm", SLURM), ("generic-pbs", PBS), ("local", {})]
)
@pytest.mark.parametrize("gpus", ["", TWO_GPUS], ids=["no GPU here", "two GPUs here"])
def test_the_file_is_a_valid_site_with_what_was_found_and_says_where_it_comes_from(
    tmp_path: Path, template: str, files: dict[str, str], gpus: str
) -> None:
    shown = Shown(files, gpus)
    path = new_site("mine", template, tmp_path / "site_configs", shown)
    site = load_site_file(path)
    text = path.read_text(encoding="utf-8")
    assert not site.verified
    assert site.node.gpus == (4 if files else 2 if gpus else None)
    assert bool(site.queues) == bool(files)
    for asked in shown.asked:
        assert (f"# From: {asked}" in text) == (
            asked in files or ("nvidia" in asked and bool(gpus) and not files)
        )
    if site.scheduler == "slurm":
        assert site.queue == "debug"


@pytest.mark.parametrize(
    ("plugin", "request_"), [("cons_tres", "gpus-per-node"), ("cons_res", "gres"), ("linear", "gres")]
)
def test_gpus_are_requested_as_the_cluster_understands_it(tmp_path: Path, plugin: str, request_: str) -> None:
    def ask(command: list[str]) -> str:
        if command == ["scontrol", "show", "config"]:
            return f"SelectType              = select/{plugin}\n"
        return Shown(SLURM)(command)

    path = new_site("mine", "generic-slurm", tmp_path, ask)
    assert load_site_file(path).node_request.value == request_
    assert "# From: scontrol show config" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("enforced", "requires"),
    [("associations,limits,qos", [Required.ACCOUNT]), ("safe", [Required.ACCOUNT]), ("none", [])],
)
def test_an_account_is_required_where_the_cluster_enforces_it(
    tmp_path: Path, enforced: str, requires: list[Required]
) -> None:
    def ask(command: list[str]) -> str:
        return f"AccountingStorageEnforce = {enforced}\n" if command[-1] == "config" else ""

    assert load_site_file(new_site("mine", "generic-slurm", tmp_path, ask)).requires == requires


ACCOUNTS = ["sacctmgr", "--noheader", "--parsable2", "show", "associations"]


@pytest.mark.parametrize(("storage", "named"), [("accounting_storage/slurmdbd", True), ("(null)", False)])
def test_the_users_accounts_are_named_where_the_cluster_keeps_any(
    tmp_path: Path, storage: str, named: bool
) -> None:
    def ask(command: list[str]) -> str:
        if command[:5] == ACCOUNTS:
            return "physics\nchemistry\nphysics\n"
        return f"AccountingStorageType   = {storage}\n" if command[-1] == "config" else ""

    text = new_site("mine", "generic-slurm", tmp_path, ask).read_text(encoding="utf-8")
    assert ("# Your accounts (--account): chemistry, physics\n" in text) == named


def test_a_machine_that_shows_nothing_still_gets_a_site(tmp_path: Path) -> None:
    path = new_site("mine", "generic-slurm", tmp_path, Shown({}))
    assert "# From: nothing that this machine shows" in path.read_text(encoding="utf-8")
    assert load_site_file(path).launcher.name.value == "srun"


@pytest.mark.parametrize("template", ["generic-pbs", "generic-slurm"])
def test_what_is_active_goes_into_a_site_whose_jobs_do_not_have_it(tmp_path: Path, template: str) -> None:
    (tmp_path / "my env/bin").mkdir(parents=True)
    (tmp_path / "my env/bin/activate").touch()
    active = {"LOADEDMODULES": "gcc/12.2:openmpi/4.1", "VIRTUAL_ENV": f"{tmp_path}/my env"}
    site = load_site_file(new_site("mine", template, tmp_path, Shown({}), active))
    pbs = template == "generic-pbs"
    assert site.modules == (["gcc/12.2", "openmpi/4.1"] if pbs else [])
    assert site.setup == ([f"source '{tmp_path}/my env/bin/activate'"] if pbs else [])
    conda = {"CONDA_PREFIX": "/opt/conda/envs/mine"}
    site = load_site_file(new_site("other", template, tmp_path, Shown({}), conda))
    assert site.setup == (['export PATH=/opt/conda/envs/mine/bin:"$PATH"'] if pbs else [])
    assert added_folders(site) == (["/opt/conda/envs/mine/bin"] if pbs else [])


def test_an_existing_site_is_never_overwritten(tmp_path: Path) -> None:
    path = new_site("mine", "local", tmp_path, Shown({}))
    path.write_text("scheduler: local\n")
    with pytest.raises(UsageError, match=r"mine\.yaml already exists"):
        new_site("mine", "local", tmp_path, Shown({}))
    assert path.read_text() == "scheduler: local\n"


@pytest.mark.parametrize(
    ("installed", "answering", "expected"),
    [
        (("slurm", "pbs"), ("pbs",), "generic-pbs"),
        (("slurm", "pbs"), ("slurm", "pbs"), "generic-slurm"),
        (("pbs", "lsf"), (), "generic-pbs"),
        (("flux",), ("flux",), "generic-flux"),
        ((), (), "generic-slurm"),
    ],
)
def test_where_several_schedulers_are_installed_a_new_site_has_the_one_that_answers(
    installed: tuple[str, ...],
    answering: tuple[str, ...],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check(scheduler: Scheduler, *_: object) -> None:
        if scheduler.name not in answering:
            raise Unreachable("it is down")

    monkeypatch.setattr(Scheduler, "installed", property(lambda scheduler: scheduler.name in installed))
    monkeypatch.setattr("hpcprof.submit.sites.probe.check_answers", check)
    assert generic_site() == expected


@pytest.mark.parametrize("name", ["", "_base", "../up", "a b", ".hidden"])
def test_a_name_that_cannot_be_a_sites_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a site"):
        new_site(name, "local", tmp_path, Shown({}))
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_into_site_configs_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    done = CliRunner().invoke(command, ["new", "mine", "--from", "generic-pbs"])
    assert done.exit_code == 0, done.output
    assert "hpcprof sites check site_configs/mine.yaml" in done.output
    checked = CliRunner().invoke(command, ["check", "site_configs/mine.yaml"])
    assert checked.output == "site_configs/mine.yaml: site mine is valid\n"
