"""All analyses, collected from the declarations of their packages, and those that other packages add."""

from dataclasses import replace

from hpcprof.analysis.account import declarations as account
from hpcprof.analysis.collectives import declarations as collectives
from hpcprof.analysis.comparison import declarations as comparison
from hpcprof.analysis.explain import declarations as explain
from hpcprof.analysis.framework.declaration import Analysis, Policy, Scope
from hpcprof.analysis.gpu_time import declarations as gpu_time
from hpcprof.analysis.hardware import declarations as hardware
from hpcprof.analysis.memory import declarations as memory
from hpcprof.analysis.mpi import declarations as mpi
from hpcprof.analysis.operators import declarations as operators
from hpcprof.analysis.predict import declarations as predict
from hpcprof.analysis.slowdown import declarations as slowdown
from hpcprof.analysis.steps import declarations as steps
from hpcprof.analysis.summaries import declarations as summaries
from hpcprof.analysis.telemetry import declarations as telemetry
from hpcprof.common.errors import UsageError, unknown
from hpcprof.common.plugins import ANALYSES as PLUGIN_GROUP
from hpcprof.common.plugins import load_plugin, plugin_names

_DECLARATIONS: tuple[Analysis, ...] = (
    *summaries.ANALYSES,
    *operators.ANALYSES,
    *steps.ANALYSES,
    *gpu_time.ANALYSES,
    *slowdown.ANALYSES,
    *comparison.ANALYSES,
    *hardware.ANALYSES,
    *account.ANALYSES,
    *collectives.ANALYSES,
    *mpi.ANALYSES,
    *explain.ANALYSES,
    *telemetry.ANALYSES,
    *memory.ANALYSES,
    *predict.ANALYSES,
)
"""Each analysis over the ranks follows the analyses that it needs."""

_OVER_SEVERAL_RUNS = (Scope.PAIR, Scope.STORE)

ANALYSES: dict[str, Analysis] = {
    item.name: item for item in _DECLARATIONS if item.scope not in _OVER_SEVERAL_RUNS
}
"""The analyses of one run: a collect computes them, the store keeps them."""

ACROSS_RUNS: dict[str, Analysis] = {
    item.name: item for item in _DECLARATIONS if item.scope in _OVER_SEVERAL_RUNS
}
"""The analyses over several runs, computed on demand; ``roofline`` is also an analysis of one run."""

FULL_REPORT: tuple[str, ...] = tuple(
    name
    for _, name in sorted(
        (item.report_position, name) for name, item in ANALYSES.items() if item.report_position is not None
    )
)
"""The analyses of the full report, in its order; the others are shown by name."""


def find_analysis(name: str) -> Analysis:
    """Return the analysis of one run called ``name``.

    Raises UsageError if there is none of that name, with the close matches, or if it spans several runs.
    """
    analysis = ANALYSES.get(name) or ACROSS_RUNS.get(name) or _from_plugin(name)
    if analysis is None:
        raise unknown("analysis", name, {*ANALYSES, *ACROSS_RUNS, *plugin_names(PLUGIN_GROUP)})
    if analysis.scope in _OVER_SEVERAL_RUNS:
        raise UsageError(f"{name} is an analysis over several runs, not of one run.")
    return analysis


def find_analysis_across_runs(name: str | None, against: bool) -> Analysis | None:
    """Return the analysis over several runs called ``name``, or None if that is an analysis of one run.

    ``against`` tells whether the user named runs to compare with. Raises UsageError if the analysis compares
    runs and there is nothing to compare with, or the other way round.
    """
    analysis = ACROSS_RUNS.get(name or "")
    if analysis is None and name is not None and name not in ANALYSES:
        plugin = _from_plugin(name)
        analysis = plugin if plugin and plugin.scope in _OVER_SEVERAL_RUNS else None
    if against and (analysis is None or analysis.scope is not Scope.PAIR):
        pairs = [name for name, item in ACROSS_RUNS.items() if item.scope is Scope.PAIR]
        raise UsageError(f"--against goes with --analysis {' or '.join(pairs)}.")
    if analysis is None or against or analysis.scope is Scope.STORE:
        return analysis
    if analysis.name in ANALYSES:
        return None
    raise UsageError(f"{name} compares runs with others: name those with --against RUN.")


def _from_plugin(name: str) -> Analysis | None:
    """Return the declaration that another package adds under ``name``, or None if no package does.

    Raises UsageError if the package cannot be loaded or does not declare an analysis as `Analysis` describes.
    """
    declared = load_plugin(PLUGIN_GROUP, name)
    if declared is None:
        return None
    if not isinstance(declared, Analysis) or declared.name != name:
        raise UsageError(f"the plug-in {name!r} is not an hpcprof.plugins.analyses.Analysis of that name.")
    missing = [need for need in declared.needs if need not in ANALYSES]
    if missing:
        raise UsageError(f"the plug-in {name!r} needs {', '.join(missing)}, which hpcprof does not have.")
    return replace(declared, policy=Policy.EACH_TIME)
