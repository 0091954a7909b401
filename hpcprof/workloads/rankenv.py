"""The environment variables that the rank wrapper sets for a workload; all of them are optional."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from hpcprof.common.errors import UsageError, unknown
from hpcprof.node.hooks.window import spans_of


class RankProfiler(Enum):
    """The profiler that this rank runs under."""

    NONE = "none"
    TORCH = "torch"
    NSYS = "nsys"
    NCU = "ncu"
    ROCPROFV3 = "rocprofv3"
    UNITRACE = "unitrace"
    JAX = "jax"


@dataclass(frozen=True)
class RankEnvironment:
    """The variables of the rank wrapper; None for a variable that is unset or empty."""

    run_dir: Path | None = None
    """``HPCPROF_RUN_DIR``: the run directory."""
    rank: int | None = None
    """``HPCPROF_RANK``."""
    local_rank: int | None = None
    """``HPCPROF_LOCAL_RANK``."""
    world_size: int | None = None
    """``HPCPROF_WORLD_SIZE``: the number of ranks."""
    profiler: RankProfiler = RankProfiler.NONE
    """``HPCPROF_PROFILER``: `RankProfiler.NONE` on a rank that is not profiled."""
    profile_output: Path | None = None
    """``HPCPROF_PROFILE_OUTPUT``: the profile's path without its suffix."""
    capture_steps: tuple[tuple[int, int], ...] = ()
    """``HPCPROF_CAPTURE_STEPS``: first and last step of each span to capture, from 0; empty for all steps."""
    capture_until: int | None = None
    """``HPCPROF_CAPTURE_UNTIL``: the end of capture ahead of the walltime limit, in seconds since 1970."""
    torch_options: Mapping[str, int | bool] = field(default_factory=dict)
    """``HPCPROF_TORCH_OPTIONS``: the PyTorch profiler's schedule and switches."""
    launcher: str = ""
    """``HPCPROF_LAUNCHER``: the launcher of the site; empty if unknown."""
    mpi_type: str = ""
    """``SLURM_MPI_TYPE``: the value of ``srun --mpi``; empty for Slurm's default."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "RankEnvironment":
        """Read the variables from ``environ``."""
        return cls(
            run_dir=_path(environ, "HPCPROF_RUN_DIR"),
            rank=_number(environ, "HPCPROF_RANK", minimum=0),
            local_rank=_number(environ, "HPCPROF_LOCAL_RANK", minimum=0),
            world_size=_number(environ, "HPCPROF_WORLD_SIZE", minimum=1),
            profiler=_profiler(environ),
            profile_output=_path(environ, "HPCPROF_PROFILE_OUTPUT"),
            capture_steps=_steps(environ),
            capture_until=_number(environ, "HPCPROF_CAPTURE_UNTIL", minimum=0),
            torch_options=_options(environ),
            launcher=environ.get("HPCPROF_LAUNCHER", ""),
            mpi_type=environ.get("SLURM_MPI_TYPE", ""),
        )

    def wrong_library(self, size: int, library: str) -> str:
        """Return the error where MPI, named ``library``, has ``size`` ranks, and its cure."""
        started = f"but {self.launcher or 'the launcher'} started {self.world_size}"
        cure = "load the MPI module that mpi4py was built with, or build mpi4py with the launcher's MPI"
        if self.launcher == "srun":
            # srun sets no type in the ranks' environment for "none".
            started += f" (--mpi={self.mpi_type or 'none'})"
            needed = "pmix" if "Open MPI" in library else "pmi2"
            cure = f"give -o mpi={needed}, or add --mpi={needed} to launcher.arguments of the site"
            if needed == self.mpi_type:
                cure = "give -o mpi=TYPE with another type of srun --mpi=list"
        elif self.launcher == "mpiexec":
            cure = "give the mpiexec of that MPI with -o mpiexec=PATH"
        ranks = f"{size} rank{'s' * (size != 1)}"
        return f"MPI has {ranks}, {started}: mpi4py uses {library}; {cure}."

    @property
    def results_dir(self) -> Path:
        """The folder of the results files; ``./results`` without a run directory."""
        profiles = self.profile_output.parent if self.profile_output and self.run_dir else None
        return profiles.with_name("results") if profiles else (self.run_dir or Path()) / "results"

    def profile_stem(self, rank: int) -> Path:
        """Return the path of the profile without its suffix; by default ``./profiles/rankNNNNN``."""
        return self.profile_output or (self.run_dir or Path()) / "profiles" / f"rank{rank:05d}"


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None


def _number(environ: Mapping[str, str], name: str, minimum: int) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    # isdecimal also accepts digits of other scripts, which no launcher writes.
    if not (text.isascii() and text.isdecimal()) or int(text) < minimum:
        raise UsageError(f"{name} is {text!r}: it must be a whole number from {minimum}.")
    return int(text)


def _steps(environ: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
    text = environ.get("HPCPROF_CAPTURE_STEPS", "")
    if text and not re.fullmatch(r"\d+(-\d*)?(,\d+(-\d*)?)*", text):
        raise UsageError(f"HPCPROF_CAPTURE_STEPS is {text!r}: it must list steps or ranges, such as 3,10-12.")
    return tuple(spans_of(text)) if text else ()


def _options(environ: Mapping[str, str]) -> dict[str, int | bool]:
    try:
        options = json.loads(environ.get("HPCPROF_TORCH_OPTIONS") or "{}")
    except ValueError:
        options = None
    if not isinstance(options, dict) or not all(isinstance(value, int) for value in options.values()):
        raise UsageError("HPCPROF_TORCH_OPTIONS must be a JSON object of whole numbers and booleans.")
    return options


def _profiler(environ: Mapping[str, str]) -> RankProfiler:
    name = environ.get("HPCPROF_PROFILER") or RankProfiler.NONE.value
    valid = [profiler.value for profiler in RankProfiler]
    if name not in valid:
        raise unknown("profiler", name, valid, " in HPCPROF_PROFILER")
    return RankProfiler(name)
