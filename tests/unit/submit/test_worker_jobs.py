"""Batch jobs with Dask workers have what every job of the site has."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.runs.directory import Run
from hpcprof.submit.worker_jobs import WorkerPlacement, make_worker_jobs

SITES = {
    "ours": """\
scheduler: slurm
node: {cores: 64}
queue: gpu
queue_directive: --qos
directives: ["--exclusive"]
modules: [python/3.11]
setup: ["source /project/env/bin/activate"]
environment: {MODE: two words}
tmpdir: /local
""",
    "theirs": "scheduler: pbs\nselect: system=big\ndirectives: ['-k doe']\n",
    "ashore": "scheduler: local\n",
}
RUN = Run("r", Path("r"))


@pytest.fixture(autouse=True)
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site_configs").mkdir()
    for name, text in SITES.items():
        (tmp_path / "site_configs" / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)


def test_jobs_of_slurm_have_the_directives_and_the_environment_of_the_site() -> None:
    jobs = make_worker_jobs([RUN], WorkerPlacement("ours", nodes=4, walltime="30m"), Path("/logs"))
    assert (jobs.cluster, jobs.nodes, jobs.workers) == ("SLURMCluster", 4, 64)
    assert jobs.options["job_extra_directives"] == [
        *("--qos=gpu", "--nodes=1", "--ntasks-per-node=1", "--time=00:30:00", "--exclusive"),
        "--propagate=CORE,STACK",
    ]
    assert jobs.options["job_script_prologue"] == [
        "module load python/3.11",
        "source /project/env/bin/activate",
        "export MODE='two words'",
        'export TMPDIR=/local && mkdir -p "$TMPDIR"',
        "export DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False",
    ]
    assert (jobs.options["cores"], jobs.options["processes"]) == (64, 64)


def test_jobs_of_pbs_have_the_directives_of_the_site_and_the_workers_asked_for() -> None:
    jobs = make_worker_jobs([RUN], WorkerPlacement("theirs", workers=8, queue="prod"), Path("/logs"))
    assert (jobs.cluster, jobs.nodes, jobs.workers) == ("PBSCluster", 1, 8)
    queue, select, walltime, keep = jobs.options["job_extra_directives"]
    assert queue == "-q prod"
    assert select.startswith("-l select=1:system=big")
    assert "ncpus=8" in select
    assert walltime == "-l walltime=01:00:00"
    assert keep == "-k doe"


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (WorkerPlacement(), "so its site is unknown: give --site"),
        (WorkerPlacement("ashore"), "Dask starts workers in jobs of PBS and Slurm"),
        (WorkerPlacement("theirs"), "does not say how many cores a node has; give --jobs"),
        (WorkerPlacement("nowhere"), "unknown site 'nowhere'"),
    ],
)
def test_what_the_jobs_lack_is_said_in_one_sentence(place: WorkerPlacement, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_worker_jobs([RUN], place, Path("/logs"))
