"""The workload's options: what is wrong is one sentence with what would be valid."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.common.errors import InformationRequested, UsageError
from hpcprof.submit.jobs.builder import make_job
from hpcprof.submit.sites.files import load_site
from hpcprof.workloads import catalogue
from hpcprof.workloads.sequence_parallel.options import parse
from hpcprof.workloads.sequence_parallel.parameters import Parameters
from hpcprof.workloads.start import start


def accepts(parameters: Parameters, ranks: int) -> bool:
    try:
        parameters.validate(ranks)
    except UsageError:
        return False
    return True


def suggestions(parameters: Parameters, ranks: int) -> list[int]:
    with pytest.raises(UsageError) as caught:
        parameters.validate(ranks)
    proposal = str(caught.value).partition("use ")[2]
    return [int(number) for number in re.findall(r"\d+", proposal)]


def test_no_arguments_give_the_defaults() -> None:
    assert parse([]).points == {"": Parameters()}
    assert not parse([]).swept


def test_every_option_reaches_its_field() -> None:
    given_options = (
        "-s 64 --hidden-size 32 --ffn-multiplier 2 --ffn-size 64 --batch-size 3 --dtype bfloat16 --steps 5 "
        "--warmup 0 --seed 7 --mode serial --backend gloo --device cpu"
    )
    expected = Parameters(64, 32, 2, 64, 3, "bfloat16", 5, 0, 7, mode="serial", backend="gloo", device="cpu")
    assert parse(given_options.split()).points == {"": expected}
    assert (expected.rows, expected.inner_size) == (192, 64)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "0"], "argument --steps: '0' is not a whole number from 1."),
        (["--warmup", "-1"], "argument --warmup: '-1' is not a whole number from 0."),
        (["--seed", "4294967296"], "is not a whole number from 0 to 4294967295."),
        (["--hidden-size", "x"], "'x' is not a whole number from 1."),
        (["--steps"], "argument --steps: expected one argument."),
        (["--dtype", "float64"], "argument --dtype: invalid choice: 'float64'"),
        (["--stepz", "5"], "unknown option '--stepz' of sequence-parallel; did you mean '--steps'"),
        (["--step", "5"], "unknown option '--step'"),
        (["extra"], "unknown option 'extra'"),
        (["--sweep", "dtype"], "--sweep dtype: write it as KEY=VALUE,VALUE."),
        (
            ["--sweep", "chunks=1", "--sweep", "chunks=2"],
            "chunks was given before; put all its values into one",
        ),
        (["--sweep", "mode=serial"], "unknown parameter 'mode' of --sweep; did you mean 'model'"),
        (["--sweep", "dtype=float32,float64"], "argument --dtype: invalid choice: 'float64'"),
        (["--sweep", "hidden-size=32,0"], "argument --hidden-size: '0' is not a whole number from 1."),
        (
            ["-s", "8", "--sweep", "sequence_length=8,16"],
            "--sequence-length is given and swept: leave one of",
        ),
        (
            ["--sweep", "dtype=float32,float16,float32"],
            "--sweep: dtype=float32 and dtype=float32 are the same: a value stands there twice",
        ),
        (["--model", "gpt2", "--sweep", "hidden-size=8,16"], "hidden-size=8 and hidden-size=16 are the same"),
        (
            ["--ffn-size", "8", "--sweep", "ffn-multiplier=1,2"],
            "ffn-multiplier=1 and ffn-multiplier=2 are the",
        ),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(arguments)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sweep_has_a_point_for_every_combination_and_each_is_checked() -> None:
    sweep = parse(["-s", "64", "--sweep", "hidden_size=32,48", "--sweep", "dtype=float32,bfloat16"])
    assert sweep.swept
    assert sweep.points == {
        f"hidden_size={h} dtype={dtype}": Parameters(64, h, dtype=dtype)
        for h in (32, 48)
        for dtype in ("float32", "bfloat16")
    }
    sweep.validate(4)
    with pytest.raises(UsageError) as caught:
        parse(["--sweep", "sequence-length=64,66,68"]).validate(4)
    assert str(caught.value) == (
        "at sequence-length=66: --sequence-length 66 is not divisible by 4 ranks: use 64 or 68."
    )


def test_a_sweep_of_one_value_still_names_its_point() -> None:
    assert list(parse(["--sweep", "model=gpt2"]).points) == ["model=gpt2"]
    assert parse(["--sweep", "model=gpt2"]).first == Parameters(hidden_size=768, ffn_size=3072)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("-s 64 --mode chunked --sweep chunks=4,5", "at chunks=5: the 32 rows of a rank cannot be cut into"),
        ("--mode symmetric --sweep dtype=bfloat16,float8", "at dtype=float8: --dtype float8: the mode symm"),
    ],
)
def test_a_point_at_which_the_only_mode_cannot_run_is_refused_before_the_start(
    arguments: str, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse(arguments.split()).validate(2)


@pytest.mark.parametrize("workload", catalogue.WORKLOADS.values(), ids=catalogue.WORKLOADS)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_raised_and_nothing_is_printed(
    workload: catalogue.Workload, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InformationRequested) as caught:
        workload.check([option], 2)
    assert caught.value.text.startswith(f"usage: {workload.name} [-h]")
    assert "-h, --help" in caught.value.text
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("workload", catalogue.WORKLOADS.values(), ids=catalogue.WORKLOADS)
@pytest.mark.parametrize(
    "arguments", [["--nothing"], ["--seed"], ["--seed", "x"], ["extra"], ["--device", "x"]]
)
def test_a_wrong_argument_is_raised_and_nothing_is_printed(
    workload: catalogue.Workload, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError):
        workload.check(arguments, 2)
    assert capsys.readouterr() == ("", "")


def test_the_start_on_a_rank_prints_help_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert start("hpcprof.workloads.sequence_parallel", "torch", ["--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: sequence-parallel") and not err


def test_the_sentence_names_the_nearest_sequence_lengths() -> None:
    with pytest.raises(UsageError) as caught:
        Parameters(sequence_length=1000).validate(3)
    assert str(caught.value) == "--sequence-length 1000 is not divisible by 3 ranks: use 999 or 1002."


def test_zero_is_not_offered_as_a_sequence_length() -> None:
    assert suggestions(Parameters(sequence_length=3), 8) == [8]


@given(st.integers(1, 10_000), st.integers(1, 300), st.integers(1, 8))
def test_sequence_lengths_that_are_offered_are_the_nearest_valid_ones(
    length: int, ranks: int, batch: int
) -> None:
    def valid(value: int) -> bool:
        return accepts(Parameters(value, hidden_size=ranks, batch_size=batch), ranks)

    assert valid(length) == (length % ranks == 0)
    if not valid(length):
        offered = suggestions(Parameters(length, hidden_size=ranks, batch_size=batch), ranks)
        _assert_nearest(offered, length, [v for v in range(1, length + ranks + 1) if v % ranks == 0])
        assert all(valid(value) for value in offered)


@given(st.integers(1, 500), st.integers(1, 60), st.integers(1, 16))
def test_hidden_sizes_that_are_offered_are_the_nearest_valid_ones(
    hidden: int, ranks: int, multiplier: int
) -> None:
    def shape(value: int) -> Parameters:
        return Parameters(sequence_length=ranks, hidden_size=value, ffn_multiplier=multiplier)

    assert accepts(shape(hidden), ranks) == (hidden * multiplier % ranks == 0)
    if not accepts(shape(hidden), ranks):
        offered = suggestions(shape(hidden), ranks)
        every = [v for v in range(1, hidden + ranks + 1) if accepts(shape(v), ranks)]
        _assert_nearest(offered, hidden, every)


def _assert_nearest(offered: list[int], value: int, valid: list[int]) -> None:
    below = [v for v in valid if v < value]
    above = [v for v in valid if v > value]
    assert offered == [*below[-1:], above[0]]


def test_the_catalogue_builds_the_command_and_passes_arguments_on_as_they_are() -> None:
    workload = catalogue.find("sequence-parallel")
    command = workload.command("/opt/py thon", ["--steps", "a b"])
    assert command == ["/opt/py thon", "-m", "hpcprof.workloads.sequence_parallel", "--steps", "a b"]


def test_the_catalogue_checks_arguments_before_launch() -> None:
    workload = catalogue.find("sequence-parallel")
    workload.check(["-s", "999", "--hidden-size", "300"], 3)
    with pytest.raises(UsageError, match="use 999 or 1002"):
        workload.check(["-s", "1000"], 3)
    with pytest.raises(UsageError, match="unknown option"):
        workload.check(["--nothing"], 3)


def test_a_sweep_under_a_profiler_is_refused_before_launch() -> None:
    workload = catalogue.find("sequence-parallel")
    workload.check(["--sweep", "dtype=float32,bfloat16"], 2)
    workload.check(["--dtype", "bfloat16"], 2, profiled=True)
    with pytest.raises(UsageError, match="--sweep measures without a profiler, as a profile would mix"):
        workload.check(["--sweep", "dtype=float32,bfloat16"], 2, profiled=True)
    with pytest.raises(UsageError, match="--sweep measures without a profiler"):
        make_job(
            load_site("local"),
            workload="sequence-parallel",
            arguments=["--sweep", "dtype=float32,bfloat16"],
            profiler="torch",
        )


def test_an_unknown_workload_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="did you mean 'sequence-parallel'"):
        catalogue.find("sequence_parallel")
