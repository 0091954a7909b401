"""Ranks in containers: their words after the launcher, and options that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcprof.common.errors import UsageError
from hpcprof.runs.job import Job
from hpcprof.submit.container.ranks import container_words
from hpcprof.submit.rendering.job_scripts import render_scripts
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.sites.model import Launcher, LauncherName
from tests.jobs import make_job

SLURM = load_site("generic-slurm")
RUN = Path("/runs/1")


def job_in(engine: str, **changes: Any) -> Job:
    options = {"container": engine, "container_image": "x.sqsh", **changes.pop("options", {})}
    job = make_job(SLURM, arguments=["./a.out"], options=options, **changes)
    return msgspec.structs.replace(job, directory="/work")


def test_pyxis_is_told_image_mounts_and_working_directory() -> None:
    job = job_in("pyxis", options={"container_mounts": "/data:/data", "container_name": "mine"})
    assert container_words(SLURM, job, RUN) == [
        "--container-image=x.sqsh",
        "--container-mounts=/runs/1:/runs/1,/work:/work,/data:/data",
        "--container-workdir=/work",
        "--container-name=mine",
    ]


def test_apptainer_and_podman_hpc_start_each_rank() -> None:
    apptainer = container_words(SLURM, job_in("apptainer"), RUN)
    assert apptainer[:4] == ["apptainer", "exec", "--nv", "--bind"]
    podman = container_words(SLURM, job_in("podman-hpc"), RUN)
    assert podman[:4] == ["podman-hpc", "shared-run", "--gpu", "--volume=/runs/1:/runs/1"]
    assert container_words(SLURM, job_in("singularity"), RUN) == ["singularity", *apptainer[1:]]


def test_further_options_and_short_mounts_come_before_the_image() -> None:
    given = {"container_args": "--no-home --env 'A=b c'", "container_mounts": "/data,/a:/b:ro"}
    words = container_words(SLURM, job_in("apptainer", options=given), RUN)
    assert words[4].endswith(",/data:/data,/a:/b:ro")
    assert words[-4:] == ["--no-home", "--env", "A=b c", "x.sqsh"]
    pyxis = container_words(SLURM, job_in("pyxis", options={"container_args": "--container-remap-root"}), RUN)
    assert pyxis[-1] == "--container-remap-root"


def test_podman_hpc_passes_on_the_environment_of_the_site() -> None:
    site = msgspec.structs.replace(SLURM, environment={"NCCL_NET": "AWS"})
    assert "--env=NCCL_NET" in container_words(site, job_in("podman-hpc"), RUN)


def test_a_folder_whose_name_separates_mounts_is_refused() -> None:
    for run, directory in ((Path("/runs/a,b"), "/work"), (RUN, "/a:b")):
        job = msgspec.structs.replace(job_in("apptainer"), directory=directory)
        with pytest.raises(UsageError, match="cannot be mounted"):
            container_words(SLURM, job, run)


def test_the_nodes_profiler_is_mounted_where_ranks_are_profiled() -> None:
    job = job_in("pyxis", profiler="nsys")
    texts = render_scripts(SLURM, job, RUN, ["hpcprof"])
    assert ',"$profiler_root":/opt/hpcprof-profiler ' in texts["job.sh"]
    assert "search_paths" not in texts["job.sh"] + texts["wrapper.sh"]
    assert "profiler_path" in texts["wrapper.sh"]
    assert "profiler_root" not in render_scripts(SLURM, job_in("pyxis"), RUN, ["hpcprof"])["job.sh"]


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="-o container_mounts needs a container"):
        make_job(SLURM, arguments=["x"], options={"container_mounts": "/a:/a"})
    with pytest.raises(UsageError, match="apptainer keeps no container by name"):
        job_in("apptainer", options={"container_name": "mine"})
    mpich = msgspec.structs.replace(SLURM, launcher=Launcher(LauncherName.MPICH))
    with pytest.raises(UsageError, match=r"Pyxis is a part of srun; the launcher .* is mpich"):
        make_job(mpich, arguments=["x"], options={"container": "pyxis", "container_image": "x"})
