"""The wheel, installed into an environment of its own, outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def build(folder: Path) -> Path:
    """Build a wheel in an empty folder, by way of a source distribution."""
    # A copy: building must not leave build/ in the checkout.
    source = folder / "source"
    ignored = {".git", ".venv", "runs", "build", "tests"}
    source.mkdir()
    for path in ROOT.iterdir():
        if path.name not in ignored and not path.name.startswith("."):
            subprocess.run(["cp", "-r", str(path), str(source)], check=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_is_pure_python(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".so", ".c"))]


def test_the_wheel_holds_every_template_and_site(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("templates", "site_configs"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in (".j2", ".yaml"):
                assert f"hpcprof/{path.relative_to(ROOT)}" in names
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "hpcprof").rglob("*.yaml")} <= names
    assert "hpcprof/py.typed" in names


def link_required(package: metadata.Distribution, folder: Path) -> None:
    """Link the packages that one requires, and all that these require: to install them takes far longer."""
    for requirement in map(Requirement, package.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            required = metadata.distribution(requirement.name)
            assert requirement.specifier.contains(required.version), requirement
            names = {
                file.parts[0] for file in required.files or () if file.parts[0] not in ("..", "__pycache__")
            }
            for name in {name for name in names if not (folder / name).exists()}:
                (folder / name).symlink_to(str(required.locate_file(name)))
            link_required(required, folder)


def test_the_installed_wheel_renders_and_submits_without_torch_and_mpi(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment)
    python = str(environment / "bin/python")
    # The pip of these tests installs into it.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (described,) = packages.glob("hpcprof-*.dist-info")
    link_required(metadata.Distribution.at(described), packages)

    # The programs of this machine, without an MPI that it may have.
    programs = tmp_path / "programs"
    programs.mkdir()
    for path in (*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()):
        if not path.name.startswith(("mpi", "orte", "prte")) and not (programs / path.name).is_symlink():
            (programs / path.name).symlink_to(path)

    def hpcprof(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(environment / "bin/hpcprof"), *arguments],
            cwd=tmp_path,
            env={"PATH": str(programs), "HOME": str(tmp_path), "LANG": os.environ.get("LANG", "C.UTF-8")},
            capture_output=True,
            text=True,
        )

    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 1
    rendered = hpcprof("render", "--", "echo", "hello")
    assert "record finished" in rendered.stdout, rendered.stderr
    done = hpcprof("submit", "--wait", "--", "echo", "hello")
    assert (done.returncode, done.stderr) == (0, "")
    opened = hpcprof("open", str(ROOT / "examples/first-report"), "--terminal")
    assert "A step takes" in opened.stdout, opened.stderr
    assert "hello" in hpcprof("logs").stdout
    missing = hpcprof("submit", "--ranks-per-node", "2", "--workload", "sequence-parallel")
    assert missing.returncode == 2
    assert "no mpiexec beside" in missing.stderr
