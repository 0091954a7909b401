"""Variables of the submitting shell by which schedulers take options; none of their commands gets them.

They would change a job in silence, as ``SBATCH_PARTITION`` and ``PBS_DPREFIX`` do, or hide it from a query,
as ``SQUEUE_USERS`` does. A shell within a job also has the variables of that job, which a new job would
inherit. Host files, time limits and GPUs of the submitting host are no job's. Variables that say where the
scheduler is stay. Sources: the manuals of sbatch, srun, squeue and bsub
("Input environment variables"), ``qsub.c`` of OpenPBS 23.06, flux-environment(7), and ``mpiexec`` of MPICH
and Open MPI.
"""

import os
import re
from collections.abc import Mapping

from hpcprof.runs.job import Job
from hpcprof.submit.jobs.job import OPTIONS
from hpcprof.submit.jobs.walltime import format_walltime
from hpcprof.submit.schedulers.scheduler import Scheduler

# These are patterns of Python and of grep -E.
_LAUNCHER_VARIABLES = "(I_MPI_)?HYDRA_HOST_FILE|(OMPI|PRTE)_MCA_[a-z]+_default_hostfile|MPIEXEC_TIMEOUT"
_GPU_VARIABLES = "(CUDA|HIP|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK"
_OPTIONS = (
    f"{_LAUNCHER_VARIABLES}|{_GPU_VARIABLES}|"
    "(SBATCH|SLURM|SRUN|SALLOC|SQUEUE|SACCT|SCANCEL|SINFO|LSB|BSUB|FLUX)_[A-Za-z0-9_]+"
    "|PBS_(DPREFIX|SHELL|ENVIRONMENT|JOB[A-Z]+|NODE[A-Z]+|TASKNUM|MOMPORT|QUEUE|(O|ARRAY)_[A-Za-z0-9_]+)"
)
_CONNECTION = (
    "SLURM_(CONF|CONF_SERVER|CLUSTERS|JWT|SACK_[A-Z_]+)"
    "|FLUX_(URI|URI_RESOLVE_LOCAL|PROXY_REMOTE|CONF_DIR|SSH|SSH_RCMD|[A-Z_]*PATH(_PREPEND|_APPEND)?)"
)

UNSET_OPTIONS = (
    f"for name in $(env | sed -n 's/=.*//p' | grep -xE '{_OPTIONS}' | grep -vxE '{_CONNECTION}'); "
    'do unset "$name"; done'
)
"""A line of shell that removes the variables by which schedulers take options."""


def without_options(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables by which schedulers take options."""
    return {name: value for name, value in environment.items() if not _is_option(name)}


def _is_option(name: str) -> bool:
    return re.fullmatch(_OPTIONS, name) is not None and re.fullmatch(_CONNECTION, name) is None


def unused_options(scheduler: Scheduler, job: Job, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return a sentence, without its full stop, about the options that the shell sets and the job lacks."""
    # Variables of the job around the shell are no choice of the user's.
    within_job = bool(environment.get(scheduler.job_id_variable))
    everywhere = _LAUNCHER_VARIABLES if scheduler.runs_here else f"{_LAUNCHER_VARIABLES}|{_GPU_VARIABLES}"
    names = [
        name
        for name in sorted(environment)
        if (
            re.fullmatch(everywhere, name) or (_is_option(name) and name.startswith(scheduler.shell_prefixes))
        )
        and (not within_job or name in scheduler.shell_options)
    ]
    sentences = []
    for name in [name for name in names if name in scheduler.shell_options]:
        field = scheduler.shell_options[name]
        value, flag = getattr(job, field), OPTIONS[field].flag
        setting = f"{name}={environment[name]} of this shell does not apply"
        if not value:
            sentences.append(f"{setting}; give {flag} {environment[name]}")
        elif value != environment[name]:
            job_value = format_walltime(value) if field == "walltime" else value
            sentences.append(f"{setting}: the job has {flag} {job_value}")
    if unknown_names := [name for name in names if name not in scheduler.shell_options]:
        verb = "does" if len(unknown_names) == 1 else "do"
        sentences.append(f"{', '.join(unknown_names)} of this shell {verb} not apply")
    return sentences


def unused_option(scheduler: Scheduler, field: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the variable of the shell, with its value, that stands for a field of a job; empty for none."""
    names = (name for name, other in scheduler.shell_options.items() if other == field)
    return next((f"{name}={environment[name]}" for name in names if environment.get(name)), "")
