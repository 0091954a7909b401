"""The declarations of the plants: what can be written, and what is refused in one sentence."""

from __future__ import annotations

import pytest

from hpcprof.common.errors import InformationRequested, UsageError
from hpcprof.workloads.ddp.options import parse
from hpcprof.workloads.ddp.plants import PLANTS, block_of, in_planted_block, parse_plant, parse_plants


def sentence(*arguments: str, ranks: int | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        parameters = parse(arguments)
        if ranks is not None:
            parameters.validate(ranks)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_keys_that_are_not_given_have_their_defaults() -> None:
    assert parse_plant("late_rank_host:rank=3").text == "late_rank_host:ms=40,rank=3"
    assert parse_plant("host_sync").text == "host_sync"
    assert parse_plant("late_rank_host:rank=3").ranks == (3,)
    assert parse_plant("host_work").ranks == ()


@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_is_recorded_as_it_can_be_written(name: str) -> None:
    planted = parse_plant(name)
    assert parse_plants(planted.text) == (planted,)


def test_the_plants_of_a_training_are_recorded_together() -> None:
    given = parse(["--plant", "gc", "--plant", "host_work:ms=5"])
    assert given.plant == "gc:objects=400000 host_work:ms=5"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--plant gcc", "unknown plant 'gcc'; did you mean 'gc'?"),
        ("--plant late_rank_host:rnak=1", "unknown key 'rnak' of plant late_rank_host; did you mean 'rank'?"),
        ("--plant host_work:ms=0", "plant host_work: ms is '0', but must be a whole number from 1"),
        ("--plant host_work:ms=1.5", "ms is '1.5', but must be a whole number from 1, such as ms=40."),
        ("--plant host_work:", "unknown key '' of plant host_work."),
        ("--plant slow_math", "--plant slow_math changes nothing with --precision fp32"),
        ("--plant exposed_communication --no-sync", "does not work with --no-sync: use --comm-hook"),
        ("--plant exposed_communication --comm-hook builtin", "does not work with --comm-hook builtin"),
        ("--plant-blocks", "--plant-blocks needs a --plant."),
        ("--plant gc --plant-blocks --steps-per-epoch 3", "epochs of at least 4 steps, but they have 3."),
        ("--plant host_sync --device cpu", "--plant host_sync needs a GPU. On a CPU you can plant none, "),
        ("--precision tf32 --device cpu", "--precision tf32 needs a GPU. On a CPU, use fp32 or bf16."),
    ],
)
def test_what_cannot_be_planted_is_one_sentence(arguments: str, says: str) -> None:
    assert says in sentence(*arguments.split())


def test_a_rank_that_the_job_does_not_have_cannot_be_late() -> None:
    parse(["--plant", "late_rank_gpu"]).validate(2)
    said = sentence("--plant", "late_rank_host:rank=2", ranks=2)
    assert said == "--plant late_rank_host:ms=40,rank=2: the job has 2 ranks, so there is no rank 2."


def test_the_help_lists_every_plant_as_it_can_be_written() -> None:
    with pytest.raises(InformationRequested) as caught:
        parse(["--help"])
    for name in PLANTS:
        assert f"\n{parse_plant(name).text}: " in caught.value.text


def test_an_epoch_is_planted_in_its_first_and_last_quarter() -> None:
    assert [in_planted_block(step, 8) for step in range(8)] == [True] * 2 + [False] * 4 + [True] * 2
    lengths = [[block_of(step, 10) for step in range(10)].count(block) for block in range(4)]
    assert sum(lengths) == 10 and max(lengths) - min(lengths) <= 1
