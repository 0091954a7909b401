"""Operators among the ranges that PyTorch marks with NVTX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcprof.analysis.account.host_activity import NONE, places_of
from hpcprof.analysis.operators.operators import operator_kernels, operators_by_shape
from hpcprof.analysis.steps.phases import phases
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.analysis.summaries.nvtx_gpu_projection import range_gpu, ranges
from hpcprof.profiles.readers.nsys.nvtx_ranges import parse_operator
from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.timeline import OWN_END, Timeline
from tests.data import generated_exports
from tests.unit.analysis.timelines import COMP, timeline
from tests.unit.profiles.readers.nsys.test_reader import change

THREAD = 16777217


# As torch 2.11 wrote them in exports of nsys 2025.3.
@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("aten::empty, op_id = 6", ("aten::empty", None)),
        ("aten::item, seq = 0, op_id = 45", ("aten::item", None)),
        ("aten::mm, seq = 3", ("aten::mm", None)),
        (
            "aten::mm, op_id = 7, sizes = [[4, 32], [32, 10]], input_op_ids = [(3,0), (5,-1)]",
            ("aten::mm", "[[4,32],[32,10]]"),
        ),
        ("aten::randn, seq = 3, sizes = [[], []]", ("aten::randn", "[[],[]]")),
        ("AddmmBackward0, seq = 1, op_id = 697", ("AddmmBackward0", None)),
        ("AddmmBackward0, op_id = 697", ("AddmmBackward0", None)),
        (
            "autograd::engine::evaluate_function: MeanBackward0, seq = 5, op_id = 9",
            ("autograd::engine::evaluate_function: MeanBackward0", None),
        ),
        ("torch::autograd::AccumulateGrad, op_id = 9", ("torch::autograd::AccumulateGrad", None)),
        ("detach_, op_id = 38", ("detach_", None)),
        ("MyFunction, seq = 8, op_id = 38", ("MyFunction", None)),
        ("_C::rms_norm, op_id = 3", ("_C::rms_norm", None)),
        # As XLA writes them in its domain.
        ("Thunk:#hlo_op=fusion.3#", ("fusion.3", None)),
        ("Thunk:#name=jit(f)/dot,hlo_op=dot.1,unique_hlo_op_id=7#", ("dot.1", None)),
    ],
)
def test_what_pytorch_appends_tells_an_operator(text: str, operator: tuple[str, str | None]) -> None:
    assert parse_operator(text) == operator


@pytest.mark.parametrize(
    "text",
    [
        "aten::mm",
        "prefill, op_id = 62450",
        "Optimizer.step#SGD.step, op_id = 12",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__, op_id = 12",
        "[pl][profile][LightningModule]M.setup, op_id = 3",
        "[pl][module]torch.nn.modules.linear.Linear: n.0, op_id = 3",
        "FSDP::forward, op_id = 5",
        "nccl:all_reduce, op_id = 5, sizes = [[8]], input_op_ids = [(3,0)]",
        "DistributedDataParallel.forward, op_id = 5",
        "step, seq = last",
        "",
    ],
)
def test_other_ranges_stay_ranges(text: str) -> None:
    assert parse_operator(text) is None


@pytest.fixture
def marked(tmp_path: Path) -> Timeline:
    """Return a step with a product, whose kernel is launched inside ``aten::mm``, and ranges like it."""
    product = "sizes = [[4, 32], [32, 10]], input_op_ids = [(3,0), (5,1)]"
    texts: list[tuple[int, int | str, int, str, int]] = [
        (0, "NULL", 75, "Mine", 7),
        (0, 100, 59, "iteration, op_id = 1", 0),
        (10, 60, 59, f"aten::linear, op_id = 2, {product}", 0),
        (20, 50, 59, f"aten::mm, op_id = 3, {product}", 0),
        (70, 80, 59, "aten::mm, op_id = 4", 7),
        (70, 80, 60, "aten::mm, op_id = 5", 0),
        (90, "NULL", 59, "aten::mm, op_id = 6", 0),
    ]
    return read(write(tmp_path / "rank0.sqlite", texts))


def write(path: Path, texts: Sequence[tuple[int, int | str, int, str, int]]) -> Path:
    """Write an export with a kernel and ranges: start, end, type, text and domain of each."""
    change(
        path,
        *generated_exports.SCHEMA.strip().split(";")[:-1],
        "INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel')",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (30, 40, 0, {THREAD}, 5, 2, 0)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL "
        f"VALUES (45, 65, 0, 1, 7, 5, {THREAD - 1}, 1, 1, 1, 1, 1, 1, 1, 1)",
        *(
            f"INSERT INTO NVTX_EVENTS "
            f"VALUES ({start}, {end}, {kind}, 0, 0, 0, '{text}', {THREAD}, NULL, NULL, {domain})"
            for start, end, kind, text, domain in texts
        ),
    )
    return path


def test_operations_of_xla_are_operators_and_its_modules_mark_steps(tmp_path: Path) -> None:
    texts: list[tuple[int, int | str, int, str, int]] = [
        (0, "NULL", 75, "TSL", 8),
        (0, "NULL", 75, "Mine", 7),
    ]
    for start in (0, 100, 200):
        texts += [
            (start + 10, start + 60, 59, "XlaModule:#hlo_module=jit_step,program_id=3#", 8),
            (start + 20, start + 50, 59, "Thunk:#name=dot,hlo_op=dot.1#", 8),
        ]
    timeline = read(write(tmp_path / "rank0.sqlite", [*texts, (300, 310, 59, "Thunk:#hlo_op=a#", 7)]))
    assert timeline.names(timeline.operators.name) == ["dot.1"] * 3
    (kernel,) = operator_kernels(timeline).rows.to_dict("records")
    assert (kernel["operator"], kernel["kernel"]) == ("dot.1", "gemm")
    steps = steps_of(timeline)
    assert steps.name == "TSL:XlaModule:#hlo_module=jit_step#"
    assert [*zip(steps.ranges.start.tolist(), steps.ranges.end.tolist(), strict=True)] == [
        (10, 110),
        (110, 210),
    ]
    # The program waits for its input between the executions.
    places = places_of(timeline, 0, 250)
    assert places.texts == (steps.name,)
    assert [places.marking.at(np.array([moment]))[0] for moment in (30, 80)] == [0, NONE]


def test_operators_are_no_ranges_of_steps_and_have_their_shapes(marked: Timeline) -> None:
    found = operators_by_shape(marked).rows.set_index("name")
    assert found["calls"].to_dict() == {"aten::linear": 1, "aten::mm": 1}
    assert set(found["input_dims"]) == {"[[4,32],[32,10]]"}
    assert found["self_host_ns"].to_dict() == {"aten::linear": 20, "aten::mm": 30}
    assert found["flops"]["aten::mm"] == 2 * 4 * 32 * 10
    assert len(steps_of(marked)) == 1
    assert len(marked.ranges) == 4
    assert marked.names(marked.ranges.name) == [
        "iteration, op_id = 1",
        "Mine:aten::mm",
        "aten::mm",
        "aten::mm",
    ]


def test_the_kernels_of_an_operator_are_those_launched_inside_its_range(marked: Timeline) -> None:
    (row,) = operator_kernels(marked).rows.to_dict("records")
    assert (row["operator"], row["kernel"], row["total_ns"]) == ("aten::mm", "gemm", 20)


def test_operators_are_still_ranges_in_the_tables_that_follow_nsys_stats(marked: Timeline) -> None:
    found = ranges(marked).rows
    of_mm = found[(found["range"] == "aten::mm") & (found["style"] == "PushPop")]
    # With the one that is still open.
    assert of_mm["instances"].tolist() == [2]
    assert found["instances"].sum() == 6
    projected = range_gpu(marked).rows.set_index("range")
    assert projected["proj_total_ns"].to_dict() == {"iteration": 20, "aten::linear": 20, "aten::mm": 20}
    assert projected["avg_range_lvl"].to_dict() == {"iteration": 0, "aten::linear": 1, "aten::mm": 2}


def test_without_shapes_a_sentence_names_the_option_of_nsys(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    change(
        path,
        *generated_exports.SCHEMA.strip().split(";")[:-1],
        f"INSERT INTO NVTX_EVENTS VALUES (0, 9, 59, 0, 0, 0, 'aten::mm, op_id = 1', {THREAD}, NULL, NULL, 0)",
    )
    reason = operators_by_shape(read(path)).reason
    assert reason.endswith(
        "no shapes and types and no FLOPs: record it with nsys --pytorch=autograd-shapes-nvtx"
    )


@pytest.mark.parametrize(
    ("one_thread", "projected", "why_no_phases"),
    [
        ((1, OWN_END, 0), 1, ""),
        ((OWN_END, OWN_END, 0), 0, ""),
        ((1, 0, 0), 1, "no step directly contains a named range; another thread ends 2 ranges"),
    ],
)
def test_a_sentence_counts_the_ranges_that_a_handle_ends(
    one_thread: tuple[int, ...], projected: int, why_no_phases: str
) -> None:
    """Rebuilt from a public report: GindaChen/nsys-ai#307."""
    made = timeline([(20, 30, COMP, 15, 0)], [(0, 90, "iteration", 0), (5, 80, "a", 0), (6, 90, "b", 0)])
    made = replace(made, ranges=replace(made.ranges, one_thread=np.array(one_thread)))
    found = range_gpu(made)
    assert len(found) == projected
    handles = f"{3 - projected} ranges of rank00000.sqlite not projected"
    assert found.reason == f"{handles}, as in nsys: a handle ends them"
    assert phases(made).reason.endswith(why_no_phases) and len(phases(made)) == (not why_no_phases) * 2
