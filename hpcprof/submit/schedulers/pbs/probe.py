"""Queues and nodes of a machine, as PBS's commands show them."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from hpcprof.submit.sites.machine import Ask, Machine, most_common_node, parse_count
from hpcprof.submit.sites.model import Node, Queue


def probe_pbs(ask: Ask) -> Machine:
    """Return the queues from qstat and the nodes from pbsnodes; no queue has more nodes than there are."""
    queues = parse_qstat_queues(ask(["qstat", "-Q", "-f", "-F", "json"])).queues
    text = ask(["pbsnodes", "-a", "-F", "json"])
    if count := len(_json_object(text, "nodes")):
        queues = {
            name: msgspec.structs.replace(queue, max_nodes=min(queue.max_nodes or count, count))
            for name, queue in queues.items()
        }
    return Machine(queues, node=parse_pbsnodes(text))


def parse_qstat_queues(text: str) -> Machine:
    """Read the output of ``qstat -Q -f -F json``; a disabled queue is left out."""
    queues = {}
    for name, entry in _json_object(text, "Queue").items():
        if entry.get("enabled") != "True":
            continue
        least, most = (entry.get(f"resources_{end}", {}) for end in ("min", "max"))
        routes = str(entry.get("route_destinations", ""))
        queues[name] = Queue(
            min_nodes=parse_count(least.get("nodect")) or 1,
            max_nodes=parse_count(most.get("nodect")),
            min_walltime=str(least.get("walltime", "")),
            max_walltime=str(most.get("walltime", "")),
            routes=[route.split("@")[0] for route in routes.split(",") if route],
            route_only=entry.get("from_route_only") == "True",
        )
    # A destination may be disabled, or on another server.
    for name, queue in queues.items():
        here = [route for route in queue.routes if route in queues]
        queues[name] = msgspec.structs.replace(queue, routes=here)
    return Machine(queues)


def parse_pbsnodes(text: str) -> Node:
    """Return the most common node in the output of ``pbsnodes -a -F json``."""
    nodes, memory = [], []
    for entry in _json_object(text, "nodes").values():
        resources = entry.get("resources_available", {})
        gpus = parse_count(resources.get("ngpus")) or None
        nodes.append(Node(cores=parse_count(resources.get("ncpus")), gpus=gpus))
        memory.append(_mebibytes(str(resources.get("mem", ""))))
    return most_common_node(nodes, memory)


def _mebibytes(text: str) -> int:
    """Return PBS's ``24682416kb`` in MiB; 0 if the text is no size."""
    match = re.fullmatch(r"(\d+)([kmgt]?)b", text)
    return int(match[1]) * 1024 ** " kmgt".index(match[2] or " ") // 1024**2 if match else 0


def _json_object(text: str, key: str) -> dict[str, dict[str, Any]]:
    """Return one object of PBS's JSON; empty if the JSON is damaged, as by an exported shell function."""
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    found = data.get(key, {}) if isinstance(data, dict) else {}
    return found if isinstance(found, dict) else {}
