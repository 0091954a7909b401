"""Real profiles with anything changed in them: a sentence, or results whose totals are right.

``HPCPROF_FUZZ_EXAMPLES`` sets how many changed profiles each test makes (``make fuzz`` makes many).
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.steps.capture_losses import capture_losses
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.losses import LossKind, Subject
from hpcprof.profiles.readers.declaration import ProfilePart
from hpcprof.profiles.readers.discovery import read_profile, several_ranks
from hpcprof.profiles.readers.xplane.wire import Damage, fields_of
from hpcprof.profiles.timeline import LATEST, LONGEST, Timeline
from tests.crosschecks import AnalysisColumns, contradictions
from tests.data import inspector_log, rocprof_profiles, unitrace_trace, xplane_profile
from tests.data.otf2_archive import files_of_archive, write_archive
from tests.data.parquet_export import write_folder

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data"
EXPORT = lzma.decompress((DATA / "sp_bf16_rank0.sqlite.xz").read_bytes())


def quarter_of_trace() -> bytes:
    """Return a trace with one in four of its calls and kernels, for four times as many examples."""
    trace = json.loads(gzip.decompress((DATA / "ddp_step_rank0.pt.trace.json.gz").read_bytes()))
    events = trace["traceEvents"]
    joined = [event.get("args", {}).get("correlation", event.get("id", 0)) for event in events]
    trace["traceEvents"] = [event for event, number in zip(events, joined, strict=True) if number % 4 == 0]
    return json.dumps(trace).encode()


TRACE = quarter_of_trace()
RESULTS = json.dumps(rocprof_profiles.results(), separators=(",", ":")).encode()
WHOLE = {
    ".sqlite": EXPORT,
    ".trace.json": TRACE,
    "_results.json": RESULTS,
    ".unitrace.json": unitrace_trace.text().encode(),
    ".xplane.pb": xplane_profile.profile(gpus=2),
    ".inspector.log": inspector_log.of_slow_rank(0).encode(),
    "_kernel_trace.csv": rocprof_profiles.tables()["_kernel_trace.csv"].encode(),
}
EXAMPLES = int(os.environ.get("HPCPROF_FUZZ_EXAMPLES", "20"))
LARGEST = 2**63 - 1
PUSH_POP, START_END = 59, 60

# A change is made by a generator with this seed: what it changes depends on what the profile holds.
changes = st.lists(st.integers(0, 2**32), min_size=1, max_size=4)
bounded = settings(max_examples=EXAMPLES, deadline=60_000, suppress_health_check=list(HealthCheck))

VALUES = [None, 0, -1, -(10**6), 1, 2**31, 2**40, LATEST, -LATEST, LARGEST, -LARGEST - 1]
ODD_VALUES = [*VALUES, "", "text", "\U0001f600 <script>alert(1)</script>", b"\x00\xff", 1.5, float("inf")]


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Path]:
    """Return a function that makes an empty folder for the next example and removes that of the last one."""
    folders = (tmp_path / str(number) for number in count())
    made: list[Path] = []

    def make() -> Path:
        while made:
            shutil.rmtree(made.pop())
        made.append(next(folders))
        made[0].mkdir()
        return made[0]

    return make


def opened(path: Path, part: ProfilePart | None = None, named: Path | None = None) -> Timeline | None:
    """Read a profile; None where the reader refuses the file, or one in ``named``, in one sentence."""
    try:
        timeline = read_profile(path, part)
    except DamagedInput as error:
        assert "\n" not in str(error)
        assert str(named or path) in str(error)
        assert not error.traceback, error.traceback
        return None
    assert isinstance(timeline, Timeline)
    return timeline


def analysed(timeline: Timeline) -> dict[str, AnalysisColumns]:
    """Run every rank analysis and return the columns of each."""
    results: dict[str, AnalysisColumns] = {}
    assert all(loss.sentence and "\n" not in loss.sentence for loss in capture_losses(timeline))
    for name, analysis in ANALYSES.items():
        if analysis.scope is Scope.RANK:
            outcome = analyze_rank(analysis, timeline, 0)
            assert outcome.count or outcome.reasons, f"{name}: neither rows nor a reason"
            results[name] = outcome.columns
            for key, values in results[name].items():
                json.dumps(values)
                for value in values:
                    assert not isinstance(value, int) or -LARGEST - 1 <= value <= LARGEST, (name, key, value)
    return results


NSYS_SUBJECTS = {
    "kernels": (Subject.KERNEL,),
    "memops": (Subject.COPY, Subject.SET, Subject.MEMORY),
    "calls": (Subject.CALL,),
    "ranges": (Subject.RANGE,),
}
TRACE_SUBJECTS = {
    "kernels": (Subject.KERNEL,),
    "memops": (Subject.MEMORY,),
    "calls": (Subject.CALL,),
    "ranges": (Subject.RANGE,),
    "operators": (Subject.OPERATOR,),
    "gpu_marks": (Subject.MARK,),
}
CATEGORIES = {
    "kernels": ("kernel",),
    "memops": ("gpu_memcpy", "gpu_memset"),
    "calls": ("cuda_runtime", "cuda_driver"),
    "ranges": ("user_annotation",),
    "operators": ("cpu_op",),
    "gpu_marks": ("gpu_user_annotation", "cuda_sync"),
}


def counted(timeline: Timeline, subjects: Mapping[str, tuple[Subject, ...]]) -> dict[str, int]:
    """Return how many rows of each table were read or are said to be left out."""
    return {
        table: len(getattr(timeline, table)) + sum(left_out(timeline, subject) for subject in own)
        for table, own in subjects.items()
    }


def left_out(timeline: Timeline, subject: Subject) -> int:
    """Return how many rows of a table the reader says it left out."""
    kinds = (LossKind.ROW, LossKind.EARLY, LossKind.OVERRUN)
    losses = timeline.origin.losses
    return sum(loss.count for loss in losses if loss.kind in kinds and loss.subject is subject)


def rows_of(path: Path, table: str, where: str = "TRUE") -> int:
    """Return the number of rows of a table of an export, 0 if there is none."""
    database = sqlite3.connect(path)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    query = f"SELECT count(*) FROM {table} WHERE {where}"
    count = database.execute(query).fetchone()[0] if table in tables else 0
    database.close()
    return int(count)


def check_parts(results: dict[str, AnalysisColumns]) -> None:
    """The analyses contradict nothing, and totals agree between the tables of kernels."""
    assert contradictions(results) == []
    kernels, by_shape = (sum(results[name].get("total_ns", ())) for name in ("kernels", "kernels_by_shape"))
    assert kernels == by_shape


@bounded
@given(changes)
def test_an_export_with_changed_cells_gives_a_sentence_or_right_totals(
    fresh: Callable[[], Path], seeds: list[int]
) -> None:
    path = fresh() / "rank00000.sqlite"
    path.write_bytes(EXPORT)
    with sqlite3.connect(path) as database:
        for seed in seeds:
            change_database(database, random.Random(seed))
    database.close()
    timeline = opened(path)
    if timeline is not None:
        results = analysed(timeline)
        check_parts(results)
        assert counted(timeline, NSYS_SUBJECTS) == {
            "kernels": rows_of(path, "CUPTI_ACTIVITY_KIND_KERNEL"),
            "memops": rows_of(path, "CUPTI_ACTIVITY_KIND_MEMCPY")
            + rows_of(path, "CUPTI_ACTIVITY_KIND_MEMSET"),
            "calls": rows_of(path, "CUPTI_ACTIVITY_KIND_RUNTIME"),
            "ranges": rows_of(path, "NVTX_EVENTS", f"eventType IN ({PUSH_POP}, {START_END})"),
        }
        kernels = results["kernels"]
        found = dict(zip(kernels.get("name", ()), kernels.get("total_ns", ()), strict=True))
        assert found == kernel_totals(path)


@pytest.mark.parametrize("schema", ["3.0.5", "4.1.0", "lz4"])
@bounded
@given(changes)
@example([3546])
@example([1, 1, 41877])
def test_a_rocpd_database_with_changed_cells_gives_a_sentence_or_counts_what_it_leaves_out(
    fresh: Callable[[], Path], schema: str, seeds: list[int]
) -> None:
    path = fresh() / "rank00000_results.db"
    rocprof_profiles.write_database(path, schema)
    with sqlite3.connect(path) as database:
        for seed in seeds:
            change_database(database, random.Random(seed))
    database.close()
    timeline = opened(path)
    if timeline is not None:
        check_parts(analysed(timeline))
        rows = rows_of(path, f"rocpd_kernel_dispatch{rocprof_profiles.UUID}")
        assert counted(timeline, {"kernels": (Subject.KERNEL,)}) == {"kernels": rows}


@bounded
@given(changes)
def test_results_of_rocprofv3_with_changed_fields_give_a_sentence_or_parts_that_add_up(
    fresh: Callable[[], Path], seeds: list[int]
) -> None:
    path = fresh() / "rank00000_results.json"
    results = json.loads(RESULTS)
    for seed in seeds:
        choose = random.Random(seed)
        section = choose.choice([*results["rocprofiler-sdk-tool"][0]["buffer_records"].values()])
        change_record(section, choose) if section else None
    path.write_text(json.dumps(results, separators=(",", ":")))
    timeline = opened(path)
    if timeline is not None:
        check_parts(analysed(timeline))


def change_record(events: list[Any], choose: random.Random) -> None:
    """Change one field of a record, or of an object in it."""
    place = events[choose.randrange(len(events))]
    while isinstance(place, dict) and place:
        key = choose.choice(list(place))
        if isinstance(place[key], dict) and choose.random() < 0.7:
            place = place[key]
            continue
        if choose.random() < 0.3:
            del place[key]
        else:
            place[key] = choose.choice([v for v in ODD_VALUES if not isinstance(v, bytes)] + [[], {}, 1e300])
        return


def change_database(database: sqlite3.Connection, choose: random.Random) -> None:
    """Change one thing: a cell, a column, a table, or the order of rows."""
    own = "type = 'table' AND name NOT LIKE 'sqlite/_%' ESCAPE '/'"
    tables = [name for (name,) in database.execute(f"SELECT name FROM sqlite_master WHERE {own}")]
    if not tables:
        return
    table = choose.choice(tables)
    columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
    column = choose.choice(columns)
    what = choose.choice(["cell"] * 6 + ["column", "rows", "drop", "lose", "twice"])
    if what == "drop":
        database.execute(f'DROP TABLE "{table}"')
    elif what == "lose" and len(columns) > 1:
        # A copy without the column, as SQLite cannot drop all kinds of columns.
        kept = ", ".join(f'"{name}"' for name in columns if name != column)
        database.execute(f'CREATE TABLE copy AS SELECT {kept} FROM "{table}"')
        database.execute(f'DROP TABLE "{table}"')
        database.execute(f'ALTER TABLE copy RENAME TO "{table}"')
    else:
        loose(database, table)
        value = choose.choice(ODD_VALUES)
        count = database.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
        row = choose.randrange(count) if count else 0
        one = f'rowid = (SELECT rowid FROM "{table}" LIMIT 1 OFFSET {row})'
        if what == "cell":
            database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {one}', (value,))
        elif what == "column":
            database.execute(f'UPDATE "{table}" SET "{column}" = ?', (value,))
        elif what == "rows":
            database.execute(f'DELETE FROM "{table}" WHERE rowid % ? = 0', (choose.randint(1, 3),))
        elif what == "twice":
            database.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}" WHERE {one}')


def loose(database: sqlite3.Connection, table: str) -> None:
    """Give a table columns without a type and without a constraint, which take any value."""
    database.execute(f'CREATE TABLE copy AS SELECT * FROM "{table}"')
    columns = ", ".join(f'"{row[1]}"' for row in database.execute("PRAGMA table_info(copy)"))
    database.execute("DROP TABLE copy")
    database.execute(f"CREATE TABLE copy ({columns})")
    database.execute(f'INSERT INTO copy SELECT * FROM "{table}"')
    database.execute(f'DROP TABLE "{table}"')
    database.execute(f'ALTER TABLE copy RENAME TO "{table}"')


def kernel_totals(path: Path) -> dict[str | None, int]:
    """Add up the kernels' durations by name, row by row."""
    database = sqlite3.connect(path)
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    totals: dict[str | None, int] = defaultdict(int)
    if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
        names = dict(database.execute("SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
        query = "SELECT demangledName, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL"
        for name, start, end in database.execute(query):
            told = isinstance(start, int) and isinstance(end, int)
            if told and max(abs(start), abs(end)) < LATEST and end - start < LONGEST:
                text = names.get(name)
                totals[None if text is None else str(text)] += end - start
    database.close()
    return dict(totals)


@bounded
@given(changes)
def test_a_trace_with_changed_fields_gives_a_sentence_or_parts_that_add_up(
    fresh: Callable[[], Path], seeds: list[int]
) -> None:
    trace = json.loads(TRACE)
    timeline = opened_changed(fresh() / "rank00000.trace.json", trace, seeds)
    if timeline is not None:
        found = [e.get("cat") for e in trace["traceEvents"] if isinstance(e, dict)]
        assert counted(timeline, TRACE_SUBJECTS) == {
            table: sum(category in own for category in found) for table, own in CATEGORIES.items()
        }


def opened_changed(path: Path, trace: dict[str, Any], seeds: list[int]) -> Timeline | None:
    """Change a trace, write it, and read and check it; None where the reader refuses it in one sentence."""
    for seed in seeds:
        change_trace(trace, random.Random(seed))
    path.write_text(json.dumps(trace))
    timeline = opened(path)
    if timeline is not None:
        check_parts(analysed(timeline))
    return timeline


def change_trace(trace: dict[str, Any], choose: random.Random) -> None:
    """Change one thing: a field of an event or of its arguments, an event, or a field of the trace."""
    events = trace.get("traceEvents")
    if not isinstance(events, list) or not events or choose.random() < 0.1:
        key = choose.choice(list(trace) or ["traceEvents"])
        trace[key] = choose.choice([[], {}, *(v for v in ODD_VALUES if not isinstance(v, bytes))])
        return
    at = choose.randrange(len(events))
    event = events[at]
    place = (
        event["args"] if isinstance(event, dict) and choose.random() < 0.4 and event.get("args") else event
    )
    if not isinstance(place, dict) or not place or choose.random() < 0.2:
        events[at] = choose.choice([None, [], {}, 7, "event", {"ph": "X"}])
        return
    key = choose.choice(list(place))
    if choose.random() < 0.3:
        del place[key]
    else:
        place[key] = choose.choice([v for v in ODD_VALUES if not isinstance(v, bytes)] + [[], {}, 1e300])


@pytest.mark.parametrize(
    "suffix",
    [
        ".sqlite",
        ".trace.json",
        "_results.json",
        "_kernel_trace.csv",
        ".unitrace.json",
        ".xplane.pb",
        ".inspector.log",
    ],
)
@bounded
@given(changes)
@example([151010515])
def test_a_profile_with_changed_bytes_gives_a_sentence_or_a_result(
    fresh: Callable[[], Path], suffix: str, seeds: list[int]
) -> None:
    path = fresh() / f"rank00000{suffix}"
    changed = bytearray(WHOLE[suffix])
    for seed in seeds:
        choose = random.Random(seed)
        at = choose.randrange(len(changed))
        match choose.randrange(4):
            case 0:
                changed[at] = choose.randrange(256)
            case 1:
                del changed[at : at + choose.randrange(1, 4096)]
            case 2:
                changed[at:at] = bytes(choose.randrange(256) for _ in range(choose.randrange(64)))
            case _:
                del changed[at:]
        changed = changed or bytearray(b"\0")
    path.write_bytes(changed)
    timeline = opened(path)
    if timeline is not None:
        analysed(timeline)


@bounded
@given(changes)
@example([22342])
def test_a_trace_of_unitrace_with_changed_fields_gives_a_sentence_or_parts_that_add_up(
    fresh: Callable[[], Path], seeds: list[int]
) -> None:
    trace = {"traceEvents": deepcopy(unitrace_trace.events())}
    opened_changed(fresh() / "rank00000.unitrace.json", trace, seeds)


@bounded
@given(changes)
def test_tables_of_rocprofv3_with_changed_cells_give_a_sentence_or_parts_that_add_up(
    fresh: Callable[[], Path], seeds: list[int]
) -> None:
    folder = fresh()
    path = rocprof_profiles.write_tables(folder)
    for seed in seeds:
        choose = random.Random(seed)
        file = choose.choice(sorted(folder.iterdir()))
        rows = [line.split(",") for line in file.read_text().split("\n")]
        row = choose.choice(rows)
        match choose.randrange(5):
            case 0:
                rows.remove(row)
            case 1:
                row.pop(choose.randrange(len(row)))
            case 2:
                file.unlink()
                continue
            case _:
                odd = [value for value in ODD_VALUES if not isinstance(value, bytes)]
                row[choose.randrange(len(row))] = str(
                    choose.choice([*odd, '"', "nan", "1e400", "\r", '"a""b"'])
                )
        file.write_text("\n".join(map(",".join, rows)))
    if not path.exists():
        return
    timeline = opened(path, named=folder)
    if timeline is not None:
        check_parts(analysed(timeline))


@pytest.mark.parametrize("table", ["sp.details", "ddp.raw"])
@bounded
@given(changes)
def test_a_table_of_ncu_with_changed_bytes_gives_a_sentence_or_results(
    fresh: Callable[[], Path], table: str, seeds: list[int]
) -> None:
    path = fresh() / "rank00000.csv"
    changed = bytearray(gzip.decompress((DATA / "ncu" / f"{table}.csv.gz").read_bytes()))
    for seed in seeds:
        choose = random.Random(seed)
        at = choose.randrange(len(changed) + 1)
        odd = [b"", b",", b'"', b"\n", b"nan", b"-", b"1e400", b"\xff", choose.randbytes(4)]
        changed[at : at + choose.randrange(9)] = choose.choice(odd)
    path.write_bytes(changed)
    try:
        report = read_profile(path)
    except DamagedInput as error:
        assert "\n" not in str(error)
        return
    for analysis in ANALYSES.values():
        if analysis.scope is Scope.RANK:
            json.dumps(analyze_rank(analysis, report, 0).columns)


@bounded
@given(changes)
def test_a_profile_of_jax_with_changed_fields_gives_a_sentence_or_counts_what_it_leaves_out(
    fresh: Callable[[], Path], seeds: list[int]
) -> None:
    path = fresh() / "rank00000.xplane.pb"
    profile = WHOLE[".xplane.pb"]
    for seed in seeds:
        profile = changed_message(profile, random.Random(seed))
    path.write_bytes(profile)
    timeline = opened(path)
    if timeline is not None:
        check_parts(analysed(timeline))


def changed_message(data: bytes, choose: random.Random) -> bytes:
    """Change one field of a message, or of a message in it."""
    fields: xplane_profile.Message = [
        (one.number, one.value if one.end < 0 else data[one.value : one.end])
        for one in fields_of(data, 0, len(data))
    ]
    if not fields:
        return data
    at = choose.randrange(len(fields))
    number, value = fields[at]
    if isinstance(value, bytes) and choose.random() < 0.8:
        with suppress(Damage):
            fields[at] = number, changed_message(value, choose)
            return xplane_profile.message(fields)
    match choose.randrange(4):
        case 0:
            del fields[at]
        case 1:
            fields.append(fields[at])
        case 2:
            fields[at] = number, choose.choice([v for v in VALUES if v is not None])
        case _:
            odd: list[xplane_profile.Value] = [b"", b"\xff\x00", "text", "jit_step(7)", 1.5, float("inf")]
            fields[at] = number, choose.choice(odd)
    return xplane_profile.message(fields)


COUNTERS = (
    "Kernel,GlobalInstanceId,SubDeviceId,GpuTime[ns],XVE_ACTIVE[%]\n"
    + "".join(f"{unitrace_trace.GEMM},{10 * step + 2},0,{100 + step},40.5\n" for step in range(3))
).encode()


@bounded
@given(changes)
def test_a_table_of_counters_with_changed_bytes_gives_a_sentence_or_results(
    fresh: Callable[[], Path], seeds: list[int]
) -> None:
    place = fresh()
    path = place / "rank00000.unitrace.json"
    path.write_bytes(WHOLE[".unitrace.json"])
    changed = bytearray(COUNTERS)
    for seed in seeds:
        choose = random.Random(seed)
        at = choose.randrange(len(changed) + 1)
        changed[at : at + choose.randrange(4)] = choose.choice(
            [b"", b",", b"\n", b"nan", b"-", b"1e400", b"\xff", choose.randbytes(4)]
        )
    (place / "rank00000.metrics_0.csv").write_bytes(changed)
    timeline = opened(path)
    assert timeline is not None
    check_parts(analysed(timeline))


@cache
def folder() -> dict[str, bytes]:
    """The files of a folder that nsys exports, by their names; those that hold enumerations are left out."""
    with tempfile.TemporaryDirectory() as name:
        export = Path(name) / "rank00000.sqlite"
        export.write_bytes(EXPORT)
        files = write_folder(export, Path(name) / "rank00000_pqtdir").iterdir()
        return {file.name: file.read_bytes() for file in files if not file.name.startswith("ENUM_")}


@bounded
@given(changes)
def test_a_folder_with_changed_cells_gives_a_sentence_or_counts_what_it_leaves_out(
    fresh: Callable[[], Path], seeds: list[int]
) -> None:
    place = fresh()
    path = place / "rank00000.sqlite"
    path.write_bytes(EXPORT)
    with sqlite3.connect(path) as database:
        for seed in seeds:
            change_database(database, random.Random(seed))
    database.close()
    try:
        changed = write_folder(path, place / "rank00000_pqtdir")
    except (pa.ArrowException, OverflowError, TypeError):
        return  # Files of Parquet have one type per column.
    timeline = opened(changed)
    if timeline is not None:
        results = analysed(timeline)
        check_parts(results)
        assert counted(timeline, NSYS_SUBJECTS)["kernels"] == rows_of(path, "CUPTI_ACTIVITY_KIND_KERNEL")
        assert counted(timeline, NSYS_SUBJECTS)["calls"] == rows_of(path, "CUPTI_ACTIVITY_KIND_RUNTIME")


@bounded
@given(changes)
def test_a_folder_with_changed_bytes_gives_a_sentence_or_results(
    fresh: Callable[[], Path], seeds: list[int]
) -> None:
    path = fresh() / "rank00000_pqtdir"
    path.mkdir()
    files = dict(folder())
    for seed in seeds:
        choose = random.Random(seed)
        name = choose.choice(sorted(files))
        content = bytearray(files[name])
        at = choose.randrange(len(content) + 1)
        match choose.randrange(4):
            case 0:
                content[at : at + 8] = choose.randbytes(8)
            case 1:
                del content[at:]
            case 2:
                content[at:at] = choose.randbytes(choose.randrange(64))
            case _:
                content.clear()
        files[name] = bytes(content)
    for name, data in files.items():
        (path / name).write_bytes(data)
    timeline = opened(path)
    if timeline is not None:
        analysed(timeline)


@cache
def archive() -> dict[str, bytes]:
    """The files of an OTF2 archive of two ranks."""
    with tempfile.TemporaryDirectory() as name:
        anchor = write_archive(Path(name), ranks=2, steps=3)
        return {str(file.relative_to(name)): file.read_bytes() for file in files_of_archive(anchor)}


@bounded
@given(changes)
def test_an_archive_with_changed_bytes_gives_a_sentence_or_results(
    fresh: Callable[[], Path], seeds: list[int]
) -> None:
    pytest.importorskip("otf2")
    folder = fresh()
    anchor = folder / "traces.otf2"
    for name, data in archive().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    for seed in seeds:
        choose = random.Random(seed)
        file = choose.choice(files_of_archive(anchor))
        content = bytearray(file.read_bytes())
        at = choose.randrange(len(content) + 1)
        length = choose.choice((0, 1, 2, 8))
        file.write_bytes(bytes(content[:at]) if not length else content[:at] + choose.randbytes(length))
        with file.open("ab") as rest:
            rest.write(content[at + length :] if length else b"")
    try:
        several = several_ranks(anchor)
    except DamagedInput:
        assert opened(anchor) is None
        return
    for position in range(len(several.processes) if several else 1):
        timeline = opened(anchor, ProfilePart(several, position) if several else None)
        if timeline is not None:
            check_parts(analysed(timeline))
