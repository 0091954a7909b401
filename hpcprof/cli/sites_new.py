"""A first site file, filled from what the machine shows."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.processes import CommandNotStarted, CommandTimedOut, run_command
from hpcprof.submit.sites import probe
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.sites.model import Node, SchedulerName
from hpcprof.submit.sites.probe import Machine

Ask = Callable[[list[str]], str]
"""Runs a command and returns what it printed; empty where it is not there or failed."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_PARTITIONS = ["scontrol", "show", "partition"]
_NODES = ["scontrol", "show", "nodes"]
_SINFO = ["sinfo"]
_QUEUES = ["qstat", "-Q", "-f", "-F", "json"]
_PBSNODES = ["pbsnodes", "-a", "-F", "json"]
_GPUS = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]


def ask(command: list[str]) -> str:
    """Run a command of the machine's for at most 30 s."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = run_command(command, timeout=30)
    except (CommandNotStarted, CommandTimedOut):
        return ""
    return done.stdout if done.exit_code == 0 else ""


def new_site(name: str, template: str, folder: Path, ask: Ask = ask) -> Path:
    """Write ``folder/NAME.yaml``, which extends the site ``template``.

    Raises
    ------
    UsageError
        For a name that cannot be one, or that is taken.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a site: use letters, digits, - and .")
    site = load_site(template)
    text = site_text(template, site.scheduler, ask)
    path = folder / f"{name}.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} is there already: choose another name, or remove it.") from None
    except OSError as error:
        raise HpcprofError(f"cannot write to {path}: {error.strerror}.") from None
    return path


def site_text(template: str, scheduler: SchedulerName, ask: Ask) -> str:
    """Return the text of a site file with what the machine shows, and where each part comes from."""
    machine, sources = _look(scheduler, ask)
    shown = ask(_GPUS)
    gpus = probe.parse_nvidia_smi(shown)
    if gpus.gpus and not machine.node.gpus:
        node = msgspec.structs.replace(machine.node, gpus=gpus.gpus, gpu=gpus.gpu)
        machine = Machine(machine.queues, machine.default_queue, node)
        sources.append(f"{' '.join(_GPUS)} (on this machine: compare with a compute node)")
    lines = [
        "# Check every line against the machine's user guide, and say under source where it stands.",
        *(f"# From: {source}" for source in sources or ["nothing that this machine shows"]),
        _yaml({"extends": template, "description": "", "source": f"seen on the machine, {date.today()}"}),
        "verified: false",
    ]
    if machine.node != Node():
        lines.append(f"node: {_flow(machine.node)}")
    if machine.default_queue:
        lines.append(_yaml({"queue": machine.default_queue}))
    if machine.queues:
        lines.append("queues:")
        lines += [f"  {_flow(name)}: {_flow(queue)}" for name, queue in machine.queues.items()]
    return "\n".join(lines) + "\n"


def _look(scheduler: SchedulerName, ask: Ask) -> tuple[Machine, list[str]]:
    """Ask the batch system of the template; return what was found, and the commands that said it."""
    sources: list[str] = []

    def said(command: list[str]) -> str:
        text = ask(command)
        if text.strip():
            sources.append(" ".join(command))
        return text

    if scheduler is SchedulerName.SLURM:
        found = probe.parse_scontrol_partitions(said(_PARTITIONS))
        if not found.queues:
            found = probe.parse_sinfo(said(_SINFO))
        node = probe.parse_scontrol_nodes(said(_NODES))
    elif scheduler is SchedulerName.PBS:
        found = probe.parse_qstat_queues(said(_QUEUES))
        node = probe.parse_pbsnodes(said(_PBSNODES))
    else:
        return Machine(), sources
    return Machine(found.queues, found.default_queue, node), sources


def _yaml(value: dict[str, Any]) -> str:
    return msgspec.yaml.encode(value).decode().rstrip("\n")


def _flow(value: object) -> str:
    """Return a value as YAML on one line: JSON is YAML."""
    return msgspec.json.encode(value).decode().replace('":', '": ').replace(',"', ', "')
