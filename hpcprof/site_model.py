"""The site: a machine and how it is used. The keys of a site file are the fields of these models."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec


class SchedulerName(Enum):
    """The batch systems that hpcprof speaks to."""

    LOCAL = "local"
    PBS = "pbs"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


class LauncherName(Enum):
    """What starts the ranks on the nodes.

    ``mpiexec`` stands for whichever MPI's is found, and is for one node; several nodes need its dialect:
    ``pals`` (Cray), ``mpich`` (Hydra, Intel MPI too) or ``openmpi``.
    """

    MPIEXEC = "mpiexec"
    PALS = "pals"
    MPICH = "mpich"
    OPENMPI = "openmpi"
    SRUN = "srun"
    TORCHRUN = "torchrun"
    NONE = "none"


class Vendor(Enum):
    """Who made a node's GPUs, which decides what can profile them."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"


class Preemption(Enum):
    """What the site does with a preempted job: queue it again, or end it."""

    REQUEUE = "requeue"
    CANCEL = "cancel"


VariableName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
"""The name of an environment variable; it stands unquoted in the script."""


class _Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Launcher(_Model, frozen=True):
    """What starts the ranks.

    ``arguments`` stand on every launch. ``cpu_bind`` holds the cores of each local rank, in the order of
    the ranks (``0-7,32-39``); it is used when a node gets as many ranks. Otherwise ``--cpu-bind`` gets
    ``cpu_bind_default``, if that is set.
    """

    name: LauncherName = LauncherName.MPIEXEC
    arguments: list[str] = []
    cpu_bind: list[str] = []
    cpu_bind_default: str = ""


class Node(_Model, frozen=True):
    """The shape of one node; what is absent is not checked. ``gpus`` counts what a rank can be given."""

    cores: int | None = None
    gpus: int | None = None
    gpu: str = ""
    vendor: Vendor = Vendor.NVIDIA


class Affinity(_Model, frozen=True):
    """Which GPU a rank sees: ``variable`` is set to ``devices[local rank]``, repeated beyond their number."""

    variable: VariableName = "CUDA_VISIBLE_DEVICES"
    devices: list[str] = []


class Queue(_Model, frozen=True):
    """A queue, partition or QOS, and its limits. ``routes`` are the execution queues behind a routing one."""

    min_nodes: int = 1
    max_nodes: int | None = None
    min_walltime: str = ""
    max_walltime: str = ""
    max_array: int | None = None
    routes: list[str] = []
    directives: list[str] = []
    note: str = ""


class Option(_Model, frozen=True):
    """A setting of this site that a user gives by ``-o KEY=VALUE``.

    ``directive`` is written into the batch script when there is a value, with ``{}`` standing for it.
    ``valid`` lists the values that are accepted, several of them joined by ``:``; empty accepts any.
    """

    help: str
    default: str = ""
    required: bool = False
    directive: str = ""
    valid: list[str] = []


class Site(_Model, frozen=True):
    """A machine and how it is used. ``name`` is the name of its file.

    ``source`` says where its facts stand, with a date; ``verified`` is false where they are second hand.
    ``directives`` stand in every batch script as they are (without ``#PBS`` or ``#SBATCH``), ``setup``
    holds lines of shell that run before the launch. ``select`` is appended to PBS's ``-l select=N:``;
    ``queue_directive`` is the option by which Slurm gets the queue. ``requires`` names job fields that
    must be given. ``profilers`` is what can profile there, all of them by default.
    """

    name: str
    scheduler: SchedulerName
    description: str = ""
    source: str = ""
    verified: bool = True
    launcher: Launcher = Launcher()
    node: Node = Node()
    affinity: Affinity = Affinity()
    walltime: str = "01:00:00"
    queue: str = ""
    queues: dict[str, Queue] = {}
    queue_directive: str = "--partition"
    requires: list[str] = []
    directives: list[str] = []
    select: str = ""
    preemption: Preemption = Preemption.REQUEUE
    modules: list[str] = []
    setup: list[str] = []
    environment: dict[VariableName, str] = {}
    tmpdir: str = ""
    profilers: list[str] = []
    options: dict[str, Option] = {}
