"""The request of a job for each node, by the site's ``node`` and ``node_request`` and the user's options."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from hpcprof.submit.jobs.job import Job
from hpcprof.submit.sites.model import Chunk, NodeRequest, Site

_GPU_COUNT = re.compile(
    r"(?P<option>--gpus-per-task|--gpus-per-node|--gres(?==gpu))=(?P<kind>[A-Za-z][\w:.-]*:)?\d+"
)
"""A directive or an argument of srun that counts GPUs, such as ``--gres=gpu:a100:4``."""


def gpu_directives(
    site: Site, job: Job, directives: Iterable[str], otherwise: NodeRequest = NodeRequest.NONE
) -> list[str]:
    """Return the directive that requests a node's GPUs; none if something else does.

    A site without ``node_request`` requests them as ``otherwise`` says, if the user asks for GPUs.
    """
    asked = job.gpus_per_rank is not None
    count = gpus_per_node(job) if asked else site.node.gpus
    others = [*directives, *site.launcher.arguments]
    if not count or (any(map(counts_gpus, others)) if asked else _mentions_gpus(others)):
        return []
    request = otherwise if asked and site.node_request is NodeRequest.NONE else site.node_request
    if request is NodeRequest.GPUS_PER_NODE:
        return [f"--gpus-per-node={count}"]
    return [f"--gres=gpu:{count}"] if request is NodeRequest.GRES else []


def fitted_to_job(options: Iterable[str], job: Job) -> list[str]:
    """Return directives or arguments of srun that count the GPUs which the user asks for, if any."""
    if job.gpus_per_rank is None:
        return list(options)

    def fitted(match: re.Match[str]) -> str:
        count = job.gpus_per_rank if match["option"] == "--gpus-per-task" else gpus_per_node(job)
        return f"{match['option']}={match['kind'] or ''}{count}"

    kept = [option for option in options if job.gpus_per_rank or not counts_gpus(option)]
    return [_GPU_COUNT.sub(fitted, option) for option in kept]


def counts_gpus(option: str) -> bool:
    """Return whether `fitted_to_job` can put another number of GPUs into a directive or srun's arguments."""
    return _GPU_COUNT.match(option) is not None


def gpus_per_node(job: Job) -> int:
    """Return the GPUs on each node that the user asks for, by default one for each rank."""
    return job.ranks_per_node * (1 if job.gpus_per_rank is None else job.gpus_per_rank)


def chunks(site: Site, job: Job) -> int:
    """Return N of PBS's ``-l select=N``: the number of nodes, or of GPUs in a queue that counts those."""
    return gpus_per_node(job) if _by_gpu(site, job) else job.nodes


def chunk_resources(site: Site, job: Job) -> list[str]:
    """Return the resources of a chunk of PBS's ``-l select``: those of the site's ``select`` come first.

    A chunk is a whole node; ``mpiprocs`` gives the node one line for each rank in ``$PBS_NODEFILE``. What the
    user asks for replaces what the site has.
    """
    whole, asked = _by_site(site, job), _by_user(job)
    if _by_gpu(site, job):
        asked.pop("ngpus", None)
    elif asked and site.node_request is NodeRequest.CHUNK:
        whole.setdefault("mpiprocs", str(job.ranks_per_node))
    given = dict(_pair(part) for part in site.select.split(":") if part)
    named = {**given, **{key: value for key, value in whole.items() if key not in given}}
    return [f"{key}={value}" if value else key for key, value in {**named, **asked}.items()]


def rank_devices(site: Site, job: Job, masked: bool) -> Site:
    """Return the site with the devices of each rank: as many of ``affinity.devices`` as the user asks for.

    The devices are those of a whole node. If a job has fewer GPUs, and the scheduler shows it no others
    (``masked``), their numbers are unknown: the variable is then left as the scheduler sets it.
    """
    count = job.gpus_per_rank
    if count is None or not site.affinity.devices:
        return site
    whole = gpus_per_node(job) >= (site.node.gpus or len(site.affinity.devices))
    devices = site.affinity.devices if count and (whole or not masked) else []
    groups = [",".join(devices[i : i + count]) for i in range(0, len(devices) - count + 1, count or 1)]
    affinity = msgspec.structs.replace(site.affinity, devices=groups)
    return msgspec.structs.replace(site, affinity=affinity)


def requests_no_gpus(site: Site, job: Job) -> bool:
    """Return whether a job certainly has no GPU: the site's node is described, and nothing requests one."""
    if job.gpus_per_rank is not None:
        return job.gpus_per_rank == 0
    if site.node_request is NodeRequest.NONE or site.node.gpus or not site.node.cores:
        return False
    queue = site.queues.get(job.queue)
    options = [f"{option.directive} {job.options.get(key)}" for key, option in site.options.items()]
    directives = [*site.directives, *(queue.directives if queue else []), *options, *job.scheduler_args]
    return not _mentions_gpus([*directives, *site.launcher.arguments, site.select])


def _by_gpu(site: Site, job: Job) -> bool:
    queue = site.queues.get(job.queue)
    return queue is not None and queue.chunk is Chunk.GPU


def _by_site(site: Site, job: Job) -> dict[str, str]:
    if site.node_request is not NodeRequest.CHUNK or _by_gpu(site, job):
        return {}
    if not (site.node.cores or site.node.gpus):
        return {}
    wanted = {"ncpus": site.node.cores, "ngpus": site.node.gpus, "mpiprocs": job.ranks_per_node}
    return {key: str(count) for key, count in wanted.items() if count}


def _by_user(job: Job) -> dict[str, str]:
    asked = {}
    if job.cpus_per_rank:
        asked["ncpus"] = str(job.ranks_per_node * job.cpus_per_rank)
    if job.gpus_per_rank is not None:
        asked["ngpus"] = str(gpus_per_node(job))
    if job.mem:
        asked["mem"] = f"{job.mem.lower()}b"
    return {**asked, **dict(_pair(part) for part in job.constraint.split(":") if part)}


def _pair(part: str) -> tuple[str, str]:
    key, _, value = part.partition("=")
    return key, value


def _mentions_gpus(options: Iterable[str]) -> bool:
    return any("gpu" in option for option in options)
