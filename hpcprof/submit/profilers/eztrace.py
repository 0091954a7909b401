"""EZTrace, which traces calls of MPI of a program as it is, all ranks into one archive of OTF2.

It preloads a library for each module, and becomes the program. Each implementation of MPI has a module of
its name (Debian), or the one that EZTrace was built for is ``mpi``. The archive is ``PROGRAM_trace`` in the
folder of the profiles.
"""

from hpcprof.submit.profilers import base
from hpcprof.submit.profilers.base import Profiler, Setting, Settings, Target, Word

_MODULES = {"openmp": ("openmp",), "io": ("posixio",), "threads": ("pthread",)}
"""The modules of each setting."""

_UNKNOWN_MPI_NOTE = (
    "the program loads no MPI that EZTrace has a module for, as far as its libraries show: name one that "
    "eztrace_avail lists by --profiler-option mpi=."
)


def _flags(target: Target, settings: Settings) -> tuple[Word, ...]:
    more_modules = [name for key, names in _MODULES.items() if settings[key] == "true" for name in names]

    def modules(mpi: str) -> tuple[str, ...]:
        return "-t", " ".join([mpi, *more_modules])

    output = ("-o", base.FOLDER)
    if settings["mpi"] != "auto":
        return (*modules(settings["mpi"]), *output)
    named = [base.OnNode(f"mpi_is {name} && {_has(name)}", modules(name)) for name in ("openmpi", "mpich")]
    # A build for one implementation.
    single = base.OnNode(f"! {_has('openmpi|mpich')} && {_has('mpi')}", modules("mpi"))
    # Without the option it would load every module that is installed.
    chosen = base.OnNode(f'[ "$1" = -t ] || stop {_UNKNOWN_MPI_NOTE!r}', ())
    return (*output, *named, single, chosen)


def _has(module: str) -> str:
    return f"eztrace_avail 2>/dev/null | grep -Eq '^({module})[[:blank:]]'"


EZTRACE = Profiler(
    "eztrace",
    "EZTrace: MPI, and on request OpenMP and I/O, of a program as it is, without a GPU",
    settings={
        "mpi": Setting("the module for MPI; auto: that of the program's library", "auto"),
        "openmp": Setting("trace parallel regions of OpenMP (GNU's library)", "false", ("false", "true")),
        "io": Setting("trace POSIX I/O", "false", ("false", "true")),
        "threads": Setting("trace locks and threads of POSIX", "false", ("false", "true")),
    },
    check=lambda target, settings: base.check_one_archive(
        target, "EZTrace", "use eztrace_start() and eztrace_stop() in it"
    ),
    command=("eztrace",),
    flags=_flags,
    reader_package="otf2",
    becomes_program=True,
    starts_scripts=False,  # it looks for the name of the program among the files that the process has mapped
)
