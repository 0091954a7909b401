"""The variables of the submitting shell by which schedulers take options."""

from __future__ import annotations

from typing import Any

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.checks import remarks
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.submitting_shell import unused_options, without_options
from hpcprof.submit.sites.files import load_site
from tests.jobs import make_job


def test_no_option_of_the_shell_and_no_variable_of_a_job_around_it_reaches_a_command() -> None:
    options = """
        SBATCH_PARTITION SBATCH_ARRAY_INX SBATCH_EXPORT SLURM_EXPORT_ENV SLURM_JOB_ID SLURM_ARRAY_TASK_ID
        SLURM_MEM_PER_CPU SLURM_CPU_BIND SLURM_TIME_FORMAT SRUN_CPUS_PER_TASK SQUEUE_USERS SACCT_FORMAT
        PBS_DPREFIX PBS_SHELL PBS_JOBID PBS_NODEFILE PBS_NODENUM PBS_ARRAY_INDEX PBS_O_WORKDIR PBS_ENVIRONMENT
        FLUX_JOB_ID FLUX_TASK_RANK FLUX_JOBS_FORMAT_DEFAULT LSB_DEFAULTQUEUE LSB_JOBID BSUB_QUIET
        HYDRA_HOST_FILE I_MPI_HYDRA_HOST_FILE PRTE_MCA_prte_default_hostfile MPIEXEC_TIMEOUT
        CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK
    """
    kept = """
        SLURM_CONF SLURM_CLUSTERS SLURM_CONF_SERVER SLURM_JWT PBS_DEFAULT PBS_SERVER PBS_CONF_FILE PBS_EXEC
        FLUX_URI FLUX_MODULE_PATH FLUX_CONF_DIR LSF_ENVDIR PATH HOME MY_SLURM_CONF
        HYDRA_LAUNCHER OMPI_MCA_btl CUDA_DEVICE_ORDER
    """
    environment = dict.fromkeys(f"{options} {kept}".split(), "x")
    assert [*without_options(environment)] == kept.split()


def sentences(site: str, environment: dict[str, str], **options: Any) -> list[str]:
    scheduler = find_scheduler(load_site(site).scheduler)
    job = make_job(load_site(site), arguments=["true"], **options)
    return unused_options(scheduler, job, environment)


def test_what_the_user_relied_on_is_named_with_the_option_that_asks_for_it() -> None:
    shell = {"SBATCH_ACCOUNT": "other", "SBATCH_PARTITION": "prod", "SBATCH_TIMELIMIT": "7"}
    assert sentences("generic-slurm", shell, queue="debug", walltime="2m") == [
        "SBATCH_ACCOUNT=other of this shell does not apply; give --account other",
        "SBATCH_PARTITION=prod of this shell does not apply: the job has --queue debug",
        "SBATCH_TIMELIMIT=7 of this shell does not apply: the job has --walltime 00:02:00",
    ]
    assert sentences("generic-slurm", {"SBATCH_ACCOUNT": "me"}, account="me") == []
    assert sentences("generic-slurm", {"SBATCH_EXPORT": "NONE", "SLURM_HINT": "nomultithread"}) == [
        "SBATCH_EXPORT, SLURM_HINT of this shell do not apply"
    ]
    assert sentences("generic-pbs", {**shell, "PBS_DPREFIX": "#XX"}) == [
        "PBS_DPREFIX of this shell does not apply"
    ]
    assert sentences("local", shell) == []


def test_host_files_and_the_gpus_of_the_submitting_host_are_named_where_they_do_not_apply() -> None:
    shell = {"HYDRA_HOST_FILE": "hosts", "CUDA_VISIBLE_DEVICES": "2", "SLURM_JOB_ID": "7"}
    assert sentences("local", shell) == ["HYDRA_HOST_FILE of this shell does not apply"]
    assert sentences("generic-pbs", shell) == [
        "CUDA_VISIBLE_DEVICES, HYDRA_HOST_FILE of this shell do not apply"
    ]
    assert sentences("generic-slurm", shell) == []  # within a job


def test_the_variables_of_the_job_that_a_shell_is_in_are_not_named_as_choices() -> None:
    within = {"SLURM_JOB_ID": "7", "SLURM_CPU_BIND": "none", "SRUN_DEBUG": "3", "SBATCH_ACCOUNT": "other"}
    assert sentences("generic-slurm", within) == [
        "SBATCH_ACCOUNT=other of this shell does not apply; give --account other"
    ]


def test_a_missing_account_is_refused_with_the_variable_that_does_not_stand_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "m1234")
    with pytest.raises(
        UsageError, match=r"requires --account\. SBATCH_ACCOUNT=m1234 of this shell does not apply"
    ):
        make_job(load_site("perlmutter"), arguments=["true"])
    site = load_site("generic-slurm")
    assert remarks(make_job(site, arguments=["true"]), site) == [
        "SBATCH_ACCOUNT=m1234 of this shell does not apply; give --account m1234"
    ]
