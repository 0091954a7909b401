"""The environment that a job stages on its nodes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.sites.environment import ACTIVE, default_variables, staged_environment
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.sites.model import Launcher, LauncherName
from tests.jobs import make_job

LOCAL = load_site("local")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").touch()
    (tmp_path / "env/bin/python").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    return tmp_path / "env"


def test_without_a_folder_it_is_that_of_the_program(environment: Path) -> None:
    job = make_job(LOCAL, arguments=["env/bin/python", "x.py"], stage_env=ACTIVE)
    assert staged_environment(LOCAL, job) == str(environment)


def test_without_a_folder_it_is_the_active_one(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(environment))
    job = make_job(LOCAL, arguments=["./train.sh"], stage_env=ACTIVE)
    assert staged_environment(LOCAL, job) == str(environment)


def test_a_folder_is_relative_to_that_of_the_program(environment: Path) -> None:
    job = make_job(LOCAL, arguments=["./train.sh"], stage_env="env")
    assert staged_environment(LOCAL, job) == str(environment)


def test_a_folder_that_is_no_environment_is_refused(environment: Path) -> None:
    with pytest.raises(UsageError, match=r"/env/bin has no environment of conda, pixi, venv or uv"):
        make_job(LOCAL, arguments=["x"], stage_env="env/bin")


def test_programs_that_choose_an_environment_are_refused(environment: Path) -> None:
    with pytest.raises(UsageError, match="pixi starts the environment where it is"):
        make_job(LOCAL, arguments=["pixi", "run", "python"], stage_env="env")


def test_a_launcher_that_starts_no_process_on_each_node_needs_a_starter(environment: Path) -> None:
    vista, pbs = load_site("vista"), load_site("generic-pbs")
    make_job(vista, arguments=["x"], stage_env="env", nodes=2)
    pbs = msgspec.structs.replace(pbs, launcher=Launcher(LauncherName.IBRUN))
    with pytest.raises(UsageError, match="srun starts no process on each node of site generic-pbs"):
        make_job(pbs, arguments=["x"], stage_env="env", nodes=2)


def test_the_option_needs_no_value() -> None:
    assert "--stage-env" in JobSpec(("x",), stage_env=ACTIVE).to_arguments()


def test_open_mpi_binds_no_rank_to_a_single_core() -> None:
    openmpi = msgspec.structs.replace(LOCAL, launcher=Launcher(LauncherName.OPENMPI))
    slurm = load_site("generic-slurm")
    given = [(LOCAL, 1), (LOCAL, 2), (LOCAL, 3), (openmpi, 1), (slurm, 2)]
    jobs = [(site, make_job(site, arguments=["x"], ranks_per_node=ranks)) for site, ranks in given]
    assert [len(default_variables(site, job)) for site, job in jobs] == [0, 2, 0, 2, 0]
    pinned = msgspec.structs.replace(jobs[1][1], cpus_per_rank=4)
    assert default_variables(openmpi, pinned) == {}
