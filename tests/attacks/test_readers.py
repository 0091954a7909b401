"""Profiles that would take far more memory than they have bytes, for each kind of code that reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles import input_bounds
from hpcprof.profiles.readers.discovery import read_profile


@pytest.mark.parametrize(
    ("name", "head", "tiny"),
    [
        ("rank0.et", b"\x02\x08\x01", b"\x02\x18\x04"),
        ("rank0.ops.csv", b"rank,step,name,kind,start_ns,duration_ns\n", b",,,,,\n"),
    ],
)
def test_tiny_parts_are_refused(
    name: str, head: bytes, tiny: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_bounds, "LEAST_MEMORY", 100_000_000)
    (tmp_path / name).write_bytes(head + 600_000 * tiny)
    with pytest.raises(DamagedInput, match="needs more memory than there is"):
        read_profile(tmp_path / name)


@pytest.mark.parametrize("name", ["rank0_results.json", "rank0.xplane.pb", "rank0.unitrace.json"])
def test_a_sparse_file_of_three_gigabytes_is_refused(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(DamagedInput, match="needs more memory than there is"):
        read_profile(tmp_path / name)


def test_a_program_that_reads_a_report_is_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!/bin/sh\nulimit -d > {tmp_path}/kib\nexit 1\n")
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "rank0.ncu-rep").write_bytes(b"NVR\0")
    with pytest.raises(DamagedInput, match="ncu cannot read"):
        read_profile(tmp_path / "rank0.ncu-rep")
    assert int((tmp_path / "kib").read_text()) < 16 << 20
