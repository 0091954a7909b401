"""``python -m hpcprof.workloads.sequence_parallel``: the workload on one rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpcprof.errors import UsageError
from hpcprof.workloads.sequence_parallel.options import parse


def main(arguments: Sequence[str]) -> int:
    """Run the workload and return the exit status."""
    refused: UsageError | None = None
    try:
        parameters = parse(arguments)
    except UsageError as error:
        refused = error
    # Loaded only now, so that --help needs neither MPI nor torch.
    try:
        from hpcprof.workloads.sequence_parallel.benchmark import refuse, run
    except ImportError as error:
        sys.stderr.write(
            f"{sys.executable}: {error}. The workload needs torch and mpi4py: name a Python that has them by "
            "-o python=PATH.\n"
        )
        return 1
    return refuse(refused) if refused else run(parameters)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
