"""The plan of a study that validates explanations."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.cli.study import split_faults
from hpcprof.common.errors import UsageError
from hpcprof.study.validation import run_validation
from hpcprof.study.validation_record import profiled_arguments, timed_arguments
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.workloads.ddp.options import parse


def test_commas_separate_faults_and_the_keys_of_a_fault() -> None:
    assert split_faults(("gc,late_rank_host:ms=5,rank=0,none", "host_work")) == [
        "gc",
        "late_rank_host:ms=5,rank=0",
        "none",
        "host_work",
    ]
    assert split_faults(()) == []


def test_the_timed_run_has_an_epoch_for_each_fault_and_repeat() -> None:
    given = parse(timed_arguments(["gc:objects=9", "host_work:ms=5"], block_steps=6, repeats=3))
    assert (given.fault, given.fault_blocks) == ("gc:objects=9 host_work:ms=5", True)
    assert (given.epochs - given.warmup, given.steps_per_epoch) == (6, 24)


def test_a_profiled_run_has_one_fault_and_few_steps() -> None:
    given = parse(profiled_arguments("gc:objects=9"))
    assert (given.fault, given.fault_blocks) == ("gc:objects=9", False)
    assert given.capture_steps
    assert given.capture_steps <= given.steps_per_epoch == 66


@pytest.mark.parametrize(
    ("request_", "faults", "says"),
    [
        (JobSpec(workload="sequence-parallel"), [], "only the workload ddp has faults."),
        (JobSpec(profiler="ncu"), [], "--profiler ncu: use nsys or torch."),
        (JobSpec(("--fault", "gc")), [], "name them with --faults."),
        (JobSpec(("--precison", "bf16")), [], "unknown option '--precison' of ddp"),
        (JobSpec(), ["gcc"], "unknown fault 'gcc'; did you mean 'gc'?"),
        (JobSpec(), ["late_rank_host"], "the job has 1 rank, so there is no rank 1."),
        (JobSpec(("--device", "cpu")), ["slow_math"], "slow_math changes nothing with --precision fp32"),
    ],
)
def test_what_is_wrong_is_one_sentence_before_anything_is_submitted(
    request_: JobSpec, faults: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        run_validation(request_, faults=faults)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.glob("runs/*"))
