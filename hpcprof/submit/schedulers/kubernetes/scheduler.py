"""Kubernetes with Kubeflow's MPI operator: paths in the pods, and the manifest of a job, ``mpijob.yaml``.

The scripts are those of every site. They reach the pods by a ConfigMap; the launcher pod copies them to the
volume of results, which every pod mounts, and runs job.sh: it starts all ranks by one mpirun.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from hpcprof.common.errors import UsageError
from hpcprof.runs.job import Job
from hpcprof.submit.launchers import LAUNCHERS
from hpcprof.submit.profilers import find_profiler
from hpcprof.submit.schedulers.base import SchedulerClient
from hpcprof.submit.schedulers.kubernetes import MPIJOB_FILE, object_name
from hpcprof.submit.schedulers.scheduler import FurtherFile, Rendering, Scheduler, gpus_per_node
from hpcprof.submit.sites.model import Site

_LAUNCHER_SCRIPT = (
    # The kubelet mounts links, to folders whose names begin with a dot.
    'mkdir -p "$1" && cp -RL /etc/hpcprof/* "$1" && exec /bin/bash "$1/job.sh"'
)
# A host key made here is in no image; -De keeps sshd in the foreground and its messages in the pod's log.
_WORKER_SCRIPT = (
    "key=$(mktemp -d)/key && ssh-keygen -q -t ed25519 -N '' -f \"$key\" && "
    "{ mkdir -p /run/sshd 2>/dev/null || :; } && "
    'exec /usr/sbin/sshd -De -p "$1" -h "$key" -o StrictModes=no'
)

_COUNT = (re.compile(r"\d{1,6}"), "a whole number")
_QUANTITY = (re.compile(r"\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?"), "a number with a unit such as 64Gi")
_NAME = (re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"), "lower-case letters, digits, - and .")
_PATH = (re.compile(r"/[\w./-]+", re.ASCII), "an absolute path of letters, digits and . _ / -")
_VALID = {
    "image": (re.compile(r"[\w.:/@-]+", re.ASCII), "the name of an image, as in registry/name:tag"),
    "pvc": _NAME,
    "namespace": _NAME,
    "mount": _PATH,
    "ssh_path": _PATH,
    "ssh_port": _COUNT,
    "gpus": _COUNT,
    "efa": _COUNT,
    "cpus": _QUANTITY,
    "memory": _QUANTITY,
    "hugepages": _QUANTITY,
    "shm": _QUANTITY,
    "node_selector": (re.compile(r"[\w./-]+=[\w.-]*(,[\w./-]+=[\w.-]*)*", re.ASCII), "KEY=VALUE[,KEY=VALUE]"),
}
_RESOURCES = {
    "cpus": "cpu",
    "memory": "memory",
    "gpus": "nvidia.com/gpu",
    "efa": "vpc.amazonaws.com/efa",
    "hugepages": "hugepages-2Mi",
}

_SPECIAL = re.compile(r"[^\x20-\x7e]")
# Characters that a YAML literal block carries as they are: no controls, and none that YAML 1.1 takes for a
# line break (U+0085, U+2028, U+2029) or drops (U+FEFF).
_PLAIN_TEXT = re.compile(
    "[\n\t\x20-\x7e\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010fffd]{2,}"
)


def yaml_value(value: object) -> str:
    """Return a value as JSON for YAML, which has no surrogate pairs, in printable ASCII on one line."""
    text = json.dumps(value, ensure_ascii=False)
    return _SPECIAL.sub(lambda match: f"\\U{ord(match[0]):08x}", text)


def pod_argument(text: str) -> str:
    """Return a word of a container's command; Kubernetes expands ``$(NAME)`` there and reads ``$$`` as $."""
    return yaml_value(text.replace("$", "$$"))


def yaml_text(text: str) -> str:
    """Return a script as a YAML literal block under a key indented by two; quoted if a block would differ."""
    # A block would lose white space at the ends, or read it as indentation.
    if not _PLAIN_TEXT.fullmatch(text) or f"{text.strip()}\n" != text:
        return yaml_value(text)
    return "|\n" + "\n".join(f"    {line}" if line else "" for line in text[:-1].split("\n"))


class KubernetesScheduler(Scheduler):
    """A run is an MPIJob, by kubectl."""

    name = "kubernetes"
    title = "Kubernetes"
    commands = ("kubectl",)
    silence_remedy = "Check that kubectl reaches the cluster and that the MPI operator is installed."
    template_filters = {  # noqa: RUF012 (never changed)
        "yaml": yaml_value,
        "yaml_text": yaml_text,
        "pod_argument": pod_argument,
    }
    submitted_file = MPIJOB_FILE
    runs_in_image = True
    resources = ("cpus_per_rank", "gpus_per_rank", "mem", "constraint")
    resource_options = {  # noqa: RUF012 (never changed)
        "cpus_per_rank": "cpus",
        "gpus_per_rank": "gpus",
        "mem": "memory",
        "constraint": "node_selector",
    }
    no_resources = "has no batch script with directives"
    masks_gpus = True

    def client(self) -> SchedulerClient:
        """Return the client that runs kubectl."""
        from hpcprof.submit.schedulers.kubernetes.client import KubernetesClient

        return KubernetesClient()

    def check(self, job: Job, site: Site) -> None:
        """Check that a constraint is made of labels."""
        pattern, valid = _VALID["node_selector"]
        if job.constraint and not pattern.fullmatch(job.constraint):
            raise UsageError(f"--constraint {job.constraint}: write {valid}.")

    def question(self, site: Site) -> list[str]:
        """Return the command that lists the MPIJobs in the site's context and namespace."""
        options = {key: site.options.get(key) for key in ("context", "namespace")}
        place = [f"--{key}={option.default}" for key, option in options.items() if option and option.default]
        return ["kubectl", "get", "mpijobs.kubeflow.org", "--output=name", *place]

    def localize(self, site: Site, job: Job, rendering: Rendering) -> tuple[Job, Rendering]:
        """Return the job and its rendering with the paths that they have in the pods."""
        _check_options(site, job)
        directory = pod_directory(rendering.run_directory, Path(job.options["mount"]))
        launch = rendering.launch
        export = LAUNCHERS[site.launcher.name].export_flag
        if launch and export:
            # Ranks in other pods get only the variables that the launcher is told to pass on.
            names = [*site.environment, *(["TMPDIR"] if site.tmpdir else [])]
            launch = [launch[0], *(word for name in names for word in (export, name)), *launch[1:]]
        return (
            msgspec.structs.replace(job, directory=job.options["directory"] or str(directory)),
            dataclasses.replace(rendering, run_directory=directory, launch=launch),
        )

    def further_files(
        self, site: Site, job: Job, run_id: str, scripts: Mapping[str, str]
    ) -> Sequence[FurtherFile]:
        """Return the manifest, which holds the scripts."""
        selector = job.constraint or job.options["node_selector"]
        capabilities = find_profiler(job.profiler).capabilities if job.profiled_ranks else ()
        values = {
            "name": object_name(run_id),
            "mpi_implementation": LAUNCHERS[site.launcher.name].mpi_operator_name,
            "launcher_script": _LAUNCHER_SCRIPT,
            "worker_script": _WORKER_SCRIPT,
            "resources": _resources(job),
            "capabilities": list(capabilities),
            "node_selector": dict(pair.split("=", 1) for pair in selector.split(",") if pair),
            "scripts": {path: text for path, text in scripts.items() if "/" not in path},
            # The keys of a ConfigMap have no slashes; the volume puts the files into their folders.
            "modules": [
                (path.replace("/", "."), path, text) for path, text in scripts.items() if "/" in path
            ],
        }
        return [FurtherFile(MPIJOB_FILE, "job/mpijob.yaml.j2", values)]


def pod_directory(run_directory: Path, mount: Path) -> Path:
    """Return the run directory in the pods: the same path if the volume is mounted here too."""
    if run_directory.is_relative_to(mount):
        return run_directory
    return mount / run_directory.name


def _resources(job: Job) -> dict[str, str]:
    """Return each worker's resources by Kubernetes' names: the user's, the site's, or one GPU per rank."""
    requests = {**job.options}
    if job.gpus_per_rank is not None or not requests["gpus"]:
        requests["gpus"] = str(gpus_per_node(job))
    if job.cpus_per_rank:
        requests["cpus"] = str(job.ranks_per_node * job.cpus_per_rank)
    if job.mem:
        requests["memory"] = f"{job.mem}i"
    return {name: requests[key] for key, name in _RESOURCES.items() if requests[key] not in ("", "0")}


def _check_options(site: Site, job: Job) -> None:
    if not LAUNCHERS[site.launcher.name].mpi_operator_name:
        launcher = f"the launcher of site {site.name} is {site.launcher.name.value}"
        raise UsageError(f"{launcher}; an MPIJob needs openmpi or mpich.")
    if job.queue and not _NAME[0].fullmatch(job.queue):
        raise UsageError(f"--queue {job.queue}: the name of a Kueue queue has only {_NAME[1]}.")
    for key, (pattern, valid) in _VALID.items():
        value = job.options.get(key)
        if value is None:
            raise UsageError(f"site {site.name} has no option {key}: extend the site kubernetes, or add it.")
        if value and not pattern.fullmatch(value):
            raise UsageError(f"-o {key}={value}: write {valid}.")
    if job.options["hugepages"] and not {"memory", "cpu"} & _resources(job).keys():
        limit = "Kubernetes grants huge pages only with memory or CPUs; give -o memory=… or -o cpus=… too"
        raise UsageError(f"-o hugepages={job.options['hugepages']}: {limit}.")
