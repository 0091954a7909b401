"""The declaration of ``local``: this machine, without a batch system."""

from hpcprof.common.errors import UsageError
from hpcprof.runs.job import Job
from hpcprof.submit.schedulers.base import SchedulerClient
from hpcprof.submit.schedulers.scheduler import Scheduler
from hpcprof.submit.sites.model import Site


class LocalScheduler(Scheduler):
    """Jobs start at once on this machine, under a supervisor that enforces the walltime."""

    name = "local"
    title = "this machine"
    runs_here = True
    no_resources = "has no batch system"

    def client(self) -> SchedulerClient:
        """Return the client that starts supervisors."""
        from hpcprof.submit.schedulers.local.client import LocalClient

        return LocalClient()

    def check(self, job: Job, site: Site) -> None:
        """Check that the job has one node, no queue and no account."""
        if job.nodes != 1:
            sentence = f"--nodes {job.nodes}: site {site.name} is this machine alone; use --nodes 1."
            raise UsageError(sentence, "nodes", "site")
        for field in ("queue", "account"):
            if value := getattr(job, field):
                sentence = f"--{field} {value}: site {site.name} has no batch system; leave it out."
                raise UsageError(sentence, field, "site")
