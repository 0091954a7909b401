"""Finding an analysis by the name that a user gives."""

from __future__ import annotations

from hpcprof.analysis.framework.declaration import Analysis, Scope
from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
from hpcprof.common.errors import UsageError, unknown


def find(name: str) -> Analysis:
    """Return the analysis of one run called ``name``.

    Raises
    ------
    UsageError
        With the close matches, where there is none.
    """
    if name in ACROSS_RUNS and name not in ANALYSES:
        raise UsageError(f"{name} is an analysis over several runs: it is no part of one run's results.")
    if name not in ANALYSES:
        raise unknown("analysis", name, {**ANALYSES, **ACROSS_RUNS})
    return ANALYSES[name]


def find_across_runs(name: str | None, against: bool) -> Analysis | None:
    """Return the analysis over several runs that a user asks for; None where it is one of one run.

    Parameters
    ----------
    name : str or None
    against : bool
        Whether runs to compare with were named.

    Raises
    ------
    UsageError
        If the analysis compares runs and has nothing to compare with, or the other way round.
    """
    analysis = ACROSS_RUNS.get(name or "")
    pairs = [name for name, analysis in ACROSS_RUNS.items() if analysis.scope is Scope.PAIR]
    if against and (analysis is None or analysis.scope is not Scope.PAIR):
        raise UsageError(f"--against goes with --analysis {' or '.join(pairs)}.")
    if analysis is None or against or analysis.scope is Scope.STORE:
        return analysis
    if analysis.name in ANALYSES:
        return None
    raise UsageError(f"{name} compares runs with others: name those with --against RUN.")
