"""The reader of nsys exports."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from hpcprof.analysis.summaries.kernels import kernels
from hpcprof.analysis.summaries.nvtx_ranges import ranges
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.timeline import NO_NAME, Category, Style
from tests.data import generated_exports


def change(path: Path, *statements: str) -> None:
    """Execute statements on an export."""
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_a_real_export_tells_what_ran_where_and_when(export: Path) -> None:
    timeline = read(export)
    assert (len(timeline.kernels), len(timeline.memops), len(timeline.calls)) == (172, 86, 1896)
    assert len(timeline.ranges) == 301
    origin = timeline.origin
    assert (origin.kind, origin.rank, origin.world_size, origin.host) == ("nsys", 0, 4, "node0")
    assert origin.device_names == ("NVIDIA H200",) * 4
    assert origin.profiler_version == "2025.3.2.0"
    assert origin.start_utc_ns == 1795227534911272217
    assert origin.notes == ()


def test_names_classes_and_domains_are_resolved(export: Path) -> None:
    timeline = read(export)
    classes = dict(
        zip(timeline.names(timeline.kernels.name), timeline.kernels.category.tolist(), strict=True)
    )
    assert classes["nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT"] == Category.COMP
    assert sum(category == Category.COMM for category in classes.values()) == 2
    assert set(timeline.names(timeline.memops.name)) == {"[CUDA memset]"}
    inside = timeline.ranges.domain != NO_NAME
    assert set(timeline.names(timeline.ranges.name[inside])) == {
        "NCCL:ncclAllGather",
        "NCCL:ncclReduceScatter",
    }
    assert set(timeline.names(timeline.ranges.domain[inside])) == {"NCCL"}


def test_nothing_is_written_beside_or_into_the_export(export: Path) -> None:
    before = export.read_bytes()
    read(export)
    assert export.read_bytes() == before
    assert list(export.parent.iterdir()) == [export]


@pytest.mark.parametrize("name", ["a b.sqlite", "a?b.sqlite", "a#b.sqlite", "100%41.sqlite", "ä;&=.sqlite"])
def test_a_path_may_hold_what_a_uri_gives_a_meaning_to(export: Path, name: str) -> None:
    assert len(read(export.rename(export.with_name(name))).kernels) == 172


@pytest.mark.parametrize(
    "table",
    [
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "NVTX_EVENTS",
        "MPI_RANKS",
        "META_DATA_CAPTURE",
        "META_DATA_EXPORT",
        "TARGET_INFO_GPU",
        "TARGET_INFO_SYSTEM_ENV",
        "TARGET_INFO_SESSION_START_TIME",
        "ENUM_CUDA_MEMCPY_OPER",
    ],
)
@pytest.mark.parametrize("action", ["DROP TABLE", "DELETE FROM"])
def test_an_absent_or_empty_table_means_that_nothing_was_traced(
    export: Path, table: str, action: str
) -> None:
    change(export, f"{action} {table}")
    timeline = read(export)
    assert timeline.origin.rank == 0 or table == "MPI_RANKS"
    assert (len(timeline.kernels) == 0) == (table == "CUPTI_ACTIVITY_KIND_KERNEL")
    assert (len(timeline.calls) == 0) == (table == "CUPTI_ACTIVITY_KIND_RUNTIME")


def test_the_highest_version_of_a_table_is_read_where_the_plain_one_has_no_rows(export: Path) -> None:
    change(
        export,
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL_V2 AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 3",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL_V10 AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 5",
    )
    assert len(read(export).kernels) == 172
    change(export, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
    assert len(read(export).kernels) == 5


def test_columns_that_old_exports_lack_have_defaults(export: Path) -> None:
    columns = ["globalPid", "gridX", "blockZ", "mangledName", "greenContextId", "graphNodeId"]
    change(export, *(f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN {name}" for name in columns))
    change(
        export, *(f"ALTER TABLE NVTX_EVENTS DROP COLUMN {name}" for name in ("endGlobalTid", "binaryData"))
    )
    timeline = read(export)
    assert set(timeline.kernels.process.tolist()) == set(timeline.calls.process.tolist())
    assert (timeline.kernels.grid[:, 0] == 1).all()
    assert (timeline.ranges.one_thread == 1).all()


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "end"),
        ("NVTX_EVENTS", "eventType"),
        ("CUPTI_ACTIVITY_KIND_MEMSET", "start"),
    ],
)
def test_a_table_without_a_key_column_is_damage(export: Path, table: str, column: str) -> None:
    change(export, f"ALTER TABLE {table} DROP COLUMN {column}")
    with pytest.raises(DamagedInput, match=rf"profile\.sqlite: table {table} has no column {column}\."):
        read(export)


def test_names_without_a_string_table_are_damage(export: Path) -> None:
    change(export, "DROP TABLE StringIds")
    with pytest.raises(DamagedInput, match="no StringIds"):
        read(export)


def test_a_value_that_is_not_an_integer_is_damage(export: Path) -> None:
    change(export, "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = 'soon' WHERE rowid = 7")
    with pytest.raises(DamagedInput, match="holds a value that is not an integer"):
        read(export)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"SQLite f", "truncated"),
        (b"\x00" * 4096, "not an SQLite file"),
        (b"{}", "not an SQLite file"),
    ],
)
def test_a_file_that_is_not_sqlite_is_named_so(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(content)
    with pytest.raises(DamagedInput, match=rf"rank0\.sqlite .*{reason}"):
        read(path)


def test_a_missing_file_and_a_folder_are_damaged_input(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.sqlite", tmp_path):
        with pytest.raises(DamagedInput, match="cannot be read"):
            read(path)


def test_another_sqlite_database_is_no_export(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    change(path, "CREATE TABLE users (id INTEGER)")
    with pytest.raises(DamagedInput, match="not an nsys export"):
        read(path)


def test_an_export_cut_at_any_byte_is_damaged_input(export: Path, nsys_bytes: bytes) -> None:
    size = len(nsys_bytes)
    for at in [*range(0, 200, 9), *range(200, size, size // 97), size - 1]:
        export.write_bytes(nsys_bytes[:at])
        with pytest.raises(DamagedInput, match=r"profile\.sqlite"):
            read(export)


def test_overwritten_bytes_raise_nothing_but_damaged_input(export: Path, nsys_bytes: bytes) -> None:
    generator = np.random.default_rng(1)
    for _ in range(150):
        content = bytearray(nsys_bytes)
        at = int(generator.integers(0, len(content) - 64))
        content[at : at + 64] = generator.bytes(64)
        export.write_bytes(content)
        try:
            read(export)
        except DamagedInput as error:
            assert "profile.sqlite" in str(error)


def test_rows_without_a_stamp_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    generated_exports.write(path, 1)
    connection = sqlite3.connect(path)
    with connection:
        connection.executescript(
            "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO old;"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM old;"
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = NULL WHERE rowid <= 2;"
        )
    whole = connection.execute("SELECT count(*) FROM old").fetchone()[0]
    connection.close()
    timeline = read(path)
    assert len(timeline.kernels) == whole - 2
    assert timeline.origin.notes == ("2 kernels have no start or end and are left out.",)


def test_a_negative_duration_is_kept(export: Path) -> None:
    change(export, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 5 WHERE rowid = 1")
    assert int((read(export).kernels.end - read(export).kernels.start).min()) == -5
    assert kernels(read(export)).rows["min_ns"].min() == -5


def test_a_range_without_a_name_keeps_none(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    generated_exports.write(path, 5)
    timeline = read(path)
    assert NO_NAME in timeline.ranges.name
    assert None in ranges(timeline).rows["range"].tolist()


def test_open_ranges_end_at_the_last_stamp_and_say_so(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    change(
        path,
        *generated_exports.SCHEMA.strip().split(";")[:-1],
        "INSERT INTO NVTX_EVENTS VALUES (10, NULL, 59, 0, 0, 0, 'open', 16777217, NULL, NULL, 0)",
        "INSERT INTO NVTX_EVENTS VALUES (20, 30, 60, 0, 0, 0, 'other', 16777217, 16777218, NULL, 0)",
        "INSERT INTO NVTX_EVENTS VALUES (99, NULL, 34, 0, 0, 0, 'mark', 16777217, NULL, NULL, 0)",
    )
    table = read(path).ranges
    assert table.end.tolist() == [99, 30]
    assert table.closed.tolist() == [0, 1]
    assert table.one_thread.tolist() == [1, 0]
    assert table.style.tolist() == [Style.PUSH_POP, Style.START_END]
    assert (table.process.tolist(), table.thread.tolist()) == ([1, 1], [1, 1])


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        (['PMI_RANK="7"', 'SLURM_PROCID="0"'], 7),
        (['RANK="5"'], 5),
        (['SECRET_RANK="5"'], 3),
        (['RANK="no"'], 3),
        ([], 3),
    ],
)
def test_the_rank_comes_from_the_environment_before_the_file_name(
    export: Path, variables: list[str], rank: int
) -> None:
    change(
        export,
        "DELETE FROM MPI_RANKS",
        "DELETE FROM META_DATA_CAPTURE",
        "DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'DeviceEnvironment'",
        *(
            f"INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', '{v}')"
            for v in variables
        ),
    )
    assert read(export.rename(export.with_name("rank3.sqlite"))).origin.rank == rank


def test_of_the_environment_only_rank_and_size_are_kept(export: Path) -> None:
    change(
        export,
        "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', 'API_TOKEN=\"hush\"')",
        "UPDATE TARGET_INFO_SYSTEM_ENV SET value = value || ';KEY=hush' WHERE name = 'DeviceEnvironment'",
        "INSERT INTO StringIds VALUES (90001, 'API_TOKEN=hush')",
    )
    timeline = read(export)
    assert "hush" not in repr(timeline) + " ".join(timeline.strings.tolist())


def test_several_mpi_ranks_in_one_export_leave_the_rank_to_the_file_name(export: Path) -> None:
    change(export, "INSERT INTO MPI_RANKS VALUES (1, 1)")
    origin = read(export).origin
    assert origin.rank is None
    assert origin.notes == ("It holds several MPI ranks: 0, 1.",)
