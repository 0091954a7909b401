"""The profilers, one `Profiler` each; packages add theirs by entry points ``hpcprof.profilers``."""

from functools import cache

from hpcprof.common import plugins
from hpcprof.common.errors import UsageError, unknown
from hpcprof.submit.profilers.base import NONE, Profiler
from hpcprof.submit.profilers.eztrace import EZTRACE
from hpcprof.submit.profilers.inspector import INSPECTOR
from hpcprof.submit.profilers.jax_profiler import JAX
from hpcprof.submit.profilers.ncu import NCU
from hpcprof.submit.profilers.nsys import NSYS
from hpcprof.submit.profilers.rocprofv3 import ROCPROFV3
from hpcprof.submit.profilers.scorep import SCOREP, SCOREP_PRELOAD
from hpcprof.submit.profilers.torch_profiler import TORCH
from hpcprof.submit.profilers.unitrace import UNITRACE

PROFILERS: dict[str, Profiler] = {
    profiler.name: profiler
    for profiler in (
        NONE,
        NSYS,
        NCU,
        TORCH,
        JAX,
        ROCPROFV3,
        UNITRACE,
        EZTRACE,
        SCOREP,
        SCOREP_PRELOAD,
        INSPECTOR,
    )
}
"""hpcprof's own profilers by name."""

FOR_UNCHANGED_PROGRAMS = (NSYS, EZTRACE, SCOREP_PRELOAD)
"""The profilers of MPI that need no change of the program, in the order in which ``auto`` takes them."""


def profiler_names() -> list[str]:
    """Return the names of all profilers, those of other packages last."""
    return [*PROFILERS, *(name for name in plugins.plugin_names(plugins.PROFILERS) if name not in PROFILERS)]


@cache
def find_profiler(name: str) -> Profiler:
    """Return the profiler called ``name``."""
    if name in PROFILERS:
        return PROFILERS[name]
    plugin = plugins.load_plugin(plugins.PROFILERS, name)
    if plugin is None:
        raise unknown("profiler", name, [*profiler_names(), "auto"])
    if not isinstance(plugin, Profiler):
        raise UsageError(f"the plug-in {name!r} is not an hpcprof.plugins.profilers.Profiler: {plugin!r}.")
    return plugin
