"""Finding profiles and their ranks."""

from __future__ import annotations

import gzip
import json
import marshal
from pathlib import Path

import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.declaration import rank_from_name
from hpcprof.profiles.readers.discovery import find_profiles, formats_like, read_profile, reader_of
from hpcprof.profiles.readers.foreign_files import foreign_kind
from hpcprof.profiles.readers.kineto import MERGED
from hpcprof.profiles.timeline import Timeline


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rank0.sqlite", "nsys"),
        ("RANK0.SQLITE", "nsys"),
        ("a.trace.json", "torch"),
        ("a.trace.json.gz", "torch"),
        ("a.pt.trace.json", "torch"),
        ("a.pt.trace.json.gz", "torch"),
        ("rank0_trace.json", "torch"),
        ("mi250_kineto.json.gz", "torch"),
        ("rank0.json", "torch"),
        ("Qwen__1016005.json.gz", "torch"),
        ("908_results.json.gz", "rocprofv3"),
        ("rank0.unitrace.json", "unitrace"),
        ("rank0.jsonl", None),
        ("rank0.nsys-rep", "nsys"),
        ("rank0.ncu-rep", "ncu"),
        ("rank0.ncu-repz", "ncu"),
        ("rank0.raw.csv.gz", "ncu"),
        ("sqlite", None),
    ],
)
def test_the_suffix_tells_the_kind(name: str, kind: str | None) -> None:
    reader = reader_of(Path(name))
    assert (reader.name if reader else None) == kind


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank00003.sqlite", 3),
        ("rank3.sqlite", 3),
        ("name.3.sqlite", 3),
        ("profile_rank-3_node1.sqlite", 3),
        ("job.7.rank_12.sqlite", 12),
        ("rank3.pt.trace.json.gz", 3),
        ("a.4.trace.json", 4),
        ("host_123.1700000000000.pt.trace.json.gz", None),
        ("frank3.sqlite", None),
        ("local_rank3.sqlite", None),
        ("profile.sqlite", None),
        ("v2.sqlite", None),
    ],
)
def test_the_file_name_tells_the_rank(name: str, rank: int | None) -> None:
    assert rank_from_name(Path(name)) == rank


def test_a_run_directory_is_searched_in_its_profiles_folder(tmp_path: Path) -> None:
    (tmp_path / "profiles" / "deeper").mkdir(parents=True)
    for name in ("rank1.sqlite", "rank0.sqlite", "rank0.ncu-log", ".rank2.sqlite", "tmp.rank3.sqlite"):
        (tmp_path / "profiles" / name).touch()
    (tmp_path / "profiles" / "deeper" / "rank9.sqlite").touch()
    (tmp_path / "rank8.sqlite").touch()
    assert [path.name for path in find_profiles(tmp_path)] == ["rank0.sqlite", "rank1.sqlite"]


def test_any_other_folder_is_searched_itself(tmp_path: Path) -> None:
    (tmp_path / "b.trace.json").touch()
    (tmp_path / "a.sqlite").touch()
    (tmp_path / "folder.sqlite").mkdir()
    assert [path.name for path in find_profiles(tmp_path)] == ["a.sqlite", "b.trace.json"]


def test_traces_of_pytorch_with_other_names_are_found_by_what_they_begin_with(
    tmp_path: Path, torch_trace: Path
) -> None:
    (tmp_path / "mi250_kineto.json.gz").write_bytes(torch_trace.read_bytes())
    (tmp_path / "Qwen__1016005.json.gz").write_bytes(torch_trace.read_bytes())
    (tmp_path / MERGED).write_bytes(torch_trace.read_bytes())
    (tmp_path / "config.json").write_text('{"schema": 1, "traceEvents": []}')
    (tmp_path / "rank1_trace.json").write_text('{"traceEvents": [{"ph": "X", "cat": "ac2g", "ts": 1}]}')
    (tmp_path / "other_trace.json").write_text('{"traceEvents": [{"ph": "X", "cat": "gpu_op", "ts": 1}]}')
    (tmp_path / "cut_trace.json.gz").write_bytes(b"\x1f\x8b\x08")
    found = [path.name for path in find_profiles(tmp_path)]
    assert found == ["Qwen__1016005.json.gz", "mi250_kineto.json.gz", "rank1_trace.json"]
    assert read_profile(tmp_path / "mi250_kineto.json.gz").origin.kind == "torch"
    with pytest.raises(DamagedInput, match="holds the traces of all ranks"):
        read_profile(tmp_path / MERGED)


def test_a_trace_of_ascend_by_another_name_is_named(tmp_path: Path) -> None:
    # Rebuilt from Ascend/pytorch#133: a list of events whose times are texts.
    event = {"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "Ascend Hardware"}}
    written = json.dumps(
        [event, {"ph": "X", "name": "MatMulV2", "ts": "1716000000000000.123", "dur": 3, "pid": 3, "tid": 1}]
    )
    (tmp_path / "msprof_1.json").write_text(written)
    assert not find_profiles(tmp_path)
    with pytest.raises(
        DamagedInput, match=r"is a trace of Ascend's profiler: hpcprof reads it as trace_view\.json"
    ):
        read_profile(tmp_path / "msprof_1.json")
    (tmp_path / "trace_view.json").write_text(written)
    profile = read_profile(tmp_path / "trace_view.json")
    assert isinstance(profile, Timeline)
    assert profile.names(profile.kernels.name) == ["MatMulV2"]


def test_each_kind_goes_to_its_reader(export: Path, torch_trace: Path) -> None:
    assert read_profile(export).origin.kind == "nsys"
    assert read_profile(torch_trace).origin.kind == "torch"
    with pytest.raises(DamagedInput, match=r"notes\.txt is not a profile"):
        read_profile(Path("notes.txt"))


def test_databases_and_tables_of_other_tools_are_named_by_how_they_begin(tmp_path: Path) -> None:
    for name, content, tool in (
        ("cct.db", b"HPCTOOLKITctxt", "HPCToolkit"),
        ("perf.data", b"PERFILE2", "perf"),
        ("perf.txt", b"     python 118  299.996672:   250 cpu-clock:ppp:   7ffa main+0x2 (/bin/a)\n", "perf"),
        ("out.prof", marshal.dumps({("a.py", 3, "f"): (1, 1, 0.5, 0.5, {})}), "cProfile"),
        ("results.csv", b'"Index","KernelName","gpu-id"', "rocprof,"),
        ("results.stats.csv", b'"Name","Calls","TotalDurationNs","AverageNs"', "rocprof "),
        ("pmc_perf.csv", b"Dispatch_ID,GPU_ID,Grid_Size,Workgroup_Size", "rocprof-compute"),
        ("gmon.out", b"gmon\x01\0\0\0", "gprof"),
        ("callgrind.out.31", b"# callgrind format\n", "Callgrind"),
        ("amg.4.9164.1.mpiP", b"@ mpiP", "mpiP"),
        ("slurm-2.out", b"done\n##IPMv2.0.6####\n#\n", "IPM"),
        ("trace.slog2", b"", "Jumpshot"),
        ("tautrace.0.0.0.trc", b"", "TAU_TRACE_FORMAT=otf2"),
        ("table.csv", b"rank,step", ""),
        ("kernels.csv", b"\xef\xbb\xbfTime (%),Total Time (ns),Instances,Name", "nsys stats"),
        ("profile.3.0.0", b"23 templated_functions_MULTI_TIME\n# Name Calls", "TAU_TRACE_FORMAT=otf2"),
        ("events.csv", b"Timestamp (s), Event Type, Name, Process", "Pipit"),
        ("perfetto-trace-0.proto", b"\n", "Perfetto"),
        ("part.0.parquet", b"PAR1", "no table of operations"),
        ("1.metric-db", b"", "HPCToolkit"),
        ("app-1.pfw", b"[", "DFTracer or PerfFlowAspect"),
        ("loop.pstats", b"\xfb", "cProfile"),
        ("rank00000.trace", b'[\n{"ts": 1, "dur": 616, "ph": "X", "args": {"a": 0x7f}},', "a Chrome trace"),
        ("app-2.pfw.gz", b"", "DFTracer"),
        ("stencil.prv.xz", b"", "Extrae"),
        ("mpi.out.gz", gzip.compress(b"@ mpiP\n"), "mpiP"),
        ("slurm-1.out", b"step 1\n==31== NVPROF is profiling process 31, command: ./a\nstep 2", "nvprof,"),
        ("summary.txt", b"done\n==31== Profiling result:\n Type Time(%)", "nvprof,"),
        ("bs32-fp32.gz", gzip.compress(b"==31== NVPROF is profiling process 31"), "nvprof,"),
        ("table.txt", b"-----  -----\n      Name    Self CPU %      Self CPU\n", "export_chrome_trace"),
    ):
        (tmp_path / name).write_bytes(content)
        assert tool in foreign_kind(tmp_path / name)
    (tmp_path / "empty.db").touch()
    assert not foreign_kind(tmp_path / "empty.db")
    (tmp_path / "trace.json").touch()
    assert foreign_kind(tmp_path / "trace.json").startswith("empty: ")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        # As rocprof of ROCm 5 and PyTorch's ExecutionTraceObserver write them.
        ('{ "traceEvents":[{}\n,{"ph":"X","name":"k.kd","args":{"BeginNs":"12","EndNs":"30"}}]}', "rocprof,"),
        ('{\n "schema": "1.0.1", "pid": 2,\n "nodes": [\n {"name": "a", "rf_id": 0}]}', "has no times"),
        # As Caliper (json-split), timemory and Thicket write them.
        ('{\n "data": [\n [ 62, 0, 309432.0 ]],\n "columns": ["time"]}', "Caliper"),
        ('{\n "timemory": {"WALL_CLOCK": {}}}', "timemory"),
        ('{"graph": [{"0": {"data": {"type": "function"}}}]}', "Thicket"),
        ('[\n {\n "children": [{"frame": {"name": "foo0"}, "metrics": {"time (ns)": 8}}]}]', "proton-viewer"),
        ('[{"cat" : "Session","dur" :3,"ts" :1,"ph" : "X","name" :"model_loading_uri"}]', "ONNX Runtime"),
        ('[{"name": "main", "pid": 1, "tid": 1, "ts": 1.0, "ph": "X", "dur": 9}]', "a Chrome trace"),
        ('{"$schema":"https://www.speedscope.app/file-format-schema.json","profiles":[]}', "speedscope"),
        ('[{"args":{"line":1},"cat":"py-spy","name":"f","ph":"B","ts":1}]', "py-spy"),
        (
            '[{"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":24329}]},{"id":1}]',
            "Triton Inference Server",
        ),
        ('{"start_time": 1.0, "duration": 2, "root_frame": {"function": "f"}}', "pyinstrument"),
        ('{"traceEvents": [{"ph": "X", "name": "f", "cat": "FEE", "ts": 3}]}', "trace of VizTracer"),
        (
            '{"traceEvents":[{"pid":1,"tid":2,"ph":"X","ts":3,"dur":5,"name":"Source"}]}',
            "Clang's compilation",
        ),
        ('[\n  { "count" : 641 }\n, { "name" : "/model/conv", "timeMs" : 5, "averageMs" : 0.1 }]', "trtexec"),
        ('[\n  { "startEnqMs" : 1, "endEnqMs" : 2 }]', "trtexec"),
        ('[\n{"ph": "B", "name": "NEGOTIATE_BROADCAST", "ts": 3, "pid": 1},\n', "timeline of Horovod"),
        (
            '{"traceEvents": [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": '
            '"/device:GPU:0/stream:15 Compute"}}, {"name": "/device:GPU:0"}]}',
            "timeline of TensorFlow 1, which",
        ),
    ],
)
def test_traces_of_other_tools_are_named(content: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    assert kind in foreign_kind(path)
    with pytest.raises(DamagedInput, match=kind):
        read_profile(path)
    if "Chrome" not in kind:
        assert kind in foreign_kind(path.rename(tmp_path / "proton.hatchet"))


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        (
            "rank0.json",
            "version https://git-lfs.github.com/spec/v1\noid sha256:4d\n",
            "a pointer of Git LFS",
        ),
        ("rank0.sqlite", "version https://git-lfs.github.com/spec/v1\noid sha256:4d\n", "a pointer of Git"),
        (
            "a.xplane.pb",
            "<!DOCTYPE html>\n<html></html>\n",
            "a web page: download the file itself",
        ),
        ("a.otf2", "\n<html lang='en'></html>\n", "a web page"),
    ],
)
def test_what_a_download_left_in_place_of_a_profile_is_named(
    tmp_path: Path, name: str, text: str, kind: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DamagedInput, match=f"{name} is {kind}"):
        read_profile(tmp_path / name)


def test_formats_are_named_for_a_whole_ending() -> None:
    assert formats_like(Path("trace.PB")).startswith(".PB may be *.xplane.pb of JAX; ")
    assert {formats_like(Path(name)) for name in ("run.c", "run.js", "run.")} == {formats_like(Path("run"))}


def test_a_damaged_file_of_text_is_of_no_known_kind(tmp_path: Path) -> None:
    (tmp_path / "server.log.gz").write_bytes(b"\x1f\x8bdamaged")
    assert foreign_kind(tmp_path / "server.log.gz") == ""
