"""Folders that ``nsys export --type=parquetdir`` writes."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.discovery import (
    file_to_read,
    files_of,
    find_profiles,
    identify_rank,
    read_profile,
    reader_of,
    several_ranks,
)
from hpcprof.profiles.readers.nsys import NSYS
from hpcprof.profiles.timeline import Timeline
from hpcprof.results.collect.run_profiles import runs_of_files
from tests.data.parquet_export import write_folder, write_table
from tests.unit.profiles.readers.conftest import export as export

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.fixture
def folder(export: Path, tmp_path: Path) -> Path:
    """A folder of rank 3, alone in its own."""
    (tmp_path / "run").mkdir()
    return write_folder(export, tmp_path / "run/rank3_pqtdir")


def change(folder: Path, table: str, column: str, values: pa.Array) -> None:
    content = pq.read_table(folder / f"{table}.parquet")
    at = content.column_names.index(column)
    write_table(folder, table, content.set_column(at, column, values))


def test_a_folder_is_a_profile_and_its_files_are_none(folder: Path) -> None:
    assert find_profiles(folder.parent) == [folder]
    assert reader_of(folder) is NSYS
    assert identify_rank(folder) == read_profile(folder).origin.rank
    assert several_ranks(folder) is None
    assert files_of(folder) == sorted(folder.iterdir())
    (run,) = runs_of_files([folder])
    assert (run.path, run.files) == (folder.parent, (folder,))


def test_the_rank_may_be_in_the_name(folder: Path) -> None:
    for table in ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV", "MPI_RANKS"):
        (folder / f"{table}.parquet").unlink(missing_ok=True)
    assert identify_rank(folder) == 3


def test_a_report_beside_a_complete_folder_stands_for_it(folder: Path) -> None:
    report = folder.with_name("rank3.nsys-rep")
    report.write_bytes(b"report")
    write_table(folder, "ANALYSIS_DETAILS", pa.table({"duration": [1]}))
    os.utime(report, (1, 1))
    assert find_profiles(folder.parent) == [report]
    assert file_to_read(report) == folder


def test_an_incomplete_folder_is_not_used_for_a_report(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = folder.with_name("rank3.nsys-rep")
    report.write_bytes(b"report")
    os.utime(report, (1, 1))
    (folder / "META_DATA_EXPORT.parquet").unlink()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DamagedInput, match=r"no export rank3\.sqlite"):
        file_to_read(report)


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"PAR1" + bytes(64) + b"PAR1"])
@pytest.mark.parametrize("table", [KERNELS, "StringIds", "NVTX_EVENTS"])
def test_a_damaged_table_is_one_sentence(table: str, damage: bytes, folder: Path) -> None:
    (folder / f"{table}.parquet").write_bytes(damage)
    sentence = rf"rank3_pqtdir cannot be read as a Parquet export of nsys: {table}\.parquet: "
    with pytest.raises(DamagedInput, match=sentence) as error:
        read_profile(folder)
    assert "\n" not in str(error.value)


def test_another_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "rank0_pqtdir").mkdir()
    with pytest.raises(DamagedInput, match="is not an export of nsys"):
        read_profile(tmp_path / "rank0_pqtdir")


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint32(), pa.uint64(), pa.float64(), pa.string()])
def test_numbers_of_any_type_that_are_whole_count(kind: pa.DataType, folder: Path) -> None:
    before = read_profile(folder)
    streams = pq.read_table(folder / f"{KERNELS}.parquet")["streamId"].combine_chunks()
    change(folder, KERNELS, "streamId", streams.cast(kind))
    after = read_profile(folder)
    assert isinstance(before, Timeline)
    assert isinstance(after, Timeline)
    assert after.kernels.stream.tolist() == before.kernels.stream.tolist()


def test_a_kernel_without_an_end_is_counted(folder: Path) -> None:
    ends = pq.read_table(folder / f"{KERNELS}.parquet")["end"].to_pylist()
    change(folder, KERNELS, "end", pa.array([None, *ends[1:]], pa.int64()))
    profile = read_profile(folder)
    (loss,) = profile.origin.losses
    assert (loss.count, len(profile.kernels)) == (1, len(ends) - 1)
