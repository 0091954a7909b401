"""Container images on the tools of this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcprof.cli.container import command
from hpcprof.common.errors import HpcprofError
from hpcprof.submit.container.image import DEFINITION, DOCKERFILE, render
from tests.unit.submit.test_container import IMAGES


def hadolint() -> str:
    beside = Path(sys.executable).with_name("hadolint")
    found = str(beside) if beside.is_file() else shutil.which("hadolint")
    if found is None:
        pytest.skip("hadolint is not installed: install hpcprof[dev]")
    return found


@pytest.mark.parametrize("name", IMAGES)
def test_the_dockerfile_passes_hadolint(name: str, tmp_path: Path) -> None:
    (tmp_path / DOCKERFILE).write_text(render(IMAGES[name], "hpcprof container render")[DOCKERFILE])
    call = [hadolint(), "--no-color", str(tmp_path / DOCKERFILE)]
    done = subprocess.run(call, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", IMAGES)
def test_the_script_of_the_apptainer_definition_passes_shellcheck(name: str, tmp_path: Path) -> None:
    definition = render(IMAGES[name], "hpcprof")[DEFINITION]
    script = definition.split("%post -c /bin/bash\n")[1].split("%environment")[0]
    (tmp_path / "post.sh").write_text(f"#!/bin/bash\n{script}")
    beside = Path(sys.executable).with_name("shellcheck")
    # SC1091: the file lies in the image.
    call = [str(beside) if beside.is_file() else "shellcheck", "--exclude=SC1091", str(tmp_path / "post.sh")]
    done = subprocess.run(call, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def fake_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_the_exit_status_of_the_engine_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_docker(tmp_path, monkeypatch, "exit 7")
    assert CliRunner().invoke(command, ["stop", "--engine", "docker"]).exit_code == 7


def test_testing_an_image_names_what_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_docker(tmp_path, monkeypatch, 'for a in "$@"; do [ "$a" != ncu ] || exit 1; done')
    done = CliRunner().invoke(command, ["test", "--engine", "docker", "x:1"])
    assert isinstance(done.exception, HpcprofError)
    assert str(done.exception) == "x:1 has no working Nsight Compute."
