"""``hpcprof scrub``: what the command says of files that it cannot copy as they are."""

from __future__ import annotations

import gzip
from pathlib import Path

from tests.conftest import Hpcprof
from tests.unit.profiles.test_scrub import export as export


def test_a_file_name_that_tells_a_host_or_a_user_is_said(
    export: Path, tmp_path: Path, hpcprof: Hpcprof
) -> None:
    named = export.rename(tmp_path / "hush-user.0.sqlite")
    trace = tmp_path / "node7_1234.1700000000000.pt.trace.json"
    trace.write_text('{"traceEvents": []}')
    done = hpcprof("scrub", str(named), str(trace), "--output", "shared")
    assert done.returncode == 0, done.stderr
    assert "holds hush-user: rename it" in done.stderr
    assert "holds node7: rename it" in done.stderr


def test_damaged_files_are_named_and_skipped_and_the_rest_is_copied(
    export: Path, tmp_path: Path, hpcprof: Hpcprof
) -> None:
    whole = export.read_bytes()
    damaged = {
        "half.sqlite": whole[: len(whole) // 2],
        "text.sqlite": b"no database" * 30,
        "empty.trace.json": b"",
        "cut.trace.json.gz": gzip.compress(b'{"traceEvents": []}' * 50)[:20],
        "object.trace.json": b'{"a": 1}',
    }
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
    done = hpcprof("scrub", "rank0.sqlite", *damaged, "--output", "shared")
    assert done.returncode == 1
    assert "wrote shared/rank0.sqlite" in done.stdout
    for name in damaged:
        assert sum(name in line for line in done.stderr.splitlines() if "skipped" in line) == 1
    assert "Traceback" not in done.stderr
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["rank0.sqlite"]


def test_a_file_of_another_kind_is_one_sentence(tmp_path: Path, hpcprof: Hpcprof) -> None:
    (tmp_path / "rank0.nsys-rep").write_bytes(b"")
    done = hpcprof("scrub", "rank0.nsys-rep", "--output", "shared")
    assert done.returncode == 2
    assert "rank0.nsys-rep cannot be scrubbed: export it with nsys export" in done.stderr
