"""Detection of the range that is the step, and names of ranges that are one name."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from hpcprof.analysis.account.host_activity import places_of
from hpcprof.analysis.steps.phases import phases, step_times
from hpcprof.analysis.steps.range_names import plain_name, with_counter
from hpcprof.analysis.steps.step_detection import (
    AUTOMATIC,
    LAUNCHES,
    REPEATS,
    StepCandidate,
    common_step_range,
    step_candidates,
)
from hpcprof.analysis.steps.step_ranges import merged_names, no_steps, step_ranges, steps_of
from hpcprof.analysis.summaries.nvtx_gpu_projection import range_gpu
from hpcprof.analysis.summaries.nvtx_gpu_projection import ranges as range_table
from hpcprof.profiles.timeline import (
    NO_CORRELATION,
    OWN_END,
    ApiCalls,
    Operators,
    StepRange,
    Timeline,
    concatenate,
)
from tests.unit.analysis.timelines import COMP, timeline

Mark = tuple[Any, ...]


def loop(*names: str, count: int = 8, length: int = 100, inner: tuple[str, ...] = ()) -> list[Mark]:
    """Return ranges one after another, which have these names in turns; ``{}`` is the number of the range."""
    marks: list[Mark] = []
    for i in range(count):
        begin = i * length
        marks.append((begin, begin + length - 2, names[i % len(names)].format(i)))
        part = (length - 10) // max(len(inner), 1)
        marks += [(begin + 1 + j * part, begin + (j + 1) * part, name) for j, name in enumerate(inner)]
    return marks


def chosen(marks: list[Mark], **others: Any) -> str:
    """Return the name of the step in a timeline of these ranges."""
    return steps_of(dataclasses.replace(timeline([], marks), **others)).name


def renamed(trace: Timeline, names: dict[str, str]) -> Timeline:
    """Return a timeline in which ranges have other names."""
    strings = trace.strings.copy()
    for i, text in enumerate(strings.tolist()):
        strings[i] = names.get(text, text)
    return dataclasses.replace(trace, strings=strings)


def test_a_renamed_iteration_is_found_by_how_it_repeats(sequence_parallel: Timeline) -> None:
    other = renamed(sequence_parallel, {"iteration": "my_loop"})
    assert steps_of(other).name == "my_loop"
    for analysis in (step_times, phases):
        assert analysis(other).rows.equals(analysis(sequence_parallel).rows)
    found = step_ranges(other).rows.to_dict("records")
    assert [found[0][key] for key in ("range", "source", "instances", "chosen")] == [
        "my_loop",
        AUTOMATIC,
        43,
        1,
    ]
    assert {row["source"] for row in found[1:]} == {REPEATS, LAUNCHES}
    # The host leaves a range long before the GPU has done its work: only its work covers the capture.
    assert found[0]["coverage_pct"] > 80


@pytest.mark.parametrize(
    "name",
    [
        "[pl][profile]run_training_batch",
        "[pl][profile][Strategy]DDPStrategy.validation_step",
        "TSL:XlaModule:#hlo_module=jit_train_step,program_id=3317#",
        "XlaModule:#prefix=jit(train_step)/jit(main),hlo_module=jit_train_step,program_id=11#",
        "[pl][profile]run_training_batch, op_id = 7",
    ],
)
def test_iterations_of_frameworks_are_known_by_name(name: str) -> None:
    short = [(i * 100, i * 100 + 1, name) for i in range(4)]
    assert chosen([*short, (0, 400, "fit")]) == plain_name(name)


def test_a_program_of_xla_that_is_compiled_again_marks_steps_and_its_small_ones_do_not() -> None:
    steps = [(i * 100, i * 100 + 5, f"XlaModule:#hlo_module=jit_loss,program_id={i // 3}#") for i in range(8)]
    eager = [
        (i * 100 + 10 * k, i * 100 + 10 * k + 9, "XlaModule:#hlo_module=jit_multiply,program_id=9#")
        for i in range(8)
        for k in range(1, 10)
    ]
    assert chosen([*steps, *eager]) == "XlaModule:#hlo_module=jit_loss#"
    assert len(steps_of(timeline([], [*steps, *eager]))) == 7


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("execute_context_1({0}512)_generation_0({0})", "execute_context_N(N)_generation_N(N)"),
        ("execute_new_0_cached_{}", "execute_new_N_cached_N"),
        ("train#_r=1,step_num={}#", "train#_r=1,step_num=N#"),
        ("ProfilerStep#{}", "ProfilerStep#N"),
        ("ProfilerStep#{}, op_id = 4{}", "ProfilerStep#N"),
    ],
)
def test_numbers_in_the_names_of_iterations_do_not_matter(name: str, known: str) -> None:
    marks = [(i * 100, i * 100 + 1, name.format(i, i)) for i in range(4)]
    assert chosen([*marks, (0, 400, "fit")]) == known
    assert len(steps_of(timeline([], marks))) == 4


@pytest.mark.parametrize(
    "name",
    [
        "megatron.core.pipeline_parallel.schedules.forward_backward_pipelining_with_interleaving.warmup",
        "DeepSpeed:DeepSpeedEngine.forward",
        "DeepSpeedEngine.forward",
        "gpu_model_runner: preprocess",
        "Optimizer.step#AdamW.step",
    ],
)
def test_a_range_inside_an_iteration_marks_steps_from_one_to_the_next(name: str) -> None:
    marks: list[Mark] = []
    for i in range(4):
        marks += [(i * 100 + 10, i * 100 + 30, name), (i * 100 + 40, i * 100 + 60, "backward")]
    work = [(i * 100 + lag, i * 100 + lag + 9, COMP, i * 100 + lag) for i in range(4) for lag in (15, 45)]
    trace = timeline(work, marks)
    steps = steps_of(trace)
    assert steps.ranges.start.tolist() == [10, 110, 210]
    assert steps.ranges.end.tolist() == [110, 210, 310]
    assert step_times(trace).rows["wall_ns"].tolist() == [100, 100, 95]
    assert phases(trace).rows["phase"].tolist() == [name, "backward", "(rest)"]
    assert phases(trace).rows["gpu_span_p50_ns"].tolist() == [9, 9, 0]


def test_the_marks_of_the_hook_lie_between_the_steps() -> None:
    marks: list[Mark] = [(5, 6, "hpcprof.step")]
    for i in range(4):
        marks += [(i * 100 + 10, i * 100 + 50, "forward"), (i * 100 + 60, i * 100 + 95, "optimizer")]
        marks.append((i * 100 + 90, i * 100 + 91, "hpcprof.step"))
    work = [(i * 100 + lag, i * 100 + lag + 9, COMP, i * 100 + lag) for i in range(4) for lag in (15, 65)]
    trace = timeline(work, marks)
    steps = steps_of(trace)
    assert (steps.name, steps.ranges.start.tolist()) == ("hpcprof.step", [5, 90, 190, 290])
    # Times are whole: a float lost the profiles of all runs with such marks.
    assert steps.ranges.end.dtype == steps.ranges.start.dtype
    # The first mark ends step 0.
    assert steps.number.tolist() == [1, 2, 3, 4]
    assert phases(trace).rows["phase"].tolist() == ["forward", "optimizer", "(rest)"]
    captured = dataclasses.replace(trace, origin=dataclasses.replace(trace.origin, captured=((20, 23),)))
    assert steps_of(captured).number.tolist() == [20, 21, 22, 23]
    assert places_of(trace, 0, 400).texts == ("forward", "optimizer")
    bare = timeline(work, [mark for mark in marks if mark[2] == "hpcprof.step"])
    assert places_of(bare, 0, 400).texts == ()
    # What the program marks comes first.
    assert chosen([*marks, *loop("my_step", count=8, length=50)]) == "my_step"


def test_a_window_of_the_hook_leaves_out_the_steps_that_warm_up() -> None:
    marks = [(i * 100, i * 100 + 1, "hpcprof.step") for i in range(1, 16)]
    work = [(i * 100 + 15, i * 100 + 25, COMP, i * 100 + 15) for i in range(16)]
    for begin, numbers in ((10, [10, 11, 12, 13, 14]), (13, [*range(1, 15)])):
        steps = steps_of(timeline(work, [*marks, (begin * 100 - 5, begin * 100 - 4, "hpcprof.window")]))
        assert steps.number.tolist() == numbers


def test_a_single_marker_makes_a_step_of_its_own_range() -> None:
    trace = timeline([], [(10, 30, "DeepSpeedEngine.forward"), (40, 60, "backward")])
    assert not len(steps_of(trace))
    chosen_by_name = dataclasses.replace(trace, step_range=StepRange("DeepSpeedEngine.forward", named=True))
    assert step_times(chosen_by_name).rows["wall_ns"].tolist() == [20]
    assert phases(chosen_by_name).rows.empty
    lacking = dataclasses.replace(trace, step_range=StepRange("Optimizer.step#SGD.step", named=True))
    assert "has no complete range named Optimizer.step#SGD.step" in phases(lacking).reason


def test_known_names_come_in_their_order_and_before_unknown_ones() -> None:
    both = [*loop("iteration", inner=("ProfilerStep#1",)), (0, 800, "all")]
    assert chosen(both) == "iteration"
    lightning = loop("my_step", inner=("[pl][profile]run_training_batch",))
    assert chosen(lightning) == "[pl][profile]run_training_batch"
    assert chosen(loop("my_step", inner=("Optimizer.step#SGD.step",))) == "my_step"


def test_the_outermost_range_that_repeats_is_the_step() -> None:
    # The inner one also runs outside and so covers more.
    marks = [*loop("outer", length=100, inner=("inner",)), (800, 990, "inner")]
    assert chosen(marks) == "outer"
    assert chosen([(0, 800, "once"), *loop("outer")]) == "outer"


def test_a_range_has_to_repeat_five_times_and_to_cover_half_of_the_capture() -> None:
    assert chosen(loop("four", count=4)) == ""
    assert chosen(loop("five", count=5)) == "five"
    assert chosen([*loop("short"), (0, 1700, "all")]) == ""
    on_two_threads = [(*mark, i % 2) for i, mark in enumerate(loop("spread"))]
    assert chosen(on_two_threads) == ""


def test_a_few_long_instances_among_short_ones_are_no_steps_unless_the_gpu_makes_them_alike() -> None:
    marks = [
        (0, 40_000, "main"),
        (40_001, 80_000, "main"),
        *((80_000 + i * 4, 80_002 + i * 4, "main") for i in range(20)),
    ]
    trace = timeline([], marks)
    assert (steps_of(trace).name, step_candidates(trace)) == ("", ())
    ahead = [(i * 4, i * 4 + 2, "pass") for i in range(20)] + [(80, 40_000, "pass")]
    work = [(i * 1900 + 100, i * 1900 + 1950, COMP, i * 4 + 1) for i in range(21)]
    assert steps_of(timeline(work, ahead)).name == "pass"


def test_api_calls_before_the_first_work_are_no_part_of_the_capture() -> None:
    work = [(i * 100 + 5, i * 100 + 9, COMP, i * 100 + 2) for i in range(8)]
    trace = timeline(work, loop("step"))
    before = {"start": trace.calls.start - 9000, "end": trace.calls.end - 9000}
    early = dataclasses.replace(trace.calls, **before, correlation=np.full(8, NO_CORRELATION))
    calls = concatenate(ApiCalls, (early, trace.calls))
    assert steps_of(dataclasses.replace(trace, calls=calls)).name == "step"


def test_ranges_without_the_work_of_the_gpu_are_no_steps() -> None:
    """Rebuilt from a public export, MohanadOdema/DLProf: .cuda() of ten parameters before one pass."""
    moves = [(i * 100 + 50, i * 100 + 52, COMP, i * 100 + 45) for i in range(8)]
    passes = [(900 + i * 20, 910 + i * 20, COMP, 850 + i) for i in range(20)]
    assert steps_of(timeline(moves, loop("_apply"))).name == "_apply"
    assert steps_of(timeline([*moves, *passes], loop("_apply"))).name == "kernel:kernel"


def test_the_ranges_of_libraries_are_not_steps() -> None:
    assert chosen(loop("nccl:all_reduce")) == ""
    assert chosen(loop("NCCL:ncclAllReduce")) == ""


def candidate(name: str, source: str = AUTOMATIC, covered: float = 90.0) -> StepCandidate:
    return StepCandidate(name, source, 10, covered)


def test_an_unknown_range_has_to_qualify_on_every_rank() -> None:
    both, first = candidate("both", covered=60), candidate("first", covered=95)
    assert common_step_range({0: [first, both], 1: [both]}) == "both"
    assert common_step_range({0: [first], 1: []}) == ""
    assert common_step_range({0: [first], 1: [candidate("first", REPEATS, 40)]}) == ""
    assert common_step_range({}) == ""


def test_a_known_range_of_some_ranks_is_the_step_of_all() -> None:
    assert common_step_range({0: [candidate("iteration", "iteration")], 1: [candidate("x")]}) == "iteration"


def test_the_chosen_range_decides_whatever_else_there_is() -> None:
    marks = loop("iteration", inner=("forward", "backward"))
    assert chosen(marks, step_range=StepRange("forward", named=True)) == "forward"
    assert chosen(marks, step_range=StepRange("")) == ""
    assert chosen(loop("step {}"), step_range=StepRange("step 3")) == "step N"
    trace = dataclasses.replace(timeline([], marks), step_range=StepRange("forward", named=True))
    found = step_ranges(trace).rows.to_dict("records")
    assert [(row["range"], row["source"], row["chosen"]) for row in found[:2]] == [
        ("forward", "--step-range", 1),
        ("iteration", "iteration", 0),
    ]


@pytest.mark.parametrize("name", ["inference", "model_inference"])
def test_a_pass_of_a_model_that_repeats_is_no_step_by_its_name(name: str) -> None:
    """It is a phase of each frame, or a validation after the training."""
    assert chosen(loop("frame", inner=("preprocess", name, "postprocess"))) == "frame"
    assert chosen([*loop("train", count=50), (5000, 5290, name), (5300, 5590, name)]) == "train"
    assert chosen([(0, 1000, name)]) == name


def test_without_steps_a_sentence_names_what_could_be_taken() -> None:
    marks = [(i * 100, i * 100 + 10, name) for i in range(8) for name in ("load", "run")]
    assert no_steps(timeline([], marks)) == (
        "no steps in rank00000.sqlite: no range is known as a step, and none repeats 5 times alike on one "
        "thread and covers 50 % of the capture on every rank; load, run may be the step: "
        "hpcprof collect --step-range load takes the first"
    )
    # Layers of one execution, before which a program loads for long, are no steps.
    loading = [(-100_000, 0, "load"), *((i * 100, i * 100 + 10, "layer") for i in range(8))]
    assert no_steps(timeline([], loading)).endswith("on every rank")
    # Nor are ranges that take hardly any time, such as the marks of a runtime.
    moments = [(i * 1_000_000, i * 1_000_000 + 10, "propagate") for i in range(8)]
    assert no_steps(timeline([], moments)).endswith("on every rank")
    assert no_steps(timeline([], [])) == "no work on a GPU, call or range was recorded in rank00000.sqlite"
    named = dataclasses.replace(timeline([], marks), step_range=StepRange("lod"))
    assert (
        no_steps(named)
        == "no steps in rank00000.sqlite: it has no complete range named lod; others that repeat: load, run"
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("step 17", "step N"),
        ("iter_0003", "iter_N"),
        ("Iteration [12]", "Iteration [N]"),
        ("epoch 3 step 17", "epoch 3 step N"),
        ("layer1", "layer1"),
        ("transformer.layers.11", "transformer.layers.11"),
        ("bucket 3", "bucket 3"),
        ("allgather", "allgather"),
        ("99999999999999999999", "99999999999999999999"),
    ],
)
def test_the_last_number_of_a_name_is_its_counter_unless_it_names_a_part(name: str, shown: str) -> None:
    assert with_counter(name) == shown


def test_what_emit_nvtx_appends_is_not_part_of_a_name() -> None:
    assert plain_name("aten::mm, seq = 17, op_id = 31, sizes = [[2, 3], [3, 4]]") == "aten::mm"
    assert plain_name("forward, op_id = 4, input_op_ids = [(3,0)]") == "forward"
    assert plain_name("a, b = c") == "a, b = c"


def table(marks: list[Mark]) -> dict[str, int]:
    """Return the instances of each row of the table of ranges."""
    rows = range_table(timeline([], marks)).rows
    return dict(zip(rows["range"], rows["instances"].tolist(), strict=True))


def test_numbered_steps_and_what_is_numbered_like_them_are_one_row() -> None:
    marks = loop("step {}")
    marks += [(i * 100 + 5, i * 100 + 9, f"copy in {i}") for i in range(8)]
    marks += [(i * 100 + 10 * j, i * 100 + 10 * j + 5, f"part {j}") for i in range(8) for j in (1, 2)]
    assert table(marks) == {"step N": 8, "copy in N": 8, "part 1": 8, "part 2": 8}


def test_numbers_that_all_occur_in_one_step_name_different_things() -> None:
    once = [(i * 10 + 1, i * 10 + 9, f"conv{i}") for i in range(9)]
    assert table([*loop("iteration", count=1), *once]) == {
        "iteration": 1,
        **{f"conv{i}": 1 for i in range(9)},
    }


def test_recursion_is_no_counter() -> None:
    assert table([(i, 100 - i, f"depth {i}") for i in range(6)]) == {f"depth {i}": 1 for i in range(6)}


def test_profiler_steps_are_one_name_in_every_table(torch_step: Timeline) -> None:
    for analysis in (range_table, range_gpu):
        assert "ProfilerStep#N" in analysis(torch_step).rows["range"].tolist()
    two = timeline([(5, 9, COMP, 4)], [(0, 10, "ProfilerStep#4"), (10, 20, "ProfilerStep#5")])
    assert range_table(two).rows[["range", "instances"]].values.tolist() == [["ProfilerStep#N", 2]]
    assert range_gpu(two).rows["range"].tolist() == ["ProfilerStep#N"]


def test_numbered_phases_are_one_phase() -> None:
    marks = loop("iteration", count=6)
    marks += [(i * 100 + 5, i * 100 + 50, f"forward, op_id = {9 + i}") for i in range(6)]
    marks += [(i * 100 + 55, i * 100 + 90, f"backward {i}") for i in range(6)]
    rows = phases(timeline([], marks)).rows
    assert rows[["phase", "steps"]].values.tolist() == [["forward", 6], ["backward N", 6], ["(rest)", 6]]


def test_the_phases_of_a_step_that_is_marked_twice_lie_in_the_inner_range() -> None:
    marks = loop("decode", count=5, inner=("decode, op_id = 7",))
    marks += [(i * 100 + 5, i * 100 + 50, "attention") for i in range(5)]
    rows = phases(timeline([], marks)).rows
    assert rows[["phase", "steps"]].values.tolist() == [["attention", 5], ["(rest)", 5]]


def test_a_real_profile_without_counters_keeps_every_name(sequence_parallel: Timeline) -> None:
    assert merged_names(sequence_parallel) == {}
    assert len(step_candidates(sequence_parallel)) == 5


def test_open_ranges_and_ranges_of_two_threads_are_no_candidates() -> None:
    trace = timeline([], loop("step"))
    for column in ("closed", "one_thread"):
        ranges = dataclasses.replace(trace.ranges, **{column: np.zeros(8, np.int64)})
        assert not len(steps_of(dataclasses.replace(trace, ranges=ranges)))
    # One that starts and ends by a handle on its thread is a step, but has no row among the projections.
    work = [(100 * i + 10, 100 * i + 90, COMP, 0) for i in range(8)]
    by_handle = timeline(work, [(100 * i, 100 * i + 95, "advance") for i in range(8)])
    ranges = dataclasses.replace(by_handle.ranges, one_thread=np.full(8, OWN_END))
    by_handle = dataclasses.replace(by_handle, ranges=ranges)
    assert len(steps_of(by_handle)) == 8 and len(range_gpu(by_handle).rows) == 0
    # What its name makes a step is one, whichever thread ends it.
    known = timeline([], loop("iteration"))
    ranges = dataclasses.replace(known.ranges, one_thread=np.zeros(8, np.int64))
    assert len(steps_of(dataclasses.replace(known, ranges=ranges))) == 8


def test_ranges_without_a_name_are_no_steps() -> None:
    unnamed = timeline([], [(i * 10, i * 10 + 9, None) for i in range(8)])
    assert step_ranges(unnamed).rows.empty
    assert "no range is known" in step_ranges(unnamed).reason


def frames(*parts: int, count: int = 8) -> list[Mark]:
    """Return ranges reader, backbone and head in turns, that last so long, and a pause after each head."""
    length = sum(parts) + 4
    edges = np.cumsum([0, *parts]).tolist()
    # The capture begins inside a turn.
    rows = [
        (i * length + edges[j], i * length + edges[j + 1], name, 0)
        for i in range(count)
        for j, name in enumerate(("reader", "backbone", "head"))
    ]
    return rows[1:]


def test_ranges_that_take_turns_are_one_step_from_the_longest_pause_on() -> None:
    """Rebuilt from public traces of frames whose longest range had 51 % of one and 34 % of the other."""
    for parts in ((20, 60, 16), (30, 36, 30)):
        steps = steps_of(timeline([], frames(*parts)))
        # The last turn ends with its last range.
        assert (steps.name, len(steps)) == ("reader", 7)
        assert (steps.ranges.end - steps.ranges.start).tolist() == [*[100] * 6, 96]
        # The capture ends inside the last turn.
        assert len(steps_of(timeline([], frames(*parts)[:-1]))) == 6
        assert [*phases(timeline([], frames(*parts))).rows["phase"]][:3] == ["reader", "backbone", "head"]


def test_a_rank_that_lacks_ranges_of_a_turn_has_as_many_steps() -> None:
    marks = frames(30, 36, 30)
    chosen_step = StepRange("reader")
    counts = [
        len(steps_of(dataclasses.replace(timeline([], rows), step_range=chosen_step)))
        for rows in (marks, [row for row in marks if row[2] == "reader"])
    ]
    assert counts == [7, 7]


def test_a_range_that_a_user_names_is_the_step_itself() -> None:
    named = StepRange("backbone", named=True)
    steps = steps_of(dataclasses.replace(timeline([], frames(30, 36, 30)), step_range=named))
    assert set((steps.ranges.end - steps.ranges.start).tolist()) == {36}


def test_a_long_range_with_short_ones_beside_it_is_the_step() -> None:
    assert chosen(frames(2, 90, 4)) == "backbone"
    # Ranges in no order take no turns.
    mixed = [(*row[:2], row[2] if i % 5 else "reader", 0) for i, row in enumerate(frames(10, 80, 6))]
    assert steps_of(timeline([], mixed)).name == "backbone"


def test_a_single_range_around_operators_is_the_step_where_no_gpu_works() -> None:
    """Rebuilt from a public trace of one forward pass on a CPU."""
    marks = [(0, 90, "model_forward", 0), (95, 100, "report", 0)]
    operators = Operators(*(np.array([value]) for value in (5, 60, 0, 0, 0)))
    trace = timeline([], marks)
    assert steps_of(dataclasses.replace(trace, operators=operators)).name == "model_forward"
    assert steps_of(trace).name == ""
    on_gpu = timeline([(20, 30, COMP, 10)], marks)
    assert steps_of(dataclasses.replace(on_gpu, operators=operators)).name == ""
    # PyTorch's counters of kernels come in place of the kernels, with their launches.
    no_kernels = dataclasses.replace(on_gpu, kernels=trace.kernels, operators=operators)
    assert steps_of(no_kernels).name == ""
