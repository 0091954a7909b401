"""Logs of Darshan, against the sums of Darshan's own package."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.darshan.logs import read_darshan_log
from tests.conftest import Hpcprof

LOG = Path(__file__).parents[1] / "data/darshan/ior_hdf5_example.darshan"

with_package = pytest.mark.skipif(importlib.util.find_spec("darshan") is None, reason="needs darshan")


@with_package
def test_the_sums_of_a_log_are_those_of_the_package() -> None:
    import darshan
    from darshan.backend.cffi_backend import accumulate_records

    report = darshan.DarshanReport(str(LOG), read_all=True)
    log = read_darshan_log(LOG)
    for module, prefix in (("POSIX", "POSIX"), ("STDIO", "STDIO")):
        of_module = report.records[module].to_df()
        total = accumulate_records(of_module, module, report.metadata["job"]["nprocs"]).summary_record
        own = [one for one in log.records if one.module == module]
        for key, counter in (("written_bytes", "BYTES_WRITTEN"), ("read_bytes", "BYTES_READ")):
            assert sum(getattr(one, key) for one in own) == total["counters"][f"{prefix}_{counter}"].iloc[0]
        for key, counter in (("reads", "READS"), ("writes", "WRITES"), ("opens", "OPENS")):
            assert sum(getattr(one, key) for one in own) == total["counters"][f"{prefix}_{counter}"].iloc[0]
        for key, counter in (("read_s", "READ"), ("write_s", "WRITE"), ("meta_s", "META")):
            theirs = total["fcounters"][f"{prefix}_F_{counter}_TIME"].iloc[0]
            assert sum(getattr(one, key) for one in own) == pytest.approx(theirs)
    traced = [one for one in log.segments if one.module == "POSIX"]
    assert sum(one.bytes for one in traced if one.is_write) == 4_195_800
    assert (log.job_id, log.ranks, log.begin, log.whole_seconds) == (32324925, 4, 1594155460.0, True)
    assert log.file_system(log.records[0].file) == "lustre"


@with_package
@pytest.mark.parametrize("content", [b"", b"x" * 5000])
def test_another_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.darshan"
    path.write_bytes(content)
    with pytest.raises(DamagedInput, match=r"other\.darshan is not a log of Darshan that can be read"):
        read_darshan_log(path)


@with_package
def test_a_damaged_module_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cut.darshan"
    path.write_bytes(LOG.read_bytes()[:-200])
    log = read_darshan_log(path)
    assert log.unread
    assert sum(one.written_bytes for one in log.records if one.module == "POSIX") == 4_195_800


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DamagedInput, match=r"pip install 'hpcprof\[darshan\]'"):
        read_darshan_log(LOG)


@with_package
def test_a_log_is_opened_alone_and_beside_profiles(hpcprof: Hpcprof, tmp_path: Path) -> None:
    log = tmp_path / "logs" / LOG.name
    log.parent.mkdir()
    shutil.copy(LOG, log)
    shown = hpcprof("open", str(log))
    assert shown.returncode == 0, shown.stderr
    assert "Files that Darshan recorded" in shown.stdout
    assert "no profile" not in shown.stdout

    trace = tmp_path / "profiles" / "rank0.pt.trace.json.gz"
    trace.parent.mkdir()
    shutil.copy(LOG.parents[1] / "ddp_step_rank0.pt.trace.json.gz", trace)
    assert hpcprof("collect", str(trace)).returncode == 0
    assert hpcprof("collect", str(trace), str(log)).returncode == 0
    rows = json.loads(hpcprof("report", "last", "--analysis", "darshan_ranks", "--format", "json").stdout)
    assert sum(row["written_bytes"] for row in rows if row["module"] == "POSIX") == 4_195_800
