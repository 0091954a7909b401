"""``python -m hpcprof.workloads.sequence_parallel_jax`` runs the workload on one rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpcprof.workloads.start import start


def main(arguments: Sequence[str]) -> int:
    """Run the workload and return the exit status."""
    return start("hpcprof.workloads.sequence_parallel_jax", "jax", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
