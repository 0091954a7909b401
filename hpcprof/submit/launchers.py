"""Launchers: the command that starts a job's ranks, and the variables that number them, in one table."""

import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath

import msgspec

from hpcprof.common.errors import UsageError
from hpcprof.runs.job import Job
from hpcprof.submit.linked_libraries import mpi_family
from hpcprof.submit.mpi_types import type_argument
from hpcprof.submit.schedulers.scheduler import gpus_are_shared
from hpcprof.submit.schedulers.slurm import fit_gpus
from hpcprof.submit.sites.model import Launcher, LauncherName, Site

# The order in which the wrapper asks: a launcher's own variables first. If one launcher runs inside another
# (mpirun in a Slurm job), the outer one's variables describe the launcher's helpers, not the ranks.
_RANK_VARIABLES = ("pals", "ompi", "pmi", "flux", "pmix", "slurm", "torchrun")

_REACH = re.compile("-+(launcher|launcher-exec|rmk|iface|f|hosts?|hostfile|machinefile|mca|prtemca|prefix)")
"""Options of MPICH's and Open MPI's mpiexec for the start of processes on other nodes."""

RENDEZVOUS = "{meeting}"
"""Placeholder in an argv for the first node of the job and a port, which the script determines."""

RENDEZVOUS_HOST, RENDEZVOUS_PORT = "{meeting_host}", "{meeting_port}"
"""Placeholders for each of the two."""


ROOT_VARIABLES = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Settings that let Open MPI start ranks as root, which it refuses by default."""

ROOT_REMEDY = f"Set {' and '.join(f'{k}={v}' for k, v in ROOT_VARIABLES.items())}, or do not run as root."


def refuses_root(output: str) -> bool:
    """Return whether the output of mpirun is Open MPI's refusal to start ranks as root."""
    return "OMPI_ALLOW_RUN_AS_ROOT" in output or "attempt to run as root" in output


_WORKER_SIGNALS = ("USR1", "USR2", "ALRM", "XCPU")
_UNSIGNALLED = ("sh", "-c", f"trap '' {' '.join(_WORKER_SIGNALS)}; exec \"$@\"", "hpcprof")
"""Starts a launcher of workers that ignores their signals, which would end it."""

_SIGNAL_STARTER = (
    *("python3", "-IS", "-c"),
    "import os, signal, sys\n"
    f"for name in {_WORKER_SIGNALS}: signal.signal(getattr(signal, 'SIG' + name), signal.SIG_DFL)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])",
)
"""Starts a worker with the default actions: it inherits ignored signals, which libraries take for handled."""


class LauncherDescription(msgspec.Struct, frozen=True):
    """All that hpcprof knows of one launcher."""

    command: Callable[[Site, Job], list[str]]
    """``(site, job) -> argv``, which the program of each rank follows."""
    rank_variables: tuple[str, ...] = _RANK_VARIABLES
    """Families of environment variables that the wrapper asks for the rank, in this order."""
    several_nodes: bool = True
    """True if it starts ranks on several nodes."""
    on_each_node: str = ""
    """The words that start one process on each of ``{nodes}`` nodes; empty if it cannot."""
    needs_starter: bool = False
    """True if it must itself be started on each node, by ``launcher.starter`` of the site."""
    mpi_operator_name: str = ""
    """Its MPI in an MPIJob of Kubeflow's MPI operator; empty if the operator does not support it."""
    ends_other_ranks: bool = False
    """True if it ends the other ranks when one fails in a job without a profiler. Otherwise the wrapper does:
    MPICH's Hydra, for one, ends only MPI programs.
    """
    withheld_signals: tuple[str, ...] = ("XCPU",)
    """The signals that it does not pass on to its ranks, and that would end it."""
    export_flag: str = ""
    """The flag that passes an environment variable on to ranks on other nodes, if they do not get all."""


def with_launcher(site: Site, job: Job) -> Site:
    """Return the site with the launcher of a job, and its options: torchrun for the workers of a command."""
    launcher = site.launcher
    if job.workers:
        launcher = Launcher(LauncherName.TORCHRUN, starter=starter(site))
    elif job.launcher_args:
        arguments = [*launcher.arguments, *job.launcher_args]
        launcher = msgspec.structs.replace(launcher, arguments=arguments)
    return msgspec.structs.replace(site, launcher=launcher)


def launch_command(site: Site, job: Job) -> list[str]:
    """Return the launcher's argv, which the program of each rank follows; empty for no launcher."""
    site = with_launcher(site, job)
    return _with_chosen_mpiexec(LAUNCHERS[site.launcher.name].command(site, job), job)


def _with_chosen_mpiexec(words: list[str], job: Job) -> list[str]:
    """Return a launch by the program of ``-o mpiexec=PATH``, if it is one by mpiexec."""
    path = job.options.get("mpiexec") if words[:1] in (["mpiexec"], ["mpirun"]) else ""
    return [path, *words[1:]] if path else words


def check_starts_ranks(environment: Mapping[str, str]) -> None:
    """Check that no launcher has started this command as one of several ranks: each would run a job."""
    # srun --pty gives one of its tasks a terminal, in which people work.
    steps = {} if "SLURM_PTY_PORT" in environment else {"srun": "SLURM_STEP_NUM_TASKS"}
    for name, variable in {**steps, "mpirun": "OMPI_COMM_WORLD_SIZE", "mpiexec": "PMI_SIZE"}.items():
        size = environment.get(variable, "")
        if size.isdecimal() and int(size) > 1:
            raise UsageError(
                f"{name} has started hpcprof {size} times, and each would run the program by itself: leave "
                f"{name} out, and give --nodes and --ranks-per-node."
            )


def find_mpiexec(family: str | None = None) -> str | None:
    """Return mpiexec beside hpcprof's Python, so that no environment need be active, else on the PATH.

    If the program uses a known MPI, ``openmpi`` or ``mpich``, mpiexec on the PATH comes first, and before it
    the one with the name of this MPI: where several are installed, Debian calls them ``mpiexec.mpich``.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    own_names = [shutil.which(name) for name in (f"mpiexec.{family}", "mpiexec") if family]
    paths = [*own_names, str(beside) if beside.is_file() else None, shutil.which("mpiexec")]
    return next(filter(None, paths), None)


def _no_launcher(site: Site, job: Job) -> list[str]:
    if job.ranks > 1:
        raise UsageError(f"site {site.name} has no launcher: it runs one rank, not {job.ranks}.")
    if job.launcher_args:
        raise UsageError(f"--launcher-arg {job.launcher_args[0]}: site {site.name} has no launcher.")
    return []


def _mpiexec(site: Site, job: Job) -> list[str]:
    """Start ranks on one node by any MPI; one rank needs none, and Open MPI's launcher would refuse root."""
    if job.ranks == 1 and not (job.options.get("mpiexec") or site.launcher.arguments):
        return []
    family = None if job.workload else mpi_family(job.arguments, job.directory)
    mpiexec = job.options.get("mpiexec") or ("mpiexec" if site.host else find_mpiexec(family))
    if mpiexec is None:
        advice = "install hpcprof[workloads], load the site's MPI module, or give -o mpiexec=PATH"
        raise UsageError(f"no mpiexec beside {sys.executable} nor on the PATH: {advice}.")
    return [mpiexec, *site.launcher.arguments, "-n", str(job.ranks)]


def _pals(site: Site, job: Job) -> list[str]:
    return [
        "mpiexec",
        *site.launcher.arguments,
        *f"-n {job.ranks} --ppn {job.ranks_per_node}".split(),
        *(["--depth", str(job.cpus_per_rank)] if job.cpus_per_rank else []),
        *_cpu_bind(site, job, lambda cores: f"list:{':'.join(cores)}"),
    ]


def _openmpi(site: Site, job: Job) -> list[str]:
    # By default Open MPI binds each of up to two ranks to a single core.
    elements = f":pe={job.cpus_per_rank}" if job.cpus_per_rank else ""
    # It counts cores; a node may have fewer of them than CPUs.
    cpus, cores = job.ranks_per_node * (job.cpus_per_rank or 0), site.node.cores
    return [
        "mpirun",
        *site.launcher.arguments,
        *(["--use-hwthread-cpus"] if cores and cpus > cores else []),
        *f"-n {job.ranks} --map-by ppr:{job.ranks_per_node}:node{elements}".split(),
    ]


def _srun(site: Site, job: Job) -> list[str]:
    # Where Slurm has a WaitTime, srun kills the other ranks that long after the first has ended, even with
    # code 0. If a rank fails, the wrapper ends the others and lets their profilers write. Without profilers
    # srun does it, unless the site wants failed ranks to be tolerated.
    endings = {"--wait=0": ("--wait", "-W"), "--kill-on-bad-exit=1": ("--kill-on-bad-exit", "-K")}
    if job.profiled_ranks:
        del endings["--kill-on-bad-exit=1"]
    arguments = fit_gpus(site.launcher.arguments, job)
    if gpus_are_shared(site, job):
        on_gpu = -(-job.ranks_per_node // (site.node.gpus or 1))
        arguments = [a.replace("--gpus-per-task=1", f"--ntasks-per-gpu={on_gpu}") for a in arguments]
    return [
        "srun",
        *arguments,
        *type_argument(job),
        *f"--nodes={job.nodes} --ntasks={job.ranks} --ntasks-per-node={job.ranks_per_node}".split(),
        *([f"--cpus-per-task={job.cpus_per_rank}"] if job.cpus_per_rank else []),
        *_cpu_bind(site, job, _in_slurm),
        *(option for option, names in endings.items() if not any(a.startswith(names) for a in arguments)),
    ]


def _flux(site: Site, job: Job) -> list[str]:
    """Start ranks by ``flux run``: each has its share of the node's cores and GPUs, or what the job asks for.

    Where the site does not tell the cores, Flux shares out all that the job has. By default it would give a
    rank one core and no GPU, and end the other ranks 30 s after the first one, and with them a profiler that
    is still writing. Source: flux-run(1).
    """
    cores, gpus = _shares(site, job)
    if cores or job.gpus_per_rank is not None:
        requests = {"cores": cores, "gpus": gpus}
        shares = [f"--{name}-per-task={count}" for name, count in requests.items() if count]
    else:
        shares = ["--exclusive", "-o", "cpu-affinity=per-task", "-o", "gpu-affinity=per-task"]
    return [
        *("flux", "run"),
        *site.launcher.arguments,
        *f"--nodes={job.nodes} --ntasks={job.ranks}".split(),
        *shares,
        *("-o", "exit-timeout=none"),
        *([] if job.profiled_ranks else ["-o", "exit-on-error"]),
    ]


def _jsrun(site: Site, job: Job) -> list[str]:
    """Start ranks by jsrun: a resource set for each rank, or without known cores one for each node.

    Source: OLCF's guide to Summit (systems/summit_user_guide.rst), 2026-07-22.
    """
    cores, gpus = _shares(site, job)
    by_rank, by_node = (job.ranks, job.ranks_per_node, 1), (job.nodes, 1, job.ranks_per_node)
    sets, on_node, tasks = by_rank if cores else by_node
    return [
        "jsrun",
        *site.launcher.arguments,
        *f"--nrs={sets} --rs_per_host={on_node} --tasks_per_rs={tasks}".split(),
        f"--cpu_per_rs={cores or 'ALL_CPUS'}",
        f"--gpu_per_rs={gpus if cores else 'ALL_GPUS'}",
        f"--bind=packed:{cores}" if cores else "--bind=none",
    ]


def _shares(site: Site, job: Job) -> tuple[int, int]:
    """Return the cores and GPUs that a job asks for, or else a rank's share of a node; 0 if unknown."""
    cores, gpus = ((count or 0) // job.ranks_per_node for count in (site.node.cores, site.node.gpus))
    return job.cpus_per_rank or cores, gpus if job.gpus_per_rank is None else job.gpus_per_rank


def _torchrun(site: Site, job: Job) -> list[str]:
    """Start one torchrun or accelerate per node; on several nodes they meet at the first node.

    Source: src/accelerate/commands/launch.py of accelerate. With the rendezvous c10d the number of a node is
    not used, but asked for.
    """
    if any(PurePath(word).name.startswith("accelerate") for word in job.workers):
        count = ["--num_processes", str(job.ranks), "--num_machines", str(job.nodes)]
        local, alone = [*job.workers, "--no_python", *count], []
        rendezvous = ["--rdzv_backend", "c10d", "--machine_rank", "0", "--main_process_ip", RENDEZVOUS_HOST]
        rendezvous += ["--main_process_port", RENDEZVOUS_PORT]
    else:
        local = [*(job.workers or ["torchrun"]), "--no-python", f"--nproc-per-node={job.ranks_per_node}"]
        rendezvous = [f"--nnodes={job.nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={RENDEZVOUS}"]
        alone = ["--standalone"]
    across = [*on_each_node(site, job), *_UNSIGNALLED, *local, *rendezvous]
    start = across if job.nodes > 1 else local + alone
    return [*start, *site.launcher.arguments, *_SIGNAL_STARTER]


def starter(site: Site) -> LauncherName:
    """Return the command that starts one process on each node: the launcher, or else the site's starter."""
    launcher = LAUNCHERS[site.launcher.name]
    starts_itself = launcher.on_each_node and not launcher.needs_starter
    return site.launcher.name if starts_itself else site.launcher.starter


def on_each_node(site: Site, job: Job) -> list[str]:
    """Return the argv that starts one process on each node of the job; empty for a job of one node."""
    if job.nodes == 1:
        return []
    name = starter(site)
    argv = _with_chosen_mpiexec(LAUNCHERS[name].on_each_node.format(nodes=job.nodes).split(), job)
    assert argv, name
    if name is site.launcher.name:
        argv[1:1] = _connection_arguments(site.launcher.arguments)
    if name is LauncherName.SRUN and job.cpus_per_rank:
        # This one process starts all ranks of its node.
        argv.append(f"--cpus-per-task={job.ranks_per_node * job.cpus_per_rank}")
    return [*argv, *job.launcher_args] if job.workers else argv


def _connection_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of mpiexec by which it reaches other nodes, with their values."""
    is_option, words = False, []
    for word in arguments:
        if word.startswith("-"):
            is_option = _REACH.fullmatch(word.partition("=")[0]) is not None
        words += [word] if is_option else []
    return words


def _cpu_bind(site: Site, job: Job, written: Callable[[Sequence[str]], str]) -> list[str]:
    if any(word.startswith(("--cpu-bind", "--cpu_bind")) for word in job.launcher_args):
        return []
    cores = site.launcher.cpu_bind
    if cores and job.ranks_per_node == len(cores):
        return [f"--cpu-bind={written(cores)}"]
    return [f"--cpu-bind={site.launcher.cpu_bind_default}"] if site.launcher.cpu_bind_default else []


def _in_slurm(cores: Sequence[str]) -> str:
    """Return the cores of each rank as srun takes them: only masks can name several for one rank."""
    if all(core.isdigit() for core in cores):
        return f"map_cpu:{','.join(cores)}"
    return f"mask_cpu:{','.join(f'0x{sum(1 << core for core in core_numbers(group)):x}' for group in cores)}"


def core_numbers(cores: str) -> set[int]:
    """Return the numbers in cores and spans, as in ``0-7,32-39``."""
    spans = (part.partition("-") for part in cores.split(","))
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


LAUNCHERS: dict[LauncherName, LauncherDescription] = {
    LauncherName.NONE: LauncherDescription(_no_launcher, several_nodes=False),
    LauncherName.MPIEXEC: LauncherDescription(
        _mpiexec,
        several_nodes=False,
        withheld_signals=("USR2", "XCPU"),  # of Hydra
    ),
    LauncherName.SRUN: LauncherDescription(
        _srun,
        rank_variables=("slurm", "pmi", "pmix", "ompi", "flux"),
        on_each_node="srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpu-bind=none --wait=0",
        ends_other_ranks=True,
    ),
    LauncherName.FLUX: LauncherDescription(
        _flux,
        rank_variables=("flux",),
        on_each_node="flux run --nodes={nodes} --ntasks={nodes} --exclusive",
        ends_other_ranks=True,
    ),
    # TACC's ibrun takes all from the job (guide to Vista, 2026-08-12). It starts the ranks of each MPI with
    # that MPI's own launcher, or with srun.
    LauncherName.IBRUN: LauncherDescription(
        lambda site, job: ["ibrun", *site.launcher.arguments],
        rank_variables=("ompi", "mvapich", "pmi", "slurm", "pmix"),
    ),
    LauncherName.JSRUN: LauncherDescription(
        _jsrun,
        rank_variables=("jsm", "ompi", "pmix"),
        on_each_node="jsrun --nrs={nodes} --rs_per_host=1 --tasks_per_rs=1 --cpu_per_rs=ALL_CPUS"
        " --gpu_per_rs=ALL_GPUS",
    ),
    LauncherName.PALS: LauncherDescription(_pals, on_each_node="mpiexec -n {nodes} --ppn 1 --cpu-bind none"),
    LauncherName.MPICH: LauncherDescription(
        lambda site, job: (
            ["mpiexec", *site.launcher.arguments, *f"-n {job.ranks} -ppn {job.ranks_per_node}".split()]
        ),
        rank_variables=("pmi", *_RANK_VARIABLES),  # variables of the submitting shell may come to other nodes
        on_each_node="mpiexec -n {nodes} -ppn 1",
        mpi_operator_name="MPICH",
        withheld_signals=("USR2", "XCPU"),  # seen with Hydra of MPICH 5.0
    ),
    LauncherName.OPENMPI: LauncherDescription(
        _openmpi,
        rank_variables=("ompi", *_RANK_VARIABLES),
        on_each_node="mpirun -n {nodes} --map-by ppr:1:node --bind-to none",
        mpi_operator_name="OpenMPI",
        ends_other_ranks=True,
        export_flag="-x",
    ),
    LauncherName.TORCHRUN: LauncherDescription(
        _torchrun,
        rank_variables=("torchrun",),
        needs_starter=True,
        ends_other_ranks=True,
        withheld_signals=_WORKER_SIGNALS,
    ),
}

STARTERS = tuple(name for name, launcher in LAUNCHERS.items() if launcher.on_each_node)
"""The launchers that can start one process on each node."""
