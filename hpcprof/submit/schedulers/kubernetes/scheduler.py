"""Kubernetes with Kubeflow's MPI operator."""

from collections.abc import Mapping, Sequence

from hpcprof.runs.job import Job
from hpcprof.submit.schedulers.base import SchedulerClient
from hpcprof.submit.schedulers.kubernetes import manifest
from hpcprof.submit.schedulers.scheduler import FurtherFile, Rendering, Scheduler
from hpcprof.submit.sites.model import Site


class KubernetesScheduler(Scheduler):
    """A run is an MPIJob, by kubectl."""

    name = "kubernetes"
    title = "Kubernetes"
    commands = ("kubectl",)
    silence_remedy = "Check that kubectl reaches the cluster and that the MPI operator is installed."
    template_filters = {  # noqa: RUF012 (never changed)
        "yaml": manifest.yaml_value,
        "yaml_text": manifest.yaml_text,
        "pod_argument": manifest.pod_argument,
    }
    submitted_file = manifest.MPIJOB_FILE
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
        manifest.check_constraint(job)

    def question(self, site: Site) -> list[str]:
        """Return the command that lists the MPIJobs in the site's context and namespace."""
        given = {key: site.options.get(key) for key in ("context", "namespace")}
        place = [f"--{key}={option.default}" for key, option in given.items() if option and option.default]
        return ["kubectl", "get", "mpijobs.kubeflow.org", "--output=name", *place]

    def localize(self, site: Site, job: Job, rendering: Rendering) -> tuple[Job, Rendering]:
        """Return the job and its rendering with paths as they are in the pods."""
        return manifest.in_pods(site, job, rendering)

    def further_files(
        self, site: Site, job: Job, run_id: str, scripts: Mapping[str, str]
    ) -> Sequence[FurtherFile]:
        """Return the manifest, which holds the scripts."""
        values = manifest.manifest_values(site, job, run_id, scripts)
        return [FurtherFile(manifest.MPIJOB_FILE, manifest.MPIJOB_TEMPLATE, values)]
