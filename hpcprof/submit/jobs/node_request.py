"""What a job requests of each node, by the site's ``node`` and ``node_request``."""

from __future__ import annotations

from collections.abc import Iterable

from hpcprof.submit.jobs.job import Job
from hpcprof.submit.sites.model import Chunk, NodeRequest, Site


def gpu_directives(site: Site, directives: Iterable[str]) -> list[str]:
    """Return the directive that requests a node's GPUs; none if something else does."""
    if not site.node.gpus or _mentions_gpus([*directives, *site.launcher.arguments]):
        return []
    if site.node_request is NodeRequest.GPUS_PER_NODE:
        return [f"--gpus-per-node={site.node.gpus}"]
    return [f"--gres=gpu:{site.node.gpus}"] if site.node_request is NodeRequest.GRES else []


def chunk_resources(site: Site, job: Job) -> list[str]:
    """Return the resources of a chunk of PBS's ``-l select``: those of the site's ``select`` come first.

    A chunk is a whole node; ``mpiprocs`` gives the node one line for each rank in ``$PBS_NODEFILE``.
    """
    given = [site.select] if site.select else []
    queue = site.queues.get(job.queue)
    by_gpu = queue is not None and queue.chunk is Chunk.GPU
    if site.node_request is not NodeRequest.CHUNK or by_gpu or not (site.node.cores or site.node.gpus):
        return given
    named = {part.partition("=")[0] for part in site.select.split(":")}
    wanted = {"ncpus": site.node.cores, "ngpus": site.node.gpus, "mpiprocs": job.ranks_per_node}
    return given + [f"{key}={count}" for key, count in wanted.items() if count and key not in named]


def requests_no_gpus(site: Site, job: Job) -> bool:
    """Whether a job certainly has no GPU: the site's node is described, and nothing requests one."""
    if site.node_request is NodeRequest.NONE or site.node.gpus or not site.node.cores:
        return False
    queue = site.queues.get(job.queue)
    options = [f"{option.directive} {job.options.get(key)}" for key, option in site.options.items()]
    directives = [*site.directives, *(queue.directives if queue else []), *options]
    return not _mentions_gpus([*directives, *site.launcher.arguments, site.select])


def _mentions_gpus(options: Iterable[str]) -> bool:
    return any("gpu" in option for option in options)
