"""What Slurm's commands show of a machine, here from recorded outputs."""

from __future__ import annotations

import pytest

from hpcprof.submit.schedulers.slurm.probe import parse_scontrol_nodes, parse_scontrol_partitions, parse_sinfo
from hpcprof.submit.sites.model import Node, Queue, Vendor
from tests.unit.submit.schedulers.recorded import recorded_machine


def test_partitions_have_their_limits_and_the_default_is_known() -> None:
    found = parse_scontrol_partitions(recorded_machine("scontrol_show_partition.txt"))
    assert found.default_queue == "debug"
    assert found.queues == {
        "debug": Queue(max_nodes=4, max_walltime="01:00:00"),
        "prod": Queue(max_nodes=4),
    }


def test_sinfo_says_the_same_where_scontrol_is_closed() -> None:
    said = parse_sinfo(recorded_machine("sinfo.txt"))
    assert said == parse_scontrol_partitions(recorded_machine("scontrol_show_partition.txt"))


def test_nodes_of_slurm_have_cores_gpus_and_memory() -> None:
    found = parse_scontrol_nodes(recorded_machine("scontrol_show_nodes.txt"))
    assert found == Node(cores=8, gpus=4, memory="16000M")


def test_nodes_of_one_shape_count_together_whatever_memory_they_have() -> None:
    sizes = {"n1": (8, 1001), "n2": (8, 1003), "n3": (64, 500), "n4": (64, 500), "n5": (8, 1002)}
    text = "".join(
        f"NodeName={name} CPUTot={cpus} RealMemory={size}\n" for name, (cpus, size) in sizes.items()
    )
    assert parse_scontrol_nodes(text) == Node(cores=8, memory="1003M")


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
    assert parse_scontrol_nodes(text) == Node(cores=56, threads=2, gpus=gpus, gpu=model, vendor=vendor)


def test_of_several_kinds_of_nodes_the_usual_one_with_gpus_counts() -> None:
    cpu, small, big = (
        f"NodeName=n CPUTot={cpus} ThreadsPerCore=1 Gres={gres}\n"
        for cpus, gres in ((48, "(null)"), (32, "gpu:2"), (64, "gpu:4"))
    )
    assert parse_scontrol_nodes("\n".join([cpu, cpu, cpu, small, big, big])) == Node(cores=64, gpus=4)


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
    found = parse_scontrol_partitions(f"PartitionName=p State=UP MaxTime={limit} TotalNodes=3\n")
    assert found.queues["p"].max_walltime == walltime


@pytest.mark.parametrize("text", ["", "{", "[]", "PARTITION AVAIL\n", "NodeName", "\n\n"])
def test_another_output_finds_nothing_and_breaks_nothing(text: str) -> None:
    assert parse_scontrol_partitions(text).queues == {}
    assert parse_sinfo(text).queues == {}
    assert parse_scontrol_nodes(text) == Node()
