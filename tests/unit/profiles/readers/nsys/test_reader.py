"""The reader of nsys exports."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from hpcprof.analysis.steps.capture_losses import capture_losses
from hpcprof.analysis.summaries.nvtx_gpu_projection import ranges
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.possible_times import with_possible_times
from hpcprof.profiles.readers.nsys.origin import identify_rank
from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.timeline import NO_BYTES, NO_NAME, OWN_END, Category, Gpu, Style
from tests.data import generated_exports
from tests.data.generated_exports import MACHINE


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
    assert origin.losses == ()


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


def test_exports_before_2021_name_their_gpus(export: Path) -> None:
    # The columns of an export of 2020 (OpenMP programs on V100) that tell a GPU.
    change(
        export,
        "DROP TABLE TARGET_INFO_GPU",
        "CREATE TABLE TARGET_INFO_CUDA_GPU (name, deviceId, computeCapabilityMajor, computeCapabilityMinor, "
        "numMultiprocessors)",
        "INSERT INTO TARGET_INFO_CUDA_GPU VALUES ('Tesla V100-PCIE-32GB', 1, 7, 0, 80)",
    )
    (gpu,) = read(export).origin.gpus
    assert gpu == Gpu(1, "Tesla V100-PCIE-32GB", compute_capability="7.0", sm_count=80)


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
    change(export, "UPDATE NVTX_EVENTS SET endGlobalTid = globalTid")
    assert (read(export).ranges.one_thread == OWN_END).all()
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


@pytest.mark.parametrize("value", ["'soon'", "1.5", "NULL"])
@pytest.mark.parametrize("column", ["start", "end"])
def test_a_bad_stamp_drops_its_row_and_is_counted(export: Path, column: str, value: str) -> None:
    whole = read(export)
    loosen(export, "CUPTI_ACTIVITY_KIND_RUNTIME")
    change(export, f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET {column} = {value} WHERE rowid = 7")
    timeline = with_possible_times(read(export))
    count = len(whole.calls)
    assert timeline.calls.start.tolist() == np.delete(whole.calls.start, 6).tolist()
    (loss,) = timeline.origin.losses
    assert loss == Loss(LossKind.ROW, Subject.CALL, 1, count, column)
    assert loss.sentence == f"1 of {count:,} API calls has no valid {column} and is left out"


def test_an_odd_field_of_little_weight_is_dropped_and_its_row_kept(tmp_path: Path) -> None:
    path, table = tmp_path / "rank0.sqlite", "CUPTI_ACTIVITY_KIND_MEMCPY"
    generated_exports.write(path, 1)
    whole = read(path)
    loosen(path, table)
    change(path, f"UPDATE {table} SET bytes = 'many', streamId = 1.5 WHERE rowid = 2")
    timeline = read(path)
    assert timeline.memops.start.tolist() == whole.memops.start.tolist()
    assert (timeline.memops.bytes != whole.memops.bytes).nonzero()[0].tolist() == [1]
    assert timeline.memops.bytes[1] == NO_BYTES
    sentences = [loss.sentence for loss in timeline.origin.losses if loss.subject is Subject.COPY]
    copies = int(np.sum([name.startswith("[CUDA memcpy") for name in whole.names(whole.memops.name)]))
    assert sentences == [
        f"1 of {copies} memory copies has no readable {name}" for name in ("streamId", "bytes")
    ]


def test_names_that_are_missing_are_counted(export: Path) -> None:
    change(export, "DELETE FROM StringIds WHERE id = (SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL)")
    timeline = read(export)
    unnamed = int((timeline.kernels.name == NO_NAME).sum())
    assert unnamed
    assert timeline.origin.losses == (
        Loss(LossKind.FIELD, Subject.KERNEL, unnamed, len(timeline.kernels), "name"),
    )


def test_a_bad_type_of_an_event_and_a_bad_end_of_a_range_drop_their_rows(export: Path) -> None:
    whole = read(export)
    loosen(export, "NVTX_EVENTS")
    rows = "(SELECT rowid FROM NVTX_EVENTS WHERE eventType = 59 ORDER BY start LIMIT {})"
    change(
        export,
        f"UPDATE NVTX_EVENTS SET end = 'soon' WHERE rowid = {rows.format(1)}",
        f"UPDATE NVTX_EVENTS SET eventType = 1.5 WHERE rowid = {rows.format('1 OFFSET 1')}",
    )
    timeline = with_possible_times(read(export))
    assert len(timeline.ranges) == len(whole.ranges) - 2
    assert set(timeline.origin.losses) == {
        Loss(LossKind.ROW, Subject.RANGE, 1, len(whole.ranges) - 1, "end"),
        Loss(LossKind.ROW, Subject.EVENT, 1, None, "eventType"),
    }


def test_a_bad_id_of_a_table_of_labels_is_damage(tmp_path: Path) -> None:
    path, table = tmp_path / "rank0.sqlite", "ENUM_CUDA_MEMCPY_OPER"
    generated_exports.write(path, 1)
    loosen(path, table)
    change(path, f"UPDATE {table} SET id = 'one' WHERE id = 1")
    with pytest.raises(DamagedInput, match=f"{table} holds a value in column id that is not an integer"):
        read(path)


def test_warnings_of_nsys_are_losses_without_secrets_and_folders(export: Path) -> None:
    process = MACHINE + (int(read(export).kernels.process[0]) & 0xFFFFFF) * 2**24
    told = [
        (2, "Not all CUDA events might have been collected.", process),
        (3, "cannot read /home/anna/run 1/a.log: API_TOKEN=hush\n  and more", None),
        (2, "Discarded.", MACHINE),
        (2, "Discarded.", MACHINE),
        (1, "CUDA injection initialized successfully.", process),
        (4, "details", process),
        ("x", "odd", process),
        (2, None, process),
        (2, "No CUDA events collected. Does the process use CUDA?", process + 2**24),
        (2, "CUDA profiling might have not been started correctly.", process + 2**24),
        (3, "Events of a child were dropped.", process + 2**24),
    ]
    change(
        export,
        "DROP TABLE IF EXISTS DIAGNOSTIC_EVENT",
        "CREATE TABLE DIAGNOSTIC_EVENT (timestamp, timestampType, source, severity, text, globalPid)",
    )
    with sqlite3.connect(export) as connection:
        connection.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 0, 0, ?, ?, ?)", told)
    connection.close()
    assert [(loss.detail, loss.count) for loss in read(export).origin.losses] == [
        ("Not all CUDA events might have been collected.", 1),
        ("cannot read run 1/a.log: API_TOKEN=*** and more", 1),
        ("Discarded.", 2),
        ("Events of a child were dropped.", 1),
    ]


@pytest.mark.parametrize(("mark", "kind"), [("hpcprof.window", LossKind.NOTE), ("x", LossKind.DIAGNOSTIC)])
def test_events_that_are_missing_after_a_window_are_no_loss(mark: str, kind: LossKind, export: Path) -> None:
    text = (
        "Number of CUPTI events produced: 67474, CUPTI buffers: 48 of 50. Some CUPTI events might be missing."
    )
    change(
        export,
        "DROP TABLE IF EXISTS DIAGNOSTIC_EVENT",
        "CREATE TABLE DIAGNOSTIC_EVENT (timestamp, timestampType, source, severity, text, globalPid)",
        f"INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 0, 0, 1, '{text}', NULL)",
        f"UPDATE NVTX_EVENTS SET text = '{mark}' WHERE start = (SELECT min(start) FROM NVTX_EVENTS)",
    )
    losses = read(export).origin.losses
    assert [loss.kind for loss in losses if loss.detail == text] == [kind]


@pytest.mark.parametrize("ranges", [True, False])
def test_ranges_that_may_be_missing_are_no_loss_to_a_program_without_any(ranges: bool, export: Path) -> None:
    """Rebuilt from a public export: sdroruganti/cuda-kernel-library report2.sqlite."""
    text = "Not all NVTX events might have been collected."
    change(
        export,
        "DROP TABLE IF EXISTS DIAGNOSTIC_EVENT",
        "CREATE TABLE DIAGNOSTIC_EVENT (severity, text)",
        f"INSERT INTO DIAGNOSTIC_EVENT VALUES (2, '{text}')",
        *([] if ranges else ["DROP TABLE NVTX_EVENTS"]),
    )
    kinds = [loss.kind for loss in read(export).origin.losses if loss.detail == text]
    assert kinds == [LossKind.DIAGNOSTIC if ranges else LossKind.NOTE]


@pytest.mark.parametrize(
    ("call", "kind"), [("", LossKind.NOTE), ("cudaMallocManaged_v6000", LossKind.DIAGNOSTIC)]
)
def test_pages_that_cannot_be_traced_are_a_loss_to_programs_that_use_them(
    call: str, kind: LossKind, export: Path
) -> None:
    """Of public exports: forestmgy/miniGEMM and rchops/cuda-learning report1.sqlite."""
    text = "Unified Memory cannot be traced on devices that don''t support peer-to-peer transfers."
    change(
        export,
        "DROP TABLE IF EXISTS DIAGNOSTIC_EVENT",
        "CREATE TABLE DIAGNOSTIC_EVENT (severity, text)",
        f"INSERT INTO DIAGNOSTIC_EVENT VALUES (3, '{text}')",
        f"INSERT INTO StringIds VALUES (9999999, '{call}')",
    )
    assert [loss.kind for loss in read(export).origin.losses] == [kind]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Unable to collect CPU kernel IP/backtrace samples. perf event paranoid level is 2.", LossKind.NOTE),
        ("Collection of CPU IP/backtrace samples or context switch data disabled.", LossKind.NOTE),
        ("Not all OpenGL events might have been collected.", LossKind.NOTE),
        ("CUDA hardware tracing is not supported on this system.", LossKind.NOTE),
        ("Scheduling information is absent.", LossKind.NOTE),
        ("No OS runtime libraries events collected. Does the process use OS runtime?", LossKind.NOTE),
        ("Not all CUDA events might have been collected.", LossKind.DIAGNOSTIC),
    ],
)
def test_warnings_about_what_is_not_read_are_no_losses(text: str, kind: LossKind, export: Path) -> None:
    """Of public exports: frasertajima/WeatherBench2 and CO18326/uvmTorch report1.sqlite."""
    flushed = "Buffers holding CUDA trace data will be flushed on CudaProfilerStop() call."
    change(
        export,
        "DROP TABLE IF EXISTS DIAGNOSTIC_EVENT",
        "CREATE TABLE DIAGNOSTIC_EVENT (severity, text)",
        f"INSERT INTO DIAGNOSTIC_EVENT VALUES (1, '{flushed}'), (2, '{text}')",
    )
    assert [(loss.kind, loss.detail) for loss in read(export).origin.losses] == [(kind, text)]


def test_a_capture_that_lost_its_kernels_keeps_the_warnings_of_all_processes(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    generated_exports.write(path, 1)
    change(
        path,
        *(f"DROP TABLE CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")),
        "CREATE TABLE DIAGNOSTIC_EVENT (severity, text, globalPid)",
        f"INSERT INTO DIAGNOSTIC_EVENT VALUES (2, 'No CUDA events collected. Why?', {MACHINE + 2**24})",
    )
    (loss,) = read(path).origin.losses
    assert loss.sentence == "the profiler reports: No CUDA events collected"


def test_without_kernels_processes_that_called_no_api_of_the_gpu_lost_nothing(tmp_path: Path) -> None:
    """A compiler that the program started has no events of CUDA, and lost none."""
    path = tmp_path / "rank0.sqlite"
    generated_exports.write(path, 1)
    change(
        path,
        *(f"DROP TABLE CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET")),
        "CREATE TABLE DIAGNOSTIC_EVENT (severity, text, globalPid)",
        f"INSERT INTO DIAGNOSTIC_EVENT VALUES (2, 'No CUDA events collected. Why?', {MACHINE + 2**24})",
    )
    assert not [loss for loss in read(path).origin.losses if loss.kind is LossKind.DIAGNOSTIC]


def test_launches_that_failed_are_no_launches_whose_kernels_are_lost(tmp_path: Path) -> None:
    """Rebuilt from public exports: PTX too new for the driver, and a kernel that leaves its memory."""
    path = tmp_path / "rank0.sqlite"
    calls = [(5, 222, "cudaLaunchKernel"), (5, 222, "cudaLaunchKernel"), (6, 700, "cudaDeviceSynchronize")]
    calls += [(7, 98, "cudaFuncGetAttributes"), (8, 600, "cudaEventQuery"), (9, 0, "cudaFree")]
    change(
        path,
        *generated_exports.SCHEMA.strip().split(";")[:-1],
        *(f"INSERT INTO StringIds VALUES ({i}, '{name}')" for i, (_, _, name) in enumerate(calls, 101)),
        *(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({at}, {at + 1}, 0, 1, {i}, {i}, {code})"
            for i, (at, code, _) in enumerate(calls, 101)
        ),
    )
    timeline = read(path)
    assert [loss.sentence for loss in (*timeline.origin.losses, *capture_losses(timeline))] == [
        "2 of 2 launch calls failed with error 222 of CUDA (PTX of a newer toolkit than the driver's)",
        "1 of 6 API calls failed with error 700 of CUDA (illegal memory access), the first in "
        "cudaDeviceSynchronize: what was launched last did not end",
    ]


def test_the_error_of_a_kernel_is_one_loss_with_the_first_call_that_meets_it(tmp_path: Path) -> None:
    """The second of three launches has no kernel, as it fails, and so do all calls from then on."""
    path = tmp_path / "rank0.sqlite"
    calls = [(5, 0, "cudaLaunchKernel"), (10, 0, "cudaLaunchKernel"), (15, 716, "cudaMemcpy")]
    calls += [(20, 716, "cudaLaunchKernel"), (25, 716, "cudaFree"), (30, 716, "cudaDeviceSynchronize")]
    names = sorted({name for _, _, name in calls})
    change(
        path,
        *generated_exports.SCHEMA.strip().split(";")[:-1],
        *(f"INSERT INTO StringIds VALUES ({i}, '{name}')" for i, name in enumerate(names, 101)),
        *(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({at}, {at + 1}, 0, 1, {i}, "
            f"{101 + names.index(name)}, {code})"
            for i, (at, code, name) in enumerate(calls, 1)
        ),
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, "
        "globalPid, demangledName, shortName, gridX, gridY, gridZ, blockX, blockY, blockZ) "
        "VALUES (6, 9, 0, 1, 7, 1, 0, 102, 102, 1, 1, 1, 1, 1, 1)",
    )
    timeline = read(path)
    assert [loss.sentence for loss in (*timeline.origin.losses, *capture_losses(timeline))] == [
        "4 of 6 API calls failed with error 716 of CUDA (misaligned address), the first in cudaMemcpy: what "
        "was launched last did not end"
    ]


def test_tables_of_events_that_are_not_read_are_named_once(export: Path) -> None:
    change(
        export,
        "CREATE TABLE CUDA_UM_CPU_PAGE_FAULT_EVENTS (start INTEGER)",
        "INSERT INTO CUDA_UM_CPU_PAGE_FAULT_EVENTS VALUES (5), (6)",
        "CREATE TABLE GENERIC_EVENTS (rawTimestamp INTEGER)",
        "INSERT INTO GENERIC_EVENTS VALUES (5)",
        "CREATE TABLE SCHED_EVENTS (start INTEGER)",
    )
    (loss,) = read(export).origin.losses
    assert loss.sentence.endswith("does not read: CUDA_UM_CPU_PAGE_FAULT_EVENTS, GENERIC_EVENTS")


def loosen(path: Path, table: str) -> None:
    """Let the columns of a table hold any value."""
    with sqlite3.connect(path) as connection:
        names = ", ".join(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))
        connection.executescript(
            f"ALTER TABLE {table} RENAME TO old; CREATE TABLE {table} ({names});"
            f"INSERT INTO {table} SELECT * FROM old; DROP TABLE old;"
        )
    connection.close()


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


def test_another_sqlite_database_is_no_export(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    change(path, "CREATE TABLE users (id INTEGER)")
    with pytest.raises(DamagedInput, match="not an export of nsys"):
        read(path)


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
    timeline = with_possible_times(read(path))
    assert len(timeline.kernels) == whole - 2
    (loss,) = (loss for loss in timeline.origin.losses if loss.kind is LossKind.ROW)
    assert loss.sentence == f"2 of {whole} kernels have no valid end and are left out"


def test_a_kernel_that_ends_before_it_starts_is_left_out_and_counted(export: Path) -> None:
    count = len(read(export).kernels)
    change(export, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 5 WHERE rowid = 1")
    timeline = with_possible_times(read(export))
    assert len(timeline.kernels) == count - 1
    assert Loss(LossKind.ROW, Subject.KERNEL, 1, count, "end") in timeline.origin.losses


def test_the_rank_of_another_programs_database_is_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "dlprof_dldb.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE aggregations (id)")
    with pytest.raises(DamagedInput, match=r"dlprof_dldb\.sqlite is not an export of nsys"):
        identify_rank(path)


def test_a_database_of_nvprof_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    change(path, "CREATE TABLE StringTable (x)", "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (x)")
    with pytest.raises(DamagedInput, match="a profile of nvprof, which Nsight Systems has replaced"):
        read(path)


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
