"""The examples for CI, run step by step as a runner does, with stored results in place of a GPU."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tests.integration.test_several_runs import measured

EXAMPLES = Path(__file__).parents[2] / "examples" / "ci"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh folder with stored results, whose ``ci/measure.sh`` names those of ``$STORED`` as its runs."""
    for name, times in (("usual", (1000, 1010, 990)), ("slower", (1200, 1210, 1190))):
        for number, time in enumerate(times):
            measured(tmp_path / f"stored/{name}{number}", time)
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci/measure.sh").write_text('ls -d stored/"$STORED"* >runs.txt\n')
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("hpcprof", f'exec {shlex.quote(sys.executable)} -m hpcprof "$@"'), ("pip", ":")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join((str(programs), os.environ["PATH"])))
    return tmp_path


def do(script: str, folder: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
    )


def on_github(folder: Path, event: str, stored: str) -> subprocess.CompletedProcess[str]:
    """Run the steps of the workflow whose condition holds, up to the first that fails."""
    values = {
        "github.workspace": str(folder),
        "secrets.HPCPROF_DB": str(folder / "team.db"),
        "vars.HPCPROF_SOURCE": "https://git.example/hpcprof",
    }
    workflow = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text(encoding="utf-8"))
    variables = {
        name: re.sub(r"\$\{\{ (\S+) \}\}", lambda found: values[found[1]], text)
        for name, text in workflow["env"].items()
    }
    variables |= {"STORED": stored, "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    assert set(workflow["on"]) == {"push", "pull_request"}
    for step in workflow["jobs"]["step-time"]["steps"]:
        if "run" in step and step.get("if", f"'{event}'").endswith(f"'{event}'"):
            done = do(step["run"], folder, variables)
            if done.returncode:
                break
    return done


def test_the_github_workflow_fails_for_a_slower_step_with_an_annotation(checkout: Path) -> None:
    assert on_github(checkout, "push", "usual").stdout.startswith("main: usual0-")
    done = on_github(checkout, "pull_request", "slower")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("::error title=hpcprof compare::regression: own_elapsed_per_step_ns")
    assert "regression" in (checkout / "summary.md").read_text(encoding="utf-8")


def test_the_gitlab_job_fails_for_a_slower_step_with_a_report(checkout: Path) -> None:
    job = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text(encoding="utf-8"))["step-time"]
    script = "\n".join([*job["before_script"], *job["script"]])
    variables = {
        "CI_DEFAULT_BRANCH": "main",
        "HPCPROF_DB": str(checkout / "team.db"),
        "HPCPROF_RUNS": str(checkout / "runs"),
    }
    done = do(script, checkout, variables | {"CI_COMMIT_BRANCH": "main", "STORED": "usual"})
    assert done.returncode == 0, done.stderr
    done = do(script, checkout, variables | {"STORED": "slower"})
    assert done.returncode == 3, done.stderr
    report = ElementTree.parse(checkout / job["artifacts"]["reports"]["junit"])
    assert report.find("testsuite/testcase/failure") is not None
