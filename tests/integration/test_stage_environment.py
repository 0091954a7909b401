"""Environments of Python that a job unpacks on its nodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from hpcprof.node.stage_environment import NOTES, main, pack, unpack
from hpcprof.runs.directory import Run
from hpcprof.runs.preparation import describe_staging
from hpcprof.submit.rendering.job_scripts import render_scripts
from hpcprof.submit.sites.files import load_site
from tests.jobs import make_job


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with a link to its Python, and a script."""
    base, folder = tmp_path / "base", tmp_path / "shared/env"
    for path in (base / "bin", base / "lib/python3.11/site-packages", folder / "bin"):
        path.mkdir(parents=True)
    (base / "bin/python3.11").touch()
    (base / "lib/python3.11/site-packages/other.py").touch()
    (folder / "bin/python").symlink_to(base / "bin/python3.11")
    (folder / "bin/python3").symlink_to("python")
    (folder / "bin/tool").write_text(f"#!{folder}/bin/python\n")
    (folder / "pyvenv.cfg").write_text(f"home = {base}/bin\ninclude-system-site-packages = false\n")
    (tmp_path / "run").mkdir()
    return folder


def test_a_virtual_environment_has_its_python_with_it(environment: Path, tmp_path: Path) -> None:
    pack(str(environment), str(tmp_path / "run"))
    unpack(str(tmp_path / "run"), str(tmp_path / "disk"))
    staged = tmp_path / "disk/env"
    assert (staged / "bin/tool").read_text() == f"#!{staged}/bin/python\n"
    assert {(staged / "bin" / name).resolve() for name in ("python", "python3")} == {
        tmp_path / "disk/python/bin/python3.11"
    }
    assert f"home = {tmp_path}/disk/python/bin\n" in (staged / "pyvenv.cfg").read_text()
    assert not (tmp_path / "disk/python/lib/python3.11/site-packages").exists()


def test_the_base_of_a_copied_python_comes_along(environment: Path, tmp_path: Path) -> None:
    (environment / "bin/python").unlink()
    (environment / "bin/python").touch()
    pack(str(environment), str(tmp_path / "run"))
    unpack(str(tmp_path / "run"), str(tmp_path / "disk"))
    assert (tmp_path / "disk/python/bin/python3.11").is_file()


def test_scripts_run_from_a_folder_that_the_kernel_takes_in_no_first_line(tmp_path: Path) -> None:
    environment, run = tmp_path / "env", tmp_path / "run"
    for folder in (environment / "bin", run):
        folder.mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    (environment / "bin/python").symlink_to("/usr/bin/python3")
    (environment / "bin/tool").write_text(f"#!{environment}/bin/python\nimport sys\nprint(sys.argv[1:])\n")
    (environment / "bin/tool").chmod(0o755)
    pack(str(environment), str(run))
    for name in ("with space", "long" * 40):
        unpack(str(run), str(tmp_path / name))
        said = subprocess.check_output([tmp_path / name / "env/bin/tool", "a b"], text=True)
        assert said == "['a b']\n"


def test_a_full_disk_is_named(environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, tools = tmp_path / "run", tmp_path / "tools"
    tools.mkdir()
    pack(str(environment), str(run))
    errors = "echo 'tar: a: Wrote only 5 of 9 bytes\ntar: b: Cannot write: No space left on device' >&2"
    (tools / "tar").write_text(f"#!/bin/sh\n{errors}\nexit 2\n")
    (tools / "tar").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert main(["unpack", str(run), str(tmp_path / "disk")]) == 1
    assert "tar: b: Cannot write: No space left on device" in describe_staging(Run("run", run))


def test_packages_of_the_base_come_along_where_the_environment_sees_them(
    environment: Path, tmp_path: Path
) -> None:
    configuration = environment / "pyvenv.cfg"
    configuration.write_text(configuration.read_text().replace("= false", "= true"))
    pack(str(environment), str(tmp_path / "run"))
    unpack(str(tmp_path / "run"), str(tmp_path / "disk"))
    assert (tmp_path / "disk/python/lib/python3.11/site-packages/other.py").is_file()


def test_a_python_that_the_node_lacks_is_named(
    environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    (environment / "bin/python").unlink()
    (environment / "bin/python").symlink_to("/usr/bin/python9")
    pack(str(environment), str(run))
    assert main(["unpack", str(run), str(tmp_path / "disk")]) == 1
    assert "lacks /usr/bin/python9" in capsys.readouterr().err
    assert "not staged, the ranks used it where it is" in describe_staging(Run("run", run))


def test_a_folder_of_somebody_else_is_not_used(environment: Path, tmp_path: Path) -> None:
    pack(str(environment), str(tmp_path / "run"))
    (tmp_path / "disk").symlink_to(tmp_path / "base")
    with pytest.raises(OSError, match="is not a folder of this user"):
        unpack(str(tmp_path / "run"), str(tmp_path / "disk"))


def test_nodes_that_share_a_disk_share_the_environment(environment: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pack(str(environment), str(run))
    unpack(str(run), str(tmp_path / "disk"))
    unpack(str(run), str(tmp_path / "disk"))
    assert "unpacked on 1 node" in describe_staging(Run("run", run))


def test_conda_environments_are_packed_by_conda_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, tools, run = tmp_path / "env", tmp_path / "tools", tmp_path / "run"
    for folder in (environment / "conda-meta", environment / "bin", tools, run):
        folder.mkdir(parents=True)
    (environment / "bin/python").write_text('#!/bin/sh\nexec /bin/sh "$@"\n')
    (environment / "bin/conda-unpack").write_text('touch "${0%/*}/unpacked"\n')
    # As conda-pack: --prefix FOLDER --output FILE.
    (tools / "conda-pack").write_text('#!/bin/sh\nexec tar -cf "$4" -C "$2" .\n')
    for file in (environment / "bin/python", tools / "conda-pack"):
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    pack(str(environment), str(run))
    unpack(str(run), str(tmp_path / "disk"))
    assert (tmp_path / "disk/env/bin/unpacked").is_file()
    (tools / "conda-pack").write_text(
        "#!/bin/sh\necho 'Traceback (most):\n  in x\nKeyError: url' >&2\nexit 1\n"
    )
    assert main(["pack", str(environment), str(run)]) == 1
    assert describe_staging(Run("run", run)).endswith(": KeyError: url")


def test_ranks_run_the_environment_on_the_nodes_disk(tmp_path: Path) -> None:
    environment, run, disk = tmp_path / "env", tmp_path / "run", tmp_path / "disk"
    for folder in (environment / "bin", run, disk):
        folder.mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    (environment / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (environment / "bin/where").write_text('#!/bin/sh\necho "$0 in $VIRTUAL_ENV"\n')
    for file in (environment / "bin").iterdir():
        file.chmod(0o755)
    site = msgspec.structs.replace(load_site("local"), tmpdir="")
    job = make_job(site, arguments=[f"{environment}/bin/where"], stage_env=str(environment))
    job = msgspec.structs.replace(job, directory=str(tmp_path), stall_timeout=0, no_telemetry=True)
    for name, text in render_scripts(site, job, run, ["hpcprof"]).items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    subprocess.run(["bash", run / "job.sh"], env={**os.environ, "TMPDIR": str(disk)}, check=True, timeout=60)
    printed = (run / "logs/rank00000.out").read_text()
    assert re.fullmatch(rf"({disk}/hpcprof-env-run-\d+/env)/bin/where in \1\n", printed)
    assert json.loads((run / NOTES / "packed.json").read_text())["kind"] == "venv"
    assert "unpacked on 1 node in at most" in describe_staging(Run("run", run))
    assert not list(disk.iterdir()) and not (run / "environment.tar").exists()
    (environment / "bin/python").write_text("#!/bin/sh\nexit 1\n")
    subprocess.run(["bash", run / "job.sh"], env={**os.environ, "TMPDIR": str(disk)}, check=True, timeout=60)
    assert describe_staging(Run("run", run)).endswith("where it is: Python did not start on each node")
