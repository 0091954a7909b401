"""The site: a machine and how it is used. Fields are keys of a site file, their texts its schema's."""

from enum import Enum
from typing import Annotated, Any

import msgspec

from hpcprof.common.decode import from_json
from hpcprof.common.errors import HpcprofError
from hpcprof.runs.directory import Manifest


class LauncherName(Enum):
    """The programs that start the ranks on the nodes.

    ``mpiexec`` is that of whichever MPI is found, for one node. On several nodes the dialects differ:
    ``pals`` (Cray), ``mpich`` (Hydra, also of Intel MPI) or ``openmpi``. ``ibrun`` is TACC's, ``flux`` is
    ``flux run``, and ``jsrun`` that of IBM's machines.
    """

    MPIEXEC = "mpiexec"
    PALS = "pals"
    MPICH = "mpich"
    OPENMPI = "openmpi"
    SRUN = "srun"
    FLUX = "flux"
    IBRUN = "ibrun"
    JSRUN = "jsrun"
    TORCHRUN = "torchrun"
    NONE = "none"


class Vendor(Enum):
    """The maker of a node's GPUs, on which depends what can profile them."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"


class Required(Enum):
    """A value that every job needs because the site has no default."""

    ACCOUNT = "account"
    QUEUE = "queue"


class Chunk(Enum):
    """The unit of PBS's ``select``."""

    NODE = "node"
    GPU = "gpu"


class NodeRequest(Enum):
    """The way a job requests the cores and GPUs of ``node``."""

    NONE = "none"
    GPUS_PER_NODE = "gpus-per-node"
    GRES = "gres"
    CHUNK = "chunk"


VariableName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
"""The name of an environment variable, which is written to the script unquoted."""

MasterAddress = Annotated[str, msgspec.Meta(pattern=r"^(ip|[A-Za-z0-9.-]*\{node\}[A-Za-z0-9.-]*)$")]
"""A rule for the address of a node: its name with a prefix or a suffix, or ``ip``."""


class _Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Launcher(_Model, frozen=True):
    """The launcher of the ranks."""

    name: LauncherName = LauncherName.MPIEXEC
    """The launcher; mpiexec of whichever MPI is found, for one node; pals, mpich, openmpi are dialects."""
    arguments: list[str] = []
    """Arguments that are added to every launch."""
    starter: LauncherName = LauncherName.SRUN
    """The launcher that starts one torchrun on each of several nodes: srun, pals, mpich or openmpi."""
    cpu_bind: list[str] = []
    """The cores of each local rank, in the order of the ranks, as in 0-7,32-39; one core each for srun."""
    cpu_bind_default: str = ""
    """The value of --cpu-bind for other numbers of ranks; empty leaves binding to the launcher."""


class Node(_Model, frozen=True):
    """The shape of one node; jobs are not checked against values that are absent."""

    cores: int | None = None
    """The number of cores that jobs can use."""
    threads: int = 1
    """Hardware threads per core; their numbers follow those of the cores."""
    reserved_cores: list[int] = []
    """Numbers of the cores that the system keeps for itself; no binding may name them."""
    gpus: int | None = None
    """The number of GPUs that ranks can be given; tiles or dies count if they are separate devices."""
    gpu: str = ""
    """The model of the GPUs, for people."""
    memory: str = ""
    """Maximum memory of a job on a node, as in 512G; --mem is checked against it."""
    vendor: Vendor = Vendor.NVIDIA
    """The maker of the GPUs: nvidia, amd or intel. nsys and ncu need nvidia."""


class Affinity(_Model, frozen=True):
    """The GPU that a rank sees."""

    variable: VariableName = "CUDA_VISIBLE_DEVICES"
    """The environment variable that is set for each rank."""
    devices: list[str] = []
    """Its values by local rank; more ranks share them in blocks, and none leaves the variable alone."""


class Queue(_Model, frozen=True):
    """A queue, partition or QOS, and its limits."""

    min_nodes: int = 1
    """The fewest nodes of a job."""
    max_nodes: int | None = None
    """Maximum number of nodes of a job."""
    min_walltime: str = ""
    """The shortest walltime, HH:MM:SS."""
    max_walltime: str = ""
    """The longest walltime, HH:MM:SS."""
    max_node_time: str = ""
    """Maximum node time, HH:MM:SS: the walltime times the number of nodes."""
    walltime_by_nodes: dict[int, str] = {}
    """The longest walltime by the number of nodes: {91: "02:00:00"} applies to jobs of up to 91."""
    chunk: Chunk = Chunk.NODE
    """The unit of PBS's select: node, or gpu (a job then has one node and one GPU per rank)."""
    chunks: list[int] = []
    """The accepted numbers of chunks; empty accepts any."""
    max_array: int | None = None
    """Maximum number of members of a job array that may run at once."""
    routes: list[str] = []
    """The execution queues behind a routing queue."""
    route_only: bool = False
    """True if the queue accepts jobs from a routing queue only."""
    gpus_per_rank: int | None = None
    """GPUs of each rank of a job that does not say otherwise; absent for all GPUs of the nodes."""
    shared: bool = False
    """True if jobs may share a node: a job that asks for part of one (--gpus-per-rank) has no --exclusive."""
    directives: list[str] = []
    """Directives of this queue's jobs, without #PBS or #SBATCH."""
    note: str = ""
    """Advice to users before they submit here."""


class SiteOption(_Model, frozen=True):
    """An option of the site that a user sets by ``-o KEY=VALUE``."""

    help: str
    """The meaning, for people."""
    default: str = ""
    """The value if none is given."""
    required: bool = False
    """True if a value must be given."""
    directive: str = ""
    """A directive that is written if there is a value, which replaces {}."""
    valid: list[str] = []
    """The accepted values; a user may join several by colons. Empty accepts any."""
    retired: dict[str, str] = {}
    """Values that are no longer accepted, each with a sentence that explains why."""
    environment: dict[VariableName, str] = {}
    """Environment variables of jobs that have a value, unless the shell or a module sets them."""
    limits: dict[str, Queue] = {}
    """Limits by value, for options that name a QOS: they replace the limits of the queue."""


class Site(_Model, frozen=True):
    """A machine and how it is used."""

    name: str
    """The name of the file; not a key in it."""
    scheduler: str
    """The batch system: local, pbs, slurm, kubernetes, or one that another package adds."""
    description: str = ""
    """One line for people."""
    source: str = ""
    """The source of the facts, with a date."""
    verified: bool = True
    """True if the facts are first hand."""
    notes: list[str] = []
    """Further advice to users; hpcprof sites show prints it."""
    host: str = ""
    """The login node that ssh reaches, for jobs from another machine; only in your own site files."""
    user: str = ""
    """The account there; empty leaves it to ssh. Only with host."""
    runs_dir: str = ""
    """The folder of runs there; hpcprof-runs in the home folder by default. Only with host."""
    launcher: Launcher = Launcher()
    """The launcher of the ranks."""
    node: Node = Node()
    """The shape of one node."""
    affinity: Affinity = Affinity()
    """The GPU that a rank sees."""
    walltime: str = "01:00:00"
    """The walltime of a job that does not set one."""
    queue: str = ""
    """The queue of a job that does not set one."""
    queues: dict[str, Queue] = {}
    """The queues by name; if any are listed, a job must name one of them."""
    scheduler_keys: dict[str, Any] = {}
    """The keys of the scheduler's own, which a site file has under the scheduler's name."""
    requires: list[Required] = []
    """Values that every job needs: account, queue. (The script always has a walltime.)"""
    directives: list[str] = []
    """Directives of every batch script, without #PBS or #SBATCH."""
    node_request: NodeRequest = NodeRequest.NONE
    """The request for what node describes: gpus-per-node, gres (Slurm), chunk (PBS's ncpus, ngpus), none."""
    modules: list[str] = []
    """Modules to load."""
    setup: list[str] = []
    """Lines of shell after the modules, before the launch."""
    login_shell: bool = False
    """True if job.sh is run by a login shell, where `module` may need one."""
    environment: dict[VariableName, str] = {}
    """Environment variables of the job."""
    environment_defaults: dict[VariableName, str] = {}
    """Environment variables of the job, unless the shell or a module sets them."""
    python_defaults: dict[VariableName, str] = {}
    """Values for Python programs that replace the values of environment_defaults."""
    master_address: MasterAddress = "{node}"
    """MASTER_ADDR: the name of the first node, in which {node} is Slurm's or PBS's, or ip for its address."""
    tmpdir: str = ""
    """TMPDIR of the job: a short path on a local disk that every node has."""
    dcgm: bool = False
    """True if DCGM reads the GPUs' hardware counters; it is paused while a profiler reads them."""
    darshan_logs: str = ""
    """The logs of Darshan of a job, a pattern with {year}, {month}, {day}, {user} and {job}; may be empty."""
    profiler: str = ""
    """The profiler of --profiler auto, and of hpcprof run without --profiler; submit uses none by itself."""
    profilers: list[str] = []
    """The profilers that work at the site; empty means all that support its GPUs."""
    options: dict[str, SiteOption] = {}
    """Options of the site that users set by -o KEY=VALUE."""


OBSOLETE_KEYS = frozenset({"preemption"})
"""Keys of 0.3 that say nothing any more: schedulers themselves tell whether a preempted job runs again."""


def recorded_site(manifest: Manifest) -> Site:
    """Return the site of a run as it was when the run was submitted."""
    try:
        keys = from_json(manifest.site_keys)
        # 0.3 had the schedulers' keys among the site's keys.
        former = {key: keys.pop(key) for key in keys.keys() - Site.__struct_fields__}
        scheduler_keys = {key: value for key, value in former.items() if key not in OBSOLETE_KEYS}
        return msgspec.convert({"scheduler_keys": scheduler_keys, **keys}, Site)
    except msgspec.MsgspecError as error:
        raise HpcprofError(f"the site of {manifest.id} cannot be read: {error}.") from None
