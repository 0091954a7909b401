"""The list of workloads builds their commands and checks their arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import InformationRequested, UsageError
from hpcprof.submit.rendering.job_scripts import render_scripts
from hpcprof.submit.sites.files import load_site
from hpcprof.workloads import catalogue
from tests.jobs import make_job


@pytest.mark.parametrize("workload", catalogue.WORKLOADS.values(), ids=catalogue.WORKLOADS)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_raised_and_nothing_is_printed(
    workload: catalogue.Workload, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InformationRequested) as caught:
        workload.check([option], 2)
    assert caught.value.text.startswith(f"usage: {workload.name} [-h]")
    assert "-h, --help" in caught.value.text
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("workload", catalogue.WORKLOADS.values(), ids=catalogue.WORKLOADS)
@pytest.mark.parametrize(
    "arguments", [["--nothing"], ["--seed"], ["--seed", "x"], ["extra"], ["--device", "x"]]
)
def test_a_wrong_argument_is_raised_and_nothing_is_printed(
    workload: catalogue.Workload, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError):
        workload.check(arguments, 2)
    assert capsys.readouterr() == ("", "")


def test_the_catalogue_builds_the_command_and_passes_arguments_on_as_they_are() -> None:
    workload = catalogue.find("sequence-parallel")
    command = workload.command("/opt/py thon", ["--steps", "a b"])
    assert command == ["/opt/py thon", "-m", "hpcprof.workloads.sequence_parallel", "--steps", "a b"]


def test_the_catalogue_checks_arguments_before_launch() -> None:
    workload = catalogue.find("sequence-parallel")
    workload.check(["-s", "999", "--hidden-size", "300"], 3)
    with pytest.raises(UsageError, match="use 999 or 1002"):
        workload.check(["-s", "1000"], 3)
    with pytest.raises(UsageError, match="unknown option"):
        workload.check(["--nothing"], 3)


def test_a_sweep_under_a_profiler_is_refused_before_launch() -> None:
    workload = catalogue.find("sequence-parallel")
    workload.check(["--sweep", "dtype=float32,bfloat16"], 2)
    workload.check(["--dtype", "bfloat16"], 2, profiled=True)
    with pytest.raises(
        UsageError, match="--sweep does not work with a profiler, because a profile would mix"
    ):
        workload.check(["--sweep", "dtype=float32,bfloat16"], 2, profiled=True)
    with pytest.raises(UsageError, match="--sweep does not work with a profiler"):
        make_job(
            load_site("local"),
            workload="sequence-parallel",
            arguments=["--sweep", "dtype=float32,bfloat16"],
            profiler="torch",
        )


def test_an_unknown_workload_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="did you mean 'sequence-parallel'"):
        catalogue.find("sequence_parallel")


def test_a_site_names_the_python_that_has_pytorch_there(tmp_path: Path) -> None:
    polaris = load_site("polaris")
    given = {"account": "me", "queue": "debug", "options": {"filesystems": "home"}}
    job = make_job(polaris, workload="sequence-parallel", **given)  # type: ignore[arg-type]
    script = render_scripts(polaris, job, tmp_path, ["hpcprof"])["job.sh"]
    assert "workloads/run.py hpcprof.workloads.sequence_parallel" in script
    assert "\n    python /" in script
