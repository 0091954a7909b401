"""Each option of a job is declared once, and everything else follows from the declaration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from hpcprof.cli.job_options import job_options
from hpcprof.runs.job import Job
from hpcprof.submit.jobs.job import OPTIONS, JobSpec, kind_of
from hpcprof.submit.jobs.job_file import described_keys, dump_job_file, load_job_file


def full(folder: Path) -> JobSpec:
    """Return a request with a value for every option."""
    file = folder / "given"
    file.touch()
    values: dict[type, Any] = {
        **{str: "text", bool: True, Path: file, tuple: ("one", "--two=3"), Mapping: {"key": "a=b"}},
    }
    given: dict[str, Any] = {
        name: OPTIONS[name].least or 2 if kind_of(name) is int else values[kind_of(name)] for name in OPTIONS
    }
    given["notify"] = ("one",)  # others may hold a secret, and are not written into command lines
    return JobSpec(("python", "train.py", "--lr", "1"), runs_dir=folder, **given)


def test_the_command_line_has_every_option(tmp_path: Path) -> None:
    found = []

    @click.command()
    @job_options
    def command(request: JobSpec) -> None:
        found.append(request)

    asked = full(tmp_path)
    done = CliRunner().invoke(command, asked.to_arguments())
    assert done.exit_code == 0, done.output
    assert found == [asked]


def test_a_job_file_has_every_option_but_those_that_name_files(tmp_path: Path) -> None:
    asked = full(tmp_path)
    path = tmp_path / "job.yaml"
    path.write_text(dump_job_file(asked))
    again = load_job_file(path)
    assert {name for name in OPTIONS if again.lacks(name)} == {"host", "job_file", "site_file", "template"}
    assert set(again.origins) >= {name for name in OPTIONS if not again.lacks(name)}
    assert again.over(asked).given() == asked.given()
    assert all(getattr(again, name) == getattr(asked, name) for name in OPTIONS if not again.lacks(name))


def test_every_option_is_described_for_editors_and_for_python() -> None:
    assert JobSpec.__doc__ is not None
    for name, option in OPTIONS.items():
        assert f"    {name} : " in JobSpec.__doc__
        assert option.help.endswith(".")
        assert (name in described_keys()) is option.in_job_file


def test_a_job_has_the_options_under_their_names_and_what_it_runs_under_its_own() -> None:
    own = {"name", "arguments", "directory", "workers"}
    assert set(Job.__struct_fields__) - OPTIONS.keys() == own
    files = {"host", "job_file", "site_file", "template"}
    assert OPTIONS.keys() - set(Job.__struct_fields__) == {*files, "job_name", "stacks", "inspector"}


def test_the_upper_of_two_requests_wins_and_mappings_are_merged() -> None:
    upper = JobSpec(nodes=2, options={"a": "1"}, after=("x",))
    lower = JobSpec(("true",), nodes=3, gpus_per_rank=0, options={"a": "2", "b": "3"}, after=("y",))
    merged = upper.over(lower)
    assert (merged.nodes, merged.gpus_per_rank, merged.after) == (2, 0, ("x",))
    assert (merged.program, merged.options) == (("true",), {"a": "1", "b": "3"})
