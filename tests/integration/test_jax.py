"""Programs in JAX: real profiles of two processes, and real programs where JAX is installed."""

from __future__ import annotations

import json
import lzma
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hpcprof.profiles.readers.results import parse_result
from hpcprof.runs.directory import all_runs
from hpcprof.submit.profilers import PROFILERS
from hpcprof.submit.profilers.base import Target
from tests.conftest import Hpcprof
from tests.data import xplane_profile as made

DATA = Path(__file__).parents[1] / "data"
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="the extra jax is not installed")

STANDIN = """\
class StepTraceAnnotation:
    def __enter__(self): return self
    def __exit__(self, *error): pass
start_trace = stop_trace = print
"""
PROGRAM = """\
import contextlib, os, sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec

rank, ranks = int(os.environ["HPCPROF_RANK"]), int(os.environ["HPCPROF_WORLD_SIZE"])
cause, port, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
if port != "0":
    jax.distributed.initialize(f"localhost:{port}", ranks, rank)
mesh = jax.make_mesh((len(jax.devices()),), ("data",))
weights = jnp.ones((256, 256)) / 256

@jax.jit
@jax.shard_map(mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec("data")), out_specs=PartitionSpec())
def step(weights, batch):
    for _ in range(20):
        batch = jnp.tanh(batch @ weights)
    return weights + jax.lax.psum(batch.T @ batch, "data") * 1e-6

def mark(number):
    marks = "unmarked" not in sys.argv
    return jax.profiler.StepTraceAnnotation("train", step_num=number) if marks else contextlib.nullcontext()

sharding = NamedSharding(mesh, PartitionSpec("data"))
for number in range(steps):
    with mark(number):
        with jax.profiler.TraceAnnotation("load"):
            time.sleep(0.1 if cause == "slow" else 0)
            local = np.ones((1024, 256), np.float32)
        batch = jax.make_array_from_process_local_data(sharding, local)
        with jax.profiler.TraceAnnotation("augment"):
            time.sleep(0.1 if cause == "slow" and rank == 1 else 0)
        weights = jax.block_until_ready(step(weights, batch))
"""


@pytest.mark.parametrize(("profiler", "hooked"), [("jax", True), ("none", False)])
def test_the_start_of_python_watches_for_jax_on_ranks_that_it_profiles(
    tmp_path: Path, profiler: str, hooked: bool
) -> None:
    for folder in ("hook", "own/jax"):
        (tmp_path / folder).mkdir(parents=True)
    for name, text in PROFILERS["jax"].start_up(Target(None, ranks=1)).items():
        file = tmp_path / "hook" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "own/jax/__init__.py").write_text("from . import profiler\n")
    (tmp_path / "own/jax/profiler.py").write_text(STANDIN)
    program = (
        "import sys, json; before = 'hpcprof_hooks.jax_hook' in sys.modules\n"
        "import jax; print(json.dumps([before, jax.profiler.start_trace is print]))"
    )
    folders = {"PYTHONPATH": f"{tmp_path}/hook:{tmp_path}/own", "TMPDIR": str(tmp_path)}
    variables = {"HPCPROF_PROFILE_OUTPUT": str(tmp_path / "rank00000"), "HPCPROF_PROFILER": profiler}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **folders, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [False, not hooked]
    assert done.stderr == ("hpcprof: no trace: the program used no device of JAX.\n" if hooked else "")


@pytest.mark.parametrize(
    ("profile", "where", "count"),
    [("jax_slow", "augment", 6), ("jax_unmarked", "code outside all ranges", 17)],
)
def test_the_profiles_of_two_processes_name_the_slow_one(
    hpcprof: Hpcprof, tmp_path: Path, profile: str, where: str, count: int
) -> None:
    for rank in (0, 1):
        packed = (DATA / f"{profile}_rank{rank}.xplane.pb.xz").read_bytes()
        (tmp_path / f"rank0000{rank}.xplane.pb").write_bytes(lzma.decompress(packed))
    first = first_finding(hpcprof, tmp_path)
    assert (first["cause"], first["ranks"], first["where"]) == ("late_rank_host", [1], where)
    rows = table(hpcprof, tmp_path, "collectives_summary")
    assert [(row["op"], row["count"]) for row in rows] == [("AllReduce", count)]


@pytest.mark.parametrize(
    ("before_ns", "late_ns", "expected"),
    [
        (20_000_000, 20_000_000, ("late_rank_host", [1], "code outside all ranges")),
        (20_000_000, 0, ("host_work", [0, 1], "code outside all ranges")),
        (0, 0, None),
    ],
)
def test_processes_that_mark_nothing_may_record_different_executions(
    hpcprof: Hpcprof, tmp_path: Path, before_ns: int, late_ns: int, expected: tuple[object, ...] | None
) -> None:
    for rank, (first, count) in enumerate(((0, 30), (3, 33))):
        written = made.of_cpu(rank, first, count, before_ns=before_ns, late_ns=late_ns)
        (tmp_path / f"rank0000{rank}.xplane.pb").write_bytes(written)
    first_cause = first_finding(hpcprof, tmp_path)
    assert (tuple(map(first_cause.get, ("cause", "ranks", "where"))) if first_cause else None) == expected
    (row,) = table(hpcprof, tmp_path, "collectives_summary")
    # Rank 0 did not see the end of the last step, rank 1 does not have the first three.
    assert (row["op"], row["count"]) == ("AllReduce", 26)
    kept = {row["rank"]: row["step"] for row in reversed(table(hpcprof, tmp_path, "step_times"))}
    assert kept == {0: 782_724_313, 1: 782_724_316}


def test_a_process_with_several_gpus_is_all_of_its_program(hpcprof: Hpcprof, tmp_path: Path) -> None:
    (tmp_path / "rank00000.xplane.pb").write_bytes(made.profile(gpus=2))
    assert "ranks has a profile" not in hpcprof("explain", str(tmp_path)).stdout


def first_finding(hpcprof: Hpcprof, run: Path) -> dict[str, object]:
    found = json.loads(hpcprof("explain", str(run), "--format", "json").stdout)["findings"]
    return dict(found[0]) if found else {}


def table(hpcprof: Hpcprof, run: Path, analysis: str) -> list[dict[str, object]]:
    answer = json.loads(hpcprof("report", str(run), "--analysis", analysis, "--format", "json").stdout)
    rows: list[dict[str, object]] = answer["rows"] if isinstance(answer, dict) else answer
    return rows


def profiled(hpcprof: Hpcprof, tmp_path: Path, *arguments: str) -> Path:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    hpcprof(
        *("submit", "--site", "local", "--ranks-per-node", "2", "--profiler", "jax", "--wait"),
        *("--", sys.executable, str(program), *arguments),
    )
    (run,) = all_runs(tmp_path / "runs")
    return run.path


def free_port() -> str:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return str(listening.getsockname()[1])


@needs_jax
def test_processes_that_train_together_are_recorded_with_what_holds_them_up(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    run = profiled(hpcprof, tmp_path, "slow", free_port(), "9")
    for rank in (0, 1):
        said = (run / f"logs/rank0000{rank}.err").read_text()
        assert "hpcprof: recorded steps 5 to 8 that the program marks, counted from 0; the program" in said
    idle = table(hpcprof, run, "idle_causes")
    asleep = [(row["rank"], row["range"]) for row in idle if float(str(row["idle_ns_per_step"])) > 0.09e9]
    assert sorted(asleep) == [(0, "load"), (1, "augment"), (1, "load")]
    (together,) = table(hpcprof, run, "collectives_summary")
    assert (together["op"], together["ranks"], together["bytes"]) == ("AllReduce", 2, 4 * 256 * 256)


@needs_jax
def test_a_program_that_marks_its_steps_is_watched_without_a_profiler(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import time, jax\n"
        "for number in range(7, 27):\n"
        "    with jax.profiler.StepTraceAnnotation('train', step_num=number):\n"
        "        time.sleep(0.02)\n"
    )
    hpcprof("submit", "--site", "local", "--wait", "--", sys.executable, "train.py")
    (line,) = (line for line in hpcprof("status").stdout.splitlines() if "completed" in line)
    assert "step 26 on 1 rank, 2" in line
    assert "ms a step" in line


@needs_jax
def test_processes_on_their_own_that_mark_nothing_have_steps_and_operators(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    run = profiled(hpcprof, tmp_path, "none", "0", "30", "unmarked")
    assert table(hpcprof, run, "steps_summary")
    assert {row["rank"] for row in table(hpcprof, run, "operators")} == {0, 1}
    said = (run / "logs/rank00000.err").read_text()
    assert "s of the program" in said
    assert "since it marked no step" in said


@needs_jax
def test_the_workload_is_checked_and_timed_and_its_collectives_are_in_the_profile(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    options = ["-s", "64", "--hidden-size", "32", "--steps", "8", "--dtype", "bfloat16"]
    hpcprof(
        *("submit", "--site", "local", "--ranks-per-node", "2", "--profiler", "jax", "--wait"),
        *(
            "--capture-steps",
            "2-6",
            "--workload",
            "sequence-parallel-jax",
            "--",
            *options,
            "--direction",
            "both",
        ),
    )
    (run,) = all_runs(tmp_path / "runs")
    times, latencies = [], []
    for rank in (0, 1):
        result = parse_result((run.path / f"results/rank0000{rank}.json").read_text())
        assert (result.workload, result.mode, result.rank, result.world_size) == (
            "sequence-parallel-jax",
            "shard_map",
            rank,
            2,
        )
        assert len(result.step_ns) == len(result.latency_ns or []) == 8
        times.append(result.step_ns)
        latencies.append(result.latency_ns)
        assert result.correctness
        assert result.correctness.passed
        assert result.parameters["dtype"] == "bfloat16"
        assert "recorded steps 2 to 6" in (run.path / f"logs/rank0000{rank}.err").read_text()
    assert latencies == [[max(step) for step in zip(*times, strict=True)]] * 2
    rows = table(hpcprof, run.path, "collectives_summary")
    assert {(row["op"], row["ranks"]) for row in rows} == {("AllGather", 2), ("ReduceScatter", 2)}


@needs_jax
def test_a_wrong_result_of_the_workload_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hpcprof.workloads.sequence_parallel_jax import benchmark
    from hpcprof.workloads.sequence_parallel_jax.options import parse

    monkeypatch.chdir(tmp_path)
    small = ["-s", "8", "--hidden-size", "8", "--steps", "2", "--warmup", "1"]
    for direction in ("forward", "backward", "both"):
        wanted = parse([*small, "--direction", direction])
        assert benchmark.run(wanted) == 0
    monkeypatch.setattr(benchmark, "_ERROR_BOUNDS", {"float32": 0.0})
    assert benchmark.run(wanted) == 1
    assert "is not below 0e+00" in capsys.readouterr().err
