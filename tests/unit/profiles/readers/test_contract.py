"""Each reader keeps the promises of `Reader`; a new one joins `SAMPLES`."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.kernel_report import KernelReport
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.readers.discovery import (
    BUILT_IN,
    find_profiles,
    identify_rank,
    read_profile,
    reader_of,
)
from hpcprof.profiles.timeline import Timeline
from tests.data import ascend_trace, inspector_log, rocprof_profiles, unitrace_trace, xplane_profile
from tests.data.otf2_archive import files_of_archive, write_archive
from tests.unit.profiles.readers.conftest import DATA

Profile = Timeline | KernelReport


@dataclass(frozen=True)
class Sample:
    """A real profile of rank 0, and ways to change the file.

    ``shuffle`` changes the order of its rows, ``spoil`` takes what is needed from one kernel. ``rest`` says
    that the beginning of a file is a profile. ``beside`` has the other files of a profile of several.
    """

    suffix: str
    content: bytes
    shuffle: Callable[[Path], None]
    spoil: Callable[[Path], None]
    rest: bool = False
    beside: Mapping[str, bytes] = field(default_factory=dict)

    def write(self, folder: Path, content: bytes | None = None) -> Path:
        path = folder / f"rank0{self.suffix}"
        path.write_bytes(self.content if content is None else content)
        for name, other in self.beside.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(other)
        return path


def shuffle_export(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if table.startswith("CUPTI_ACTIVITY_KIND") or table == "NVTX_EVENTS":
                rows = connection.execute(f"SELECT * FROM {table}").fetchall()
                random.Random(1).shuffle(rows)
                connection.execute(f"DELETE FROM {table}")
                marks = ", ".join("?" * len(rows[0]))
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def spoil_export(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 'soon' WHERE rowid = 3")


def change_trace(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    packed = path.suffix == ".gz"
    trace = json.loads(gzip.decompress(path.read_bytes()) if packed else path.read_bytes())
    change(trace["traceEvents"])
    text = json.dumps(trace).encode()
    path.write_bytes(gzip.compress(text) if packed else text)


def spoil_event(events: list[dict[str, Any]], category: str = "kernel") -> None:
    wanted = (event for event in events if event.get("cat") == category and "Memory" not in event["name"])
    del next(wanted)["ts"]


def shuffle_table(path: Path) -> None:
    header, units, *rows = path.read_text().splitlines()
    random.Random(1).shuffle(rows)
    path.write_text("\n".join([header, units, *rows, ""]))


def spoil_table(path: Path) -> None:
    path.write_text(path.read_text().rstrip().rpartition(",")[0])


def shuffle_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for name in ("kernel_dispatch", "memory_copy", "region", "pmc_event"):
            table = f'"rocpd_{name}{rocprof_profiles.UUID}"'
            rows = connection.execute(f"SELECT * FROM {table}").fetchall()
            ids = random.Random(1).sample([row[0] for row in rows], len(rows))
            connection.execute(f"DELETE FROM {table}")
            marks = ", ".join("?" * len(rows[0]))
            changed = [(number, *row[1:]) for number, row in zip(ids, rows, strict=True)]
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", changed)


def spoil_database(path: Path) -> None:
    table = f'"rocpd_kernel_dispatch{rocprof_profiles.UUID}"'
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {table} SET end = 'soon' WHERE rowid = (SELECT min(rowid) FROM {table})")


def change_results(path: Path, change: Callable[[dict[str, list[dict[str, Any]]]], None]) -> None:
    packed = path.suffix == ".gz"
    results = json.loads(gzip.decompress(path.read_bytes()) if packed else path.read_bytes())
    change(results["rocprofiler-sdk-tool"][0]["buffer_records"])
    text = json.dumps(results).encode()
    path.write_bytes(gzip.compress(text) if packed else text)


def shuffle_results(path: Path) -> None:
    def shuffle(sections: dict[str, list[dict[str, Any]]]) -> None:
        for rows in sections.values():
            random.Random(1).shuffle(rows)

    change_results(path, shuffle)


def spoil_results(path: Path) -> None:
    def spoil(sections: dict[str, list[dict[str, Any]]]) -> None:
        del sections["kernel_dispatch"][0]["start_timestamp"]

    change_results(path, spoil)


def shuffle_kernels(path: Path) -> None:
    header, *rows = path.read_text().splitlines()
    random.Random(1).shuffle(rows)
    path.write_text("\n".join([header, *rows, ""]))


def shuffle_lines(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    random.Random(1).shuffle(lines)
    path.write_text("".join(lines))


def spoil_line(path: Path) -> None:
    path.write_text(path.read_text().rstrip()[:-1])


def table_of_operations() -> bytes:
    rows = [
        f"0,{step},{name},{kind},{1000 * step + start},{length}"
        for step in range(6)
        for name, kind, start, length in (
            ("forward", "compute", 0, 300),
            ("backward", "compute", 300, 500),
            ("all-reduce", "collective", 800, 150),
            ("gc", "host", 950, 20),
        )
    ]
    return "\n".join(["rank,step,name,kind,start_ns,duration_ns", *rows, ""]).encode()


def spoil_operation(path: Path) -> None:
    path.write_text(path.read_text().replace("backward,compute,300,", "backward,compute,soon,"))


def database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return rocprof_profiles.write_database(Path(folder) / "results.db").read_bytes()


def rewrite_archive(path: Path, **changes: bool) -> None:
    shutil.rmtree(path.with_suffix(""))
    path.unlink()
    path.with_suffix(".def").unlink()
    write_archive(path.parent, ranks=1, name=path.stem, **changes)


def write_profile(path: Path, **changes: Any) -> None:
    path.write_bytes(xplane_profile.profile(**changes))


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def archive_sample() -> Sample:
    with tempfile.TemporaryDirectory() as name:
        anchor = write_archive(Path(name), ranks=1, name="rank0")
        content, *others = ((file, file.read_bytes()) for file in files_of_archive(anchor))
        return Sample(
            ".otf2",
            content[1],
            lambda path: rewrite_archive(path, backwards=True),
            lambda path: rewrite_archive(path, unended=True),
            rest=True,
            beside={str(file.relative_to(name)): data for file, data in others},
        )


TRACE = (DATA / "ddp_step_rank0.pt.trace.json.gz").read_bytes()
TRACE_CHANGES: tuple[Callable[[Path], None], Callable[[Path], None]] = (
    lambda path: change_trace(path, random.Random(1).shuffle),
    lambda path: change_trace(path, spoil_event),
)
SAMPLES = {
    "nsys": Sample(
        ".sqlite",
        lzma.decompress((DATA / "sp_bf16_rank0.sqlite.xz").read_bytes()),
        shuffle_export,
        spoil_export,
    ),
    "torch": Sample(".pt.trace.json", gzip.decompress(TRACE), *TRACE_CHANGES),
    "torch-gz": Sample(".trace.json.gz", TRACE, *TRACE_CHANGES),
    "rocpd": Sample(".db", database(), shuffle_database, spoil_database),
    "rocprofv3": Sample(
        "_results.json", json.dumps(rocprof_profiles.results()).encode(), shuffle_results, spoil_results
    ),
    "rocprofv3-gz": Sample(
        "_results.json.gz",
        gzip.compress(json.dumps(rocprof_profiles.results()).encode()),
        shuffle_results,
        spoil_results,
    ),
    "rocprofv3-csv": Sample(
        "_kernel_trace.csv",
        rocprof_profiles.tables()["_kernel_trace.csv"].encode(),
        shuffle_kernels,
        spoil_table,
        rest=True,
    ),
    "unitrace": Sample(
        ".unitrace.json",
        unitrace_trace.text().encode(),
        lambda path: change_trace(path, random.Random(1).shuffle),
        lambda path: change_trace(path, lambda events: spoil_event(events, "gpu_op")),
        rest=True,
    ),
    "xplane": Sample(
        ".xplane.pb",
        xplane_profile.profile(),
        lambda path: write_profile(path, seed=1),
        lambda path: write_profile(path, cut_kernel=True),
        rest=True,
    ),
    "xplane-tpu": Sample(
        ".xplane.pb",
        xplane_profile.of_tpu(),
        lambda path: _write(path, xplane_profile.of_tpu(seed=1)),
        lambda path: _write(path, xplane_profile.of_tpu(cut_kernel=True)),
        rest=True,
    ),
    "ascend": Sample(
        ".trace_view.json",
        ascend_trace.trace(),
        lambda path: _write(path, ascend_trace.trace(seed=1)),
        lambda path: _write(path, ascend_trace.trace(cut_kernel=True)),
    ),
    "inspector": Sample(
        ".inspector.log", inspector_log.of_slow_rank(0).encode(), shuffle_lines, spoil_line, rest=True
    ),
    "ncu": Sample(
        ".csv",
        gzip.decompress((DATA / "ncu/ddp.raw.csv.gz").read_bytes()),
        shuffle_table,
        spoil_table,
        rest=True,
    ),
    "operations": Sample(
        ".operations.csv", table_of_operations(), shuffle_kernels, spoil_operation, rest=True
    ),
    # The package is an extra.
    **({"otf2": archive_sample()} if find_spec("otf2") else {}),
}


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest) -> Sample:
    return SAMPLES[request.param]


def kernel_count(profile: Profile) -> int:
    operators = profile.operators if isinstance(profile, Timeline) else ()
    return len(profile.kernels) or len(operators)


def figures(profile: Profile) -> dict[str, object]:
    """Return the rows of every analysis of one rank, in the declared order."""
    found: dict[str, object] = {}
    for analysis in ANALYSES.values():
        if analysis.scope is Scope.RANK:
            outcome = analyze_rank(analysis, profile, 0)
            rows = [repr(row) for row in outcome.frame.to_dict("records")]
            found[analysis.name] = rows if analysis.sort_by else sorted(rows), outcome.reasons
    return found


def test_every_reader_is_here() -> None:
    assert {name.partition("-")[0] for name in SAMPLES} == {
        reader.name for reader in BUILT_IN if reader.name != "otf2" or find_spec("otf2")
    }


def test_a_file_is_known_by_its_name_read_whole_and_left_as_it_was(sample: Sample, tmp_path: Path) -> None:
    path = sample.write(tmp_path)
    assert find_profiles(tmp_path) == [path]
    profile = read_profile(path)
    reader = reader_of(path)
    assert reader
    assert reader is reader_of(Path(str(path).upper()))
    assert reader.content is (
        ProfileContent.TIMELINE if isinstance(profile, Timeline) else ProfileContent.KERNEL_REPORT
    )
    origin = profile.origin
    assert (origin.kind, origin.path, origin.losses) == (reader.name, path, ())
    assert origin.rank == identify_rank(path) == 0
    assert kernel_count(profile) > 0
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert (files, path.read_bytes()) == ({path.name, *sample.beside}, sample.content)


def test_rows_in_another_order_give_the_same_figures(sample: Sample, tmp_path: Path) -> None:
    path = sample.write(tmp_path)
    before = figures(read_profile(path))
    sample.shuffle(path)
    assert path.read_bytes() != sample.content
    assert figures(read_profile(path)) == before


def test_a_kernel_that_lacks_something_is_left_out_counted_and_said(sample: Sample, tmp_path: Path) -> None:
    path = sample.write(tmp_path)
    whole = kernel_count(read_profile(path))
    sample.spoil(path)
    profile = read_profile(path)
    assert kernel_count(profile) == whole - 1
    assert profile.origin.losses
    for loss in profile.origin.losses:  # The counters of a kernel are lost with it.
        assert (loss.count, loss.sentence.startswith("1 ")) == (1, True)
        assert "left out" in loss.sentence


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"nonsense\n", b"\0" * 4096, b"\xff\xfe", b"\x1f\x8bno"]
)
def test_what_is_no_profile_is_one_sentence_with_its_name(
    content: bytes, sample: Sample, tmp_path: Path
) -> None:
    path = sample.write(tmp_path, content)
    with pytest.raises(DamagedInput) as damage:
        read_profile(path)
    assert str(path) in str(damage.value)
    assert "\n" not in str(damage.value)


def test_a_missing_file_and_a_folder_are_one_sentence(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / f"rank0{sample.suffix}"
    with pytest.raises(DamagedInput, match=f"rank0{sample.suffix} cannot be read"):
        read_profile(path)
    path.mkdir()
    with pytest.raises(DamagedInput, match=f"rank0{sample.suffix} cannot be read"):
        read_profile(path)


def test_a_file_cut_anywhere_is_one_sentence_or_the_beginning(sample: Sample, tmp_path: Path) -> None:
    whole, size = kernel_count(read_profile(sample.write(tmp_path))), len(sample.content)
    for at in sorted({*range(0, 200, 13), *range(200, size, size // 12), size - 2}):
        path = sample.write(tmp_path, sample.content[:at])
        try:
            found = read_profile(path)
        except DamagedInput as damage:
            assert str(path) in str(damage)
        else:
            assert sample.rest
            assert kernel_count(found) <= whole


def test_overwritten_bytes_give_one_sentence_or_a_profile(sample: Sample, tmp_path: Path) -> None:
    choose = random.Random(1)
    for length in (1, 64) * 8:
        content = bytearray(sample.content)
        at = choose.randrange(len(content) - length)
        content[at : at + length] = choose.choice((choose.randbytes(length), b'"' * length, b"," * length))
        path = sample.write(tmp_path, bytes(content))
        try:
            read_profile(path)
        except DamagedInput as damage:
            assert str(path) in str(damage)
