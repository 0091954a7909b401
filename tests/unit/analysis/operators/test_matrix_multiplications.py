"""The operations of convolutions, as PyTorch counts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcprof.analysis.operators.matrix_multiplications import counts_flops, flops, peak_tflops
from hpcprof.analysis.operators.operators import operators
from hpcprof.profiles.readers.kineto.reader import read

IMAGE, WEIGHT, GRADIENT = [2, 8, 16, 16], [12, 8, 3, 3], [2, 12, 8, 8]
ONCE = ["[1, 1]", "[0, 0]", "[1, 1]"]


# The inputs are those in traces of torch 2.13, and the results those of its FlopCounterMode.
@pytest.mark.parametrize(
    ("operator", "dims", "values", "counted"),
    [
        ("aten::conv2d", [IMAGE, WEIGHT, [12]], ["", "", "", *ONCE, "1"], 677376),
        ("aten::convolution", [IMAGE, WEIGHT, [12]], ["", "", "", *ONCE, "False", "[0, 0]", "1"], 677376),
        (
            "aten::mkldnn_convolution",
            [IMAGE, WEIGHT, [12]],
            ["", "", "", "[0, 0]", "[1, 1]", "[1, 1]", "1"],
            677376,
        ),
        ("aten::conv2d", [IMAGE, WEIGHT, []], ["", "", "", "[2, 2]", "[1, 1]", "[2, 2]", "1"], 169344),
        ("aten::cudnn_convolution", [IMAGE, WEIGHT], ["", "", "[1, 1]", "[2, 2]", "[2, 2]", "1"], 169344),
        ("aten::conv2d", [IMAGE, [12, 4, 3, 3]], ["", "", "", "[1, 1]", "[1, 0]", "[1, 1]", "2"], 387072),
        (
            "aten::_convolution",
            [IMAGE, WEIGHT, [12]],
            ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False"],
            884736,
        ),
        (
            "aten::convolution",
            [IMAGE, [8, 12, 3, 3]],
            ["", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "True"],
            884736,
        ),
        ("aten::conv_transpose2d", [IMAGE, [8, 12, 3, 3]], ["", "", "", "[2, 2]"], 884736),
        ("aten::conv1d", [[2, 8, 30], [5, 8, 3]], ["", "", "", "[1]", "[0]", "[1]", "1"], 13440),
        ("aten::conv3d", [[1, 2, 5, 6, 7], [3, 2, 2, 2, 2]], ["", "", "", "[1]", "[0]", "[1]", "1"], 11520),
        (
            "aten::convolution_backward",
            [GRADIENT, IMAGE, WEIGHT],
            ["", "", "", "[12]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"],
            442368,
        ),
        (
            "aten::convolution_backward",
            [GRADIENT, IMAGE, WEIGHT],
            ["", "", "", "[12]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[False, True, True]"],
            221184,
        ),
        # One image without a batch.
        ("aten::conv2d", [IMAGE[1:], WEIGHT], ["", "", "", *ONCE, "1"], 338688),
    ],
)
def test_the_operations_are_those_that_pytorch_counts(
    operator: str, dims: Any, values: Any, counted: int
) -> None:
    assert counts_flops(operator)
    assert flops(operator, json.dumps(dims), json.dumps(values)) == counted


@pytest.mark.parametrize(
    ("dims", "values"),
    [
        (None, None),
        ([IMAGE, WEIGHT], None),
        ([IMAGE, WEIGHT], ["", "", "", "[0, 0]", "[0, 0]", "[1, 1]"]),
        ([IMAGE, WEIGHT], ["", "", "", "[1, 1]", "same", "[1, 1]"]),
        ([IMAGE, WEIGHT], ["", "", "", "[1, 1, 1]", "[0, 0]", "[1, 1]"]),
        ([IMAGE, WEIGHT], ["", "", "", [1, 1], "[0, 0]", "[1, 1]"]),
        ([[2, 8, 1, 1], WEIGHT], ["", "", "", *ONCE]),
        ([IMAGE, [12, 8]], ["", "", "", *ONCE]),
        ([IMAGE], ["", "", "", *ONCE]),
        ([[2, 8, -1, 16], WEIGHT], ["", "", "", *ONCE]),
        ("shapes", "values"),
    ],
)
def test_inputs_that_do_not_tell_the_output_have_no_operations(dims: Any, values: Any) -> None:
    written = [None if given is None else json.dumps(given) for given in (dims, values)]
    assert flops("aten::conv2d", *written) is None
    assert flops("aten::convolution_backward", *written) is None


def test_calls_of_other_strides_have_other_operations(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pt.trace.json"
    call = {"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "pid": 1, "tid": 1, "dur": 1}
    given = {"Input Dims": [IMAGE, WEIGHT], "Input type": ["float", "float"]}
    events = [
        call | {"ts": at, "args": given | {"Concrete Inputs": ["", "", "", stride, "[0, 0]", "[1, 1]"]}}
        for at, stride in ((0, "[1, 1]"), (5, "[2, 2]"))
    ]
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    (row,) = operators(read(path)).rows.to_dict("records")
    assert row["flops"] == 677376 + 2 * 2 * 12 * 8 * 9 * 7 * 7


def test_the_peak_is_that_for_the_type_of_image_and_weight() -> None:
    types = '["c10::BFloat16","c10::BFloat16","c10::BFloat16"]'
    assert peak_tflops("NVIDIA H200", "aten::cudnn_convolution", types, ["sm90_xmma_fprop"]) == 989.4
