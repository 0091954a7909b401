"""Checks of the software that a run is made of: scheduler, driver, profilers, PyTorch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from hpcprof.submit.doctor.machine import CheckResult, Inspected, Status
from hpcprof.submit.schedulers.polling import LISTING_SECONDS

_TORCH = (
    "import json, torch; d = torch.distributed; "
    "names = [b for b in ('nccl', 'gloo', 'mpi', 'ucc', 'xccl') if d.is_available() and "
    "getattr(d, f'is_{b}_available', lambda: False)()]; "
    "print(json.dumps([torch.__version__, names, torch.version.cuda or torch.version.hip or '', "
    "torch.cuda.device_count()]))"
)


def scheduler(machine: Inspected) -> CheckResult:
    """Check that the commands of the site's scheduler are on the PATH, and that it answers."""
    name, site_scheduler = "scheduler", machine.scheduler
    if site_scheduler.runs_here:
        return CheckResult(name, Status.OK, "Jobs run on this machine, without a batch system.")
    title, commands = site_scheduler.title, site_scheduler.commands
    if not commands:
        return CheckResult(name, Status.ABSENT, f"{title} names no commands that could be checked.")
    missing = [command for command in commands if not machine.which(command)]
    if missing:
        remedy = f"Load the {title} module of the site, or use a login node of {machine.site.name}."
        return CheckResult(name, Status.BROKEN, f"{_listed(missing)} not on the PATH.", remedy)
    question = site_scheduler.question(machine.site)
    answer = machine.run(question, seconds=LISTING_SECONDS) if question else None
    if answer is not None and not answer.ok:
        why = answer.why if answer.stderr.strip() else answer.stdout.partition("\n")[0]
        observation = f"{' '.join(question)} failed: {why or answer.why}."
        return CheckResult(name, Status.BROKEN, observation, site_scheduler.silence_remedy)
    shortcoming = site_scheduler.shortcoming(answer.stdout) if answer is not None else None
    if shortcoming is not None:
        return CheckResult(name, Status.WARNING, shortcoming.observation, shortcoming.remedy)
    answers = f", and {title} answers" if question else ""
    return CheckResult(name, Status.OK, f"{_listed(commands)} on the PATH{answers}.")


def _listed(commands: Sequence[str]) -> str:
    """Return commands as the subject of a sentence, with its verb."""
    *others, last = commands
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"


def gpus(machine: Inspected) -> CheckResult:
    """List the GPUs that the driver shows."""
    name = "GPUs"
    if not machine.which("nvidia-smi"):
        remedy = "Run this on a compute node; without NVIDIA GPUs use the profiler torch."
        observation = "nvidia-smi is not on the PATH: no NVIDIA driver is installed here."
        return CheckResult(name, Status.ABSENT, observation, remedy)
    answer = machine.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    lines = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    if not answer.ok or not lines:
        observation = f"nvidia-smi shows no GPU: {answer.why}."
        return CheckResult(
            name, Status.BROKEN, observation, "Ask the operators whether the driver is loaded."
        )
    return CheckResult(name, Status.OK, f"{len(lines)} x {lines[0].replace(', ', ', driver ')}.")


def nsys(machine: Inspected) -> CheckResult:
    """Find the version of Nsight Systems."""
    return _tool(machine, "nsys", "Nsight Systems")


def ncu(machine: Inspected) -> CheckResult:
    """Find the version of Nsight Compute."""
    return _tool(machine, "ncu", "Nsight Compute")


def _tool(machine: Inspected, command: str, product: str) -> CheckResult:
    if not machine.which(command):
        remedy = (
            f"Load the CUDA module, install {product}, or build an image that has it (hpcprof container)."
        )
        return CheckResult(command, Status.ABSENT, f"{command} is not on the PATH.", remedy)
    answer = machine.run([command, "--version"])
    version = re.search(r"\d{4}\.\d+(\.\d+)*", answer.stdout)
    if not answer.ok or version is None:
        observation = f"{command} --version failed: {answer.why}."
        return CheckResult(command, Status.BROKEN, observation, f"Reinstall {product}.")
    return CheckResult(command, Status.OK, f"{product} {version[0]}.")


def torch(machine: Inspected) -> CheckResult:
    """Find the PyTorch that the ranks will use; it is imported by their Python, not by this one."""
    name, remedy = "PyTorch", "Install hpcprof[workloads] there, or name another Python with -o python=PATH."
    if machine.scheduler.runs_in_image:
        observation = "PyTorch is in the image that the jobs run in."
        return CheckResult(name, Status.ABSENT, observation, "Run hpcprof container test IMAGE.")
    answer = machine.run([machine.python, "-c", _TORCH])
    if not answer.ok:
        status = Status.ABSENT if "No module named 'torch'" in answer.stderr else Status.BROKEN
        return CheckResult(name, status, f"{machine.python} cannot import torch: {answer.why}.", remedy)
    version, backends, toolkit, devices = json.loads(answer.stdout.splitlines()[-1])
    gpus_seen = f"{devices} GPU{'' if devices == 1 else 's'}"
    observation = f"{version}, backends {', '.join(backends) or 'none'}, {gpus_seen}."
    if not toolkit and machine.which("nvidia-smi"):
        return CheckResult(
            name, Status.WARNING, f"{observation} It is a build for CPUs.", "Install one for CUDA."
        )
    if toolkit and not devices and machine.scheduler.runs_here and machine.which("nvidia-smi"):
        wrong = "Check that CUDA_VISIBLE_DEVICES is not empty and that the driver is new enough."
        return CheckResult(name, Status.WARNING, f"{observation} It sees none of the GPUs.", wrong)
    return CheckResult(name, Status.OK, observation)
