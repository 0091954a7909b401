"""Parameter sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.runs.directory import Run, find_run, find_runs, sweep_of
from hpcprof.workloads.sweep import parse_parameters, points, program_at
from tests.conftest import Hpcprof


def test_every_combination_is_a_point_the_last_parameter_changing_first() -> None:
    parameters = parse_parameters(["a=1,2", "b=x,y"])
    assert points(parameters) == [
        {"a": "1", "b": "x"},
        {"a": "1", "b": "y"},
        {"a": "2", "b": "x"},
        {"a": "2", "b": "y"},
    ]


@pytest.mark.parametrize("text", ["a", "=1", "a=", "a=1,,2"])
def test_what_is_no_parameter_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"^-P {text}: write it as KEY=VALUE,VALUE"):
        parse_parameters([text])
    with pytest.raises(UsageError, match=f"^--sweep {text}: write it as"):
        parse_parameters([text], "--sweep")


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="a was given before"):
        parse_parameters(["a=1", "a=2"])


def test_a_workload_gets_a_parameter_as_its_option() -> None:
    assert program_at({"hidden_size": "8"}, ["--steps", "3"], "sequence-parallel") == [
        "--steps",
        "3",
        "--hidden-size",
        "8",
    ]


def test_a_program_gets_a_parameter_where_it_names_it_and_nowhere_else() -> None:
    assert program_at({"lr": "0.1"}, ["train", "--lr={lr}", "{other}"], None) == [
        "train",
        "--lr=0.1",
        "{other}",
    ]
    with pytest.raises(UsageError, match=r"write \{lr\} where"):
        program_at({"lr": "0.1"}, ["train"], None)


def test_a_sweep_submits_a_run_for_every_combination(hpcprof: Hpcprof, tmp_path: Path) -> None:
    done = hpcprof("sweep", "-P", "a=1,2", "-P", "b=x,y", "--", "echo", "{a}{b}")
    assert done.returncode == 0, done.stderr
    submitted = [line for line in done.stdout.splitlines() if line.startswith("submitted")]
    assert len(submitted) == 4
    assert len(list((tmp_path / "runs").iterdir())) == 4


def test_nothing_is_submitted_when_one_combination_is_wrong(hpcprof: Hpcprof, tmp_path: Path) -> None:
    done = hpcprof(
        "sweep", "--ranks-per-node", "2", "--workload", "sequence-parallel", "-P", "sequence-length=256,255"
    )
    assert done.returncode == 2
    assert "255 is not divisible" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_array_is_shown_and_nothing_is_submitted(hpcprof: Hpcprof, tmp_path: Path) -> None:
    sweep = ("sweep", "--site", "generic-slurm", "--walltime", "5m", "--array", "--at-once", "3")
    done = hpcprof(*sweep, "-P", "n=1,2,3,4", "--dry-run", "--", "echo", "{n}")
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()[:5]] == [
        ["run", "arguments"],
        *[[str(n - 1), "echo", str(n)] for n in (1, 2, 3, 4)],
    ]
    assert "#SBATCH --array=0-3%3" in done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--array", "-P", "n=1,2", "--", "echo", "{n}"], "site local has no job arrays; leave --array out"),
        (["--at-once", "2", "-P", "n=1,2", "--", "echo", "{n}"], "--at-once N is for --array"),
        (
            ["--site", "generic-pbs", "--array", "-P", "n=1", "--", "echo", "{n}"],
            "an array of PBS has at least 2 members",
        ),
        (
            ["--site", "generic-slurm", "--array", "-P", "n=1,2", "--", "{n}"],
            "the runs differ in #SBATCH --job-name=1 and #SBATCH --job-name=2",
        ),
    ],
)
def test_what_can_be_no_array_is_one_sentence(
    arguments: list[str], words: str, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    done = hpcprof("sweep", "--dry-run", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def a_run(folder: Path, run_id: str) -> None:
    (folder / run_id).mkdir(parents=True)
    (folder / run_id / "run.json").write_text("{}")
    (folder / run_id / "job.sh").touch()


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs: a sweep of eleven, another of two, and a run whose name looks like a member."""
    monkeypatch.setattr("hpcprof.submit.runs.directory.open_run", lambda path: Run(path.name, path))
    runs = tmp_path / "runs"
    for index in range(11):
        a_run(runs, f"20261121-143005-train-3fa9.{index}")
    (runs / "20261121-143005-train-3fa9").mkdir()
    (runs / "20261121-143005-train-3fa9" / "array.sh").touch()
    for index in range(2):
        a_run(runs, f"20261121-150000-train-77aa.{index}")
    a_run(runs, "20261121-160000-abcd.7-12ef")
    return runs


def test_a_sweep_is_named_by_its_id_a_beginning_of_it_or_its_directory(sweep: Path) -> None:
    whole = [f"20261121-143005-train-3fa9.{index}" for index in range(11)]
    for reference in (whole[0].removesuffix(".0"), "20261121-14", str(sweep / whole[0].removesuffix(".0"))):
        assert [run.id for run in find_runs(reference, sweep)] == whole


def test_a_member_is_named_as_any_run(sweep: Path) -> None:
    for member in ("20261121-143005-train-3fa9.1", "20261121-143005-train-3fa9.10"):
        assert [run.id for run in find_runs(member, sweep)] == [member]
        assert find_run(member, sweep).id == member
    assert find_runs("last", sweep)[0].id == "20261121-160000-abcd.7-12ef"
    assert sweep_of("20261121-160000-abcd.7-12ef") is None


def test_what_fits_several_sweeps_is_refused_and_so_is_a_sweep_for_one_run(sweep: Path) -> None:
    with pytest.raises(UsageError, match="is not unique"):
        find_runs("20261121", sweep)
    with pytest.raises(UsageError, match=r"-77aa is a sweep of 2 runs: name one of them, as in .*77aa\.0"):
        find_run("20261121-15", sweep)
