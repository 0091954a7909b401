"""The facts about a job that its profiler needs."""

from hpcprof.runs.job import Job
from hpcprof.runs.job_name import runs_python, uses_jax
from hpcprof.submit.profilers.base import Target
from hpcprof.workloads import catalogue


def target_of(job: Job) -> Target:
    """Return the facts about a job that its profiler needs."""
    if job.workload is not None:
        in_python, in_jax = True, catalogue.find(job.workload).uses_jax
    else:
        in_python, in_jax = runs_python(job.arguments), uses_jax(job.arguments, job.directory)
    return Target(
        job.workload,
        job.ranks,
        job.capture_steps.count(",") + 1 if job.capture_steps else 0,
        len(job.profiled_ranks),
        job.nodes,
        in_python=in_python,
        no_hook=job.no_hook,
        uses_jax=in_jax,
    )
