"""The sequence-parallel workload on real ranks: MPI starts them, gloo carries the data."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import math
import re
from pathlib import Path

import pytest

from hpcprof.profiles.readers.results import parse_result
from hpcprof.workloads.schema import summarize
from tests.integration.mpi import PYTHON, WORKLOAD, Finished, mpi

pytestmark = pytest.mark.slow

STEPS = 3
PHASES = ["allgather", "matmul_1", "matmul_2", "reduce_scatter"]
SMALL = ["-s", "64", "--hidden-size", "32", "--warmup", "0", "--steps", str(STEPS)]


@pytest.fixture(
    scope="module",
    params=[(1, "float32"), (2, "bfloat16"), (4, "float32")],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def plain(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, str, Finished]:
    """Return the ranks, the dtype and the results of a run with plain ``mpiexec``."""
    ranks, dtype = request.param
    folder = tmp_path_factory.mktemp("run")
    return ranks, dtype, mpi(ranks, [*WORKLOAD, *SMALL, "--dtype", dtype], folder)


def test_it_succeeds_and_says_nothing_on_stderr(plain: tuple[int, str, Finished]) -> None:
    _, _, run = plain
    assert (run.code, run.stderr) == (0, "")


def test_every_rank_writes_its_results(plain: tuple[int, str, Finished]) -> None:
    ranks, dtype, run = plain
    results = run.results()
    assert [result.rank for result in results] == list(range(ranks))
    for result in results:
        assert (result.world_size, result.local_rank, result.backend) == (ranks, result.rank, "gloo")
        assert result.parameters["dtype"] == dtype
        assert result.versions.keys() >= {"python", "torch", "mpi4py", "mpi", "hpcprof"}
        assert any("all-reduce" in note for note in result.notes)


def test_every_rank_agrees_with_the_float64_reference(plain: tuple[int, str, Finished]) -> None:
    _, dtype, run = plain
    for result in run.results():
        assert result.correctness.passed
        # A float32 error in a bfloat16 run would mean that the run computed in float32.
        low = {"float32": 1e-8, "bfloat16": 1e-4}[dtype]
        assert low < result.correctness.relative_error < result.correctness.bound


def test_the_phases_of_a_step_fit_into_the_step(plain: tuple[int, str, Finished]) -> None:
    _, _, run = plain
    for result in run.results():
        assert list(result.phase_ns) == PHASES
        assert len(result.step_ns) == len(result.marked_ns) == STEPS
        for step, phases in zip(result.marked_ns, zip(*result.phase_ns.values(), strict=True), strict=True):
            assert 0 < sum(phases) <= step
        assert result.summary == {
            name: summarize(times) for name, times in {"step": result.step_ns, **result.phase_ns}.items()
        }


def test_a_steps_latency_is_its_maximum_over_the_ranks(plain: tuple[int, str, Finished]) -> None:
    _, _, run = plain
    results = run.results()
    slowest = [max(step) for step in zip(*(result.step_ns for result in results), strict=True)]
    assert all(result.latency_ns == slowest for result in results)


def test_rank_0_alone_prints_the_table(plain: tuple[int, str, Finished]) -> None:
    ranks, _, run = plain
    assert run.stdout.count("sequence-parallel (serial)") == 1
    assert f"{ranks} rank" in run.stdout
    for text in ("p50 ms", "TFLOP/s per rank", "relative error", *PHASES):
        assert text in run.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_mode_that_can_run_is_measured_in_turns_and_checked(ranks: int, tmp_path: Path) -> None:
    run = mpi(ranks, [*WORKLOAD, *SMALL, "--mode", "auto", "--chunks", "2"], tmp_path)
    assert run.code == 0, run.stderr
    for result in run.results():
        assert list(result.modes) == ["serial", "chunked"]
        # Nothing is written twice: the fields of a single mode are empty.
        assert (result.mode, result.step_ns, result.phase_ns, result.summary) == ("serial", [], {}, {})
        assert (result.latency_ns, result.correctness, result.figures) == (None, None, None)
        assert all(mode.correctness.passed for mode in result.modes.values())
        assert all(len(mode.latency_ns) == STEPS for mode in result.modes.values())
        serial, chunked = (mode.figures for mode in result.modes.values())
        assert (serial.marked.n, chunked.marked) == (STEPS, None)
        # On a CPU, communication and compute share the cores.
        assert all(mode.figures.overlapped is None for mode in result.modes.values())
        medians = [summarize(times).p50_ns for times in result.modes["serial"].phase_ns.values()]
        assert result.bound_ns is not None and result.alone_bound_ns is not None
        # It is computed from maxima over the ranks, which are at least the values of any rank.
        assert result.alone_bound_ns >= max(medians[0] + medians[3], medians[1] + medians[2]) * 0.99
        # Nothing can be copied from a peer here, so the links are the collectives alone.
        links = result.bound_parts_ns["links forward"]
        assert links == result.parts_ns["allgather"] + result.parts_ns["reduce_scatter"]
        assert result.bound_ns >= links
        assert None not in (serial.of_bound_low_pct, chunked.of_bound_high_pct, serial.of_alone_pct)
    assert "cublasmp is left out: cuBLASMp needs CUDA and NCCL" in run.stdout
    assert "symmetric is left out: symmetric memory needs CUDA" in run.stdout
    assert "fastest: " in run.stdout


def test_chunks_give_the_same_rows_as_the_whole(tmp_path: Path) -> None:
    dtypes = ["float32", "bfloat16", "float16"]
    swept = ["--sweep", f"dtype={','.join(dtypes)}"]
    run = mpi(2, [*WORKLOAD, *SMALL, "--mode", "chunked", "--chunks", "4", *swept], tmp_path)
    assert run.code == 0, run.stderr
    for result in run.results():
        assert [point.parameters["dtype"] for point in result.points] == dtypes
        assert all(point.mode == "chunked" and not point.modes for point in result.points)
        assert all(point.correctness.passed for point in result.points)


def test_a_mode_that_cannot_run_alone_is_one_sentence(tmp_path: Path) -> None:
    run = mpi(2, [*WORKLOAD, *SMALL, "--mode", "chunked", "--chunks", "5"], tmp_path)
    assert run.code == 2
    assert "--chunks 5 does not divide the 32 rows of a rank" in run.stderr


def events(path: Path) -> list[tuple[str, float, float]]:
    """Return name, start and end of the ranges that the program marked, in chronological order."""
    trace = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    marked = (event for event in trace if event.get("cat") == "user_annotation")
    named = ((e["name"], e["ts"], e["ts"] + e["dur"]) for e in marked if e["name"] in {"iteration", *PHASES})
    return sorted(named, key=lambda event: (event[1], -event[2]))


def test_under_the_torch_profiler_each_profiled_rank_writes_a_trace_of_the_measured_steps(
    tmp_path: Path,
) -> None:
    # As the rank wrapper does; rank 1 is not selected.
    wrapper = (
        'export HPCPROF_RUN_DIR="$PWD/a run" HPCPROF_RANK="$PMI_RANK" HPCPROF_WORLD_SIZE="$PMI_SIZE"\n'
        'if [ "$PMI_RANK" -ne 1 ]; then\n'
        "  export HPCPROF_PROFILER=torch\n"
        '  export HPCPROF_PROFILE_OUTPUT="$HPCPROF_RUN_DIR/profiles/rank0000$PMI_RANK"\n'
        "fi\n"
        'exec "$@"\n'
    )
    run = mpi(
        3, ["sh", "-c", wrapper, "sh", *WORKLOAD, "-s", "96", "--hidden-size", "48", *SMALL[4:]], tmp_path
    )
    assert run.code == 0, run.stderr
    profiles = sorted((tmp_path / "a run" / "profiles").iterdir())
    assert [path.name for path in profiles] == ["rank00000.trace.json.gz", "rank00002.trace.json.gz"]
    for path in profiles:
        ranges = events(path)
        assert [name for name, _, _ in ranges] == ["iteration", *PHASES] * STEPS
        for first in range(0, len(ranges), 1 + len(PHASES)):
            (_, start, end), *inside = ranges[first : first + 1 + len(PHASES)]
            assert all(start <= begin <= stop <= end for _, begin, stop in inside)
    results = [parse_result(p.read_text()) for p in sorted((tmp_path / "a run" / "results").iterdir())]
    for result in results:
        # The profile contains the steps that are timed, also on the rank without a profiler.
        assert not result.marked_ns
        for step, phases in zip(result.step_ns, zip(*result.phase_ns.values(), strict=True), strict=True):
            assert 0 < sum(phases) <= step
    assert [result.profiler for result in results] == ["torch", "none", "torch"]


def driver(folder: Path, damage: str) -> list[str]:
    """Return the command of a script that replaces rank 1's matmul by ``damaged`` and runs the workload."""
    script = folder / "driver.py"
    script.write_text(
        "import sys, torch\n"
        "from mpi4py import MPI\n"
        "from hpcprof.workloads.start import start\n"
        "mm = torch.mm\n"
        f"{damage}\n"
        "if MPI.COMM_WORLD.rank == 1:\n"
        "    torch.mm = damaged\n"
        "sys.exit(start('hpcprof.workloads.sequence_parallel', '', sys.argv[1:]))\n"
    )
    return [*PYTHON, str(script), *SMALL]


def test_a_rank_that_raises_ends_the_whole_job(tmp_path: Path) -> None:
    damage = "def damaged(a, b, out):\n    raise RuntimeError('the matmul broke')\n"
    run = mpi(2, driver(tmp_path, damage), tmp_path)
    assert run.code == 1
    assert "rank 1: RuntimeError: the matmul broke" in run.said
    assert "Traceback (most recent call last):" in run.said


def test_a_wrong_matmul_on_one_rank_fails_the_run_in_one_sentence_and_keeps_the_results(
    tmp_path: Path,
) -> None:
    damage = "def damaged(a, b, out):\n    mm(a, b, out=out).mul_(1.01)\n"
    run = mpi(2, driver(tmp_path, damage), tmp_path)
    assert run.code == 1
    (sentence,) = run.said
    # The wrong partial sums of rank 1 are in the rows of both ranks: half of the variance is 2 % too large.
    assert sentence.startswith("serial: rank 0: the results are wrong: relative error 1.")
    error = run.results()[0].correctness.relative_error
    assert error == pytest.approx((1.01**2 - 1) / math.sqrt(2), rel=0.1)
    assert sentence.endswith("(2 of 2 ranks fail).")
    assert [result.correctness.passed for result in run.results()] == [False, False]


def test_a_gloo_without_reduce_scatter_gets_by_with_an_all_reduce(tmp_path: Path) -> None:
    damage = (
        "from hpcprof.workloads import distributed\n"
        "def absent(output, source):\n"
        "    raise RuntimeError('no support for reduce_scatter')\n"
        "distributed._reduce_scatter = absent\n"
        "damaged = mm\n"
    )
    run = mpi(2, driver(tmp_path, damage), tmp_path)
    assert (run.code, run.stderr) == (0, "")
    assert [result.correctness.passed for result in run.results()] == [True, True]


def test_a_mistake_in_one_ranks_environment_ends_the_job_in_one_sentence(tmp_path: Path) -> None:
    wrapper = '[ "$PMI_RANK" -ne 1 ] || export HPCPROF_PROFILER=nothing; exec "$@"'
    run = mpi(2, ["sh", "-c", wrapper, "sh", *WORKLOAD, *SMALL], tmp_path)
    assert run.code == 2
    (sentence,) = run.said
    assert sentence.startswith("rank 1: unknown profiler 'nothing' in HPCPROF_PROFILER")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-s", "1000"], "--sequence-length 1000 is not divisible by 3 ranks: use 999 or 1002."),
        (["--steps", "none"], "sequence-parallel: argument --steps: 'none' is not a whole number from 1."),
    ],
)
def test_a_wrong_option_is_one_sentence_on_all_ranks_together(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    run = mpi(3, [*WORKLOAD, *arguments], tmp_path)
    assert (run.code, run.stdout, run.stderr) == (2, "", sentence + "\n")


def test_ranks_that_mpi_does_not_join_are_refused(tmp_path: Path) -> None:
    run = mpi(1, [*WORKLOAD, *SMALL], tmp_path, HPCPROF_WORLD_SIZE="2")
    assert run.code == 2
    (sentence,) = run.said
    assert sentence.startswith("rank 0: MPI has 1 rank, but the launcher started 2")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(("ranks", "kept"), [(3, ()), (1, ("--keep-gathered",))])
def test_every_mode_goes_backward_and_agrees_with_the_float64_reference(
    ranks: int, kept: tuple[str, ...], tmp_path: Path
) -> None:
    shape = ["-s", "96", "--hidden-size", "48", *SMALL[4:], "--sweep", "direction=backward,both", *kept]
    run = mpi(ranks, [*WORKLOAD, *shape, "--mode", "auto", "--chunks", "2"], tmp_path)
    assert run.code == 0, run.stderr
    points = {(result.rank, p.parameters["direction"]): p for result in run.results() for p in result.points}
    assert len(points) == 2 * ranks
    for (_, direction), result in points.items():
        assert list(result.modes) == ["serial", "chunked"]
        for mode in result.modes.values():
            assert mode.correctness.passed
            assert mode.correctness.relative_error > 1e-8
        phases = list(result.modes["serial"].phase_ns)
        assert ("input_allgather" in phases) == (not kept)
        assert ("allgather" in phases) == (direction == "both")


def test_each_wrong_matmul_of_the_backward_on_one_rank_fails_the_run(tmp_path: Path) -> None:
    # At each point another one is wrong. All matmuls of a point have its hidden size in their shapes.
    sizes = (24, 40, 56, 72)
    damage = (
        f"sizes, calls = {sizes}, dict.fromkeys({sizes}, 0)\n"
        "def damaged(a, b, out):\n"
        "    hidden = next(size for size in sizes if size in (*a.shape, *b.shape))\n"
        # One forward first, and four matmuls backward in every step after it.
        "    wrong = calls[hidden] >= 2 and (calls[hidden] - 2) % 4 == sizes.index(hidden)\n"
        "    calls[hidden] += 1\n"
        "    return mm(a, b, out=out).mul_(1.01) if wrong else mm(a, b, out=out)\n"
    )
    swept = [*UNSWEPT, "--direction", "backward", "--sweep", f"hidden-size={','.join(map(str, sizes))}"]
    run = mpi(2, [*driver(tmp_path, damage)[:4], *swept], tmp_path)
    assert run.code == 1
    assert "the results are wrong: relative error" in run.stderr
    points = zip(*(result.points for result in run.results()), strict=True)
    assert [all(one.correctness.passed for one in ranks) for ranks in points] == [False] * len(sizes)


def test_weights_that_are_used_in_turns_give_right_results_in_every_direction(tmp_path: Path) -> None:
    damage = (
        "damaged = mm\n"
        "from hpcprof.workloads.sequence_parallel import buffers, cost_model\n"
        "buffers.rotation_on = lambda *_: cost_model.Rotation(inputs=6, weights=3)\n"
    )
    swept = ["--sweep", "direction=forward,backward,both"]
    run = mpi(2, [*driver(tmp_path, damage), *swept, "--mode", "auto"], tmp_path)
    assert run.code == 0, run.stderr
    for result in run.results():
        assert [point.parameters["direction"] for point in result.points] == ["forward", "backward", "both"]
        for point in result.points:
            assert any("the steps rotate through 3 copies of the weights" in note for note in point.notes)
            assert list(point.modes) == ["serial", "chunked"]
            assert all(1e-8 < mode.correctness.relative_error < 1e-5 for mode in point.modes.values())


def test_float8_multiplies_scaled_or_says_why_it_cannot(tmp_path: Path) -> None:
    run = mpi(1, [*WORKLOAD, *SMALL[:-1], "1", "--dtype", "float8"], tmp_path)
    if run.code == 0:
        (result,) = run.results()
        # The error of three bits of mantissa: a larger one would be wrong, a smaller one would not be float8.
        assert 5e-3 < result.correctness.relative_error < 6e-2
    else:
        assert run.said[-1].startswith("rank 0: --dtype float8: cpu has no scaled matmul")


@pytest.mark.parametrize(
    ("tensor", "call", "value"),
    [("input", 4, "nan"), ("weight_1", 5, "inf"), ("weight_2", 6, "-inf"), ("gradient", 8, "nan")],
)
def test_data_that_are_not_finite_end_the_job_in_one_sentence(
    tensor: str, call: int, value: str, tmp_path: Path
) -> None:
    # Drawn in this order: four inputs, both weights, four gradients.
    damage = (
        "damaged = mm\n"
        "normal = torch.Tensor.normal_\n"
        "calls = 0\n"
        "def spoiled(tensor, *args, **options):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    drawn = normal(tensor, *args, **options)\n"
        f"    if calls == {call}:\n"
        f"        drawn[-1, -1] = float('{value}')\n"
        "    return drawn\n"
        "if MPI.COMM_WORLD.rank == 1:\n"
        "    torch.Tensor.normal_ = spoiled\n"
    )
    run = mpi(2, [*driver(tmp_path, damage), "--direction", "both"], tmp_path)
    assert run.code == 1
    assert run.said == [f"rank 1: the {tensor} of rank 1 contains NaN or infinity before the first step."]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--cuda-graph"], "--cuda-graph needs CUDA."),
        (
            ["--comm-max-ctas", "4"],
            "--comm-max-ctas applies to NCCL only, but the ranks communicate through gloo.",
        ),
    ],
)
def test_what_needs_a_gpu_is_refused_without_one(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    run = mpi(1, [*WORKLOAD, *SMALL, "--device", "cpu", *arguments], tmp_path)
    assert run.code == 2
    assert run.said == [f"rank 0: {sentence}"]


def test_a_rank_that_is_killed_ends_the_job(tmp_path: Path) -> None:
    damage = (
        "calls = 0\n"
        "def damaged(a, b, out):\n"
        "    global calls\n"
        "    calls += 1\n"
        # The second matmul of the fourth step.
        "    if calls == 8:\n"
        "        import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return mm(a, b, out=out)\n"
    )
    assert mpi(4, driver(tmp_path, damage), tmp_path).code != 0


def test_ranks_on_two_hosts_find_each_other(tmp_path: Path) -> None:
    # MPICH emulates nodes that share no memory.
    run = mpi(
        4,
        [*WORKLOAD, *SMALL],
        tmp_path,
        MPIR_CVAR_NUM_CLIQUES="2",
        GLOO_SOCKET_IFNAME="lo",
    )
    assert run.code == 0, run.stderr
    assert "4 ranks on 2 nodes" in run.stdout
    assert sorted(result.local_rank for result in run.results()) == [0, 0, 1, 1]
    assert all(result.correctness.passed for result in run.results())


SWEEP = ["--sweep", "hidden-size=32,48", "--sweep", "dtype=float32,bfloat16"]
UNSWEPT = ["-s", "64", *SMALL[4:]]


def test_a_sweep_measures_every_point_in_one_start_and_each_has_its_whole_entry(tmp_path: Path) -> None:
    run = mpi(2, [*WORKLOAD, *UNSWEPT, *SWEEP, "--mode", "auto", "--chunks", "2"], tmp_path)
    assert (run.code, run.stderr) == (0, "")
    names = [f"hidden-size={h} dtype={dtype}" for h in (32, 48) for dtype in ("float32", "bfloat16")]
    for result in run.results():
        assert [point.point for point in result.points] == names
        assert dataclasses.replace(result, points=[]) == result.points[0]
        for point, (h, dtype) in zip(
            result.points, itertools.product((32, 48), ("float32", "bfloat16")), strict=True
        ):
            assert (point.parameters["hidden_size"], point.parameters["dtype"]) == (h, dtype)
            assert list(point.modes) == ["serial", "chunked"]
            assert point.bound_ns is not None
            for mode in point.modes.values():
                assert (mode.correctness.passed, len(mode.latency_ns)) == (True, STEPS)
                # bfloat16 is measured in bfloat16, and float32 after it in float32 again.
                assert (mode.correctness.relative_error > 1e-4) == (dtype == "bfloat16")
    lines = run.stdout.splitlines()
    assert sum(line.startswith(("serial  ", "chunked  ")) for line in lines) == 8
    assert sum(line.startswith("fastest: ") for line in lines) == 4
    assert [line.partition(":")[0] for line in lines if line.startswith("hidden-size=")] == names
    # A note that holds at every point is printed once.
    assert run.stdout.count("symmetric is left out") == 1


def test_a_point_whose_results_are_wrong_fails_the_sweep_with_its_name_and_the_others_are_kept(
    tmp_path: Path,
) -> None:
    damage = "def damaged(a, b, out):\n    mm(a, b, out=out).mul_(1.01 if out.shape[1] == 48 else 1)\n"
    command = [*driver(tmp_path, damage)[:4], *UNSWEPT, "--sweep", "hidden-size=32,48,64"]
    run = mpi(2, command, tmp_path)
    assert run.code == 1
    (sentence,) = run.said
    assert sentence.startswith("at hidden-size=48: serial: rank 0: the results are wrong: relative error ")
    for result in run.results():
        assert [point.correctness.passed for point in result.points] == [True, False, True]


def test_float32_is_float32_also_at_a_point_after_tf32(tmp_path: Path) -> None:
    damage = (
        "seen = []\n"
        "def damaged(a, b, out):\n"
        "    now = torch.get_float32_matmul_precision()\n"
        "    if seen[-1:] != [now]:\n"
        "        seen.append(now)\n"
        "        print('rank 1 multiplies in', now, flush=True)\n"
        "    return mm(a, b, out=out)\n"
    )
    run = mpi(2, [*driver(tmp_path, damage)[:4], *UNSWEPT, "--sweep", "dtype=tf32,float32"], tmp_path)
    assert run.code == 0, run.stderr
    said = [line for line in run.stdout.splitlines() if line.startswith("rank 1 multiplies")]
    assert said == ["rank 1 multiplies in high", "rank 1 multiplies in highest"]


def test_a_point_that_does_not_fit_is_refused_with_its_bytes_before_any_is_measured(tmp_path: Path) -> None:
    # 2 ** 32 rows of 4096 numbers of 4 bytes are 64 TiB: the gathered input, the inner rows (2 of the 4 times
    # 4096 columns) and the products are four times that, a rank's output half, and four inputs twice.
    huge = ["--hidden-size", "4096", "--sweep", "sequence-length=64,4294967296"]
    run = mpi(2, [*WORKLOAD, *huge], tmp_path)
    assert (run.code, run.stdout) == (1, "")
    assert run.said[0].startswith("rank ")
    assert re.search(
        r": at sequence-length=4294967296: a rank needs 4259\d\d\.\d GiB, but cpu has [\d.]+ GiB in total: "
        r"use a smaller shape, more ranks, or fewer modes",
        run.said[0],
    )
    assert not (tmp_path / "results").exists()


def test_a_sweep_under_a_profiler_is_one_sentence(tmp_path: Path) -> None:
    wrapper = '[ "$PMI_RANK" -ne 1 ] || export HPCPROF_PROFILER=torch; exec "$@"'
    run = mpi(2, ["sh", "-c", wrapper, "sh", *WORKLOAD, *UNSWEPT, *SWEEP], tmp_path)
    assert (run.code, run.stdout) == (2, "")
    (sentence,) = run.said
    assert sentence.startswith("--sweep does not work with a profiler, because a profile would mix the")


SHAPES = Path(__file__).with_name("random_shapes.py")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_mode_is_right_for_shapes_of_all_sizes(ranks: int, tmp_path: Path) -> None:
    run = mpi(ranks, [*PYTHON, str(SHAPES)], tmp_path)
    assert run.code == 0, run.stderr
    assert run.stdout.startswith("right: ")
