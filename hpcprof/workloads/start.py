"""The start of a built-in workload on one rank; a package's ``__main__`` calls it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from hpcprof.common.errors import InformationRequested, UsageError


def start(package: str, needs: str, arguments: Sequence[str]) -> int:
    """Run a workload and return the exit status.

    Parameters
    ----------
    package : str
        The workload's package. ``parse(arguments)`` of its ``options`` returns what is wanted, which ``run``
        of its ``benchmark`` takes, or the `UsageError` instead, since the ranks decide which of them speaks.
    needs : str
        The packages that the workload needs, for the sentence where they are missing.
    arguments : sequence of str
        The user's.
    """
    parse = importlib.import_module(f"{package}.options").parse
    try:
        wanted = parse(arguments)
    except InformationRequested as request:
        print(request.text)
        return 0
    except UsageError as error:
        wanted = error
    # Loaded only now, so that --help needs neither MPI nor torch.
    try:
        benchmark = importlib.import_module(f"{package}.benchmark")
    except ImportError as error:
        sys.stderr.write(
            f"{sys.executable}: {error}. The workload needs a Python with {needs}: name one by "
            "-o python=PATH.\n"
        )
        return 1
    status: int = benchmark.run(wanted)
    return status
