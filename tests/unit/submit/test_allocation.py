"""Runs within the allocation of an interactive job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.merge import within_allocation
from hpcprof.submit.jobs.request import make_job
from hpcprof.submit.schedulers.registry import find_scheduler


@pytest.fixture
def _salloc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")


@pytest.mark.usefixtures("_salloc")
def test_a_run_has_all_nodes_of_the_allocation_and_needs_neither_queue_nor_account() -> None:
    site, spec = within_allocation(JobSpec(("true",), site="perlmutter", queue="debug", ranks_per_node=4))
    job = make_job(site, spec, draft=True)
    assert (job.nodes, job.ranks_per_node, job.queue, job.account) == (2, 4, "", "")
    site, spec = within_allocation(JobSpec(("true",), nodes=1))
    assert (site.name, spec.nodes) == ("generic-slurm", 1)


def test_an_instance_that_flux_start_made_is_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUX_URI", "local:///tmp/flux-x/local-0")
    monkeypatch.setattr(type(find_scheduler("flux")), "allocated_nodes", lambda *_: 2)
    # That Slurm started the instance makes no difference.
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for name in ("generic-flux", None):
        site, spec = within_allocation(JobSpec(("true",), site=name))
        assert (site.name, spec.nodes) == ("generic-flux", 2)


@pytest.mark.usefixtures("_salloc")
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"nodes": 3}, "--nodes 3: the allocation has 2"),
        ({"site": "polaris"}, "this shell is in no job of site polaris"),
        ({"on_timeout": "resubmit"}, "--on-timeout resubmit would end the allocation"),
    ],
)
def test_what_an_allocation_cannot_do_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        within_allocation(JobSpec(("true",), **asked))


def test_outside_of_a_job_nothing_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SLURM_JOB_ID", "PBS_JOBID", "FLUX_URI", "LSB_JOBID"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(UsageError, match="--here: this shell is in no job of site local; start one"):
        within_allocation(JobSpec(("true",)))


def test_the_nodes_of_an_allocation_follow_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("n1\nn1\nn2\n")
    for name, variables, nodes in (
        ("slurm", {"SLURM_NNODES": "4"}, 4),
        ("pbs", {"PBS_NODEFILE": str(tmp_path / "nodes")}, 2),
        ("pbs", {}, 1),
        ("lsf", {"LSB_MCPU_HOSTS": "h1 4 h2 4 h3 4"}, 3),
    ):
        assert find_scheduler(name).allocated_nodes(variables) == nodes
