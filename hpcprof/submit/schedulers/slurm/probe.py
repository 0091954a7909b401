"""Partitions and nodes of a machine, as Slurm's commands show them."""

from __future__ import annotations

import getpass
import re
from collections import Counter
from collections.abc import Iterable

from hpcprof.submit.jobs.walltime import format_walltime
from hpcprof.submit.sites.machine import Ask, Machine, most_common_node, parse_count
from hpcprof.submit.sites.model import Node, NodeRequest, Queue, Required, Vendor

# 1-02:03:04, 02:03:04, 02:03 (minutes and seconds) or 30 (minutes): what Slurm prints as a time limit.
_TIME_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_PAIR = re.compile(r"(?:^|\s)(\w+)=(\S*)")
_GPU = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?:(\d+)")


def probe_slurm(ask: Ask) -> Machine:
    """Return the partitions from scontrol, or from sinfo where scontrol is closed, and the nodes."""
    found = parse_scontrol_partitions(ask(["scontrol", "show", "partition"]))
    if not found.queues:
        found = parse_sinfo(ask(["sinfo"]))
    node = parse_scontrol_nodes(ask(["scontrol", "show", "nodes"]))
    config = ask(["scontrol", "show", "config"])
    request = parse_gpu_request(config) if node.gpus else None
    requires = parse_requirements(config)
    accounts = _accounts(ask) if _keeps_accounts(config) else ()
    return Machine(found.queues, found.default_queue, node, request, requires, accounts)


def _keeps_accounts(config: str) -> bool:
    return (
        re.search(r"^AccountingStorageType\s*=\s*accounting_storage/slurmdbd", config, re.MULTILINE)
        is not None
    )


def _accounts(ask: Ask) -> tuple[str, ...]:
    show = ["sacctmgr", "--noheader", "--parsable2", "show", "associations"]
    return parse_accounts(ask([*show, f"user={getpass.getuser()}", "format=account"]))


def parse_accounts(text: str) -> tuple[str, ...]:
    """Return the accounts that ``sacctmgr show associations`` prints, one line per cluster and partition."""
    return tuple(sorted({line.strip() for line in text.splitlines() if line.strip()}))


def parse_requirements(text: str) -> tuple[Required, ...]:
    """Return what jobs must be given by the output of ``scontrol show config``.

    With ``associations`` or ``limits``, which implies it, Slurm refuses jobs whose account is not one of the
    user's (slurm.conf: AccountingStorageEnforce).
    """
    enforced = re.search(r"^AccountingStorageEnforce\s*=\s*(\S+)", text, re.MULTILINE)
    names = enforced[1].lower().split(",") if enforced else []
    strict = {"associations", "limits", "qos", "safe", "wckeys", "all"}
    return (Required.ACCOUNT,) if strict.intersection(names) else ()


def parse_gpu_request(text: str) -> NodeRequest | None:
    """Return how GPUs are requested by the output of ``scontrol show config``; None if it does not say.

    Only the plugin cons_tres knows ``--gpus-per-node`` (slurm.conf: SelectType).
    """
    plugin = re.search(r"^SelectType\s*=\s*select/(\w+)", text, re.MULTILINE)
    if plugin is None:
        return None
    return NodeRequest.GPUS_PER_NODE if plugin[1] == "cons_tres" else NodeRequest.GRES


def parse_scontrol_partitions(text: str) -> Machine:
    """Read the output of ``scontrol show partition``."""
    queues, default = {}, ""
    for block in _blocks(text):
        name = block.get("PartitionName", "")
        if not name or block.get("State", "UP") != "UP":
            continue
        limits = [parse_count(block.get(key)) for key in ("MaxNodes", "TotalNodes")]
        queues[name] = Queue(
            min_nodes=max(1, parse_count(block.get("MinNodes")) or 1),
            max_nodes=min((limit for limit in limits if limit), default=None),
            max_walltime=_walltime(block.get("MaxTime", "")),
        )
        default = name if block.get("Default") == "YES" else default
    return Machine(queues, default)


def parse_sinfo(text: str) -> Machine:
    """Read the output of ``sinfo`` without options: one row per partition and state of nodes."""
    limits: dict[str, str] = {}
    nodes: Counter[str] = Counter()
    default = ""
    for line in text.splitlines()[1:]:
        columns = line.split()
        if len(columns) < 5 or columns[1] != "up":
            continue
        name = columns[0].rstrip("*")
        default = name if columns[0].endswith("*") else default
        limits[name] = _walltime(columns[2])
        nodes[name] += parse_count(columns[3]) or 0
    queues = {name: Queue(max_nodes=nodes[name] or None, max_walltime=limits[name]) for name in limits}
    return Machine(queues, default)


def parse_scontrol_nodes(text: str) -> Node:
    """Return the most common node in the output of ``scontrol show nodes``."""
    nodes, memory = [], []
    for block in _blocks(text):
        memory.append(parse_count(block.get("RealMemory")) or 0)
        threads = parse_count(block.get("ThreadsPerCore")) or 1
        cpus = parse_count(block.get("CPUEfctv")) or parse_count(block.get("CPUTot"))
        gpus = _GPU.findall(block.get("Gres", ""))
        model = gpus[0][0] if gpus else ""
        nodes.append(
            Node(
                cores=cpus // threads if cpus else None,
                threads=threads,
                gpus=sum(int(count) for _, count in gpus) or None,
                gpu=model,
                vendor=Vendor.AMD if model.lower().startswith("mi") else Vendor.NVIDIA,
            )
        )
    return most_common_node(nodes, memory)


def _blocks(text: str) -> Iterable[dict[str, str]]:
    """Yield the ``Key=Value`` pairs of each record; an empty line, or a name, begins a new record."""
    for block in re.split(r"\n\s*\n|\n(?=PartitionName=|NodeName=)", text):
        pairs = dict(_PAIR.findall(block))
        if pairs:
            yield pairs


def _walltime(limit: str) -> str:
    """Return a time limit as HH:MM:SS; empty for UNLIMITED, infinite and other texts."""
    if limit.isdigit():
        return format_walltime(int(limit) * 60)
    match = _TIME_LIMIT.fullmatch(limit)
    if match is None:
        return ""
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return format_walltime(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
