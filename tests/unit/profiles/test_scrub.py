"""Scrubbed copies: the figures stay, what tells who ran what where is gone."""

from __future__ import annotations

import gzip
import json
import lzma
import sqlite3
import tracemalloc
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import UsageError
from hpcprof.profiles.kernel_report import KernelReport
from hpcprof.profiles.readers import environment_allowlist
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.scrub.files import scrub_files
from hpcprof.profiles.scrub.names import Names
from tests.data import generated_exports, rocprof_profiles
from tests.unit.profiles.readers.nsys.test_functions import stack
from tests.unit.profiles.readers.nsys.test_functions import write as write_stacks

DATA = Path(__file__).parents[2] / "data"


SECRETS = ("hush-token", "hush-host", "hush-user", "hush-path", "hush-process", "hush-page", "hush-name")


def figures(path: Path) -> dict[str, Any]:
    """Return every analysis of one rank, as text."""
    timeline = read_profile(path)
    ranks = {name: a for name, a in ANALYSES.items() if a.scope is Scope.RANK}
    return {name: analyze_rank(a, timeline, 0).frame.to_csv() for name, a in ranks.items()}


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A real export, with secrets in every place where nsys keeps such."""
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(lzma.decompress((DATA / "sp_bf16_rank0.sqlite.xz").read_bytes()))
    connection = sqlite3.connect(path)
    with connection:
        connection.executescript(
            """
            INSERT INTO META_DATA_CAPTURE VALUES
                ('PROCESS_0:ENVIRONMENT_VARIABLE', 'API_KEY="hush-token"'),
                ('PROCESS_0:ENVIRONMENT_VARIABLE', 'NCCL_COMM_ID=hush-host:1234'),
                ('PROCESS_0:ENVIRONMENT_VARIABLE', 'NCCL_DEBUG_FILE=/lustre/hush-path/log'),
                ('PROCESS_0:ENVIRONMENT_VARIABLE', 'NCCL_ALGO=Ring'),
                ('PROCESS_0:ENVIRONMENT_VARIABLE', 'USER=hush-user'),
                ('PROCESS_0:ARGUMENT_0', '--key=hush-token'),
                ('PROCESS_0:COMMAND', 'hush-process'),
                ('PROCESS_0:WORKING_DIR', '/home/hush-user/hush-path'),
                ('PROCESS_0:USER_NAME', 'hush-user'),
                ('COLLECT_CUDA_TRACE', 'hush token'),
                ('DEVICE_DISPLAY_NAME', 'hush-host');
            INSERT INTO META_DATA_EXPORT VALUES
                ('EXPORT_PARAM_OUTPUT_PATH', '/home/hush-user/hush-path'), ('EXPORT_HOST', 'hush-host');
            UPDATE TARGET_INFO_SYSTEM_ENV SET value = 'hush-host' WHERE name = 'Hostname';
            UPDATE TARGET_INFO_SYSTEM_ENV SET value = value || ';TOKEN=hush-token'
                WHERE name = 'DeviceEnvironment';
            CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
            INSERT INTO PROCESSES VALUES (1, 2, 'hush-process');
            CREATE TABLE ANALYSIS_FILE (id INTEGER, filename TEXT);
            INSERT INTO ANALYSIS_FILE VALUES (0, '/tmp/hush-path/pid_1.log');
            CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, text TEXT);
            INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 'see /tmp/hush-path/pid_1.log');
            INSERT INTO StringIds VALUES
                (900001, 'A=1' || char(0) || 'TOKEN=hush-token' || char(0) || 'HOME=/home/hush-user'),
                (900002, 'hush-process');
            CREATE TABLE ThreadNames (nameId INTEGER, globalTid INTEGER);
            INSERT INTO ThreadNames VALUES (900002, 1);
            CREATE TABLE "hush-name" (a TEXT);
            INSERT INTO NVTX_EVENTS (start, eventType, text, jsonText, binaryData) VALUES
                (1, 34, 'hush-token in a mark', '{"a": "hush-token"}', x'687573682d746f6b656e');
            -- A library in another process, whose domain happens to have the id of NCCL's.
            INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId, binaryData)
                SELECT start, end, eventType, text, globalTid + (7 << 24), domainId,
                    substr(binaryData, 1, 32) || x'687573682d746f6b656e687573682d70'
                FROM NVTX_EVENTS WHERE binaryData IS NOT NULL LIMIT 1;
            -- What an uninitialized field of NCCL's own payload can hold.
            UPDATE NVTX_EVENTS SET binaryData = CAST(substr(binaryData, 1, 52) || 'hush' AS BLOB)
                WHERE length(binaryData) = 56;
            INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId, schemaId, idx, type, flags, name)
                VALUES (99, 1, 0, 18, 0, 'hush-name');
            INSERT INTO NVTX_PAYLOAD_SCHEMAS (domainId, schemaId, name) VALUES (99, 1, 'hush-name');
            UPDATE NVTX_EVENTS SET jsonText = 'hush-token' WHERE eventType = 59;
            UPDATE TARGET_INFO_GPU SET uuid = 'hush-token';
            UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 'hush-token' WHERE rowid = 1;
            """
        )
        connection.execute("CREATE TABLE gone (text TEXT)")
        connection.execute("INSERT INTO gone VALUES (?)", ("hush-page" * 1000,))
    with connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("DELETE FROM gone")
    connection.close()
    raw = path.read_bytes()
    assert all(secret.encode() in raw for secret in SECRETS)
    return path


def test_no_secret_of_an_export_is_in_any_byte_of_the_copy(export: Path, tmp_path: Path) -> None:
    assert scrub_files([export], tmp_path / "shared").skipped == []
    raw = (tmp_path / "shared/rank0.sqlite").read_bytes()
    assert b"hush" not in raw
    assert b"NCCL_ALGO=Ring" in raw
    assert b"OMPI_COMM_WORLD_RANK=0" in raw


def test_the_figures_of_a_copied_export_are_the_same(export: Path, tmp_path: Path) -> None:
    scrub_files([export], tmp_path / "shared")
    assert figures(tmp_path / "shared/rank0.sqlite") == figures(export)
    copy, original = read_profile(tmp_path / "shared/rank0.sqlite").origin, read_profile(export).origin
    for field in ("rank", "world_size", "start_utc_ns", "device_names", "profiler_version"):
        assert getattr(copy, field) == getattr(original, field)
    assert copy.host is None


def test_the_original_is_not_touched(export: Path, tmp_path: Path) -> None:
    before = export.read_bytes()
    scrub_files([export], tmp_path / "shared")
    assert export.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"rank0.sqlite", "shared"}
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["rank0.sqlite"]


def test_names_of_ranges_keep_their_groups_and_lose_paths_hosts_and_users(
    export: Path, tmp_path: Path
) -> None:
    connection = sqlite3.connect(export)
    with connection:
        for i, text in enumerate(
            ("load /home/hush-user/a.bin", "load /home/hush-user/b.bin", "on hush-host", "hush-user's step")
        ):
            connection.execute(
                "UPDATE NVTX_EVENTS SET text = ? WHERE rowid IN "
                "(SELECT rowid FROM NVTX_EVENTS WHERE text = 'matmul_1' LIMIT 3 OFFSET ?)",
                (text, 2 * i),
            )
    connection.close()
    scrub_files([export], tmp_path / "shared")
    copy = tmp_path / "shared/rank0.sqlite"
    assert b"hush" not in copy.read_bytes()
    assert figures(copy)["ranges"].count("\n") == figures(export)["ranges"].count("\n")
    names = {n for n in read_profile(copy).names(read_profile(copy).ranges.name) if n and "<" in n}
    assert names == {"load <path 1>", "load <path 2>", "on <host 1>", "<user 1>'s step"}


def trace_with_secrets(tmp_path: Path, suffix: str) -> Path:
    """A real trace, with secrets in every place where PyTorch keeps such."""
    trace = json.loads(
        gzip.decompress((DATA / "ddp_step_rank0.pt.trace.json.gz").read_bytes()), parse_float=Number
    )
    trace["traceName"] = "/home/hush-user/hush-path/trace.json"
    trace["my_metadata"] = "hush-token"
    trace["distributedInfo"] |= {
        "hostname": "hush-host",
        "backend": "hush_backend",
        "pg_config": [
            {"pg_name": "hush_group", "pg_desc": "hush", "backend_config": "cuda:hush", "ranks": [0]}
        ],
    }
    for event in trace["traceEvents"][:20]:
        event.setdefault("args", {})["Call stack"] = "/home/hush-user/hush-path/train.py(3)"
        event["args"]["stream_name"] = {"a": ["hush-token"]}
        event["args"]["Input Dims"] = [[2, 2], "hush"]
        event["args"]["Input type"] = ["Tensor", "hush"]
        event["args"]["dtype"] = "hush"
        event["hush-token"] = 1
    trace["traceEvents"] += [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "hush-process"}},
        {"ph": "X", "cat": "python_function", "name": "/x/hush-path/a.py(1): f", "pid": 1, "tid": 1, "ts": 1},
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "read /data/hush-user/x",
            "pid": "hush-host",
            "ts": "hush-token",
        },
    ]
    path = tmp_path / f"rank0.pt.trace.json{suffix}"
    text = render(trace).encode()
    path.write_bytes(gzip.compress(text) if suffix else text)
    return path


def test_collectives_stay_in_their_groups_under_names_that_say_nothing(tmp_path: Path) -> None:
    def call(name: str, group: str) -> dict[str, Any]:
        arguments = {
            "Collective name": name,
            "Process Group Name": group,
            "dtype": "BFloat16",
            "Process Group Ranks": "[0, 1]",
            "In msg nelems": 4,
            "Dst Rank": 1,
        }
        return {
            "ph": "X",
            "cat": "cpu_op",
            "name": "record_param_comms",
            "ts": 1,
            "dur": 1,
            "args": arguments,
        }

    events = [
        call("allreduce", "0"),
        call("_allgather_base", "hush_mesh"),
        call("hush", "hush_other"),
        call("send", "hush_mesh"),
    ]
    path = tmp_path / "rank0.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    scrub_files([path], tmp_path / "shared")
    copied = json.loads((tmp_path / "shared/rank0.trace.json").read_text())["traceEvents"]
    assert [
        (event["args"].get("Collective name"), event["args"]["Process Group Name"]) for event in copied
    ] == [("AllReduce", "0"), ("AllGather", "<group 1>"), (None, "<group 2>"), ("Send", "<group 1>")]
    assert copied[0]["args"]["dtype"] == "BFloat16"
    assert copied[3]["args"]["Dst Rank"] == 1


@pytest.mark.parametrize("name", ["sp.details.csv", "ddp.raw.csv.gz"])
def test_a_table_of_nsight_compute_keeps_its_figures_and_loses_processes_hosts_and_advice(
    name: str, tmp_path: Path
) -> None:
    source = DATA / "ncu" / f"{name.removesuffix('.gz')}.gz"
    text = gzip.decompress(source.read_bytes()).decode()
    text = text.replace('"python3.12"', '"hush-process"').replace('"127.0.0.1"', '"hush-host"')
    text = "==PROF== Connected to process 1 (/home/hush-user/python)\n" + text
    path = tmp_path / f"rank0.{name}"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    scrub_files([path], tmp_path / "shared")
    copy = tmp_path / "shared" / path.name
    raw = copy.read_bytes()
    assert b"hush" not in (gzip.decompress(raw) if name.endswith("gz") else raw)
    one, other = read_profile(path), read_profile(copy)
    assert isinstance(one, KernelReport)
    assert isinstance(other, KernelReport)
    assert tuple(replace(kernel, advice=()) for kernel in one.kernels) == other.kernels
    assert one.origin.device_names == other.origin.device_names


class Number(str):
    """A number as the trace writes it."""


def render(value: object) -> str:
    """Return JSON in which numbers stand as they were."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}: {render(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(render, value)) + "]"
    return json.dumps(value)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_no_secret_of_a_trace_is_in_the_copy_and_its_figures_are_the_same(
    suffix: str, tmp_path: Path
) -> None:
    trace = trace_with_secrets(tmp_path, suffix)
    scrub_files([trace], tmp_path / "shared")
    copy = tmp_path / "shared" / trace.name
    raw = copy.read_bytes()
    assert (raw[:2] == b"\x1f\x8b") == bool(suffix)
    text = gzip.decompress(raw) if suffix else raw
    assert b"hush" not in text
    assert b"hush" not in raw
    # Its rows name the inputs, and the secrets among them are gone.
    ours, theirs = ({k: v for k, v in figures(p).items() if k != "operators_by_shape"} for p in (copy, trace))
    assert ours == theirs
    assert read_profile(copy).origin.rank == 0
    assert read_profile(copy).origin.start_utc_ns == read_profile(trace).origin.start_utc_ns


def test_stacks_are_left_out_with_the_paths_in_them(tmp_path: Path) -> None:
    export = tmp_path / "rank0.sqlite"
    with closing(write_stacks(export, [(100, 1, stack((3, 4, 12)))])) as connection:
        connection.execute("CREATE TABLE SAMPLING_CALLCHAINS (id, symbol, module, stackDepth)")
        connection.execute("INSERT INTO SAMPLING_CALLCHAINS VALUES (1, 7, 6, 0)")
        connection.execute("CREATE TABLE COMPOSITE_EVENTS (id, start, globalTid)")
        connection.execute("INSERT INTO COMPOSITE_EVENTS VALUES (1, 2, 3)")
        connection.commit()
    call = {"ph": "X", "cat": "python_function", "pid": 1, "tid": 2, "ts": 1, "dur": 2}
    events = [{**call, "name": "/home/me/train.py(12): load"}, {**call, "cat": "cpu_op", "name": "aten::mm"}]
    trace = tmp_path / "rank1.trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert all(len(read_profile(path).functions) == 1 for path in (export, trace))
    scrub_files([export, trace], tmp_path / "shared")
    for path in (export, trace):
        copy = tmp_path / "shared" / path.name
        assert b"/home/me" not in copy.read_bytes()
        assert b"train.py" not in copy.read_bytes()


@pytest.mark.parametrize("seed", range(6))
def test_copies_of_random_exports_give_the_same_figures(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    generated_exports.write(path, seed)
    scrub_files([path], tmp_path / "shared")
    assert figures(tmp_path / "shared/rank0.sqlite") == figures(path)


@pytest.mark.parametrize("name", ["rank0.sqlite", "rank0.trace.json", "rank0.trace.json.gz"])
def test_a_file_cut_anywhere_is_copied_or_skipped_with_a_sentence(
    name: str, export: Path, tmp_path: Path
) -> None:
    packed = (DATA / "ddp_step_rank0.pt.trace.json.gz").read_bytes()
    whole = {
        ".sqlite": export.read_bytes(),
        ".json": gzip.decompress(packed),
        ".gz": packed,
    }[Path(name).suffix]
    source = tmp_path / "cut" / name
    source.parent.mkdir()
    for i in range(24):
        source.write_bytes(whole[: len(whole) * i // 24])
        done = scrub_files([source], tmp_path / f"shared{i}")
        assert len(done.skipped) == 1
        assert not list((tmp_path / f"shared{i}").iterdir())


def test_stamps_of_a_trace_keep_every_digit(tmp_path: Path) -> None:
    path = tmp_path / "rank0.trace.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, '
        '"ts": 1700000000123456.789, "dur": 0.001}]}'
    )
    scrub_files([path], tmp_path / "shared")
    kernels = read_profile(tmp_path / "shared/rank0.trace.json").kernels
    assert (kernels.start.tolist(), kernels.end.tolist()) == ([1700000000123456789], [1700000000123456790])


def test_what_stands_after_the_events_is_copied_too(tmp_path: Path) -> None:
    path = tmp_path / "profile.trace.json"
    path.write_text(
        '{"schemaVersion": 1, "traceEvents": [], "secret": "hush", "baseTimeNanoseconds": 7, '
        '"distributedInfo": {"rank": 3, "host": "hush"}}'
    )
    scrub_files([path], tmp_path / "shared")
    copy = tmp_path / "shared/profile.trace.json"
    assert json.loads(copy.read_text()) == {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "traceEvents": [],
        "baseTimeNanoseconds": 7,
        "distributedInfo": {"rank": 3},
    }
    assert (read_profile(copy).origin.rank, read_profile(copy).origin.start_utc_ns) == (3, 7)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_memory_does_not_grow_with_a_trace(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcprof.profiles.readers.kineto.json_stream._CHUNK", 1 << 14)
    path = tmp_path / f"rank0.trace.json{suffix}"
    operators = ",".join(
        f'{{"ph":"X","cat":"cpu_op","name":"aten::op {i:0250}","pid":1,"tid":2,"ts":{i},"dur":1,"args":{{}}}}'
        for i in range(1000)
    )
    text = '{"traceEvents": [' + ",".join([operators] * 4) + "]}"
    for some, folder in (('{"traceEvents": [' + operators + "]}", tmp_path / "small"), (text, tmp_path)):
        folder.mkdir(exist_ok=True)
        content = gzip.compress(some.encode()) if suffix else some.encode()
        (folder / path.name).write_bytes(content)
    scrub_files([tmp_path / "small" / path.name], tmp_path / "warm")
    tracemalloc.start()
    done = scrub_files([path], tmp_path / "shared")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(text) > 1.2e6
    assert peak < 1e6
    assert done.written == [(tmp_path / "shared" / path.name, [])]


def test_nothing_is_overwritten(export: Path, tmp_path: Path) -> None:
    scrub_files([export], tmp_path / "shared")
    with pytest.raises(UsageError, match=r"rank0\.sqlite exists and is not replaced"):
        scrub_files([export], tmp_path / "shared")
    with pytest.raises(UsageError, match="exists and is not replaced"):
        scrub_files([export], tmp_path)
    twin = tmp_path / "other/rank0.sqlite"
    twin.parent.mkdir()
    twin.write_bytes(b"")
    with pytest.raises(UsageError, match="have the same name"):
        scrub_files([export, twin], tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("open /home/me/data.bin twice", "open <path 1> twice"),
        ("k<(lambda at /home/me/x.cu:10:5)>(float*)", "k<(lambda at <path 1>:10:5)>(float*)"),
        ("~me/data/file", "<path 1>"),
        ("<path 1> and /home/me", "<path 1> and <path 2>"),
        ("get https://host/a?b=c now", "get <path 1> now"),
        ("rank 3 on node17.cluster", "rank 3 on <host 1>"),
        ("rank 3 on node17", "rank 3 on <host 1>"),
        ("for alice: step", "for <user 1>: step"),
        ("malice", "malice"),
        ("FSDP::root_pre_forward", "FSDP::root_pre_forward"),
        ("forward/backward", "forward/backward"),
        ("a / b", "a / b"),
        ("/forward", "/forward"),
        ("nccl:all_reduce", "nccl:all_reduce"),
        ("void at::native::f<float, 4>(at::detail::Array<char*, 2>)", None),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)", None),
    ],
)
def test_a_name_loses_paths_and_known_words_only(name: str, cleaned: str | None) -> None:
    names = Names()
    names.know({"node17.cluster": "host", "node17": "host", "alice": "user", "vm": "host", "root": "user"})
    assert names.cleaned(name) == (name if cleaned is None else cleaned)


@given(st.lists(st.text(st.sampled_from("/ab ~.:<>1path"), max_size=12), max_size=8))
def test_different_names_stay_different_and_equal_ones_equal(texts: list[str]) -> None:
    names = Names()
    names.know({"aba": "user"})
    cleaned = [names.cleaned(text) for text in texts]
    assert len(set(cleaned)) == len(set(texts))
    assert cleaned == [names.cleaned(text) for text in texts]


@pytest.mark.parametrize(
    ("item", "kept"),
    [
        ("NCCL_ALGO=Ring", True),
        ('NCCL_ALGO="Ring,Tree"', True),
        ("CUDA_VISIBLE_DEVICES=0,1", True),
        ("CUDA_VISIBLE_DEVICES=GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", False),
        ("CUBLAS_WORKSPACE_CONFIG=:4096:8", True),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128", True),
        ("NCCL_DEBUG_SUBSYS=INIT,^NET", True),
        ("NCCL_SOCKET_IFNAME=hush0", False),
        ("NCCL_SOMETHING=hush", False),
        ("NCCL_SOMETHING=10.0.0.1", False),
        ("SLURM_PROCID=3", True),
        ("NCCL_COMM_ID=10.0.0.1:99", False),
        ("NCCL_HOSTID=node", False),
        ("NCCL_TOPO_FILE=topo.xml", False),
        ("NCCL_SOMETHING=/a/path", False),
        ("NCCL_SOMETHING=two words", False),
        ("NCCL_API_KEY=abc", False),
        ("RANKS=3", False),
        ("AWS_SECRET_ACCESS_KEY=abc", False),
        ("HOME=me", False),
        ("NCCL_ALGO=", False),
    ],
)
def test_of_the_environment_only_listed_variables_with_plain_values_are_kept(item: str, kept: bool) -> None:
    assert environment_allowlist.allowed(*environment_allowlist.split(item)) is kept


@pytest.mark.parametrize("schema", ["3.0.0", "4.1.0", "lz4", "json"])
def test_a_copy_of_a_profile_of_rocprofv3_has_the_same_figures_and_no_secrets(
    schema: str, tmp_path: Path
) -> None:
    if schema == "json":
        path = tmp_path / "rank0_results.json"
        path.write_text(json.dumps(rocprof_profiles.results()))
    else:
        path = rocprof_profiles.write_database(tmp_path / "rank0_results.db", schema)
    done = scrub_files([path], tmp_path / "copies")
    assert (done.skipped, [left_out for _, left_out in done.written]) == ([], [[]])
    copy = tmp_path / "copies" / path.name
    assert figures(copy) == figures(path)
    content = copy.read_bytes()
    for secret in (*rocprof_profiles.SECRETS.values(), "--token", "frontier01234", rocprof_profiles.GUID):
        assert secret.encode() not in content
    assert read_profile(copy).origin.facts == read_profile(path).origin.facts
