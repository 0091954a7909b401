"""Checks of the node and its software, and how all checks run: at the same time, each with a time limit."""

import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from hpcprof.common.processes import NO_WORKING_FOLDER
from hpcprof.submit.doctor.machine import COMMAND_SECONDS, CheckResult, Inspected, absent, broken, ok, warning
from hpcprof.submit.doctor.mpi import mpi
from hpcprof.submit.doctor.node_evidence import native_stacks
from hpcprof.submit.schedulers.command import refused_question
from hpcprof.submit.schedulers.polling import LISTING_SECONDS

_GIB = 2**30
# unix(7): sun_path holds 108 bytes, the last of them a zero.
SOCKET_PATH = 107
# The wrapper makes a folder of this form for each rank; profilers make folders of their own in it.
_SCRATCH = "/hpcprof.XXXXXX/"
_MIN_PROFILER_BYTES = 50
"""Minimum length that a path must leave for a profiler's own folders."""


def counters(machine: Inspected) -> CheckResult:
    """Check that this user may read hardware counters; otherwise ncu fails with ERR_NVGPUCTRPERM."""
    text = machine.read(Path("/proc/driver/nvidia/params"))
    if text is None:
        return absent("No NVIDIA driver is loaded here.")
    if re.search(r"^RmProfilingAdminOnly: *1", text, re.MULTILINE) and machine.user != 0:
        return warning(
            "The driver lets only administrators read them: ncu fails with ERR_NVGPUCTRPERM.",
            "Ask the operators to set the module option NVreg_RestrictProfilingToAdminUsers=0.",
        )
    return ok("This user may read hardware counters.")


def perf_events(machine: Inspected) -> CheckResult:
    """Check that nsys can sample the CPU."""
    text = (machine.read(Path("/proc/sys/kernel/perf_event_paranoid")) or "").strip()
    if not re.fullmatch(r"-?\d+", text):
        return absent("This kernel has no perf_event_paranoid.")
    if int(text) > 2 and machine.user != 0:
        return warning(
            f"perf_event_paranoid is {text}: nsys cannot sample the CPU.",
            "Keep the profiler option sample=none, or ask for sysctl kernel.perf_event_paranoid=2.",
        )
    return ok(f"perf_event_paranoid is {text}.")


def tmpdir(machine: Inspected) -> CheckResult:
    """Check that TMPDIR is short, writable and has space."""
    path = os.path.expandvars(machine.site.tmpdir) or machine.environment.get("TMPDIR") or "/tmp"
    spare = SOCKET_PATH - len(path.encode()) - len(_SCRATCH)
    if spare < _MIN_PROFILER_BYTES:
        judge = broken if spare < 0 else warning
        return judge(
            f"{path} is too long: the path of a profiler's socket in it has at most {SOCKET_PATH} bytes.",
            "Set TMPDIR to a short path on the node, such as /tmp.",
        )
    if machine.site.tmpdir and not machine.scheduler.runs_here:
        return ok(f"Jobs make {path} on the node.")
    try:
        with tempfile.TemporaryDirectory(dir=path):
            free = machine.free(Path(path))
    except OSError as error:
        remedy = "Set TMPDIR to a folder that exists and that you can write to."
        return broken(f"{path} cannot be written: {error.strerror}.", remedy)
    if free < _GIB:
        return warning(f"{path} has {free / _GIB:.1f} GiB left.", "Free some space, or set TMPDIR elsewhere.")
    return ok(f"{path} has {free / _GIB:.0f} GiB left.")


def dcgm(machine: Inspected) -> CheckResult:
    """Check that NVIDIA's monitoring does not hold the hardware counters, which have one user at a time."""
    if not machine.which("dcgmi"):
        return absent("dcgmi is not on the PATH: no monitoring has to be paused for hardware counters.")
    if not machine.run(["dcgmi", "discovery", "--list"]).ok:
        return ok("Its host engine is not running.")
    return warning(
        "It is running and may hold the hardware counters.",
        "Run dcgmi profile --pause before ncu, and dcgmi profile --resume afterwards.",
    )


def runs(machine: Inspected) -> CheckResult:
    """Check that there is space for runs."""
    free = machine.free(machine.runs.absolute()) / _GIB
    observation = f"{machine.runs} has {free:.1f} GiB left."
    if free < 5:
        judge = broken if free < 0.1 else warning
        return judge(observation, "Free some space, or give --runs-dir on another file system.")
    return ok(observation)


_TORCH = (
    "import json, torch; d = torch.distributed; "
    "names = [b for b in ('nccl', 'gloo', 'mpi', 'ucc', 'xccl') if d.is_available() and "
    "getattr(d, f'is_{b}_available', lambda: False)()]; "
    "print(json.dumps([torch.__version__, names, torch.version.cuda or torch.version.hip or '', "
    "torch.cuda.device_count()]))"
)


def scheduler(machine: Inspected) -> CheckResult:
    """Check that the commands of the site's scheduler are on the PATH, and that it answers."""
    site_scheduler = machine.scheduler
    if site_scheduler.runs_here:
        return ok("Jobs run on this machine, without a batch system.")
    title, commands = site_scheduler.title, site_scheduler.commands
    if not commands:
        return absent(f"{title} names no commands that could be checked.")
    missing = [command for command in commands if not machine.which(command)]
    if missing:
        remedy = f"Load the {title} module of the site, or use a login node of {machine.site.name}."
        return broken(f"Not on the PATH: {', '.join(missing)}.", remedy)
    question = site_scheduler.question(machine.site)
    answer = machine.run(question, seconds=LISTING_SECONDS) if question else None
    if answer is not None and not answer.ok:
        reason = answer.why if answer.stderr.strip() else answer.stdout.partition("\n")[0]
        if refused := refused_question(question, title, reason):
            return broken(f"{refused}.", "Describe the site with the batch system that it has.")
        observation = f"{' '.join(question)} failed: {reason or answer.why}."
        remedy = site_scheduler.silence_remedy or f"Ask the operators whether {title} is running."
        return broken(observation, remedy)
    shortcoming = site_scheduler.shortcoming(answer.stdout) if answer is not None else None
    if shortcoming is not None:
        return warning(shortcoming.observation, shortcoming.remedy)
    return ok(f"On the PATH: {', '.join(commands)}{f'; {title} answers' if question else ''}.")


def gpus(machine: Inspected) -> CheckResult:
    """List the GPUs that the driver shows."""
    if not machine.which("nvidia-smi"):
        remedy = "Run this on a compute node; without NVIDIA GPUs, nsys records MPI, and torch PyTorch."
        observation = "nvidia-smi is not on the PATH: no NVIDIA driver is installed here."
        return absent(observation, remedy)
    answer = machine.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    lines = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    if not answer.ok or not lines:
        observation = f"nvidia-smi shows no GPU: {answer.why}."
        return broken(observation, "Ask the operators whether the driver is loaded.")
    return ok(f"{len(lines)} x {lines[0].replace(', ', ', driver ')}.")


_VERSIONS = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "print(mpi4py.__version__, *MPI.Get_version())"
)
_LARGE_COUNTS_VERSION = 4
"""The first version of mpi4py that calls functions such as ``MPI_Send_c``, and of MPI that has them."""

_LAST_NSYS_WITHOUT_LARGE_COUNTS = (2023, 4)
"""The last version of nsys that is known not to trace them."""


def mpi_profiling(machine: Inspected) -> CheckResult:
    """Name the profilers that record calls of MPI here."""
    if machine.scheduler.runs_in_image:
        return absent("The profilers are in the image that the jobs run in.")
    sentences = []
    if machine.which("nsys"):
        sentences.append("nsys records programs of Open MPI, MPICH and MPIs derived from them as they are")
    if machine.which("unitrace"):
        sentences.append("unitrace records programs of the MPI that it was built with")
    if modules := _eztrace_modules(machine):
        programs = f"programs of {' and '.join(modules)}"
        sentences.append(f"EZTrace records {programs} as they are, of Python by the file behind python3")
    if machine.which("scorep"):
        preloads = " or, by scorep-preload, as they are" if machine.which("scorep-preload-init") else ""
        sentences.append(f"Score-P records programs that are built with it{preloads}")
    if not sentences:
        return absent(
            "None of nsys, unitrace, eztrace and scorep is on the PATH.",
            "Install EZTrace (apt-get install eztrace), or load a module of Nsight Systems, which needs no "
            "GPU for this, or of Score-P.",
        )
    observation = f"{'; '.join(sentences)}."
    if (machine.which("scorep") or modules) and find_spec("otf2") is None:
        observation += " Archives of EZTrace and Score-P cannot be read here."
        return warning(observation, "Install hpcprof[otf2].")
    if machine.which("nsys") and _misses_messages_of_mpi4py(machine):
        observation += " This nsys does not record the messages of this mpi4py."
        remedy = "Use a newer nsys, mpi4py 3, or an MPI without large counts, such as Open MPI 5.0."
        return warning(observation, remedy)
    return ok(observation)


def _eztrace_modules(machine: Inspected) -> list[str]:
    if not machine.which("eztrace"):
        return []
    listed = machine.run(["eztrace_avail"]).stdout
    names = re.findall(r"^(openmpi|mpich|mpi)\s", listed, re.MULTILINE)
    return ["its MPI" if name == "mpi" else {"openmpi": "Open MPI", "mpich": "MPICH"}[name] for name in names]


def _misses_messages_of_mpi4py(machine: Inspected) -> bool:
    """Return whether mpi4py calls functions that nsys does not trace: those for large counts."""
    version = _version(machine.run(["nsys", "--version"]).stdout)
    if version is None or tuple(map(int, version.split(".")[:2])) > _LAST_NSYS_WITHOUT_LARGE_COUNTS:
        return False
    answer = machine.run([machine.python, "-c", NO_WORKING_FOLDER + _VERSIONS])
    match = re.search(r"^(\d+)\S* (\d+) \d+$", answer.stdout, re.MULTILINE)
    return match is not None and min(map(int, match.groups())) >= _LARGE_COUNTS_VERSION


def _tool(machine: Inspected, command: str, product: str) -> CheckResult:
    if not machine.which(command):
        alternatives = f"install {product}, or build an image that has it (hpcprof container)"
        return absent(f"{command} is not on the PATH.", f"Load the CUDA module, {alternatives}.")
    answer = machine.run([command, "--version"])
    version = _version(answer.stdout)
    if not answer.ok or version is None:
        return broken(f"{command} --version failed: {answer.why}.", f"Reinstall {product}.")
    return ok(f"{product} {version}.")


nsys = partial(_tool, command="nsys", product="Nsight Systems")
ncu = partial(_tool, command="ncu", product="Nsight Compute")
"""Find the versions of Nsight Systems and Nsight Compute."""


def _version(text: str) -> str | None:
    match = re.search(r"\d{4}\.\d+(\.\d+)*", text)
    return match[0] if match else None


def torch(machine: Inspected) -> CheckResult:
    """Find the PyTorch that the ranks will use; it is imported by their Python, not by this one."""
    remedy = "Install hpcprof[workloads] there, or name another Python with -o python=PATH."
    if machine.scheduler.runs_in_image:
        return absent("PyTorch is in the image that the jobs run in.", "Run hpcprof container test IMAGE.")
    answer = machine.run([machine.python, "-c", NO_WORKING_FOLDER + _TORCH])
    if not answer.ok:
        judge = absent if "No module named 'torch'" in answer.stderr else broken
        return judge(f"{machine.python} cannot import torch: {answer.why}.", remedy)
    version, backends, toolkit, devices = json.loads(answer.stdout.splitlines()[-1])
    gpus_seen = f"{devices} GPU{'' if devices == 1 else 's'}"
    observation = f"{version}, backends {', '.join(backends) or 'none'}, {gpus_seen}."
    if not toolkit and machine.which("nvidia-smi"):
        return warning(f"{observation} It is a build for CPUs.", "Install one for CUDA.")
    if toolkit and not devices and machine.scheduler.runs_here and machine.which("nvidia-smi"):
        wrong = "Check that CUDA_VISIBLE_DEVICES is not empty and that the driver is new enough."
        return warning(f"{observation} It sees none of the GPUs.", wrong)
    return ok(observation)


Check = Callable[[Inspected], CheckResult]

CHECKS: dict[str, Check] = {
    "scheduler": scheduler,
    "MPI": mpi,
    "GPUs": gpus,
    "nsys": nsys,
    "MPI profiling": mpi_profiling,
    "ncu": ncu,
    "hardware counters": counters,
    "CPU sampling": perf_events,
    "evidence of stalls": native_stacks,
    "TMPDIR": tmpdir,
    "DCGM": dcgm,
    "PyTorch": torch,
    "runs folder": runs,
}
"""Every check by the name of its finding. To add one, write a function and enter it here."""

_RANK_STARTING_CHECK = "MPI"

CHECK_SECONDS = 2 * COMMAND_SECONDS
"""The time limit of a check; a command inside one has a shorter limit."""


def examine(
    machine: Inspected, checks: Mapping[str, Check], seconds: float = CHECK_SECONDS
) -> Iterator[CheckResult]:
    """Run checks at the same time, and yield their findings in the order of the table.

    A check that raises an exception or exceeds the time limit yields a finding too. A check may hang
    for ever on a file system that is gone; its thread does not keep the program alive.

    A check that starts ranks in a batch system runs in this thread, so that Ctrl-C gives their node back, and
    each of its commands has a time limit of its own.
    """
    results: dict[str, CheckResult] = {}

    def run(name: str) -> None:
        try:
            results[name] = checks[name](machine)
        except Exception as error:
            results[name] = broken(f"The check failed: {type(error).__name__}: {error}.", "Report it.")

    in_job = _RANK_STARTING_CHECK in checks and machine.starts_ranks and not machine.scheduler.runs_here
    in_threads = [name for name in checks if not (in_job and name == _RANK_STARTING_CHECK)]
    threads = {name: threading.Thread(target=run, args=[name], daemon=True) for name in in_threads}
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + seconds
    if in_job:
        run(_RANK_STARTING_CHECK)
    late = f"The check did not finish within {seconds:.0f} s."
    for name in checks:
        if name in threads:
            threads[name].join(max(0.0, deadline - time.monotonic()))
        finding = results.get(name) or broken(
            late, "Look for a file system or a server that does not respond."
        )
        yield replace(finding, name=name)
