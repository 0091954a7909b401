"""All analyses, collected from the declarations of their packages."""

from __future__ import annotations

from hpcprof.analysis.collectives import declarations as collectives
from hpcprof.analysis.comparison import declarations as comparison
from hpcprof.analysis.explain import declarations as explain
from hpcprof.analysis.framework.declaration import Analysis, Scope
from hpcprof.analysis.gpu_time import declarations as gpu_time
from hpcprof.analysis.hardware import declarations as hardware
from hpcprof.analysis.memory import declarations as memory
from hpcprof.analysis.mpi import declarations as mpi
from hpcprof.analysis.operators import declarations as operators
from hpcprof.analysis.slowdown import declarations as slowdown
from hpcprof.analysis.steps import declarations as steps
from hpcprof.analysis.summaries import declarations as summaries
from hpcprof.analysis.telemetry import declarations as telemetry

_DECLARED: tuple[Analysis, ...] = (
    *summaries.ANALYSES,
    *operators.ANALYSES,
    *steps.ANALYSES,
    *gpu_time.ANALYSES,
    *slowdown.ANALYSES,
    *comparison.ANALYSES,
    *hardware.ANALYSES,
    *collectives.ANALYSES,
    *mpi.ANALYSES,
    *explain.ANALYSES,
    *telemetry.ANALYSES,
    *memory.ANALYSES,
)
_OF_ONE_RUN = (Scope.RANK, Scope.RUN)

ANALYSES: dict[str, Analysis] = {one.name: one for one in _DECLARED if one.scope in _OF_ONE_RUN}
"""The analyses of one run: a collect computes them, the store keeps them."""

ACROSS_RUNS: dict[str, Analysis] = {one.name: one for one in _DECLARED if one.scope not in _OF_ONE_RUN}
"""The analyses over several runs, computed on demand; ``roofline`` is also an analysis of one run."""

FULL_REPORT: tuple[str, ...] = tuple(
    name
    for _, name in sorted(
        (one.report_position, name) for name, one in ANALYSES.items() if one.report_position is not None
    )
)
"""The analyses of the full report, in its order; the others are shown by name."""
