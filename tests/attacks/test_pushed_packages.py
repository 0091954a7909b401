"""Packages that are to fill the memory or the disk of a hub, or to reach beyond their run."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcprof.results.collect.kept_events import event_schemas
from hpcprof.results.store.store import open_store
from hpcprof.serve.grants import Grant
from hpcprof.serve.hub import PushRefused, Uploads
from tests.attacks import packages
from tests.attacks.packages import RUN, described, package, profiles, results

_MAX_HUB_BYTES = 1 << 30
_RUNS = b'{"runs":{"id":["pushed-1"],"path":[""]},'
_BOMBS = {
    "lists": (_RUNS + b'"kernels":{"name":[', b"[],", b"[]]}}"),
    "empty texts": (_RUNS + b'"kernels":{"name":[', b'"",', b'""]}}'),
    "texts": (_RUNS + b'"kernels":{"name":[', b'"a",', b'"a"]}}'),
    "numbers": (_RUNS + b'"kernels":{"instances":[', b"0,", b"0]}}"),
    "tables": (_RUNS, b'"a":{},', b'"a":{}}'),
    "columns": (_RUNS + b'"kernels":{', b'"a":[],', b'"a":[]}}'),
    "a table again and again": (_RUNS, b'"kernels":{},', b'"kernels":{}}'),
    "objects": (_RUNS + b'"kernels":[', b"{},", b"{}]}"),
}
"""Beginning, repeated part and end of results that take much more memory than bytes."""

_PUSH_ALL = """
import sys, threading
from pathlib import Path
from hpcprof.common.errors import DamagedInput
from hpcprof.results.across.package import unpacked

def memory(name="VmRSS"):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1]) << 10

refused = []
def push(path):
    try:
        with unpacked(path, path.parent, 50 << 30):
            print("kept", path, flush=True)
    except DamagedInput as error:
        refused.append(error)  # as a caller may keep it

before = 0
for path in map(Path, sys.argv[1:]):
    before = before or (push(path), memory())[1]  # the first one has the modules imported
    threads = [threading.Thread(target=push, args=(path,)) for _ in range(4)]
    [one.start() for one in threads]
    [one.join() for one in threads]
# ru_maxrss begins with the peak of the process that started this one.
print(len(refused), memory("VmHWM"), memory() - before)
"""


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    """The uploads of a project, in this process."""
    store = open_store(str(tmp_path / "hpcprof.db"), tmp_path)
    store.prepare()
    return Uploads(tmp_path, store)


def push(uploads: Uploads, content: bytes, quota: int = 1 << 30) -> str:
    grant = Grant("eve", "train", "push", "", "", quota)
    return uploads.receive(sha256(content).hexdigest(), grant, 0, len(content), content).run


def refused(uploads: Uploads, content: bytes, quota: int = 1 << 30) -> str:
    with pytest.raises(PushRefused) as raised:
        push(uploads, content, quota)
    assert raised.value.status in (400, 413)
    assert not [*(uploads._folder / ".incoming").iterdir()]
    return str(raised.value)


def test_four_bombs_at_once_stay_below_one_gigabyte_which_is_given_back(tmp_path: Path) -> None:
    paths = []
    for kind, (before, part, after) in _BOMBS.items():
        size = 240 << 20 if kind == "lists" else 8 << 20
        text = before + part * (size // len(part)) + after
        paths.append(packages.write(tmp_path, package(rows=text)))
    assert paths[0].stat().st_size < 2 << 20
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-c",
        _PUSH_ALL,
        str(packages.write(tmp_path, b"")),
        *map(str, paths),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=480)
    assert (done.returncode, done.stderr) == (0, "")
    count, most, left = map(int, done.stdout.split())
    assert count == 4 * len(paths) + 5
    assert most < _MAX_HUB_BYTES and left < 128 << 20


_DECODE_AT_ONCE = """
import enum, sys, threading
from concurrent.futures import ThreadPoolExecutor
import msgspec
from hpcprof.common.decode import from_json

sys.setswitchinterval(1e-6)
begin = threading.Barrier(8)
for _ in range(100):
    kind = enum.Enum("Kind", {f"v{i}": f"v{i}" for i in range(200)})
    inner = msgspec.defstruct("Inner", [("kind", kind), *[(f"x{i}", int, 0) for i in range(30)]])
    outer = msgspec.defstruct("Outer", [("inner", inner), ("program", str | None, None)])

    def decode(_):
        begin.wait()
        return from_json(b'{"inner": {"kind": "v7"}}', outer)

    with ThreadPoolExecutor(8) as threads:
        assert {one.inner.kind for one in threads.map(decode, range(8))} == {kind.v7}
"""


def test_the_first_packages_of_a_hub_that_come_at_once_do_not_end_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DECODE_AT_ONCE], capture_output=True, text=True, timeout=480
    )
    assert (done.returncode, done.stderr) == (0, "")


def headers(*sizes: int, name: str = "origins/{}.jsonl") -> bytes:
    """Return a package whose files have only headers, with these sizes."""
    made = io.BytesIO(package(rows=results(profiles=profiles(range(len(sizes))))))
    packed = io.BytesIO()
    with tarfile.open(fileobj=made) as source, tarfile.open(fileobj=packed, mode="w:gz") as target:
        for one in source:
            target.addfile(one, source.extractfile(one))
        for number, size in enumerate(sizes):
            member = tarfile.TarInfo(name.format(number))
            member.size = size
            assert target.fileobj is not None
            target.fileobj.write(member.tobuf(tarfile.GNU_FORMAT))
    return packed.getvalue()


def constant_events(rows: int, twice: tuple[str, ...] = ()) -> bytes:
    """Return kernels of one value each, which take no place in the file, some columns ``twice``."""
    kernels = event_schemas()["kernels"]
    schema = pa.schema([*kernels, *map(kernels.field, twice)])
    columns = [
        pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([""])).cast(field.type)
        if pa.types.is_string(field.type)
        else pa.nulls(rows, field.type).fill_null(False if pa.types.is_boolean(field.type) else 0)
        for field in schema
    ]
    made = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), made, compression="zstd")
    return made.getvalue()


RANK_0 = results(profiles=profiles([0]))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lambda: headers(-511, -511, -511), "negative size"),
        (lambda: headers(1 << 62), "exceeds 1,073,741,824 bytes when it is unpacked"),
        (lambda: headers(*[0] * 5000), "is empty"),
        (lambda: package(rows=RANK_0, more=[("origins/0.jsonl", b"x")] * 2), "twice"),
        (lambda: package(rows=RANK_0, more=[("origins/1.jsonl", b"x")]), "an unexpected file"),
        (lambda: package(rows=RANK_0, more=[("origins/00.jsonl", b"x")]), "an unexpected file"),
        (lambda: package(rows=RANK_0, more=[("events/of_mine/0.parquet", b"x")]), "an unexpected file"),
        (
            lambda: package(rows=RANK_0, more=[("communication/part-9999999.parquet", b"x")]),
            "an unexpected file",
        ),
        (lambda: package(rows=RANK_0, more=[("communication/more.json", b"x")]), "an unexpected file"),
        (
            lambda: package(rows=RANK_0, more=[("origins/0.jsonl", bytes(17 << 20))]),
            "exceeds 16,777,216 bytes",
        ),
        (lambda: package(rows=RANK_0, more=[("run.json", described())]), "an unexpected file"),
        (
            lambda: package(rows=RANK_0, more=[("events/kernels/0.parquet", constant_events(2_000_000))]),
            "bytes of memory in a small file",
        ),
        (
            lambda: package(
                rows=RANK_0, more=[("events/kernels/0.parquet", constant_events(1, ("start_ns",)))]
            ),
            "the events kernels have start_ns twice",
        ),
        (lambda: package(run=described(run=7)), "damaged"),
        (lambda: package(run=described(run=["a"])), "damaged"),
        (lambda: package(run=described(state="hacked")), "unknown state"),
        (lambda: package(run=described(nodes=-1)), "impossible number"),
        (lambda: package(run=described(ranks=1 << 62)), "impossible number"),
        (lambda: package(run=described(tags=["<b>", "a b"])), "a tag has"),
        (lambda: package(run=described(duration_s=-1.0)), "impossible duration"),
        (lambda: package(run=described(step_ns=-1.0)), "impossible duration"),
        (lambda: package(run=described().replace(b'"run":', b'"run": "other", "run":', 1)), "a name twice"),
        (lambda: package(rows=results(runs={"id": [7], "path": [""]})), "another type"),
        (lambda: package(rows=results(runs={"id": [[RUN]], "path": [""]})), "another type"),
        (lambda: package(rows=results(runs={"id": RUN, "path": [""]})), "another type"),
        (lambda: package(rows=results(runs=[RUN])), "unknown columns"),
        (lambda: package(rows=results(runs={"id": [RUN, RUN], "path": ["", ""]})), "not of one run"),
        (lambda: package(rows=results(runs={"id": [RUN], "path": [""], "ranks": [-3]})), "another type"),
        (lambda: package(rows=results().replace(b'"path"', b'"id": ["x"], "path"')), "a name twice"),
        (lambda: package(rows=results()[:-1] + b', "runs": {}}'), "a name twice"),
        (lambda: package(rows=results(profiles=profiles([0, 0]))), "a row twice"),
        (lambda: package(rows=results(profiles=profiles([-1]))), "negative rank"),
        (lambda: package(rows=results(profiles=profiles([1 << 31]))), "another type"),
        (lambda: package(rows=results(profiles=profiles([10_000_000]))), "another type"),
        (lambda: package(rows=results(profiles=profiles([True]))), "another type"),
        (lambda: package(rows=results(profiles=profiles([0.5]))), "another type"),
        (lambda: package(rows=results(profiles=profiles([0], bytes=[-1]))), "another type"),
        (lambda: package(rows=results(profiles=profiles([0], sha256=[None]))), "another type"),
        (lambda: package(rows=b"\xff\xfe"), "damaged"),
        (lambda: package(rows=b"[" * 1_000_000), "Expected `object`"),
        (
            lambda: package(
                rows=results(
                    explanations={
                        "run_id": [RUN],
                        "analysis_version": [1],
                        "explanation": [json.dumps({"findings": [[]] * 3_000_000})],
                    }
                )
            ),
            "explanation",
        ),
    ],
)
def test_a_forged_package_is_refused_in_a_sentence(
    uploads: Uploads, content: Callable[[], bytes], says: str
) -> None:
    said = refused(uploads, content())
    assert says in said and "\n" not in said
    assert not [*(uploads._folder / "events").glob("*")]
    assert not uploads._store.pushed()


def test_sizes_count_towards_the_quota_whatever_their_sign_and_number(uploads: Uploads) -> None:
    kept = package(rows=RANK_0, more=[("origins/0.jsonl", b"x")])
    assert "exceeds 12,000 bytes when it is unpacked" in refused(uploads, kept, quota=12_000)
    assert push(uploads, kept) == RUN
    (row,) = uploads._store.pushed().values()
    assert row.bytes >= 3 * 4096
