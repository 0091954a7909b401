"""The site: a machine and how it is used. The keys of a site file are the fields of these models.

The text under each field is its description in the JSON Schema (``hpcprof sites schema``).
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec


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


class Required(Enum):
    """What a job must be given where the site has no default for it."""

    ACCOUNT = "account"
    QUEUE = "queue"


class Chunk(Enum):
    """What PBS's ``select`` counts."""

    NODE = "node"
    GPU = "gpu"


VariableName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
"""The name of an environment variable; it stands unquoted in the script."""


class _Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Launcher(_Model, frozen=True):
    """What starts the ranks."""

    name: LauncherName = LauncherName.MPIEXEC
    """The launcher; mpiexec is whichever MPI's is found, for one node; pals, mpich, openmpi are dialects."""
    arguments: list[str] = []
    """Arguments of every launch."""
    starter: LauncherName = LauncherName.SRUN
    """What starts one torchrun on each of several nodes: srun, pals, mpich or openmpi."""
    cpu_bind: list[str] = []
    """The cores of each local rank, in the order of the ranks: 0-7,32-39; for srun one core each."""
    cpu_bind_default: str = ""
    """What --cpu-bind gets for another number of ranks; empty leaves it to the launcher."""


class Node(_Model, frozen=True):
    """The shape of one node; what is absent is not checked."""

    cores: int | None = None
    """Cores that jobs can use."""
    threads: int = 1
    """Hardware threads of a core; their numbers follow those of the cores."""
    reserved_cores: list[int] = []
    """Numbers of cores that the system keeps for itself; no binding may name them."""
    gpus: int | None = None
    """GPUs as a rank can be given them: tiles or dies where those are devices of their own."""
    gpu: str = ""
    """What they are, for people."""
    vendor: Vendor = Vendor.NVIDIA
    """Who made them: nsys and ncu need nvidia."""


class Affinity(_Model, frozen=True):
    """Which GPU a rank sees."""

    variable: VariableName = "CUDA_VISIBLE_DEVICES"
    """The variable that is set for each rank."""
    devices: list[str] = []
    """Its value by local rank, beginning again beyond their number; empty leaves it alone."""


class Queue(_Model, frozen=True):
    """A queue, partition or QOS, and its limits."""

    min_nodes: int = 1
    """Fewest nodes of a job."""
    max_nodes: int | None = None
    """Most nodes of a job."""
    min_walltime: str = ""
    """Shortest walltime, HH:MM:SS."""
    max_walltime: str = ""
    """Longest walltime, HH:MM:SS."""
    walltime_by_nodes: dict[int, str] = {}
    """Longest walltime of jobs up to so many nodes, where it depends on them: {91: "02:00:00"}."""
    chunk: Chunk = Chunk.NODE
    """What PBS's select counts: node, or gpu (a job then has one node, and as many GPUs as ranks)."""
    chunks: list[int] = []
    """Numbers of chunks that are accepted; empty accepts any."""
    max_array: int | None = None
    """Members of a job array that may run at once; a wider array never runs whole."""
    routes: list[str] = []
    """The execution queues behind a routing queue."""
    route_only: bool = False
    """Jobs come here through a routing queue only."""
    directives: list[str] = []
    """Directives of this queue's jobs, without #PBS or #SBATCH."""
    note: str = ""
    """What a user should know before submitting here."""


class Option(_Model, frozen=True):
    """A setting of this site that a user gives by ``-o KEY=VALUE``."""

    help: str
    """What it is, for people."""
    default: str = ""
    """Its value where none is given."""
    required: bool = False
    """It must be given."""
    directive: str = ""
    """Directive that is written when there is a value; {} stands for it."""
    valid: list[str] = []
    """Accepted values, several of them joined by a colon; empty accepts any."""
    retired: dict[str, str] = {}
    """Values that were accepted once, each with the sentence that says what became of it."""


class Site(_Model, frozen=True):
    """A machine and how it is used."""

    name: str
    """The name of the file; not a key of it."""
    scheduler: str
    """The batch system: local, pbs, slurm, kubernetes, or one that another package adds."""
    description: str = ""
    """One line for people."""
    source: str = ""
    """Where the facts stand, with a date."""
    verified: bool = True
    """False where the facts are second hand."""
    notes: list[str] = []
    """What else a user should know; shown by hpcprof sites show."""
    launcher: Launcher = Launcher()
    """What starts the ranks."""
    node: Node = Node()
    """The shape of one node."""
    affinity: Affinity = Affinity()
    """Which GPU a rank sees."""
    walltime: str = "01:00:00"
    """The walltime of a job that gives none."""
    queue: str = ""
    """The queue of a job that gives none."""
    queues: dict[str, Queue] = {}
    """The queues by name; where some are listed, a job must be for one of them."""
    queue_directive: str = "--partition"
    """The option by which Slurm gets the queue: --partition, or --qos."""
    requires: list[Required] = []
    """What a job must be given: account, queue. (A walltime always stands in the script.)"""
    directives: list[str] = []
    """Directives of every batch script, without #PBS or #SBATCH."""
    select: str = ""
    """What is appended to PBS's -l select=N:."""
    preemption: Preemption = Preemption.REQUEUE
    """What happens to a preempted job: requeue, or cancel."""
    modules: list[str] = []
    """Modules to load."""
    setup: list[str] = []
    """Lines of shell after the modules, before the launch."""
    environment: dict[VariableName, str] = {}
    """Environment variables of the job."""
    tmpdir: str = ""
    """TMPDIR of the job: on the node's own disk, there on every node, and short."""
    dcgm: bool = False
    """Whether DCGM reads the hardware counters of the GPUs there; it is paused for profilers that do too."""
    profilers: list[str] = []
    """Profilers that work there; empty is all that the GPUs allow."""
    options: dict[str, Option] = {}
    """Settings of this site that users give by -o KEY=VALUE."""

    def chunks(self, queue: str, nodes: int, ranks_per_node: int) -> int:
        """Return N of PBS's ``-l select=N``."""
        by_gpu = queue in self.queues and self.queues[queue].chunk is Chunk.GPU
        return ranks_per_node if by_gpu else nodes
