"""The formats of rocprofv3: one program, recorded in each of them, gives one timeline."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from hpcprof.analysis.hardware.kernel_counters import kernel_counters
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.losses import LossKind, Subject
from hpcprof.profiles.possible_times import with_possible_times
from hpcprof.profiles.readers.discovery import find_profiles, identify_rank, read_profile, several_ranks
from hpcprof.profiles.readers.rocprof.records import CallCategory, Records, style_of, timeline
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import NO_BYTES, NO_NAME, Category, Origin, Style, Timeline
from tests.data import rocprof_profiles as made


def json_results(folder: Path, between: tuple[str, str] = (",", ":")) -> Path:
    path = folder / "rank0_results.json"
    path.write_text(json.dumps(made.results(), separators=between))
    return path


FORMATS: dict[str, Callable[[Path], Path]] = {
    **{
        schema: lambda folder, schema=schema: made.write_database(folder / "rank0_results.db", schema)  # type: ignore[misc]
        for schema in ("3.0.0", "3.0.5", "4.1.0", "lz4")
    },
    "json": json_results,
    "json with spaces": lambda folder: json_results(folder, (", ", ": ")),
    "csv": made.write_tables,
}


@pytest.fixture(params=FORMATS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return FORMATS[request.param](tmp_path)


def read(path: Path) -> Timeline:
    profile = read_profile(path)
    assert isinstance(profile, Timeline)
    return profile


def test_kernels_have_their_names_times_shapes_and_classes(path: Path) -> None:
    timeline = read(path)
    kernels = timeline.kernels
    order = np.argsort(kernels.start)
    assert timeline.names(kernels.name[order]) == [made.KERNELS[one.kernel] for one in made.DISPATCHES]
    assert (kernels.start[order].tolist(), kernels.end[order].tolist()) == (
        [one.start for one in made.DISPATCHES],
        [one.end for one in made.DISPATCHES],
    )
    # A grid of 1,000 work-items is two workgroups of 512.
    assert kernels.grid[order][:3].tolist() == [[40, 4, 1], [2, 1, 1], [16, 1, 1]]
    assert kernels.block[order][:3].tolist() == [[256, 1, 1], [512, 1, 1], [512, 1, 1]]
    assert kernels.category[order][:3].tolist() == [Category.COMP, Category.COMP, Category.COMM]
    assert {*kernels.device.tolist()} == {0}
    assert {*kernels.stream.tolist()} == {made.STREAM}
    assert {*kernels.process.tolist()} == {made.PID}
    assert timeline.origin.losses == ()


def test_each_dispatch_and_copy_joins_the_call_that_launched_it(path: Path) -> None:
    timeline = read(path)
    operation, call = launch_pairs(timeline)
    operations = timeline.operations()
    assert len(operation) == len(operations) == len(made.DISPATCHES) + len(made.COPIES)
    names = zip(
        timeline.names(operations.name[operation]), timeline.names(timeline.calls.name[call]), strict=True
    )
    assert {*names} == {
        (made.KERNELS[8], "hipExtModuleLaunchKernel"),
        (made.KERNELS[9], "hipLaunchKernel"),
        (made.KERNELS[10], "hipExtLaunchKernel"),
        ("[HIP memcpy Host-to-Device]", "hipMemcpyAsync"),
    }


def test_messages_of_roctx_are_the_names_of_ranges_and_rccl_has_a_domain(path: Path) -> None:
    timeline = read(path)
    ranges = timeline.ranges
    assert sorted(map(str, timeline.names(ranges.name))) == (
        ["RCCL:ncclAllReduce"] * made.STEPS + ["iteration"] * made.STEPS
    )
    assert {*map(str, timeline.names(ranges.domain))} == {"RCCL", "None"}
    assert {*ranges.style.tolist()} == {Style.PUSH_POP}
    collectives = timeline.collectives
    assert timeline.names(collectives.operation) == ["AllReduce"] * made.STEPS
    assert {*collectives.bytes.tolist()} == {NO_BYTES}
    assert {*collectives.communicator.tolist()} == {NO_NAME}


def test_ranges_that_rocprofv3_stored_as_their_end_are_counted_and_marks_are_not() -> None:
    """Rebuilt from ROCm/rocm-systems#2793, whose ranges have the function and the time of their end."""
    functions = ("roctxRangePop", "roctxRangeStop", "roctxMarkA", "", "", "roctxRangePushA")
    calls = {
        "start": np.arange(6),
        "end": np.arange(6) + np.array([0, 0, 0, 0, 5, 5]),
        "name": np.array([0, 1, 2, 3, 3, 4]),
        "kind": np.full(6, int(CallCategory.MARKER)),
        "style": np.array([style_of(function) for function in functions]),
        **{key: np.zeros(6, np.int64) for key in ("process", "thread", "stack")},
    }
    strings = StringTable()
    strings.add_all(("a", "b", "c", "d", "e"))
    found = timeline(Origin(Path("rank0.db"), "rocpd"), Records(calls=calls), strings)
    assert found.names(found.ranges.name) == ["d", "e"]
    (loss,) = found.origin.losses
    assert (loss.kind, loss.subject, loss.count, loss.of) == (LossKind.ROW, Subject.RANGE, 3, 5)


def test_gpus_have_the_peaks_of_their_data_sheet(path: Path) -> None:
    gpu = read(path).origin.gpus[0]
    assert (gpu.device, gpu.name, gpu.sm_count, gpu.clock_hz) == (
        0,
        "AMD Instinct MI250X",
        110,
        1_700_000_000,
    )
    assert gpu.memory_bytes_per_s == 1_638_000_000_000


@pytest.mark.parametrize("schema", ["3.0.0", "lz4"])
def test_a_database_has_ranks_and_listed_variables_but_no_secrets(schema: str, tmp_path: Path) -> None:
    path = made.write_database(tmp_path / "result.db", schema, rank=5)
    origin = read(path).origin
    assert (origin.rank, identify_rank(path), origin.world_size, origin.host) == (5, 5, 2, "frontier01234")
    facts = {fact.name: fact.value for fact in origin.facts}
    assert facts["ROCR_VISIBLE_DEVICES"] == "0"
    assert facts["GPU architecture"] == "gfx90a"
    assert not {*facts} & {*made.SECRETS}


def test_a_merged_database_holds_several_ranks(tmp_path: Path) -> None:
    path = made.write_database(tmp_path / "merged.db", rank=0)
    made.write_database(path, suffix="_other", pid=made.PID, rank=1)
    found = several_ranks(path)
    assert found is not None
    assert found.ranks == (0, 1)
    assert [len(one) for one in found.processes] == [1, 1]
    assert len(read(path).kernels) == 2 * len(made.DISPATCHES)
    assert {*read(path).kernels.process.tolist()} == found.every_process


def test_unknown_columns_and_tables_are_left_alone_and_unknown_categories_said(tmp_path: Path) -> None:
    path = made.write_database(tmp_path / "rank0_results.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f'ALTER TABLE "rocpd_kernel_dispatch{made.UUID}" ADD COLUMN graph_exec_id')
        connection.execute(f'CREATE TABLE "rocpd_future{made.UUID}" (id)')
        strings, events = (f'"rocpd_{name}{made.UUID}"' for name in ("string", "event"))
        connection.execute(f"UPDATE {strings} SET string = 'ROCDECODE_API' WHERE string = 'RCCL_API'")
        assert connection.execute(f"SELECT count(*) FROM {events}").fetchone() == (len(made.PROGRAM),)
    timeline = read(path)
    assert len(timeline.kernels) == len(made.DISPATCHES)
    (loss,) = timeline.origin.losses
    assert (loss.kind, loss.count, loss.detail) == (LossKind.CATEGORY, made.STEPS, "ROCDECODE_API")


def test_without_streams_queues_take_their_place(tmp_path: Path) -> None:
    path = made.write_database(tmp_path / "rank0_results.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("kernel_dispatch", "memory_copy"):
            connection.execute(f'UPDATE "rocpd_{table}{made.UUID}" SET stream_id = 0')
    assert {*read(path).kernels.stream.tolist()} == {made.QUEUE}


def test_a_table_of_counters_is_a_profile_where_none_of_kernels_stands_beside_it(tmp_path: Path) -> None:
    kernels = made.write_tables(tmp_path)
    assert find_profiles(tmp_path) == [kernels]
    kernels.unlink()
    (path,) = find_profiles(tmp_path)
    assert path.name == "rank0_counter_collection.csv"
    assert sorted(read(path).kernels.end.tolist()) == sorted(one.end for one in made.DISPATCHES)


def test_tables_may_have_no_prefix(tmp_path: Path) -> None:
    for table in [*made.write_tables(tmp_path).parent.iterdir()]:
        table.rename(table.with_name(table.name.removeprefix("rank0_")))
    assert find_profiles(tmp_path) == [tmp_path / "kernel_trace.csv"]
    timeline = read(tmp_path / "kernel_trace.csv")
    assert len(timeline.kernels) == len(made.DISPATCHES)
    assert len(timeline.calls) and len(timeline.memops) and len(timeline.counters)


def test_counters_of_older_versions_without_times_leave_the_kernels(tmp_path: Path) -> None:
    kernels = made.write_tables(tmp_path)
    table = tmp_path / "rank0_counter_collection.csv"
    table.write_text(table.read_text().replace("Start_Timestamp", "Start").replace("End_Timestamp", "End"))
    timeline = read(kernels)
    assert len(timeline.kernels) == len(made.DISPATCHES) and not len(timeline.counters)
    assert [(loss.kind, loss.subject) for loss in timeline.origin.losses] == [(LossKind.ROW, Subject.COUNTER)]


def test_a_last_line_without_an_end_is_left_out_and_a_column_must_not_come_twice(tmp_path: Path) -> None:
    path = made.write_tables(tmp_path)
    whole = path.read_text()
    path.write_text(whole.rstrip("\n"))
    timeline = read(path)
    assert len(timeline.kernels) == len(made.DISPATCHES) - 1
    assert [(loss.kind, loss.count) for loss in timeline.origin.losses] == [(LossKind.ROW, 1)]
    head, _, rest = whole.partition("\n")
    path.write_text(head.replace("Kernel_Id", "Kernel_Name") + "\n" + rest)
    with pytest.raises(DamagedInput, match=r"has the column Kernel_Name twice\.$"):
        read(path)


def test_a_row_of_another_length_is_left_out_and_counted(tmp_path: Path) -> None:
    path = made.write_tables(tmp_path)
    path.write_text(path.read_text() + "1,2\n")
    timeline = read(path)
    assert len(timeline.kernels) == len(made.DISPATCHES)
    (loss,) = timeline.origin.losses
    assert (loss.kind, loss.count) == (LossKind.ROW, 1)


def test_counters_are_summed_over_units_for_each_launch(path: Path) -> None:
    timeline = read(path)
    counters = timeline.counters
    assert {*timeline.names(counters.counter)} == {"SQ_WAVES"}
    # A sample over time, which schema 3.0.3 added, belongs to no kernel.
    assert counters.value.tolist() == [3.5] * len(made.DISPATCHES)
    rows = kernel_counters(timeline).rows.set_index("name")
    assert rows.loc[made.KERNELS[8]].to_dict() == {
        "counter": "SQ_WAVES",
        "count": made.STEPS,
        "total": 3.5 * made.STEPS,
        "mean": 3.5,
        "min": 3.5,
        "max": 3.5,
    }


def test_a_counter_that_each_pass_of_a_replayed_kernel_has_counts_once(tmp_path: Path) -> None:
    """Rebuilt from ROCm/rocm-systems#10439: all passes of a dispatch have its number."""
    kernels = made.write_tables(tmp_path)
    counters = tmp_path / "rank0_counter_collection.csv"
    head, *rows = counters.read_text().splitlines()
    later = [row.replace("SQ_WAVES", "FETCH_SIZE") for row in rows]
    counters.write_text("\n".join((head, *rows, *later, *rows)) + "\n")
    for path in (kernels, counters):
        outcome = kernel_counters(read(path))
        table = outcome.rows
        assert outcome.reason == "in units of 1024 bytes: FETCH_SIZE"
        assert {*table["counter"]} == {"SQ_WAVES", "FETCH_SIZE"}
        assert {*table["count"]} == {made.STEPS} and {*table["total"]} == {3.5 * made.STEPS}
        kernels.unlink(missing_ok=True)


def test_counters_without_times_or_values_are_left_out_and_counted(tmp_path: Path) -> None:
    path = made.write_tables(tmp_path)
    counters = tmp_path / "rank0_counter_collection.csv"
    head, first, second, *rows = counters.read_text().splitlines()
    timeless = ",".join((*first.split(",")[:-2], "5", "2"))
    counters.write_text("\n".join((head, timeless, second.replace("3.5", "n/a"), *rows)) + "\n")
    timeline = with_possible_times(read(path))
    assert len(timeline.counters) == len(made.DISPATCHES) - 2
    lost = [(loss.subject, loss.detail, loss.count) for loss in timeline.origin.losses]
    assert lost == [(Subject.COUNTER, "value", 1), (Subject.COUNTER, "end", 1)]


def test_passes_of_a_replayed_kernel_in_json_are_one_kernel(tmp_path: Path) -> None:
    results = made.results()
    (process,) = results["rocprofiler-sdk-tool"]
    process["buffer_records"] = {}
    passes = process["callback_records"]["counter_collection"]
    later = json.loads(json.dumps(passes))
    for one in later:
        one["dispatch_data"]["start_timestamp"] += 7
        for record in one["records"]:
            record["counter_id"]["handle"] += 100
    process["callback_records"]["counter_collection"] = [*passes, *later, *passes]
    path = tmp_path / "rank0_results.json"
    path.write_text(json.dumps(results))
    found = read(path)
    assert sorted(found.kernels.end.tolist()) == sorted(one.end for one in made.DISPATCHES)
    table = kernel_counters(found).rows
    assert {*table["count"]} == {made.STEPS} and {*table["total"]} == {3.5 * made.STEPS}


def test_passes_of_a_replayed_kernel_in_a_database_are_one_kernel(tmp_path: Path) -> None:
    path = made.write_database(tmp_path / "rank0_results.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        dispatch, event, counter = (
            f"rocpd_{name}{made.UUID}" for name in ("kernel_dispatch", "event", "pmc_event")
        )
        for table, changed in (
            (event, "id = id + 1000"),
            (dispatch, "id = id + 1000, event_id = event_id + 1000, start = start + 7"),
            (counter, "id = id + 1000, event_id = event_id + 1000"),
        ):
            connection.execute(f"CREATE TEMP TABLE later AS SELECT * FROM {table}")
            connection.execute(f"UPDATE later SET {changed}")
            connection.execute(f"INSERT INTO {table} SELECT * FROM later")
            connection.execute("DROP TABLE later")
        connection.execute(
            f"INSERT INTO {counter} (event_id, pmc_id, value) SELECT DISTINCT event_id, 6, 7.0 "
            f"FROM {counter} WHERE event_id > 1000"
        )
        connection.execute(f"INSERT INTO rocpd_info_pmc{made.UUID} (id, name) VALUES (6, 'GRBM_COUNT')")
    found = read(path)
    assert sorted(found.kernels.end.tolist()) == sorted(one.end for one in made.DISPATCHES)
    rows = kernel_counters(found).rows
    assert {*rows["count"]} == {made.STEPS}
    assert {*zip(rows["counter"], rows["mean"], strict=True)} == {("SQ_WAVES", 3.5), ("GRBM_COUNT", 7.0)}


def test_counters_alone_have_their_kernels(tmp_path: Path) -> None:
    results = made.results()
    results["rocprofiler-sdk-tool"][0]["buffer_records"] = {}
    path = tmp_path / "rank0_results.json"
    path.write_text(json.dumps(results))
    assert sorted(read(path).kernels.end.tolist()) == sorted(one.end for one in made.DISPATCHES)


def test_a_database_of_the_first_rocprof_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE HIP (BeginNs INTEGER, EndNs INTEGER)")
    with pytest.raises(DamagedInput, match=r"is a database of rocprof, which rocprofv3 has replaced"):
        read(path)


def test_results_of_the_first_rocprof_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rank0_results.json"
    path.write_text('{ "traceEvents":[{}\n,{"ph":"X","name":"k","args":{"BeginNs":"1","EndNs":"2"}}]}')
    with pytest.raises(DamagedInput, match="is a trace of rocprof, which rocprofv3 has replaced"):
        read(path)


def test_results_without_a_process_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0_results.json"
    path.write_text('{"rocprofiler-sdk-tool":[]}')
    with pytest.raises(DamagedInput, match="has no process: rocprofv3 recorded nothing"):
        read(path)
