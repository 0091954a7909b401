"""Profiles that would take far more memory than they have bytes, for each kind of code that reads."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.node import notify
from hpcprof.profiles import input_bounds
from hpcprof.profiles.readers.discovery import read_profile, reading_profile
from hpcprof.profiles.readers.native_stacks import parse_native_stack
from hpcprof.runs.directory import Run
from hpcprof.submit.runs import failures


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


def test_a_machine_of_many_cores_adds_little_to_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1024)
    threads = pa.cpu_count()
    pa.set_cpu_count(64)
    try:
        with reading_profile(tmp_path):
            added = resource.getrlimit(resource.RLIMIT_DATA)[0] - input_bounds._memory_before_and_limit[0]
            assert (added, pa.cpu_count()) == (input_bounds.ALWAYS_ALLOWED_MEMORY + (128 << 20), 8)
        assert pa.cpu_count() == 64
    finally:
        pa.set_cpu_count(threads)


# In a process of their own: free memory that another test has left would count.
_REFUSED = """
import resource, sys
from pathlib import Path
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles import input_bounds
from hpcprof.profiles.readers.discovery import read_profile

def refused(read):
    try:
        read()
    except DamagedInput as error:
        print(error)

def take():
    with input_bounds.bounded(Path("rank0.sqlite"), 50_000_000):
        with input_bounds.bounded(Path("rank0.sqlite"), 1 << 40):
            bytearray(100_000_000)

input_bounds.ALWAYS_ALLOWED_MEMORY, input_bounds.MEMORY_RATIO = 60_000_000, 2
input_bounds._RESERVED_PER_THREAD = 0
before = resource.getrlimit(resource.RLIMIT_DATA)
refused(take)
assert resource.getrlimit(resource.RLIMIT_DATA) == before
assert len(bytearray(100_000_000)) == 100_000_000
for name in sys.argv[1:]:
    refused(lambda: read_profile(Path(name)))
"""


def test_memory_beyond_the_bound_of_a_file_is_refused_in_a_sentence_and_only_there(tmp_path: Path) -> None:
    contents = {
        "rank0_results.json": b'{"rocprofiler-sdk-tool":[{"buffer_records":{"hip_api":[%s0]}}]}'
        % (b"0," * 8_000_000),
        "rank0_kernel_trace.csv": b"Kernel_Name,Start_Timestamp,End_Timestamp\n" + b",,\n" * 2_000_000,
        "rank0.pt.trace.json": b'{"a": [' + b"[]," * 1_000_000 + b'[]], "traceEvents": []}',
        "rank0.et": b"\x02\x08\x01" + 600_000 * b"\x02\x18\x04",
        "rank0.ops.csv": b"rank,step,name,kind,start_ns,duration_ns\n" + 600_000 * b",,,,,\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-c", _REFUSED, *contents]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert said[0] == (
        "rank0.sqlite needs more memory than there is, or than a file of its size may take (50.00 MB)."
    )
    assert [line.partition(" needs more memory")[0] for line in said[1:]] == [*contents]


@pytest.mark.parametrize("number", ["²", "9" * 12, "9" * 5000, "-1", "\ud800"])
def test_a_number_that_is_none_or_without_end_is_damage(number: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    for name in ("attempt", "errors_before"):
        (state / name).write_text(number, encoding="utf-8", errors="surrogatepass")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job.err").write_text("no\n")
    run = Run("r", tmp_path)
    assert failures.job_output(run, "job.err") == ["no"]
    assert run.attempt == 1 and run.profiled_attempt() == 1
    assert notify._number(number) is None
    stack = f'Thread {number} (LWP {number})\n#0  f (x) at a.c:{number}\n  File "a", line {number} in f\n'
    assert parse_native_stack(stack) is None or len(number) == 12
