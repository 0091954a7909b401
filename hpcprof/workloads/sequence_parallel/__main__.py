"""``python -m hpcprof.workloads.sequence_parallel``: the workload on one rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpcprof.errors import UsageError
from hpcprof.workloads.sequence_parallel.options import parse


def main(arguments: Sequence[str]) -> int:
    """Run the workload and return the exit status."""
    try:
        parameters = parse(arguments)
    except UsageError as error:
        from hpcprof.workloads.sequence_parallel.benchmark import refuse

        return refuse(error)
    # Loaded only now, so that --help needs neither MPI nor torch.
    from hpcprof.workloads.sequence_parallel.benchmark import run

    return run(parameters)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
