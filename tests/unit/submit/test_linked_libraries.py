"""The libraries that a program is linked with, from the file alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.submit import launchers
from hpcprof.submit.linked_libraries import lacks_word, linked_libraries, mpi_family


def executable(path: Path, *libraries: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x7fELF\2\1\0" + b"\0".join([b"", *(name.encode() for name in libraries), b"main", b""])
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("libraries", "family"),
    [
        (["libm.so.6", "libmpi.so.40"], "openmpi"),
        (["libmpi_mpifh.so.40"], "openmpi"),
        (["libmpich.so.12"], "mpich"),
        (["libmpifort.so.12", "libmpi.so.12"], "mpich"),
        (["libmpi_gnu_123.so.12"], "mpich"),
        (["libm.so.6"], None),
        (["libmpi.so.40", "libmpi.so.12"], None),
    ],
)
def test_the_library_of_a_program_tells_its_mpi(
    libraries: list[str], family: str | None, tmp_path: Path
) -> None:
    executable(tmp_path / "solver", *libraries)
    assert mpi_family(["./solver", "input"], str(tmp_path)) == family


def test_that_of_python_is_the_one_of_mpi4py_unless_it_has_several(tmp_path: Path) -> None:
    python = str(executable(tmp_path / "bin/python3"))
    module = tmp_path / "lib/python3.11/site-packages/mpi4py"
    assert mpi_family([python, "train.py"], "/") is None
    executable(module / "MPI.cpython-311.so", "libmpi.so.40")
    assert mpi_family([python, "train.py"], "/") == "openmpi"
    executable(module / "MPI.mpich.cpython-311.so", "libmpi.so.12")
    assert mpi_family([python, "train.py"], "/") is None


def test_a_script_and_a_missing_program_have_no_libraries(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\nexec solver libmpi.so.40\n")
    assert linked_libraries(tmp_path / "run.sh") == []
    assert not lacks_word(tmp_path / "run.sh", "scorep")
    assert mpi_family(["./missing"], str(tmp_path)) is None
    assert mpi_family([], "/") is None


def test_the_mpiexec_of_the_programs_mpi_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, name in (
        ("path", "mpiexec"),
        ("path", "mpiexec.mpich"),
        ("own", "python"),
        ("own", "mpiexec"),
    ):
        executable(tmp_path / folder / name)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr("sys.executable", str(tmp_path / "own/python"))
    assert launchers.find_mpiexec() == str(tmp_path / "own/mpiexec")
    assert launchers.find_mpiexec("mpich") == str(tmp_path / "path/mpiexec.mpich")
    assert launchers.find_mpiexec("openmpi") == str(tmp_path / "path/mpiexec")
