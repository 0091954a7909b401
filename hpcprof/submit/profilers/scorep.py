"""Score-P, linked into the program or preloaded, which records all ranks into one archive of OTF2.

``scorep-preload-init`` builds libraries that record MPI in a program that was built without Score-P.
Its settings are environment variables, which must be the same on all ranks. It makes the folder of an
experiment, but not the folders above it.
"""

import re
from dataclasses import replace

from hpcprof.common.errors import UsageError
from hpcprof.submit.profilers import base
from hpcprof.submit.profilers.base import Profiler, Setting, Settings, Target

_SIZE = re.compile(r"[1-9]\d*[KMG]?")
_LARGEST_MEMORY = 4 << 30
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_COMPLAINT = re.compile(r"^\[Score-P\] (?:\S+:\d+: )?(?:Error|Fatal): (.*\S)", re.MULTILINE)


def _check(target: Target, settings: Settings) -> None:
    base.check_one_archive(target, "Score-P", "use SCOREP_RECORDING_OFF() and SCOREP_RECORDING_ON() in it")
    size = settings["total-memory"]
    if not _SIZE.fullmatch(size) or int(size.rstrip("KMG")) * _UNITS.get(size[-1], 1) > _LARGEST_MEMORY:
        sentence = f"--profiler-option total-memory={size}: write a size of at most 4G, such as 256M."
        raise UsageError(sentence, "profiler_options.total-memory")


def _environment(target: Target, settings: Settings) -> dict[str, str]:
    variables = {"SCOREP_FILTERING_FILE": settings["filter"], "SCOREP_METRIC_PAPI": settings["papi"]}
    return {
        "SCOREP_ENABLE_TRACING": "true",
        "SCOREP_ENABLE_PROFILING": "false",
        "SCOREP_EXPERIMENT_DIRECTORY": f"{base.FOLDER}/scorep",
        "SCOREP_TOTAL_MEMORY": settings["total-memory"],
        **{name: value for name, value in variables.items() if value},
    }


def _complaint(text: str) -> str:
    match = _COMPLAINT.search(text)
    return f": Score-P says {match[1].rstrip('.')!r}" if match else ""


SCOREP = Profiler(
    "scorep",
    "Score-P: MPI, OpenMP and functions of a program that is built with it",
    settings={
        "total-memory": Setting(
            "memory for the events of a process; when it is full, the program waits while they are written",
            "256M",
        ),
        "filter": Setting("a file that names the functions to leave out; an absolute path"),
        "papi": Setting("hardware counters of PAPI, joined by commas"),
    },
    check=_check,
    environment=_environment,
    complaint=_complaint,
    chatter=r"\[Score-P\] ",
    in_program="scorep",
    needs="scorep",
    reader_package="otf2",
)

_PRELOAD_COMMAND = (
    'libraries=$(scorep-preload-init --value-only --nocompiler --mpp=mpi --thread=none "$2" "$1") && shift '
    '&& exec env LD_PRELOAD="$libraries${LD_PRELOAD:+:$LD_PRELOAD}" "$@"'
)

SCOREP_PRELOAD = replace(
    SCOREP,
    name="scorep-preload",
    summary="Score-P: MPI of a program as it is, by preloaded libraries",
    command=("/bin/sh",),
    flags=lambda target, settings: ("-c", _PRELOAD_COMMAND, "scorep-preload-init", base.SCRATCH),
    in_program="",
    needs="scorep-preload-init",
    becomes_program=True,
)
