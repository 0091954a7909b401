"""The machine as its own commands show it, for a first site file."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from hpcprof.common.decode import from_json
from hpcprof.submit.sites.model import Node, NodeRequest, Queue, Required

Ask = Callable[[list[str]], str]
"""Runs a command and returns what it printed; empty if it is not installed or failed."""


@dataclass(frozen=True)
class Machine:
    """Queues by name, the default queue, the shape of most nodes, and what the scheduler wants of a job.

    ``node_request`` is how GPUs are requested, ``requires`` what a job must be given, and ``accounts`` those
    that this user can charge.
    """

    queues: dict[str, Queue] = field(default_factory=dict)
    default_queue: str = ""
    node: Node = field(default_factory=Node)
    node_request: NodeRequest | None = None
    requires: tuple[Required, ...] = ()
    accounts: tuple[str, ...] = ()


def most_common_node(nodes: Sequence[Node], mebibytes: Sequence[int]) -> Node:
    """Return the shape of most nodes, with GPUs if any have them, and its largest memory of ``mebibytes``."""
    chosen = [node for node in nodes if node.gpus] or nodes
    counted = Counter(map(msgspec.json.encode, chosen))
    if not counted:
        return Node()
    node = from_json(counted.most_common(1)[0][0], Node)
    most = max(mebibytes, default=0)
    return msgspec.structs.replace(node, memory=f"{most}M") if most else node


def parse_count(value: object) -> int | None:
    """Return a whole number from a command's output, None if ``value`` is not one."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else None
