"""Jobs from files, from earlier runs, and from edited scripts, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcprof.submit.rendering.templates import template_files
from tests.conftest import Hpcprof

JOB = """\
workload: sequence-parallel
ranks_per_node: 2
profiler: torch
profiler_options: {with_stack: "true"}
program: [--steps, "7"]
options: {mpiexec: /opt/mpi/mpiexec}
"""


def manifest(tmp_path: Path) -> dict[str, object]:
    (path,) = (tmp_path / "runs").glob("*/run.json")
    job: dict[str, object] = json.loads(path.read_text())["job"]
    return job


@pytest.mark.parametrize("given", [["job.yaml"], ["--job", "job.yaml"]])
def test_a_job_file_says_what_the_options_say(given: list[str], hpcprof: Hpcprof, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    done = hpcprof("submit", "--dry-run", *given)
    assert done.returncode == 0, done.stderr
    assert "torch on 2 of 2 ranks" in done.stdout
    assert "/opt/mpi/mpiexec -n 2" in done.stdout
    assert "--steps 7" in done.stdout


GIGL = """\
program: [python, train.py]
profilerConfig:
  should_enable_profiler: true
  profiler_log_dir: /data/traces
  profiler_args: {wait: '0', with_stack: 'True', record_shapes: true}
"""


def test_the_traces_are_copied_to_the_log_dir_and_a_bucket_is_refused(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(GIGL)
    done = hpcprof("render", "--job", "job.yaml", "--output", "job")
    assert done.returncode == 0, done.stderr
    assert 'cp "$output".trace.json.gz /data/traces' in (tmp_path / "job/wrapper.sh").read_text()
    (tmp_path / "job.yaml").write_text(GIGL.replace("/data/traces", "gs://bucket"))
    done = hpcprof("submit", "--dry-run", "job.yaml")
    assert done.returncode == 2
    assert "log_dir=gs://bucket: the ranks copy to folders only" in done.stderr


def test_options_come_before_the_job_file(hpcprof: Hpcprof, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    done = hpcprof("submit", "--dry-run", "--ranks-per-node", "4", "--profile-ranks", "1", "job.yaml")
    assert "torch on 1 of 4 ranks (1)" in done.stdout


def test_a_saved_job_file_makes_the_same_script(hpcprof: Hpcprof, tmp_path: Path) -> None:
    asked = ["--job-name", "mine", "--walltime", "90m", "--", "echo", "a b", "$HOME"]
    first = hpcprof("render", "--save", "saved.yaml", *asked)
    assert first.returncode == 0, first.stderr
    again = hpcprof("render", "saved.yaml")
    strip = [line for line in first.stdout.splitlines() if not line.startswith("# hpcprof")]
    assert [line for line in again.stdout.splitlines() if not line.startswith("# hpcprof")] == strip


def test_a_run_is_repeated_exactly_as_it_was(hpcprof: Hpcprof, tmp_path: Path) -> None:
    hpcprof("submit", "--wait", "--walltime", "7m", "--job-name", "mine", "--", "echo", "a b")
    first = manifest(tmp_path)
    for arguments in (["submit", "--from", "last", "--wait"], ["resubmit", "last", "--wait"]):
        done = hpcprof(*arguments)
        assert done.returncode == 0, done.stderr
    jobs = [json.loads(p.read_text())["job"] for p in (tmp_path / "runs").glob("*/run.json")]
    assert jobs == [first] * 3


def test_repeating_a_run_differently_is_refused(hpcprof: Hpcprof) -> None:
    hpcprof("submit", "--wait", "--", "true")
    done = hpcprof("submit", "--from", "last", "--ranks-per-node", "2")
    assert done.returncode == 2
    assert "leave out --ranks-per-node" in done.stderr


def test_an_edited_script_becomes_the_job_of_a_run_of_its_own(hpcprof: Hpcprof, tmp_path: Path) -> None:
    hpcprof("render", "--output", "a folder", "--", "true")
    script = tmp_path / "a folder/job.sh"
    script.write_text(script.read_text().replace("record started", "echo edited\nrecord started"))
    done = hpcprof("submit", "--wait", "--script", str(script), "--", "true")
    assert done.returncode == 0, done.stderr
    (run,) = (p for p in (tmp_path / "runs").iterdir() if p.is_dir())
    assert (run / "logs/job.out").read_text() == "edited\n"
    assert (run / "state/finished").read_text() == "0\n"


def test_a_script_that_hpcprof_did_not_make_is_refused(hpcprof: Hpcprof, tmp_path: Path) -> None:
    (tmp_path / "other.sh").write_text("#!/bin/bash\necho hello\n")
    done = hpcprof("submit", "--script", "other.sh", "--", "true")
    assert done.returncode == 2
    assert "other.sh has no line run_dir=" in done.stderr


def test_a_template_is_exported_once_and_then_used(hpcprof: Hpcprof, tmp_path: Path) -> None:
    assert hpcprof("templates", "export", "job/local.sh.j2").returncode == 0
    mine = tmp_path / "templates/job/local.sh.j2"
    mine.write_text(mine.read_text() + "\n{% block prologue %}echo mine\n{{ super() }}{% endblock %}\n")
    assert "echo mine\n" in hpcprof("render", "--", "true").stdout
    assert hpcprof("templates", "export", "job/local.sh.j2").returncode == 2
    assert str(mine.relative_to(tmp_path)) in hpcprof("templates", "list").stdout.replace("\n", "")
    assert hpcprof("templates", "check", str(mine)).returncode == 0
    mine.write_text("{{ nonsense }}")
    assert "'nonsense' is undefined" in hpcprof("templates", "check", str(mine)).stderr


def test_every_template_of_a_script_is_checked_and_of_others_it_is_said(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    for name, file in template_files().items():
        done = hpcprof("templates", "check", str(file.absolute()))
        if name.endswith(".sh.j2"):
            assert done.stdout == f"{file.absolute()} renders\n", done.stderr
        else:
            assert (done.returncode, done.stdout) == (2, "")
            assert "is not a template of a script" in done.stderr
    mine = tmp_path / "array.sh.j2"
    mine.write_text("{{ shebang }}\n{{ directives + 1 }}")
    done = hpcprof("templates", "check", str(mine))
    assert done.returncode == 2
    assert "array.sh.j2, line 2: can only concatenate list" in done.stderr
