"""Finds an analysis by the name that a user gives: a built-in one, or one that another package adds."""

from __future__ import annotations

from hpcprof.analysis.framework.declaration import Analysis, Scope
from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
from hpcprof.common.errors import UsageError, unknown
from hpcprof.common.plugins import ANALYSES as PLUGIN_GROUP
from hpcprof.common.plugins import load_plugin, plugin_names

_OVER_SEVERAL_RUNS = (Scope.PAIR, Scope.STORE)


def find_analysis(name: str) -> Analysis:
    """Return the analysis of one run called ``name``.

    Raises
    ------
    UsageError
        If there is none of that name, with the close matches, or if it spans several runs.
    """
    analysis = ANALYSES.get(name) or ACROSS_RUNS.get(name) or _from_plugin(name)
    if analysis is None:
        raise unknown("analysis", name, {*ANALYSES, *ACROSS_RUNS, *plugin_names(PLUGIN_GROUP)})
    if analysis.scope in _OVER_SEVERAL_RUNS:
        raise UsageError(f"{name} is an analysis over several runs, not of one run.")
    return analysis


def find_analysis_across_runs(name: str | None, against: bool) -> Analysis | None:
    """Return the analysis over several runs called ``name``, or None if that is an analysis of one run.

    Parameters
    ----------
    against : bool
        Whether the user named runs to compare with.

    Raises
    ------
    UsageError
        If the analysis compares runs and there is nothing to compare with, or the other way round.
    """
    analysis = ACROSS_RUNS.get(name or "")
    if analysis is None and name is not None and name not in ANALYSES:
        plugin = _from_plugin(name)
        analysis = plugin if plugin and plugin.scope in _OVER_SEVERAL_RUNS else None
    if against and (analysis is None or analysis.scope is not Scope.PAIR):
        pairs = [name for name, one in ACROSS_RUNS.items() if one.scope is Scope.PAIR]
        raise UsageError(f"--against goes with --analysis {' or '.join(pairs)}.")
    if analysis is None or against or analysis.scope is Scope.STORE:
        return analysis
    if analysis.name in ANALYSES:
        return None
    raise UsageError(f"{name} compares runs with others: name those with --against RUN.")


def _from_plugin(name: str) -> Analysis | None:
    """Return the declaration that another package adds under ``name``, or None if no package does.

    Raises
    ------
    UsageError
        If the package cannot be loaded or does not declare an analysis as `Analysis` describes.
    """
    declared = load_plugin(PLUGIN_GROUP, name)
    if declared is None:
        return None
    if not isinstance(declared, Analysis) or declared.name != name:
        raise UsageError(f"the plug-in {name!r} is not an hpcprof.plugins.analyses.Analysis of that name.")
    missing = [need for need in declared.needs if need not in ANALYSES]
    if missing:
        raise UsageError(f"the plug-in {name!r} needs {', '.join(missing)}, which hpcprof does not have.")
    return declared
