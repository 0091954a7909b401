"""A first site file, filled from what this machine's commands show."""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import HpcprofError, SchedulerError, UsageError, writing
from hpcprof.common.processes import CommandNotStarted, CommandTimedOut, run_command
from hpcprof.submit import doctor
from hpcprof.submit.doctor.mpi import Probe, mpi, probe_srun
from hpcprof.submit.mpi_types import OPTION
from hpcprof.submit.schedulers.polling import check_answers
from hpcprof.submit.schedulers.registry import find_scheduler, scheduler_names
from hpcprof.submit.schedulers.scheduler import Scheduler
from hpcprof.submit.schedulers.submitting_shell import without_options
from hpcprof.submit.sites.environment import active_environment
from hpcprof.submit.sites.files import load_site, site_files
from hpcprof.submit.sites.machine import Ask
from hpcprof.submit.sites.model import LauncherName, Node

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_GPUS = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
_MAKER = re.compile(r"^NVIDIA\s+")


def ask_machine(command: list[str]) -> str:
    """Run a command for at most 30 s and return what it printed; empty if it is not installed or failed."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        result = run_command(command, timeout=30, environment=without_options(os.environ))
    except (CommandNotStarted, CommandTimedOut):
        return ""
    return result.stdout if result.exit_code == 0 else ""


def generic_site() -> str:
    """Return the generic site of the first installed scheduler that answers, else of the first or Slurm's."""
    sites = [site for name in scheduler_names() if (site := f"generic-{name}") in site_files()]
    installed = [site for site in sites if find_scheduler(load_site(site).scheduler).installed]
    return next(filter(_answers, installed), installed[0] if installed else "generic-slurm")


def _answers(name: str) -> bool:
    site = load_site(name)
    try:
        check_answers(find_scheduler(site.scheduler), site, "")
    except SchedulerError:
        return False
    return True


def new_site(
    name: str,
    template: str,
    folder: Path,
    ask: Ask = ask_machine,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Write ``folder/NAME.yaml``, which extends ``template``, with the environment that jobs lack."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a site: use letters, digits, - and .")
    parent = load_site(template)
    scheduler = find_scheduler(parent.scheduler)
    text = site_text(template, scheduler, ask)
    if not (scheduler.passes_environment or parent.modules or parent.setup):
        active = active_environment(environment)
        text += "# A job does not have the environment of your shell. In it was active:\n" if active else ""
        text += "".join(f"{key}: {_flow(lines)}\n" for key, lines in active.items())
    path = folder / f"{name}.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} already exists: choose another name, or remove it.") from None
    except OSError as error:
        raise HpcprofError(f"cannot write to {path}: {error.strerror}.") from None
    return path


def site_text(template: str, scheduler: Scheduler, ask: Ask) -> str:
    """Return the text of a site file with what the machine shows, and which commands showed it."""
    sources: list[str] = []

    def ask_and_note(command: list[str]) -> str:
        text = ask(command)
        if text.strip():
            sources.append(" ".join(command))
        return text

    machine = scheduler.probe(ask_and_note)
    gpus = parse_nvidia_smi(ask(_GPUS))
    if gpus.gpus and not machine.node.gpus:
        node = msgspec.structs.replace(machine.node, gpus=gpus.gpus, gpu=gpus.gpu)
        machine = replace(machine, node=node)
        sources.append(f"{' '.join(_GPUS)} (on this machine: compare with a compute node)")
    lines = [
        "# Check every line against the machine's user guide, and name the guide under source.",
        *(f"# From: {source}" for source in sources or ["nothing that this machine shows"]),
        _yaml({"extends": template, "description": "", "source": f"seen on the machine, {date.today()}"}),
        "verified: false",
    ]
    if machine.node != Node():
        lines.append(f"node: {_flow(machine.node)}")
    if machine.requires:
        lines.append(f"requires: {_flow(machine.requires)}")
    if machine.accounts:
        lines.append(f"# Your accounts (--account): {', '.join(machine.accounts)}")
    if machine.node_request is not None:
        lines.append(_yaml({"node_request": machine.node_request.value}))
    if machine.default_queue:
        lines.append(_yaml({"queue": machine.default_queue}))
    if machine.queues:
        lines.append("queues:")
        lines += [f"  {_flow(name)}: {_flow(queue)}" for name, queue in machine.queues.items()]
    return "\n".join(lines) + "\n"


def add_mpi(path: Path, machine: doctor.Inspected) -> str:
    """Add to a new site the MPI type that connected two ranks in the doctor, and return its sentence."""
    probe = probe_srun(machine) if machine.site.launcher.name is LauncherName.SRUN else Probe(mpi(machine))
    sentence = f"{probe.finding.observation} {probe.finding.remedy}".rstrip()
    lines = [f"# MPI: {sentence}"]
    if probe.type is not None and OPTION in machine.site.options:
        lines += ["options:", f"  {OPTION}: {_flow({'default': probe.type})}"]
    with writing(path):
        write_atomically(path, path.read_text(encoding="utf-8") + "\n".join(lines) + "\n")
    return sentence


def parse_nvidia_smi(text: str) -> Node:
    """Read the output of ``nvidia-smi --query-gpu=name --format=csv,noheader``: one line per GPU."""
    names = [line.strip() for line in text.splitlines() if line.strip()]
    return Node(gpus=len(names), gpu=_MAKER.sub("", names[0])) if names else Node()


def _yaml(value: dict[str, Any]) -> str:
    return msgspec.yaml.encode(value).decode().rstrip("\n")


def _flow(value: object) -> str:
    """Return a value as YAML on one line: JSON is YAML."""
    return msgspec.json.encode(value).decode().replace('":', '": ').replace(',"', ', "')
