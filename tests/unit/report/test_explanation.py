"""Explanations and predictions as text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from hpcprof.analysis.explain.cause import Cause, cause_of
from hpcprof.analysis.explain.changes import Prediction
from hpcprof.analysis.explain.explanation import (
    CAUSES,
    GIVEN,
    IDLE,
    REST,
    TYPICAL,
    WAITING,
    CallCost,
    Evidence,
    Explanation,
    MainKernel,
    NotJudged,
    StepAlone,
    StepKind,
)
from hpcprof.report.explanation import (
    conclusion,
    described,
    evidence,
    explanation_text,
    in_short,
    named,
    predicted,
    prediction_text,
    unjudged_rows,
)
from tests.unit.explanations import MS, STEP, explained, finding

COMMAND = "hpcprof report a-run-with-quite-a-long-name --analysis {}".format


def printed(renderable: RenderableType, width: int) -> list[str]:
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as output:
        console.print(renderable, crop=False)
    return output.get().splitlines()


def text(explanation: Explanation, width: int = 100) -> list[str]:
    return printed(explanation_text(explanation, width, COMMAND), width)


def test_the_conclusion_comes_first_and_then_each_finding_with_its_evidence() -> None:
    assert text(explained(finding(13, 11))) == [
        "A step takes 100.0 ms (median of 6 steps on 2 ranks).",
        "Without host work in data on all ranks it would take about 87.00 ms, 13.0 % less.",
        "A replay of 6 steps without any change is 0.4 % off the measured time.",
        "",
        "1. Host work: the step waits for work of the host",
        "   cause       host_work",
        "   where       data on all ranks",
        "   saving      13.00 ms of each step, 13.0 % (between 11.00 ms and 13.00 ms)",
        "   remedy      Prefetch.",
        "   confidence  high",
        "   evidence    rank 0: the GPU is idle for 13.00 ms of a step while the host is in data",
        "               hpcprof report a-run-with-quite-a-long-name --analysis idle_causes",
        "",
        "Hidden behind the GPU: removing these costs would not shorten the step",
        "   host work in data on all ranks: 20.00 ms of host time per step",
        "",
        "Not judged",
        "   contention with communication: one rank was profiled",
    ]


def test_the_first_sentence_says_what_is_known_of_the_profilers_share() -> None:
    alone = StepAlone(80 * MS, 75 * MS, 85 * MS, GIVEN)
    cost = CallCost("cudaLaunchKernel", 500, 40_000, 30_000, 50_000, GIVEN)
    step = replace(STEP, elapsed_ns=84 * MS, recorded_elapsed_ns=100 * MS, alone_ns=alone)
    given = replace(explained(finding(13)), step=replace(step, profiler_cost=(cost,)))
    assert conclusion(given)[:2] == [
        "A step takes 80.00 ms alone, given; 100.0 ms while recorded (elapsed time per step of 6 steps on 2 "
        "ranks; median 100.0 ms).",
        "Percentages are of a step of 84.00 ms: a replay without the profiler, 5 % longer than the step "
        "alone (explain --as-recorded keeps the profiler's time).",
    ]
    assert in_short(given)[:2] == conclusion(given)[:2]
    typical = replace(step, elapsed_ns=75 * MS, alone_ns=replace(alone, source=TYPICAL))
    assert conclusion(replace(given, step=typical))[:2] == [
        "A step takes 100.0 ms while recorded (elapsed time per step of 6 steps on 2 ranks; median 100.0 ms)"
        "; the profiler's share is unknown, typically 15.00 ms to 25.00 ms.",
        "Percentages are of a step of 75.00 ms: the recorded one without the 25.00 ms that the profiler may "
        "have added (explain --as-recorded keeps this time; open --step-time TIME takes a measured step "
        "instead).",
    ]
    assert in_short(replace(given, step=typical))[0].startswith("Percentages are of a step of 75.00 ms: ")
    waits = replace(typical, alone_ns=StepAlone(99 * MS, 98_500_000, 99_500_000, TYPICAL))
    said = conclusion(replace(given, step=replace(waits, elapsed_ns=98_500_000)))
    assert said[0].startswith("A step takes 100.0 ms (elapsed") and "unknown" not in said[0]
    assert said[1].startswith(
        "Percentages are of a step of 98.50 ms: the recorded one without the 1.500 ms that "
    )
    said = conclusion(replace(given, step=replace(waits, elapsed_ns=100 * MS)))
    assert not any("Percentages" in sentence for sentence in said)
    near = replace(step, elapsed_ns=101 * MS, alone_ns=StepAlone(101 * MS, 100 * MS, 102 * MS, GIVEN))
    said = conclusion(replace(given, step=near))
    assert said[0].endswith("median 100.0 ms).") and "as long as the step alone" in said[1]
    slower = replace(step, alone_ns=StepAlone(120 * MS, 119 * MS, 121 * MS, GIVEN))
    assert conclusion(replace(given, step=slower))[0].endswith(
        ", less than alone: on a faster host, or with less work."
    )


def test_a_prediction_says_that_the_profilers_share_is_in_it() -> None:
    prediction = Prediction(87 * MS, 85 * MS, 89 * MS, 100 * MS, 0.6, 6, 80 * MS, 92 * MS)
    recorded = replace(prediction, has_profiler_share=True)
    (sentence,) = {*predicted(recorded, changed=True)} - {*predicted(prediction, changed=True)}
    assert sentence.startswith("These times are as recorded, with the profiler's share; explain prices")


def test_what_all_findings_cost_together_is_said_where_there_are_several() -> None:
    others = finding(9, cause=Cause.STEP_SPIKES), finding(None, cause=Cause.CAPTURE_INCOMPLETE)
    several = explained(finding(13), finding(7, cause=Cause.HOST_SYNC), *others)
    assert conclusion(several)[1:3] == [
        "Without host work in data on all ranks it would take about 87.00 ms, 13.0 % less.",
        "Also without host synchronization in data on all ranks: about 80.00 ms, 20.0 % less.",
    ]


def test_savings_that_would_leave_no_step_are_not_added_up() -> None:
    several = explained(finding(60), finding(50, cause=Cause.HOST_SYNC))
    assert not any(sentence.startswith("Also without") for sentence in conclusion(several))


def test_a_saving_above_the_median_step_leaves_no_step_of_no_time() -> None:
    # As of writing in some steps of a run without a profile, whose mean is far above its median.
    assert not any("would take about" in said for said in conclusion(explained(finding(150))))


def test_what_a_remedy_adds_is_not_called_absent() -> None:
    slow = explained(finding(13, cause=Cause.SLOW_MATH), finding(7, cause=Cause.HOST_SYNC))
    assert conclusion(slow)[1:3] == [
        "With tensor cores in data on all ranks it would take about 87.00 ms, 13.0 % less.",
        "Also without host synchronization in data on all ranks: about 80.00 ms, 20.0 % less.",
    ]


def test_elapsed_time_comes_first_with_the_median_and_the_kinds_of_steps() -> None:
    kinds = (StepKind(1, 75.0, 80 * MS, 6), StepKind(2, 25.0, 120 * MS, 2))
    step = replace(STEP, elapsed_ns=90 * MS, kinds=kinds, steps=8)
    assert conclusion(explained(finding(9), step=step))[:3] == [
        "A step takes 90.00 ms (elapsed time per step of 8 steps on 2 ranks; median 100.0 ms).",
        "The steps are of 2 kinds (medians): 75 % of them take 80.00 ms, 25 % of them take 120.0 ms.",
        "Without host work in data on all ranks it would take about 81.00 ms, 10.0 % less.",
    ]
    noted = replace(step, source="hook", explained_steps=0, replay_error_pct=None, kinds=(), counted_steps=7)
    assert (
        "elapsed time per step of 7 of 8 steps that the program noted on 2 ranks; median of all 8: about 100"
        in conclusion(explained(step=noted))[0]
    )
    alike = replace(step, kinds=(kinds[0], replace(kinds[1], wall_p50_ns=81 * MS)))
    assert conclusion(explained(finding(9), step=alike))[1] == (
        "The steps are of 2 kinds, which take equally long (--analysis step_kinds)."
    )


def test_a_cause_of_single_steps_is_not_added_to_what_others_save() -> None:
    spikes = explained(finding(9, cause=Cause.STEP_SPIKES))
    assert conclusion(spikes) == [
        "A step takes 100.0 ms (median of 6 steps on 2 ranks).",
        "A replay of 6 steps without any change is 0.4 % off the measured time.",
    ]
    assert any(line.startswith("1. Spikes: ") for line in text(spikes))


@pytest.mark.parametrize("width", [40, 50, 100])
def test_only_commands_are_wider_than_the_terminal(width: int) -> None:
    long = replace(finding(13), remedy="Load the data in other processes. " * 5, where="iteration/" * 12)
    lines = text(explained(long, finding(None, cause=Cause.CAPTURE_INCOMPLETE)), width)
    wide = [line for line in lines if len(line) > width]
    assert all("hpcprof report" in line for line in wide)
    assert lines.count(f"{'':15}{COMMAND('idle_causes')}") == 2


def test_where_nothing_costs_enough_nothing_is_claimed() -> None:
    small = explained(finding(2))
    nothing = "Nothing was found that would shorten a step by 3 % or more."
    assert (conclusion(small)[1], small.shown()) == (nothing, ())
    assert in_short(small) == [nothing]
    # Compute may contain what was not recorded.
    busy = replace(STEP, compute_pct=99.0)
    assert "compute faster" in conclusion(explained(step=busy))[1]
    lost = explained(finding(None, cause=Cause.CAPTURE_INCOMPLETE), step=busy)
    in_part = "In what was recorded, nothing would shorten a step by 3 % or more."
    assert conclusion(lost)[1] == in_part


def test_where_nothing_is_found_the_kernel_that_takes_most_is_named_with_what_measures_it() -> None:
    kernel = MainKernel("histogram_kernel", 86.2, "backward")
    said = conclusion(explained(step=replace(STEP, kernel=kernel)))[1]
    assert "histogram_kernel takes 86 % of it, mostly in backward: submit --profiler ncu " in said
    assert "kernel=histogram_kernel --profiler-option launch-count=3" in said
    on_amd = conclusion(explained(step=replace(STEP, kernel=replace(kernel, measurable=False))))[1]
    assert on_amd.endswith("histogram_kernel takes 86 % of it, mostly in backward.")
    small = replace(kernel, measurable=False, blocks=1, sm_count=108)
    few = conclusion(explained(step=replace(STEP, kernel=small)))[1]
    assert few.endswith(" in backward, in launches of at most 1 block for 108 multiprocessors.")
    with_finding = explained(finding(13), step=replace(STEP, kernel=kernel))
    assert not any("histogram_kernel" in one for one in conclusion(with_finding))


@pytest.mark.parametrize("what", [WAITING, IDLE])
def test_waiting_that_nothing_explains_is_a_part_of_the_conclusion_and_said_once(what: str) -> None:
    waiting = NotJudged(what, "on average a rank waits 5 ms for others")
    found = replace(explained(), not_judged=(waiting,))
    assert conclusion(found)[1].endswith(" or more. But on average a rank waits 5 ms for others.")
    assert not unjudged_rows(found)
    found = replace(explained(finding(13)), not_judged=(waiting,))
    assert unjudged_rows(found) == [(what, "on average a rank waits 5 ms for others")]


@pytest.mark.parametrize(
    ("cause", "where", "said"),
    [
        (Cause.LATE_RANK_GPU, "forward", "extra GPU time in forward on rank 1"),
        (Cause.STEP_DRIFT, "whole capture", "drift of the step time on rank 1"),
        (
            Cause.CAPTURE_INCOMPLETE,
            "2 of 4 ranks have no profile",
            "incomplete profile: 2 of 4 ranks have no profile",
        ),
    ],
)
def test_a_cause_is_named_in_words_that_people_use(cause: Cause, where: str, said: str) -> None:
    one = replace(finding(13, cause=cause), where=where, ranks=(1,))
    assert named(one, explained(one)) == said


def test_an_alternative_is_shown_with_its_price() -> None:
    other = replace(finding(12, cause=Cause.HOST_SYNC), where="log")
    found = explained(replace(finding(13), alternatives=(other,)))
    price = "12.00 ms of each step, 12.0 % (between 12.00 ms and 12.00 ms)"
    said = f"host synchronization in log on all ranks: {price}"
    assert ("or", said) in described(found.shown()[0], found)
    assert in_short(found)[1] == f"or: {said}"


def test_a_rank_that_is_late_only_together_with_another_one_is_named_with_it() -> None:
    other = replace(finding(1, cause=Cause.LATE_RANK_GPU), where="forward", ranks=(2,))
    one = replace(finding(13, cause=Cause.LATE_RANK_HOST), ranks=(1,), together=(other,))
    found = explained(one)
    both = "extra host time in data on rank 1 together with extra GPU time in forward on rank 2"
    assert named(one, found) == both
    assert any(f"Without {both} it would take about 87" in said for said in conclusion(found))
    sentence = "Only without extra GPU time in forward on rank 2 as well; alone it saves little."
    assert ("together", sentence) in described(found.shown()[0], found)


def test_the_steps_of_a_cause_are_named() -> None:
    one = replace(finding(13), steps=(2, 5, 6, 7))
    assert named(one, explained(one)) == "host work in data on all ranks, in steps 2, 5 to 7 only"
    # The others may have it as well.
    partly = explained(one, step=replace(STEP, steps=600, explained_steps=50))
    assert named(one, partly) == "host work in data on all ranks, in steps 2, 5 to 7 of the 50 replayed"


def test_a_cause_that_could_not_be_judged_is_named_in_words() -> None:
    found = replace(explained(finding(13)), not_judged=(NotJudged("host_sync", "it may be the profiler"),))
    assert unjudged_rows(found) == [("host synchronization", "it may be the profiler")]


def test_a_replay_of_some_of_the_steps_says_of_how_many() -> None:
    some = explained(step=replace(STEP, steps=423, explained_steps=105))
    assert conclusion(some)[-1].startswith("A replay of 105 of 423 steps without any change is 0.4 % off")


def test_where_no_step_was_replayed_the_run_is_not_called_healthy() -> None:
    unknown = explained(step=replace(STEP, explained_steps=0, replay_error_pct=None))
    assert conclusion(unknown)[1] == "No cause could be judged: one rank was profiled."
    assert in_short(unknown) == ["No cause could be judged: one rank was profiled."]


def test_what_costs_memory_only_is_in_the_conclusion_of_a_run_that_was_not_profiled() -> None:
    grown = replace(finding(None, cause=Cause.HOST_MEMORY), where="", ranks=(1,))
    unprofiled = replace(explained(grown), not_judged=(NotJudged(CAUSES, "no profiler"),))
    unprofiled = replace(unprofiled, step=replace(STEP, explained_steps=0))
    memory = "Found, which costs memory and not time: growing host memory on rank 1."
    assert conclusion(unprofiled)[1] == memory
    assert unjudged_rows(unprofiled) == [("causes", "no profiler")]


def test_a_finding_without_an_estimate_claims_no_saving() -> None:
    unknown = explained(finding(None, cause=Cause.CAPTURE_INCOMPLETE))
    assert not any("Without" in sentence for sentence in conclusion(unknown))
    assert ("saving", "cost unknown") in described(unknown.shown()[0], unknown)
    unpriced = replace(STEP, wall_p50_ns=None, replay_error_pct=None)
    assert conclusion(replace(unknown, step=unpriced)) == ["Savings are unknown."]
    no_steps = replace(unknown, step=replace(unpriced, steps=0))
    assert conclusion(no_steps) == ["No step was found, so savings are unknown."]
    reason = NotJudged(CAUSES, "the run was not profiled")
    unprofiled = replace(no_steps, not_judged=(reason,))
    assert conclusion(unprofiled) == ["No step was found, so savings are unknown: the run was not profiled."]
    assert not unjudged_rows(unprofiled)


def test_ranks_are_named_where_they_are_not_all() -> None:
    late = replace(finding(13), ranks=(1,))
    assert in_short(explained(late))[0].startswith("1. host work in data on rank 1: 13.00 ms of each step")
    alone = explained(finding(13), step=replace(STEP, ranks=1))
    assert "rank" not in in_short(alone)[0]


def test_a_capture_without_steps_has_savings_of_the_capture() -> None:
    whole = explained(finding(13, 11), step=replace(STEP, source="capture"))
    assert "13.00 ms of the judged work, 13.0 %" in in_short(whole)[0]
    assert any("saving      13.00 ms of the judged work" in line for line in text(whole))
    kernel = replace(whole.step, kernel=MainKernel("add", 100.0, "", measurable=False))
    rest = NotJudged(REST, "the judged work covers 2 of 10 ms")
    nothing, covered = in_short(replace(explained(step=kernel), not_judged=(rest,)))
    assert nothing.endswith("shorten the judged work by 3 % or more. add takes 100 % of it.")
    assert covered == "The judged work covers 2 of 10 ms."


def test_waiting_that_no_finding_prices_is_in_the_report_beside_others() -> None:
    """Rebuilt from a public trace: communication was 62 % of a step, and the report told missing ranks."""
    waiting = NotJudged(WAITING, "communication that no compute hides takes 12 ms of a step (62 %)")
    incomplete = replace(explained(finding(None, 0)), not_judged=(waiting,))
    assert in_short(incomplete)[-1] == "Communication that no compute hides takes 12 ms of a step (62 %)."
    assert len(in_short(replace(incomplete, findings=(finding(13),)))) == 2


def test_long_names_are_shortened_in_places_and_remedies() -> None:
    name = f"begin {'x' * 500} end"
    lines = in_short(explained(replace(finding(13), where=name)))
    assert all(len(line) < 250 for line in lines) and "begin x" in lines[0] and "x end" in lines[0]
    assert name in in_short(explained(replace(finding(None), where=name)))[0]
    remedy = cause_of(Cause.HOST_WORK).advise(name, (0,))
    assert len(remedy) < 250 and "begin x" in remedy
    assert "of the program" in cause_of(Cause.HOST_WORK).advise("whole capture", (0,))
    # Programs call ranges so.
    assert "of capture" in cause_of(Cause.HOST_WORK).advise("capture", (0,))


@pytest.mark.parametrize("cause", [Cause.STEP_SPIKES, Cause.STEP_DRIFT, Cause.HOST_WORK])
def test_programs_of_cuda_alone_are_not_advised_about_python(cause: Cause) -> None:
    advice = cause_of(cause).advise("step", (0,), stack="cuda")
    assert not re.search(r"gc\.|tensor|allocator|worker", advice)


def test_evidence_is_grouped_by_the_analysis_that_has_it() -> None:
    several = replace(
        finding(13),
        evidence=(
            Evidence("idle_causes", 0, "idle_ns_per_step", 2 * MS),
            Evidence("step_account", None, "idle_ns", 3 * MS),
            Evidence("idle_causes", 1, "cause", "host"),
            Evidence("idle_causes", 0, "idle_ns_per_step", 1 * MS),
        ),
        evidence_text=("rank 0: 2 ms", "3 ms", "rank 1: the host", "rank 0: 1 ms"),
    )
    assert evidence(explained(several).shown()[0]) == [
        ("idle_causes", ["rank 0: 2 ms", "rank 1: the host"]),
        ("step_account", ["3 ms"]),
    ]


def test_names_of_a_profile_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in "".join(text(explained(replace(finding(13), where="\x1b[2J"))))


def test_a_prediction_says_its_interval_the_difference_and_the_error_of_the_replay() -> None:
    faster = Prediction(87 * MS, 85 * MS, 89 * MS, 100 * MS, -0.6, 6, 80 * MS, 92 * MS)
    assert printed(prediction_text(faster, True, 100), 100) == [
        "The median step would take 87.00 ms (between 85.00 ms and 89.00 ms).",
        "That is 13.00 ms or 13.0 % less than the measured 100.0 ms.",
        "Elapsed time per step: 80.00 ms; measured: 92.00 ms.",
        "A replay of 6 steps without any change is 0.6 % off the measured time.",
    ]
    whole = replace(faster, is_capture=True)
    assert printed(prediction_text(whole, True, 100), 100)[::2] == [
        "The judged work would take 87.00 ms (between 85.00 ms and 89.00 ms).",
        "A replay of 6 steps without any change is 0.6 % off the measured time.",
    ]
    slower = replace(faster, wall_p50_ns=110 * MS)
    assert "10.00 ms or 10.0 % more" in printed(prediction_text(slower, True, 100), 100)[1]


def test_a_replay_without_changes_is_not_called_a_prediction() -> None:
    same = Prediction(100 * MS, 99 * MS, 101 * MS, 100 * MS, 0.2, 6, 92 * MS, 92 * MS)
    said = printed(prediction_text(same, False, 50), 50)
    assert "would" not in " ".join(said)
    assert " ".join(said).endswith("A replay of 6 steps without any change is 0.2 % off the measured time.")
    assert all(len(line) <= 50 for line in said)
