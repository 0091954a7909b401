"""``hpcprof sites new``: a site file from what a machine shows, here from recorded outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcprof.cli.sites import command
from hpcprof.cli.sites_new import new_site
from hpcprof.common.errors import UsageError
from hpcprof.submit.sites import probe as machine
from hpcprof.submit.sites.files import load_site_file
from hpcprof.submit.sites.model import Node, Queue, SchedulerName, Vendor

DATA = Path(__file__).parents[3] / "data/sites"
SLURM = {"sinfo": "sinfo.txt", "scontrol show partition": "scontrol_show_partition.txt"}
SLURM["scontrol show nodes"] = "scontrol_show_nodes.txt"
PBS = {"qstat -Q -f -F json": "qstat_Q_json.json", "pbsnodes -a -F json": "pbsnodes_json.json"}
TWO_GPUS = "NVIDIA A100-SXM4-40GB\nNVIDIA A100-SXM4-40GB\n"


def recorded(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


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
        return recorded(name) if name else ""


def test_partitions_have_their_limits_and_the_default_is_known() -> None:
    found = machine.parse_scontrol_partitions(recorded("scontrol_show_partition.txt"))
    assert found.default_queue == "debug"
    assert found.queues == {
        "debug": Queue(max_nodes=4, max_walltime="01:00:00"),
        "prod": Queue(max_nodes=4),
    }


def test_sinfo_says_the_same_where_scontrol_is_closed() -> None:
    said = machine.parse_sinfo(recorded("sinfo.txt"))
    assert said == machine.parse_scontrol_partitions(recorded("scontrol_show_partition.txt"))


def test_nodes_of_slurm_have_cores_and_gpus() -> None:
    assert machine.parse_scontrol_nodes(recorded("scontrol_show_nodes.txt")) == Node(cores=8, gpus=4)


@pytest.mark.parametrize(
    ("gres", "gpus", "model", "vendor"),
    [
        ("gpu:a100:4(S:0-1)", 4, "a100", Vendor.NVIDIA),
        ("gpu:mi250:8", 8, "mi250", Vendor.AMD),
        ("gpu:a100:2,gpu:h100:2,nvme:1", 4, "a100", Vendor.NVIDIA),
        ("(null)", None, "", Vendor.NVIDIA),
    ],
)
def test_the_model_and_number_of_gpus_stand_in_gres(
    gres: str, gpus: int | None, model: str, vendor: Vendor
) -> None:
    text = f"NodeName=n1 CPUEfctv=112 CPUTot=128\n   Gres={gres}\n   ThreadsPerCore=2 TmpDisk=0\n"
    assert machine.parse_scontrol_nodes(text) == Node(
        cores=56, threads=2, gpus=gpus, gpu=model, vendor=vendor
    )


def test_of_several_kinds_of_nodes_the_usual_one_with_gpus_counts() -> None:
    cpu, small, big = (
        f"NodeName=n CPUTot={cpus} ThreadsPerCore=1 Gres={gres}\n"
        for cpus, gres in ((48, "(null)"), (32, "gpu:2"), (64, "gpu:4"))
    )
    assert machine.parse_scontrol_nodes("\n".join([cpu, cpu, cpu, small, big, big])) == Node(cores=64, gpus=4)


@pytest.mark.parametrize(
    ("limit", "walltime"),
    [
        ("1-12:00:00", "36:00:00"),
        ("30:00", "00:30:00"),
        ("90", "01:30:00"),
        ("UNLIMITED", ""),
        ("infinite", ""),
    ],
)
def test_a_time_limit_of_slurm_becomes_a_walltime(limit: str, walltime: str) -> None:
    found = machine.parse_scontrol_partitions(f"PartitionName=p State=UP MaxTime={limit} TotalNodes=3\n")
    assert found.queues["p"].max_walltime == walltime


def test_queues_of_pbs_have_limits_and_routes_and_a_disabled_one_is_left_out() -> None:
    assert machine.parse_qstat_queues(recorded("qstat_Q_json.json")).queues == {
        "workq": Queue(),
        "debug": Queue(max_nodes=2, max_walltime="01:00:00"),
        "small": Queue(max_walltime="24:00:00", route_only=True),
        "prod": Queue(routes=["small"]),
    }


def test_nodes_of_pbs_have_cores_and_gpus() -> None:
    assert machine.parse_pbsnodes(recorded("pbsnodes_json.json")) == Node(cores=8, gpus=4)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"Queue": []}', "PARTITION AVAIL\n", "NodeName", "\n\n"])
def test_an_output_that_is_none_finds_nothing_and_breaks_nothing(text: str) -> None:
    for parse in (machine.parse_scontrol_partitions, machine.parse_sinfo, machine.parse_qstat_queues):
        assert parse(text).queues == {}
    for shape in (machine.parse_scontrol_nodes, machine.parse_pbsnodes):
        assert shape(text) == Node()


def test_gpus_of_this_machine_are_counted() -> None:
    assert machine.parse_nvidia_smi(TWO_GPUS) == Node(gpus=2, gpu="A100-SXM4-40GB")
    assert machine.parse_nvidia_smi("") == Node()


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
    if site.scheduler is SchedulerName.SLURM:
        assert site.queue == "debug"


def test_a_machine_that_shows_nothing_still_gets_a_site(tmp_path: Path) -> None:
    path = new_site("mine", "generic-slurm", tmp_path, Shown({}))
    assert "# From: nothing that this machine shows" in path.read_text(encoding="utf-8")
    assert load_site_file(path).launcher.name.value == "srun"


def test_an_existing_site_is_never_overwritten(tmp_path: Path) -> None:
    path = new_site("mine", "local", tmp_path, Shown({}))
    path.write_text("scheduler: local\n")
    with pytest.raises(UsageError, match=r"mine\.yaml is there already"):
        new_site("mine", "local", tmp_path, Shown({}))
    assert path.read_text() == "scheduler: local\n"


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
