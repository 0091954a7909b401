"""The entry point of the built-in workloads on a rank, called by the ``__main__`` of each package."""

import importlib
import sys
from collections.abc import Sequence

from hpcprof.common.errors import InformationRequested, UsageError


def start(package: str, needs: str, arguments: Sequence[str]) -> int:
    """Run a workload on this rank and return its exit status.

    ``needs`` are the packages that it needs, for the error message if one is missing. The value of
    ``options.parse(arguments)`` of ``package`` is passed to ``benchmark.run``; so is a `UsageError` that it
    raises, because only rank 0 prints it.
    """
    parse = importlib.import_module(f"{package}.options").parse
    try:
        wanted = parse(arguments)
    except InformationRequested as request:
        print(request.text)
        return 0
    except UsageError as error:
        wanted = error
    # Imported only now, so that --help needs neither MPI nor torch.
    try:
        benchmark = importlib.import_module(f"{package}.benchmark")
    except ImportError as error:
        sys.stderr.write(
            f"{sys.executable}: {error}. The workload needs a Python with {needs}: name one with "
            "-o python=PATH.\n"
        )
        return 1
    status: int = benchmark.run(wanted)
    return status
