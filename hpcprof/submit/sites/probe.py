"""What a machine's own commands say of its queues and nodes; each parser takes their output as text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hpcprof.submit.jobs.walltime import format_walltime
from hpcprof.submit.sites.model import Node, Queue, Vendor

# 1-02:03:04, 02:03:04, 02:03 (minutes and seconds) or 30 (minutes): what Slurm prints as a time limit.
_SLURM_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_PAIR = re.compile(r"(?:^|\s)(\w+)=(\S*)")
_GPU = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?:(\d+)")
_NVIDIA_MODEL = re.compile(r"^NVIDIA\s+")


@dataclass(frozen=True)
class Machine:
    """What was found: queues by name, the one that is the default, and the shape of most nodes."""

    queues: dict[str, Queue] = field(default_factory=dict)
    default_queue: str = ""
    node: Node = field(default_factory=Node)


def parse_scontrol_partitions(text: str) -> Machine:
    """Read ``scontrol show partition``."""
    queues, default = {}, ""
    for block in _blocks(text):
        name = block.get("PartitionName", "")
        if not name or block.get("State", "UP") != "UP":
            continue
        limits = [_number(block.get(key)) for key in ("MaxNodes", "TotalNodes")]
        queues[name] = Queue(
            min_nodes=max(1, _number(block.get("MinNodes")) or 1),
            max_nodes=min((limit for limit in limits if limit), default=None),
            max_walltime=_slurm_walltime(block.get("MaxTime", "")),
        )
        default = name if block.get("Default") == "YES" else default
    return Machine(queues, default)


def parse_sinfo(text: str) -> Machine:
    """Read ``sinfo`` as it is without options: one row a partition and state of nodes."""
    limits: dict[str, str] = {}
    nodes: Counter[str] = Counter()
    default = ""
    for line in text.splitlines()[1:]:
        columns = line.split()
        if len(columns) < 5 or columns[1] != "up":
            continue
        name = columns[0].rstrip("*")
        default = name if columns[0].endswith("*") else default
        limits[name] = _slurm_walltime(columns[2])
        nodes[name] += _number(columns[3]) or 0
    queues = {name: Queue(max_nodes=nodes[name] or None, max_walltime=limits[name]) for name in limits}
    return Machine(queues, default)


def parse_scontrol_nodes(text: str) -> Node:
    """Read ``scontrol show nodes`` and return the shape that most nodes with GPUs have, or most nodes."""
    shapes = []
    for block in _blocks(text):
        threads = _number(block.get("ThreadsPerCore")) or 1
        cpus = _number(block.get("CPUEfctv")) or _number(block.get("CPUTot"))
        gpus = _GPU.findall(block.get("Gres", ""))
        shapes.append(
            Node(
                cores=cpus // threads if cpus else None,
                threads=threads,
                gpus=sum(int(count) for _, count in gpus) or None,
                gpu=gpus[0][0] if gpus else "",
                vendor=_vendor(gpus[0][0] if gpus else ""),
            )
        )
    return _usual(shapes)


def parse_qstat_queues(text: str) -> Machine:
    """Read ``qstat -Q -f -F json``; a queue that is not enabled is left out."""
    queues = {}
    for name, entry in _json_object(text, "Queue").items():
        if entry.get("enabled") != "True":
            continue
        least, most = (entry.get(f"resources_{end}", {}) for end in ("min", "max"))
        routes = str(entry.get("route_destinations", ""))
        queues[name] = Queue(
            min_nodes=_number(least.get("nodect")) or 1,
            max_nodes=_number(most.get("nodect")),
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
    """Read ``pbsnodes -a -F json`` and return the shape that most nodes with GPUs have, or most nodes."""
    shapes = []
    for entry in _json_object(text, "nodes").values():
        resources = entry.get("resources_available", {})
        shapes.append(
            Node(cores=_number(resources.get("ncpus")), gpus=_number(resources.get("ngpus")) or None)
        )
    return _usual(shapes)


def parse_nvidia_smi(text: str) -> Node:
    """Read ``nvidia-smi --query-gpu=name --format=csv,noheader``: one line a GPU."""
    names = [line.strip() for line in text.splitlines() if line.strip()]
    if not names:
        return Node()
    return Node(gpus=len(names), gpu=_NVIDIA_MODEL.sub("", names[0]))


def _blocks(text: str) -> Iterable[dict[str, str]]:
    """Yield the ``Key=Value`` pairs of each record; an empty line, or a name, begins a new one."""
    for block in re.split(r"\n\s*\n|\n(?=PartitionName=|NodeName=)", text):
        pairs = dict(_PAIR.findall(block))
        if pairs:
            yield pairs


def _number(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else None


def _slurm_walltime(text: str) -> str:
    """Return a limit of Slurm's as HH:MM:SS; empty for UNLIMITED, infinite and what is not understood."""
    if text.isdigit():
        return format_walltime(int(text) * 60)
    match = _SLURM_TIME.fullmatch(text)
    if match is None:
        return ""
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return format_walltime(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _vendor(model: str) -> Vendor:
    return Vendor.AMD if model.lower().startswith("mi") else Vendor.NVIDIA


def _usual(shapes: list[Node]) -> Node:
    chosen = [shape for shape in shapes if shape.gpus] or shapes
    counted = Counter(map(msgspec.json.encode, chosen))
    return msgspec.json.decode(counted.most_common(1)[0][0], type=Node) if counted else Node()


def _json_object(text: str, key: str) -> dict[str, dict[str, Any]]:
    """Return one object of PBS's JSON; none where it is no JSON (an exported function can break it)."""
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    found = data.get(key, {}) if isinstance(data, dict) else {}
    return found if isinstance(found, dict) else {}
