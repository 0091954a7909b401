"""Values of a job come from the command line, a job file, personal defaults or the site, in this order."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.explain import origins
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.job_file import dump_job_file
from hpcprof.submit.jobs.merge import merged
from hpcprof.submit.jobs.request import resolve
from hpcprof.submit.rendering.job_scripts import render_scripts

DEFAULTS = """\
site: polaris
runs_dir: elsewhere
sites:
  polaris: {account: mine, queue: debug, options: {filesystems: home}}
"""
PROGRAM = ("true",)


@pytest.fixture(autouse=True)
def _defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hpcprof.yaml").write_text(DEFAULTS)


def sources(request: JobSpec) -> dict[str, tuple[str, str]]:
    site, job = resolve(request)
    return {found.key: (found.value, found.source) for found in origins(request, merged(request), site, job)}


def test_each_value_of_a_job_has_a_source(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("nodes: 2\nqueue: capacity\n")
    found = sources(JobSpec(PROGRAM, job_file=file, account="given", runs_dir=Path("elsewhere")))
    assert found == {
        "site": ("polaris", "./hpcprof.yaml"),
        "nodes": ("2", f"job file {file}, line 1"),
        "queue": ("capacity", f"job file {file}, line 2"),
        "account": ("given", "command line"),
        "walltime": ("01:00:00", "site polaris"),
        "option python": ("python", "site polaris"),
        "option filesystems": ("home", "./hpcprof.yaml"),
        "runs_dir": ("elsewhere", "./hpcprof.yaml"),
    }


def test_what_is_given_replaces_the_personal_default() -> None:
    given = JobSpec(PROGRAM, queue="preemptable", options={"filesystems": "home:eagle"}, runs_dir=Path("x"))
    found = sources(given)
    assert found["queue"] == ("preemptable", "command line")
    assert found["option filesystems"] == ("home:eagle", "command line")
    assert found["runs_dir"] == ("x", "command line")


def test_defaults_of_one_site_are_not_those_of_another() -> None:
    assert sources(JobSpec(PROGRAM, site="local")) == {
        "site": ("local", "command line"),
        "walltime": ("01:00:00", "site local"),
        "runs_dir": ("runs", "built in"),
    }


def test_an_account_for_all_sites_is_for_those_with_a_batch_system() -> None:
    Path("hpcprof.yaml").write_text("account: all\nqueue: q\nsites: {generic-pbs: {account: own}}\n")
    assert resolve(JobSpec(PROGRAM))[1].account == ""
    slurm = resolve(JobSpec(PROGRAM, site="generic-slurm"))[1]
    assert (slurm.account, slurm.queue) == ("all", "q")
    assert resolve(JobSpec(PROGRAM, site="generic-pbs"))[1].account == "own"


def test_a_saved_job_file_holds_the_personal_defaults(tmp_path: Path) -> None:
    asked = JobSpec(PROGRAM)
    (tmp_path / "job.yaml").write_text(dump_job_file(merged(asked)))
    resolved = resolve(asked)
    Path("hpcprof.yaml").unlink()
    assert resolve(JobSpec(job_file=tmp_path / "job.yaml")) == resolved


def test_merging_twice_changes_nothing() -> None:
    once = merged(JobSpec(PROGRAM))
    assert merged(once) == once


def test_an_option_by_default_gives_way_to_a_general_option() -> None:
    Path("hpcprof.yaml").write_text(
        "sites: {perlmutter: {account: a, options: {constraint: gpu}}, kubernetes: {options: {cpus: '4'}}}\n"
    )
    _, job = resolve(JobSpec(PROGRAM, site="perlmutter", constraint="gpu&hbm80g"))
    assert job.constraint == "gpu&hbm80g"
    options = {"image": "i", "pvc": "p"}
    assert (
        resolve(JobSpec(PROGRAM, site="kubernetes", cpus_per_rank=2, options=options))[1].cpus_per_rank == 2
    )
    with pytest.raises(UsageError, match="--cpus-per-rank 2 and -o cpus=4 both set cpus; give one of them"):
        resolve(JobSpec(PROGRAM, site="kubernetes", cpus_per_rank=2, options={**options, "cpus": "4"}))


def test_an_error_names_the_personal_default_behind_it() -> None:
    says = (
        r"takes 1 to 2 nodes, not 3 \(a personal default: sites\.polaris\.queue = debug in \./hpcprof\.yaml"
    )
    with pytest.raises(UsageError, match=says):
        resolve(JobSpec(PROGRAM, nodes=3))
    Path("hpcprof.yaml").write_text("site: polari\n")
    with pytest.raises(UsageError, match=r"unknown site 'polari'.* \(a personal default: site = polari in"):
        resolve(JobSpec(PROGRAM))
    with pytest.raises(UsageError, match=r"takes 1 to 2 nodes, not 3\.$"):
        resolve(
            JobSpec(
                PROGRAM, site="polaris", nodes=3, queue="debug", account="a", options={"filesystems": "home"}
            )
        )


def test_an_error_names_the_lines_of_all_values_that_it_is_about(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "site: perlmutter\naccount: a\nqueue: debug\nranks_per_node: 4\ngpus_per_rank: 2\nnodes: 2\n"
    )
    with pytest.raises(UsageError) as raised:
        resolve(JobSpec(PROGRAM, job_file=file))
    said = f"(gpus_per_rank = 2 in {file}, line 5, ranks_per_node = 4 in {file}, line 4)."
    assert str(raised.value).endswith(said)


def test_a_value_is_not_blamed_for_the_words_of_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("site: perlmutter\naccount: gpu\nqueue: debug\nconstraint: gpu\n")
    with pytest.raises(UsageError, match=r"write 00:01:00 or 00:02:00\.$"):
        resolve(JobSpec(PROGRAM, job_file=file, walltime="90s"))


def test_a_program_starts_in_the_folder_by_its_name_in_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk7").mkdir()
    (tmp_path / "home").symlink_to("disk7")
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setenv("PWD", str(tmp_path / "home"))
    site, job = resolve(JobSpec(PROGRAM))
    assert job.directory == str(tmp_path / "home")
    script = render_scripts(site, job, Path("runs/RUN"), [])["job.sh"]
    assert f"run_dir={tmp_path}/home/runs/RUN\n" in script
