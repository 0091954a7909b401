"""Options of the workload: an error is one sentence with the valid values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcprof.common.errors import InformationRequested, UsageError
from hpcprof.workloads.sequence_parallel.options import parse
from hpcprof.workloads.sequence_parallel.parameters import MODES as NAMES
from hpcprof.workloads.sequence_parallel.parameters import PointParameters


def test_no_arguments_give_the_defaults() -> None:
    assert parse([]).points == {"": PointParameters()}
    assert not parse([]).swept


def test_every_option_reaches_its_field() -> None:
    given_options = (
        "-s 64 --hidden-size 32 --ffn-multiplier 2 --ffn-size 64 --batch-size 3 --dtype bfloat16 --steps 5 "
        "--warmup 0 --seed 7 --mode serial --backend gloo --device cpu"
    )
    shape = PointParameters(64, 32, 2, 3, "bfloat16", ffn_size=64, steps=5, warmup=0, seed=7)
    expected = replace(shape, mode="serial", backend="gloo", device="cpu")
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
            "chunks is repeated; give all its values in one",
        ),
        (["--sweep", "mode=serial"], "unknown parameter 'mode' of --sweep; did you mean 'model'"),
        (["--sweep", "dtype=float32,float64"], "argument --dtype: invalid choice: 'float64'"),
        (["--sweep", "hidden-size=32,0"], "argument --hidden-size: '0' is not a whole number from 1."),
        (
            ["-s", "8", "--sweep", "sequence_length=8,16"],
            "--sequence-length is both given and swept: remove one",
        ),
        (
            ["--sweep", "dtype=float32,float16,float32"],
            "--sweep: dtype=float32 and dtype=float32 are the same point: a value is repeated",
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
        f"hidden_size={h} dtype={dtype}": PointParameters(64, h, dtype=dtype)
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
    assert parse(["--sweep", "model=gpt2"]).first == PointParameters(hidden_size=768, ffn_size=3072)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("-s 64 --mode chunked --sweep chunks=4,5", "at chunks=5: --chunks 5 does not divide the 32 rows"),
        ("--mode symmetric --sweep dtype=bfloat16,float8", "at dtype=float8: --dtype float8: the mode symm"),
    ],
)
def test_a_point_at_which_the_only_mode_cannot_run_is_refused_before_the_start(
    arguments: str, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse(arguments.split()).validate(2)


@pytest.mark.parametrize(
    ("text", "modes"),
    [
        ("serial", ("serial",)),
        ("copy-engine,serial", ("copy-engine", "serial")),
        ("auto", NAMES),
    ],
)
def test_several_modes_can_be_measured_in_one_run(text: str, modes: tuple[str, ...]) -> None:
    assert parse(["--mode", text]).first.modes == modes


@pytest.mark.parametrize("text", ["", "fast", "serial,", "serial,serial", "auto,serial"])
def test_what_names_no_mode_or_one_twice_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--mode"):
        parse(["--mode", text])


def test_a_model_gives_the_shape_and_a_plan_is_asked_for_instead_of_a_run() -> None:
    shape = parse(["--model", "llama3-70b"]).first
    assert (shape.hidden_size, shape.inner_size) == (8192, 28672)
    with pytest.raises(InformationRequested, match="h = 12288, f = 49152, N = 8 ranks"):
        parse(["--model", "gpt3-175b", "--plan", "8"])
    with pytest.raises(InformationRequested) as asked:
        parse(["--plan", "2", "--sweep", "hidden-size=32,64"])
    told = asked.value.text
    assert [told.count(text) for text in ("at hidden-size=32:", "h = 64, f = 256", "memory per rank")] == [
        1,
        1,
        2,
    ]
    with pytest.raises(UsageError, match=r"--ffn-size 14336 is not divisible by 3 ranks: use 14334 or 14337"):
        parse(["-s", "300", "--model", "llama3-8b", "--plan", "3"])
