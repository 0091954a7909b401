"""Checks of the software that a run is made of: scheduler, MPI, driver, profilers, PyTorch."""

from __future__ import annotations

import json
import re

from hpcprof.submit.doctor.finding import Finding, Status
from hpcprof.submit.doctor.machine import Machine

# What submitting, asking and ending need, and a question that the scheduler itself must answer.
_SCHEDULERS = {
    "pbs": (("qsub", "qstat", "qdel"), ("qstat", "-B")),
    "slurm": (("sbatch", "squeue", "scancel"), ("sinfo", "--noheader", "--format=%P")),
    "kubernetes": (("kubectl",), ("kubectl", "get", "mpijobs.kubeflow.org", "--output=name")),
}
# One write a rank, so that pieces of two ranks cannot mix.
_RANKS = (
    "import os; from mpi4py import MPI; world = MPI.COMM_WORLD; "
    "os.write(1, b'rank %d of %d\\n' % (world.rank, world.size))"
)
# Open MPI refuses root and more ranks than cores, neither of which says that it does not work.
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
_TORCH = (
    "import json, torch; d = torch.distributed; "
    "names = [b for b in ('nccl', 'gloo', 'mpi', 'ucc', 'xccl') if d.is_available() and "
    "getattr(d, f'is_{b}_available', lambda: False)()]; "
    "print(json.dumps([torch.__version__, names, torch.version.cuda or torch.version.hip or '', "
    "torch.cuda.device_count()]))"
)


def scheduler(machine: Machine) -> Finding:
    """Look whether the site's scheduler has its commands here, and answers."""
    name, kind = "scheduler", machine.site.scheduler
    if kind not in _SCHEDULERS:
        return Finding(name, Status.OK, "Jobs run on this machine, without a batch system.")
    commands, question = _SCHEDULERS[kind]
    missing = [command for command in commands if not machine.which(command)]
    if missing:
        remedy = f"Load the site's {kind} module, or go to a login node of {machine.site.name}."
        return Finding(name, Status.BROKEN, f"There is no {', no '.join(missing)} on the PATH.", remedy)
    answer = machine.run([*question, *_place(machine)])
    if not answer.ok:
        remedy = f"Ask the operators whether {kind} is running."
        if kind == "kubernetes":
            remedy = "Look whether kubectl reaches the cluster, and whether the MPI operator is installed."
        return Finding(name, Status.BROKEN, f"{' '.join(question)} fails: {answer.why}.", remedy)
    return Finding(name, Status.OK, f"{', '.join(commands)} are there, and {kind} answers.")


def _place(machine: Machine) -> list[str]:
    """Return the context and namespace that a Kubernetes site names."""
    if machine.site.scheduler != "kubernetes":
        return []
    given = {key: machine.site.options.get(key) for key in ("context", "namespace")}
    return [f"--{key}={option.default}" for key, option in given.items() if option and option.default]


def mpi(machine: Machine) -> Finding:
    """Start two ranks and look whether they are two of one job, not two jobs of one rank."""
    name, mpiexec = "MPI", machine.mpiexec()
    if mpiexec is None:
        remedy = "Load the site's MPI module, or install hpcprof[workloads]."
        return Finding(name, Status.ABSENT, "There is no mpiexec on the PATH.", remedy)
    answer = machine.run([mpiexec, "-n", "2", machine.python, "-c", _RANKS], _OPEN_MPI)
    ranks = sorted(re.findall(r"rank \d+ of \d+", answer.stdout))
    if answer.ok and ranks == ["rank 0 of 2", "rank 1 of 2"]:
        return Finding(name, Status.OK, f"{mpiexec} starts 2 ranks that know each other.")
    # On a login node many sites let nobody start ranks, which says nothing about their jobs.
    status = Status.BROKEN if machine.here else Status.WARNING
    if "No module named 'mpi4py'" in answer.stderr + answer.stdout:
        remedy = "Install hpcprof[workloads], if you want hpcprof's own workloads."
        said = f"{machine.python} has no mpi4py, so nothing was started."
        return Finding(name, Status.WARNING, said, remedy)
    if ranks == ["rank 0 of 1", "rank 0 of 1"]:
        remedy = "Build mpi4py with the MPI of this mpiexec, or use the mpiexec of mpi4py's MPI."
        said = f"{mpiexec} starts 2 jobs of one rank: it is not the MPI of {machine.python}."
        return Finding(name, status, said, remedy)
    remedy = "Try it in a job of the site." if not machine.here else "Repair or reinstall the MPI."
    return Finding(name, status, f"{mpiexec} does not start 2 ranks: {answer.why}.", remedy)


def gpus(machine: Machine) -> Finding:
    """Look which GPUs the driver shows."""
    name = "GPUs"
    if not machine.which("nvidia-smi"):
        remedy = "Ask again on a compute node; without NVIDIA GPUs use the profiler torch."
        return Finding(name, Status.ABSENT, "There is no nvidia-smi: no NVIDIA driver is here.", remedy)
    answer = machine.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    lines = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    if not answer.ok or not lines:
        said = f"nvidia-smi shows no GPU: {answer.why}."
        return Finding(name, Status.BROKEN, said, "Ask the operators whether the driver is loaded.")
    return Finding(name, Status.OK, f"{len(lines)} x {lines[0].replace(', ', ', driver ')}.")


def nsys(machine: Machine) -> Finding:
    """Look for Nsight Systems."""
    return _tool(machine, "nsys", "Nsight Systems")


def ncu(machine: Machine) -> Finding:
    """Look for Nsight Compute."""
    return _tool(machine, "ncu", "Nsight Compute")


def _tool(machine: Machine, command: str, product: str) -> Finding:
    if not machine.which(command):
        remedy = f"Load the CUDA module, or install {product}; hpcprof container builds an image that has it."
        return Finding(command, Status.ABSENT, f"There is no {command} on the PATH.", remedy)
    answer = machine.run([command, "--version"])
    version = re.search(r"\d{4}\.\d+(\.\d+)*", answer.stdout)
    if not answer.ok or version is None:
        said = f"{command} --version fails: {answer.why}."
        return Finding(command, Status.BROKEN, said, f"Reinstall {product}.")
    return Finding(command, Status.OK, f"{product} {version[0]}.")


def torch(machine: Machine) -> Finding:
    """Look which PyTorch the ranks would have; it is imported in their Python, not in this one."""
    name, remedy = "PyTorch", "Install hpcprof[workloads] there, or name another Python by -o python=PATH."
    if machine.site.scheduler == "kubernetes":
        said = "It is in the image of the pods."
        return Finding(name, Status.ABSENT, said, "Ask hpcprof container test IMAGE.")
    answer = machine.run([machine.python, "-c", _TORCH])
    if not answer.ok:
        status = Status.ABSENT if "No module named 'torch'" in answer.stderr else Status.BROKEN
        return Finding(name, status, f"{machine.python} cannot import torch: {answer.why}.", remedy)
    version, backends, toolkit, devices = json.loads(answer.stdout.splitlines()[-1])
    said = f"{version}, backends {', '.join(backends) or 'none'}, {devices} GPUs."
    if not toolkit and machine.which("nvidia-smi"):
        return Finding(name, Status.WARNING, f"{said} It is a build for the CPU.", "Install one for CUDA.")
    if toolkit and not devices and machine.here and machine.which("nvidia-smi"):
        wrong = "Look whether CUDA_VISIBLE_DEVICES is empty, and whether the driver is new enough."
        return Finding(name, Status.WARNING, f"{said} It sees none of the GPUs.", wrong)
    return Finding(name, Status.OK, said)
