"""Steps of programs that mark none, from the period of what they launch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcprof.analysis.account.idle_causes import idle_causes
from hpcprof.analysis.steps.launch_steps import launch_step_candidates
from hpcprof.analysis.steps.step_detection import LAUNCHES, SINGLE, step_candidates
from hpcprof.analysis.steps.step_ranges import step_ranges, steps_of
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.profiles.possible_times import with_possible_times
from hpcprof.profiles.readers.kineto.reader import read
from hpcprof.profiles.timeline import ApiCalls, StepRange, Timeline, concatenate
from tests.unit.analysis.timelines import COMP, timeline

Launch = tuple[str, int]
"""The name of a kernel, and how long the host pauses before it launches it, in µs."""


def launching(*launches: Launch) -> Timeline:
    """Return a timeline of kernels of 5 µs that the host launches one after the other."""
    moment, operations = 0, []
    for _, pause in launches:
        moment += 1_000 * pause
        operations.append((moment + 2_000, moment + 7_000, COMP, moment))
    made = timeline(operations)
    names = list(dict.fromkeys(name for name, _ in launches))
    strings = np.array([*made.strings.tolist(), *names], object)
    first = len(made.strings)
    name = np.array([first + names.index(name) for name, _ in launches], np.int64)
    return replace(made, strings=strings, kernels=replace(made.kernels, name=name))


LAYER: list[Launch] = [("norm", 10), ("gemm", 10), ("gemm", 10), ("add", 10)]
TOKEN: list[Launch] = [("embed", 100), *LAYER * 4, ("sample", 10)]
SETUP: list[Launch] = [("fill", 10)] * 20


def test_without_a_gpu_the_outermost_operators_mark_the_steps(tmp_path: Path) -> None:
    events = []
    for step in range(9):
        for place, name in enumerate(("aten::randn", "aten::linear", "aten::linear", "MmBackward0")):
            moment = 50 * step + 10 * place
            events += [operator(name, moment, 9), operator("aten::mm", moment + 1, 7)]
    path = tmp_path / "cpu.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    profile = read(path)
    steps = steps_of(profile)
    assert (steps.name, len(steps)) == ("operator:aten::randn", 8)
    walls = step_intervals(profile)
    assert set((walls.end - walls.start)[:-1]) == {50_000}


def test_launches_of_the_setup_that_also_begin_a_step_are_none() -> None:
    """As in the public caoye310/Lower-Triangular-Solves: whole arrays are copied first, then rows."""
    loop: list[Launch] = [("copy", 20), ("solve", 10)]
    found = steps_of(launching(*[("copy", 20)] * 3, *loop * 40))
    assert (found.name, len(found)) == ("kernel:copy", 39)


@pytest.mark.parametrize(("pause", "steps"), [(400_000, 0), (4_000, 39)])
def test_requests_to_a_server_with_long_waits_between_them_are_no_steps(pause: int, steps: int) -> None:
    request = [("norm", 10), ("gemm", 10)] * 10
    assert len(steps_of(launching(*[("norm", pause), *request[1:]] * 4))) == steps


def test_steps_before_a_library_takes_another_kernel_are_steps() -> None:
    """As of a decoder whose attention splits its keys from some length on."""
    steps = [
        [("mark", 20), *[*[("gemm", 10)] * 9, ("split" if step > 14 else "whole", 10)] * 3]
        for step in range(40)
    ]
    found = steps_of(launching(*(launch for step in steps for launch in step)))
    assert (found.name, len(found)) == ("kernel:mark", 39)


def test_steps_that_each_lack_another_launch_are_all_steps() -> None:
    """The only step with all launches is much longer, so that it is no usual one."""
    steps = [
        [("mark", 20), *((f"part{part}", 20) for part in range(3) if step == 20 or part != step % 3)]
        for step in range(40)
    ]
    steps[20][-1] = ("part2", 400_000)
    found = steps_of(launching(*(launch for step in steps for launch in step)))
    assert (found.name, len(found)) == ("kernel:mark", 39)


def operator(name: str, moment: int, length: int, **arguments: Any) -> dict[str, Any]:
    times = {"pid": 1, "tid": 1, "ts": moment, "dur": length}
    return {"ph": "X", "cat": "cpu_op", "name": name, **times, "args": arguments}


@pytest.mark.parametrize(("shrinks", "steps"), [(True, 0), (False, 14)])
def test_operators_of_the_layers_of_one_pass_are_no_steps(shrinks: bool, steps: int, tmp_path: Path) -> None:
    """Rebuilt from a public trace: one inference of a ResNet on a CPU (marcalph/kernelforge)."""
    events = []
    for layer in range(15):
        dims = [[5, 64 >> (layer // 3 if shrinks else 0)]]
        for place, name in enumerate(("aten::conv2d", "aten::relu_", "aten::add_", "aten::add_")):
            events.append(operator(name, 50 * layer + 10 * place, 9, **{"Input Dims": dims}))
    path = tmp_path / "cpu.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert len(steps_of(read(path))) == steps


def test_launched_kernels_without_an_end_begin_steps() -> None:
    profile = launching(*SETUP, *TOKEN * 12)
    is_first = profile.kernels.name == profile.strings.tolist().index("embed")
    lost = np.flatnonzero(is_first)[[3, 4, 8]]
    end = profile.kernels.end.copy()
    end[lost] = 0
    damaged = with_possible_times(replace(profile, kernels=replace(profile.kernels, end=end)))
    assert len(damaged.kernels) == len(profile.kernels) - 3
    assert steps_of(damaged).ranges.start.tolist() == steps_of(profile).ranges.start.tolist()


def test_the_outermost_period_is_the_step_and_layers_are_not() -> None:
    profile = launching(*SETUP, *TOKEN * 12)
    (best, *_) = launch_step_candidates(profile)
    # The host pauses longest before the first launch of a token.
    assert (best.name, best.instances) == ("kernel:embed", 11)
    steps = steps_of(profile)
    assert (steps.name, len(steps)) == ("kernel:embed", 11)
    walls = step_intervals(profile)
    assert set((walls.end - walls.start)[:-1]) == {1_000 * (100 + 160 + 10)}
    row = step_ranges(profile).rows.iloc[0]
    assert (row["source"], row["chosen"]) == (LAUNCHES, 1)


def without_calls(profile: Timeline) -> Timeline:
    """Return what ``rocprofv3 --kernel-trace`` records of a program: its kernels alone."""
    return replace(profile, calls=profile.calls.take(np.empty(0, np.int64)))


def test_without_launch_calls_the_kernels_of_the_busiest_stream_mark_the_steps() -> None:
    profile = launching(*SETUP, *TOKEN * 12)
    kernels = profile.kernels
    # On another stream, communication runs whenever the network lets it.
    others = kernels.take(np.arange(0, len(kernels), 5))
    shift = 700 * np.random.default_rng(1).integers(0, 9, len(others))
    communication = replace(
        others, start=others.start + shift, end=others.end + shift, stream=others.stream + 1
    )
    together = concatenate(type(kernels), (kernels, communication))
    gpu_only = without_calls(replace(profile, kernels=together.take(np.argsort(together.start))))
    steps = steps_of(gpu_only)
    assert (steps.name, len(steps), steps.source) == ("kernel:embed", 11, "kernels")
    walls = step_intervals(gpu_only)
    assert set((walls.end - walls.start)[:-1]) == {1_000 * (100 + 160 + 10)}
    assert walls.on_gpu.all() and np.all(walls.gpu_end - walls.gpu_start >= 175_000)
    assert idle_causes(gpu_only).reason == "no operation of rank00000.sqlite has a recorded launch call"


def test_other_work_between_periods_and_slow_first_ones_are_allowed() -> None:
    slow = [(name, 20 * pause) for name, pause in TOKEN]
    checkpoint: list[Launch] = [("pack", 50)] * 9
    profile = launching(*SETUP, *slow, *TOKEN * 6, *checkpoint, *TOKEN * 6)
    steps = steps_of(profile)
    # The first token compiles, and the last one has no end.
    assert (steps.name, len(steps)) == ("kernel:embed", 11)


def test_steps_of_a_factorization_shrink_and_all_count() -> None:
    """Rebuilt from a public export of Rodinia's gaussian: its first steps take 4 times the median."""
    sizes = [20, *(40 - i for i in range(30)), *[8] * 40]
    profile = launching(*(launch for size in sizes for launch in (("Fan1", 1), ("Fan2", size))))
    steps = steps_of(profile)
    assert len(steps) == len(sizes) - 1


def test_a_loop_after_a_long_setup_covers_the_time_of_kernels() -> None:
    setup: list[Launch] = [("load", 90_000)]
    assert steps_of(launching(*setup, *TOKEN * 12)).name == "kernel:embed"


def test_products_that_change_their_tiles_as_sizes_grow_are_one_kind() -> None:
    tokens = (
        (name if name != "gemm" else f"nvjet_sm90_tst_{64 + 8 * step}x208_64x4", pause)
        for step in range(12)
        for name, pause in TOKEN
    )
    assert steps_of(launching(*SETUP, *tokens)).name == "kernel:embed"


@pytest.mark.parametrize(
    "launches",
    [
        [("embed", 100), ("norm", 10), ("sample", 10)] * 4,
        [(f"kernel{number}", 10) for number in np.random.default_rng(0).permutation(40).tolist()],
        SETUP[:1],
    ],
    ids=["few", "different", "single"],
)
def test_without_a_period_there_is_no_step(launches: list[Launch]) -> None:
    assert steps_of(launching(*launches)).name == ""


def test_equal_periods_are_told_apart_by_their_times() -> None:
    sweep: list[Launch] = [("sweep", 10), ("residual", 10)]
    step: list[Launch] = [("sweep", 300), ("residual", 10), *sweep * 9]
    steps = steps_of(launching(*step * 12))
    assert steps.name in ("kernel:sweep/10", "kernel:residual/10")
    assert set(np.diff(steps.ranges.start)) == {1_000 * (300 + 190)}


SWEEP: list[Launch] = [("halo", 10), *[("tile", 10)] * 4]
MICRO_STEP: list[Launch] = [*LAYER * 3, ("loss", 10), *[("gradient", 10)] * 6]
NESTED: dict[str, list[Launch]] = {
    "layers of a model without kernels of its own": [*LAYER * 12, ("norm", 10)],
    "sweeps, the last with one tile more": [*SWEEP * 10, ("tile", 10)],
    "gradient accumulation, an optimizer in parts": [*MICRO_STEP * 4, *[("adam", 10)] * 3],
    "gradient accumulation, an optimizer of known kernels": [*MICRO_STEP * 4, *[("add", 10)] * 2],
    "layers in micro-steps in steps": [*[*LAYER * 4, ("norm", 10)] * 3, *[("add", 10)] * 2],
}


@pytest.mark.parametrize("step", NESTED.values(), ids=NESTED)
def test_the_outermost_of_nested_periods_is_the_step(step: list[Launch]) -> None:
    profile = launching(*SETUP, *step * 9)
    (best, *_) = launch_step_candidates(profile)
    assert best.instances == 8
    starts = steps_of(profile).ranges.start
    assert set(np.diff(starts)) == {1_000 * sum(pause for _, pause in step)}


@pytest.mark.parametrize("tokens", [2, 3, 5])
@pytest.mark.parametrize("last", ["sample", "gemm"])
def test_tokens_of_a_decoder_are_the_steps_however_few_they_are(tokens: int, last: str) -> None:
    token = [("embed", 100), *LAYER * 12, (last, 10)]
    steps = steps_of(launching(*SETUP, *token * tokens))
    assert len(steps) == tokens - 1
    assert set(np.diff(steps.ranges.start)) <= {1_000 * (100 + 480 + 10)}
    # The last one may be cut.
    cut = steps_of(launching(*SETUP, *token * 3, *token[:20]))
    assert (cut.name, len(cut)) == ("kernel:embed", 3)


def test_graphs_that_are_captured_anew_in_each_step_are_one_launch() -> None:
    """A decoder captures its CUDA graph for each request and launches it for each token."""
    tokens = ([(f"CUDA graph {number}", 30), ("norm", 5)] * 16 for number in range(20))
    made = launching(*(launch for request in tokens for launch in [*request, ("sum", 10)]))
    names = made.calls.name.copy()
    names[[text.startswith("CUDA graph") for text in made.names(made.kernels.name)]] = len(made.strings)
    strings = np.array([*made.strings.tolist(), "cudaGraphLaunch"], object)
    made = replace(made, strings=strings, calls=replace(made.calls, name=names))
    assert steps_of(made).name == "kernel:sum" and len(steps_of(made)) == 19


def test_steps_whose_parts_are_no_periods_by_their_time_are_found() -> None:
    # A plan is made in each step, which takes longer than the four equal parts after it.
    step: list[Launch] = [("load", 500)] * 3 + [("potential", 2), ("fft", 2), ("kinetic", 2)] * 4
    steps = steps_of(launching(*SETUP, *step * 12))
    assert (steps.name, len(steps)) == ("kernel:load/3", 11)


def test_steps_of_a_trainer_that_logs_a_few_times_stay_its_steps() -> None:
    step = [("norm", 10), ("gemm", 10), ("gemm_bwd", 10), ("adam", 10)]
    steps = steps_of(launching(*[*step * 20, ("log", 10)] * 3))
    assert len(steps) >= 50


def test_one_operator_with_other_shapes_does_not_hide_the_steps(tmp_path: Path) -> None:
    events = []
    for step in range(15):
        shapes = [[[5 + step // 3]], *[[[64]]] * 3]
        for place, name in enumerate(("aten::arange", "aten::linear", "aten::relu_", "aten::mse_loss")):
            dims = {"Input Dims": shapes[place]}
            events.append(operator(name, 50 * step + 10 * place, 2 if not place else 9, **dims))
    path = tmp_path / "cpu.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert len(steps_of(read(path))) == 14


def test_a_wait_of_the_host_after_some_steps_ends_no_longer_step() -> None:
    profile = launching(*[("sweep", 12), ("residual", 10)] * 8 * 12)
    moments = profile.calls.start[15::16] + 1_000
    zeros = np.zeros(len(moments), np.int64)
    waits = ApiCalls(moments, moments + 1_000, zeros, zeros, zeros + len(profile.strings), zeros - 1)
    calls = concatenate(ApiCalls, (profile.calls, waits))
    waited = replace(
        profile,
        strings=np.append(profile.strings, "cudaStreamSynchronize"),
        calls=calls.take(np.argsort(calls.start)),
    )
    assert len(steps_of(waited)) == len(steps_of(profile)) == 95


def test_an_expression_chooses_the_launches_that_begin_steps() -> None:
    profile = replace(launching(*SETUP, *TOKEN * 12), step_range=StepRange("kernel:^no", named=True))
    assert len(steps_of(profile)) == 12 * 4 - 1
    assert len(steps_of(replace(profile, step_range=StepRange("kernel:[", named=True)))) == 0
    assert len(steps_of(replace(profile, step_range=StepRange("graph:norm", named=True)))) == 0


@pytest.mark.parametrize(
    ("blocks", "steps"),
    [
        *[([64] * 12, True), ([64] * 4 + [32] * 4 + [16] * 4, False), ([64, 32, 16] * 4, True)],
        # Sizes return for a shortcut, but not those of the first layers.
        ([64, 64, 64, 64, 32, 64, 32, 32, 16, 32, 16, 16], False),
        # A server's batches are all of another size.
        ([*range(12)], True),
    ],
)
def test_layers_whose_sizes_follow_each_other_are_no_steps(blocks: list[int], steps: bool) -> None:
    """Rebuilt from a public trace: AMD-AGI/TraceLens tests/traces/mi210/gpu_only_trace (a ResNet)."""
    bare = launching(*LAYER * 12)
    grid = np.ones((48, 3), np.int64)
    grid[:, 0] = np.repeat(blocks, 4)
    profile = replace(bare, kernels=replace(bare.kernels, grid=grid))
    assert bool(launch_step_candidates(profile)) is steps


def test_layers_of_a_single_pass_or_of_a_model_are_no_steps() -> None:
    """Rebuilt from public traces: AMD-AGI/TraceLens (SGLang, vLLM) and GindaChen/nsys-ai (FSDP)."""
    bare = launching(*LAYER * 12)
    assert steps_of(bare).name.startswith("kernel:")
    end = int(bare.kernels.end.max())
    names = (
        "step[EXTEND bs=15 toks=15360]",
        "execute_9_context_1(sq9sk9sqsq8sqsk8)_generation_0(sq0sk0)",
        "model_inference",
    )
    for name in names:
        single = replace(timeline([], [(0, end, name)]), kernels=bare.kernels, calls=bare.calls)
        strings = np.array([*bare.strings.tolist(), name], object)
        named = np.full(1, len(bare.strings), np.int64)
        single = replace(single, strings=strings, ranges=replace(single.ranges, name=named))
        (row,) = step_ranges(single).rows.query("chosen == 1").to_dict("records")
        assert (row["source"], row["instances"]) == (SINGLE, 1)
    called = timeline([], [(40_000 * i + 11_000, 40_000 * i + 45_000, f"Mlp_{i}") for i in range(12)])
    strings = np.array([*bare.strings.tolist(), *called.strings.tolist()], object)
    modules = replace(called.ranges, name=called.ranges.name + len(bare.strings))
    sources = {one.source for one in step_candidates(replace(bare, strings=strings, modules=modules))}
    assert LAUNCHES not in sources
    layers = [(40_000 * i + 11_000, 40_000 * i + 45_000, f"(blocks.{i}.mlp)") for i in range(12)]
    numbered = [(80_000 * i + 11_000, 80_000 * i + 85_000, f"TransformerLayer_{i}") for i in range(4)]
    for marks, expected in (
        (layers, True),
        (numbered, True),
        ([(a, b, "(blocks.1.mlp)") for a, b, _ in layers], False),
        ([(a, b, "TransformerLayer_1") for a, b, _ in layers], False),
    ):
        made = timeline([], marks)
        strings = np.array([*bare.strings.tolist(), *made.strings.tolist()], object)
        ranges = replace(made.ranges, name=made.ranges.name + len(bare.strings))
        profile = replace(bare, strings=strings, ranges=ranges)
        sources = {one.source for one in step_candidates(profile)}
        assert (LAUNCHES not in sources) == expected


def test_a_launch_that_follows_itself_a_few_times_is_no_step() -> None:
    """Rebuilt from a public profile: queries that copy five results in a row (bwyogatama/Mordred)."""
    query = [("build", 10)] * 2 + [("fill", 10)] * 9 + [("probe", 10)] + [("result", 300)] * 5
    assert not launch_step_candidates(launching(*query * 3))
    assert launch_step_candidates(launching(*[("result", 300)] * 15))
