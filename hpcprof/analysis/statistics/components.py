"""Connected components of graphs whose edges are groups of nodes."""

from collections.abc import Iterable, Sequence

import numpy as np

from hpcprof.profiles.timeline import Ints


def connected_components(groups: Iterable[Sequence[int]]) -> dict[int, int]:
    """Return the lowest node of the component of each node, by union-find with path halving.

    The nodes of a group are connected with each other.
    """
    lowest: dict[int, int] = {}

    def root(node: int) -> int:
        while lowest.setdefault(node, node) != node:
            lowest[node] = lowest[lowest[node]]
            node = lowest[node]
        return node

    for group in groups:
        roots = sorted(map(root, group))
        for other in roots[1:]:
            lowest[other] = roots[0]
    return {node: root(node) for node in sorted(lowest)}


def component_numbers(groups: Iterable[Sequence[int]], nodes: int) -> Ints:
    """Return the number of the component of each of the nodes 0 to ``nodes`` - 1, shape (nodes,)."""
    lowest = connected_components(groups)
    components = [lowest.get(node, node) for node in range(nodes)]
    return np.unique(components, return_inverse=True)[1].astype(np.int64)
