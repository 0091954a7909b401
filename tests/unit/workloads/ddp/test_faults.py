"""The declarations of the faults: what can be written, and what is refused in one sentence."""

from __future__ import annotations

import pytest

from hpcprof.common.errors import InformationRequested, UsageError
from hpcprof.workloads.ddp.faults import FAULTS, block_of, in_block_with_fault, parse_fault, parse_faults
from hpcprof.workloads.ddp.options import parse


def sentence(*arguments: str, ranks: int | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        parameters = parse(arguments)
        if ranks is not None:
            parameters.validate(ranks)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_keys_that_are_not_given_have_their_defaults() -> None:
    assert parse_fault("late_rank_host:rank=3").text == "late_rank_host:ms=40,rank=3"
    assert parse_fault("host_sync").text == "host_sync"
    assert parse_fault("late_rank_host:rank=3").ranks == (3,)
    assert parse_fault("host_work").ranks == ()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_recorded_as_it_can_be_written(name: str) -> None:
    injected = parse_fault(name)
    assert parse_faults(injected.text) == (injected,)


def test_the_faults_of_a_training_are_recorded_together() -> None:
    given = parse(["--fault", "gc", "--fault", "host_work:ms=5"])
    assert given.fault == "gc:objects=400000 host_work:ms=5"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--fault gcc", "unknown fault 'gcc'; did you mean 'gc'?"),
        ("--fault late_rank_host:rnak=1", "unknown key 'rnak' of fault late_rank_host; did you mean 'rank'?"),
        ("--fault host_work:ms=0", "fault host_work: ms is '0', but must be a whole number from 1"),
        ("--fault host_work:ms=1.5", "ms is '1.5', but must be a whole number from 1, such as ms=40."),
        ("--fault host_work:", "unknown key '' of fault host_work."),
        ("--fault slow_math", "--fault slow_math changes nothing with --precision fp32"),
        ("--fault exposed_communication --no-sync", "does not work with --no-sync: use --comm-hook"),
        ("--fault exposed_communication --comm-hook builtin", "does not work with --comm-hook builtin"),
        ("--fault-blocks", "--fault-blocks needs a --fault."),
        ("--fault gc --fault-blocks --steps-per-epoch 3", "epochs of at least 4 steps, but they have 3."),
        ("--fault host_sync --device cpu", "--fault host_sync needs a GPU. On a CPU you can inject none, "),
        ("--precision tf32 --device cpu", "--precision tf32 needs a GPU. On a CPU, use fp32 or bf16."),
    ],
)
def test_what_cannot_be_injected_is_one_sentence(arguments: str, says: str) -> None:
    assert says in sentence(*arguments.split())


def test_a_rank_that_the_job_does_not_have_cannot_be_late() -> None:
    parse(["--fault", "late_rank_gpu"]).validate(2)
    said = sentence("--fault", "late_rank_host:rank=2", ranks=2)
    assert said == "--fault late_rank_host:ms=40,rank=2: the job has 2 ranks, so there is no rank 2."


def test_the_help_lists_every_fault_as_it_can_be_written() -> None:
    with pytest.raises(InformationRequested) as caught:
        parse(["--help"])
    for name in FAULTS:
        assert f"\n{parse_fault(name).text}: " in caught.value.text


def test_an_epoch_has_the_fault_in_its_first_and_last_quarter() -> None:
    assert [in_block_with_fault(step, 8) for step in range(8)] == [True] * 2 + [False] * 4 + [True] * 2
    lengths = [[block_of(step, 10) for step in range(10)].count(block) for block in range(4)]
    assert sum(lengths) == 10 and max(lengths) - min(lengths) <= 1
