"""``python -m hpcprof.workloads.ddp``: the workload on one rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpcprof.errors import UsageError
from hpcprof.workloads.ddp.options import Parameters, parse


def main(arguments: Sequence[str]) -> int:
    """Run the workload and return the exit status."""
    wanted: Parameters | UsageError
    try:
        wanted = parse(arguments)
    except UsageError as error:
        wanted = error
    # Loaded only now, so that --help needs neither MPI nor torch.
    try:
        from hpcprof.workloads.ddp.benchmark import run
    except ImportError as error:
        sys.stderr.write(
            f"{sys.executable}: {error}. The workload needs torch: name a Python that has it by "
            "-o python=PATH.\n"
        )
        return 1
    return run(wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
