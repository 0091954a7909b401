"""Parameter sweeps."""

from __future__ import annotations

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.workloads.sweep import parse_parameters, points, program_at


def test_every_combination_is_a_point_the_last_parameter_changing_first() -> None:
    parameters = parse_parameters(["a=1,2", "b=x,y"])
    assert points(parameters) == [
        {"a": "1", "b": "x"},
        {"a": "1", "b": "y"},
        {"a": "2", "b": "x"},
        {"a": "2", "b": "y"},
    ]


@pytest.mark.parametrize("text", ["a", "=1", "a=", "a=1,,2"])
def test_what_is_no_parameter_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"^-P {text}: write it as KEY=VALUE,VALUE"):
        parse_parameters([text])
    with pytest.raises(UsageError, match=f"^--sweep {text}: write it as"):
        parse_parameters([text], "--sweep")


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="a is repeated"):
        parse_parameters(["a=1", "a=2"])


def test_a_workload_gets_a_parameter_as_its_option() -> None:
    assert program_at({"hidden_size": "8"}, ["--steps", "3"], "sequence-parallel") == [
        "--steps",
        "3",
        "--hidden-size",
        "8",
    ]


def test_a_program_gets_a_parameter_where_it_names_it_and_nowhere_else() -> None:
    assert program_at({"lr": "0.1"}, ["train", "--lr={lr}", "{other}"], None) == [
        "train",
        "--lr=0.1",
        "{other}",
    ]
    with pytest.raises(UsageError, match=r"write \{lr\} in the arguments"):
        program_at({"lr": "0.1"}, ["train"], None)
