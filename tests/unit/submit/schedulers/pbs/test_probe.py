"""What PBS's commands show of a machine, here from recorded outputs."""

from __future__ import annotations

import pytest

from hpcprof.submit.schedulers.pbs.probe import parse_pbsnodes, parse_qstat_queues, probe_pbs
from hpcprof.submit.sites.model import Node, Queue
from tests.unit.submit.schedulers.recorded import recorded_machine


def test_queues_of_pbs_have_limits_and_routes_and_a_disabled_one_is_left_out() -> None:
    assert parse_qstat_queues(recorded_machine("qstat_Q_json.json")).queues == {
        "workq": Queue(),
        "debug": Queue(max_nodes=2, max_walltime="01:00:00"),
        "small": Queue(max_walltime="24:00:00", route_only=True),
        "prod": Queue(routes=["small"]),
    }


def test_nodes_of_pbs_have_cores_gpus_and_memory() -> None:
    assert parse_pbsnodes(recorded_machine("pbsnodes_json.json")) == Node(cores=8, gpus=4, memory="24103M")


def test_no_queue_of_pbs_has_more_nodes_than_there_are() -> None:
    files = {"qstat": "qstat_Q_json.json", "pbsnodes": "pbsnodes_json.json"}
    found = probe_pbs(lambda command: recorded_machine(files[command[0]]))
    assert {name: queue.max_nodes for name, queue in found.queues.items()} == {
        "workq": 4,
        "debug": 2,
        "small": 4,
        "prod": 4,
    }


@pytest.mark.parametrize("text", ["", "{", "[]", '{"Queue": []}', "\n\n"])
def test_another_output_finds_nothing_and_breaks_nothing(text: str) -> None:
    assert parse_qstat_queues(text).queues == {}
    assert parse_pbsnodes(text) == Node()
