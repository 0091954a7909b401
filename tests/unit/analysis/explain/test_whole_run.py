"""Findings that need no replay."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.explain import whole_run
from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explain import explain_run
from hpcprof.analysis.explain.explanation import NotJudged
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.explain.whole_run import (
    copies_without_steps,
    double_precision,
    incomplete_capture,
    moving_pages,
    rare_steps,
    rest_of_capture,
    unexplained_idle,
    unjudged_threads,
    with_page_waits,
    without_judged_copies,
)
from hpcprof.analysis.steps.run_step import PARTS
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.possible_times import with_possible_times
from hpcprof.profiles.timeline import MpiCalls
from tests.unit.analysis.explain.programs import MS, Host, Launch, Wait, inputs_of, simulate
from tests.unit.analysis.timelines import COMP, timeline
from tests.unit.explanations import finding


def inputs(copying_ns: int, losses: tuple[Loss, ...] = ()) -> ExplainInputs:
    """Return a capture of 1 ms without steps, of which copies that nothing hides take a part."""
    copies = {"rank": 0, "operation": "[CUDA memcpy Host-to-Device]", "count": 8, "total_ns": copying_ns}
    tables: Any = {
        "step_account": pd.DataFrame(),
        "breakdown": pd.DataFrame([{"rank": 0, "exposed_mem_ns": copying_ns, "span_ns": 1_000_000}]),
        "memops": pd.DataFrame([copies | {"total_bytes": 51_200_000_000}]),
        **dict.fromkeys(("kernels", "api", "operators", "ranges", "step_times"), pd.DataFrame()),
    }
    found = SimpleNamespace(tables=tables, losses={0: losses}, coverage="", ranks=(0,))
    return cast(ExplainInputs, found)


def test_copies_that_are_most_of_a_capture_without_steps_are_a_finding() -> None:
    (finding,) = copies_without_steps(inputs(960_000))
    assert "96 % (CUDA memcpy Host-to-Device: 51.20 GB in 960.0 µs)" in finding.where
    assert "target enter data" in finding.remedy
    assert not [*copies_without_steps(inputs(50_000))]
    on_gpu = inputs(960_000)
    for name in ("[CUDA memset]", "Memset (Device)", "Memcpy DtoD (Device -> Device)"):
        on_gpu.tables["memops"]["operation"] = name
        assert not [*copies_without_steps(on_gpu)]


def test_ranks_without_a_profile_are_named() -> None:
    def coverage(ranks: tuple[int, ...], world_size: int) -> str:
        return replace(inputs_of({0: timeline()}), ranks=ranks, world_size=world_size).coverage

    assert coverage((0, 1), 2) == ""
    assert coverage((0, 1, 3), 4) == "3 of 4 ranks have a profile (rank 2 lacks one)"
    assert coverage((0,), 4096) == "1 of 4,096 ranks has a profile (ranks 1-4095 lack one)"


NO_KINDS = pd.DataFrame()


def tables_of(account: pd.DataFrame, kinds: pd.DataFrame, causes: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {"step_account": account, "step_kinds": kinds, "idle_causes": causes}


NO_CAUSES = pd.DataFrame({"cause": [], "idle_ns_per_step": [], "gaps": []})


def test_idle_time_that_no_finding_explains_is_said() -> None:
    account = pd.DataFrame({"idle_ns": [600_000, 640_000, 9_000_000]})
    (said,) = unexplained_idle(tables_of(account, NO_KINDS, NO_CAUSES), [], 1e6, 0, [], "")
    assert said.reason.startswith("the GPU is idle for 640.0 µs of a step (64 %), and no replay")
    assert not [*unexplained_idle(tables_of(account, NO_KINDS, NO_CAUSES), [finding(45)], 1e6, 0, [], "")]
    assert not [*unexplained_idle(tables_of(account.iloc[:0], NO_KINDS, NO_CAUSES), [], 1e6, 0, [], "")]
    # Without the profiler, a step is idle for as much less as it is shorter.
    assert not [*unexplained_idle(tables_of(account, NO_KINDS, NO_CAUSES), [], 4e5, 600_000, [], "")]
    (alone,) = unexplained_idle(tables_of(account, NO_KINDS, NO_CAUSES), [], 4e5, 300_000, [], "")
    assert alone.reason.startswith("the GPU is idle for 340.0 µs of a step (85 %)")


def test_idle_time_is_never_more_than_the_step() -> None:
    """Rebuilt from a public profile of JAX with steps of 35, 26, 4 and 45 ms, the last without an end."""
    account = pd.DataFrame({"idle_ns": [30e6, 24e6, 3e6, 44e6]})
    kinds = pd.DataFrame({"elapsed_ns": [22e6], **dict.fromkeys(PARTS, 0.0), "idle_ns": [19e6]})
    (said,) = unexplained_idle(tables_of(account, kinds, NO_CAUSES), [], 22e6, 0, [], "")
    assert said.reason.startswith("the GPU is idle for 19.00 ms of a step (86 %)")


def test_idle_time_names_what_it_is_mostly_for_and_what_helps() -> None:
    """Rebuilt from a public OpenACC program that launches, copies and allocates for each kernel of 2 µs."""
    names, times = ["launch", "allocation", "launch"], [20_000.0, 30_000.0, 20_000.0]
    causes = pd.DataFrame({"cause": names, "idle_ns_per_step": times, "gaps": [1, 1, 1]})
    account = pd.DataFrame({"step": [1], "idle_ns": [640_000]})
    advice = "most of it for slow launches. Launch the step with less work of the host: a CUDA graph"
    (said,) = unexplained_idle(tables_of(account, NO_KINDS, causes), [], 1e6, 0, [], "cuda")
    assert advice in said.reason
    # Eight ranks wait as long for each launch as one.
    of_all = [pd.concat([table] * 8) for table in (account, causes)]
    (said,) = unexplained_idle(tables_of(of_all[0], NO_KINDS, of_all[1]), [], 1e6, 0, [], "cuda")
    assert advice in said.reason
    # A kernel of a public OpenMP program starts 4.4 ms after its launch, whatever the host does.
    late = causes.assign(idle_ns_per_step=1e6 * causes["idle_ns_per_step"])
    (said,) = unexplained_idle(tables_of(account, NO_KINDS, late), [], 1e6, 0, [], "cuda")
    assert said.reason.endswith("and no replay shortens that (--analysis idle_causes)")


def test_idle_time_that_too_few_steps_explain_names_the_cause_that_they_show() -> None:
    account = pd.DataFrame({"idle_ns": [600_000, 640_000, 9_000_000]})
    few = NotJudged(
        "host_work", "it seems to cost 600.0 µs of a step in data, but 3 steps are too few to tell"
    )
    # Slow kernels leave no GPU idle.
    slow = NotJudged("slow_math", "it seems to cost 90.0 µs of a step, but 3 steps are too few to tell")
    (said,) = unexplained_idle(tables_of(account, NO_KINDS, NO_CAUSES), [], 1e6, 0, [slow, few], "")
    assert said.reason.endswith(f"of a step (64 %), perhaps for host work: {few.reason}")


def test_much_time_of_pages_of_unified_memory_is_said() -> None:
    """Rebuilt from a public export whose only kernel waited for its pages for half of its time."""
    names = ["[CUDA memcpy Unified Host-to-Device]", "[CUDA memcpy Host-to-Device]"]
    copies = pd.DataFrame({"operation": names, "total_ns": [4e6, 9e6], "total_bytes": [8e6, 9e6]})
    beside = pd.DataFrame({"span_ns": [16e6], "exposed_mem_ns": [1e6]})
    (said,) = moving_pages(beside, copies)
    assert said.reason.startswith(
        "the driver moves pages of unified memory for 4.000 ms of the capture (25 %"
    )
    assert "kernels that need them wait" in said.reason
    assert not [*moving_pages(beside.assign(span_ns=160e6), copies)]
    assert not [*moving_pages(beside, copies.iloc[1:])]


def test_no_kernel_waits_for_pages_that_move_while_none_runs() -> None:
    """Rebuilt from a public export: prefetched before the only kernel, and read by the host after it."""
    names = ["[CUDA memcpy Unified Host-to-Device]", "[CUDA memcpy Unified Device-to-Host]"]
    copies = pd.DataFrame({"operation": names, "total_ns": [3e6, 2e6], "total_bytes": [8e6, 9e6]})
    (said,) = moving_pages(pd.DataFrame({"span_ns": [16e6], "exposed_mem_ns": [5e6]}), copies)
    assert "while no kernel runs, for 2.000 ms of it to the host" in said.reason
    assert "kernels that need them wait" not in said.reason
    (said,) = moving_pages(pd.DataFrame({"span_ns": [16e6], "exposed_mem_ns": [3e6]}), copies.iloc[:1])
    assert said.reason.endswith("while no kernel runs")


def test_several_steps_are_seen_in_the_first_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_run, "step_intervals", lambda steps: steps)
    timelines: Any = {0: SimpleNamespace(on_gpu=np.array([True, True]))}
    two_ranks: Any = SimpleNamespace(ranks=(0, 1))
    # That of rank 1 is not read.
    assert whole_run.with_first_work([], two_ranks, timelines, 10) == []


def test_most_time_of_kernels_in_double_precision_is_said() -> None:
    names = [
        "regular_fft<(unsigned int)1024, double>",
        "cupy_multiply__complex128",
        "copy<float>",
        "nccl<double>",
    ]
    kernels = pd.DataFrame(
        {"name": names, "class": [*["comp"] * 3, "comm"], "total_ns": [4e6, 2e6, 4e6, 9e9]}
    )
    (said,) = double_precision(kernels)
    assert said.reason.startswith("60 % of the time of kernels is in those of double precision")
    assert not [*double_precision(kernels.iloc[1:])]
    for name in ("apply<FusedAdamMathFunctor<float, 4>, float *, double>", "buf64"):
        assert not [*double_precision(kernels.assign(name=name))]
    assert not [*double_precision(pd.DataFrame())]


def test_a_capture_that_is_mostly_outside_the_steps_says_so() -> None:
    breakdown = pd.DataFrame({"span_ns": [9e8, 8e8]})
    (said,) = rest_of_capture(breakdown, 4.5e8, "range")
    assert said.reason.startswith("the steps cover 450.0 ms of the 900.0 ms")
    (little,) = rest_of_capture(breakdown, 7e5, "kernels")
    assert "(0.078 %), and may be parts of one, such as layers: what is outside" in little.reason
    (whole,) = rest_of_capture(breakdown, 7e5, "capture")
    assert whole.reason.startswith("the judged work covers") and "layers" not in whole.reason
    for rows, covered in ((breakdown, 8e8), (breakdown.iloc[:0], 0.0)):
        assert not [*rest_of_capture(rows, covered, "range")]


def test_each_kind_of_incompleteness_has_a_remedy_of_its_own() -> None:
    def remedy(kind: LossKind, subject: Subject = Subject.KERNEL, detail: str = "") -> str:
        (finding,) = incomplete_capture(inputs(0, (Loss(kind, subject, 3, 40, detail),)))
        return finding.remedy

    assert "--hip-trace" in remedy(LossKind.UNTRACED)
    assert "cuda-graph-trace=node" in remedy(LossKind.GRAPH, Subject.GRAPH)
    assert "larger buffers" in remedy(LossKind.MISSING, Subject.LAUNCH)
    assert "stamps are not" in remedy(LossKind.ROW, detail="end")
    assert "cut off or damaged" in remedy(LossKind.ROW, detail="number of values")
    # A counter that is no number, or an unknown kind of wait, is there as it was recorded.
    assert "damaged" not in remedy(LossKind.ROW, detail="value") + remedy(LossKind.ROW, detail="syncType")
    assert "cuda-graph-trace=node" in remedy(LossKind.MISSING, Subject.GRAPH)
    assert "buffers" not in remedy(LossKind.DIAGNOSTIC, Subject.CAPTURE, "The clock of the GPU changed.")
    unsupported = remedy(LossKind.DIAGNOSTIC, Subject.CAPTURE, "Device 0: unable to collect GPU activity.")
    assert "supports the device" in unsupported and "buffers" not in unsupported
    never = remedy(
        LossKind.DIAGNOSTIC, Subject.CAPTURE, "CUDA profiling might have not been started correctly."
    )
    assert never == unsupported
    unflushed = remedy(
        LossKind.DIAGNOSTIC, Subject.CAPTURE, "Not all OS runtime libraries events might have been collected."
    )
    assert "end by itself" in unflushed and "buffers" not in unflushed


def test_what_failed_comes_first_and_explains_the_rest() -> None:
    lost, failed = (Loss(kind, Subject.LAUNCH, 1, 1, "700") for kind in (LossKind.MISSING, LossKind.FAILED))
    (finding,) = incomplete_capture(inputs(0, (lost, failed)))
    assert finding.where.startswith("1 of 1 launch call failed with error 700; 1 of 1 launch call has no")
    assert "compute-sanitizer" in finding.remedy and "supports the device" not in finding.remedy
    # It does not explain what else is lost.
    (finding,) = incomplete_capture(inputs(0, (lost, failed, Loss(LossKind.GRAPH, Subject.GRAPH, 1, 1))))
    assert "compute-sanitizer" in finding.remedy and "cuda-graph-trace=node" in finding.remedy


def test_two_losses_with_one_remedy_say_it_once() -> None:
    unsupported = Loss(LossKind.DIAGNOSTIC, Subject.CAPTURE, detail="Unable to trace the GPU.")
    (finding,) = incomplete_capture(inputs(0, (unsupported, Loss(LossKind.MISSING, Subject.LAUNCH, 1, 1))))
    assert finding.remedy.count("Check that this profiler supports") == 1
    assert "--kernel-trace" in finding.remedy and "--trace=cuda" not in finding.remedy


def moves_of(copies: pd.DataFrame) -> list[tuple[str, float, float]]:
    """Return the rows of ``memops`` as moves that all begin in one of two steps, for a step."""
    rows = copies[["operation", "count", "total_ns"]].itertuples(index=False, name=None)
    return [(name, count / 2, time / 2) for name, count, time in rows]


def test_host_work_costs_at_most_the_idle_time_where_the_host_waits_for_pages() -> None:
    """Of a public export (CLUE on a Tesla T4): the host reads results, and so waits without a call."""
    account = pd.DataFrame({"idle_ns": [8e6, 10e6]})
    to_host = pd.DataFrame(
        {"operation": ["[CUDA memcpy Unified Device-to-Host]"], "count": [800], "total_ns": [5e5]}
    )
    (bounded,) = with_page_waits([finding(13)], account, to_host, moves_of(to_host), 100_000_000)
    assert (bounded.saving_ns, bounded.saving_low_ns, bounded.share_pct) == (9_000_000, 8_100_000, 9.0)
    assert bounded.confidence == "low"
    to_gpu = to_host.assign(operation="[CUDA memcpy Unified Host-to-Device]")
    for item, copies in ((finding(13), to_gpu), (finding(5), to_host), (finding(13), to_host.iloc[:0])):
        assert with_page_waits([item], account, copies, moves_of(copies), 100_000_000) == [item]


def test_no_timeline_is_read_for_pages_that_do_not_move_to_the_host() -> None:
    """A run of many ranks reads only those that it replays."""
    to_gpu = pd.DataFrame({"operation": ["[CUDA memcpy Unified Host-to-Device]"]})
    for copies in (to_gpu, to_gpu.iloc[:0]):
        assert whole_run.moves_in_steps(copies, {}, [0, 1]) == []


def test_faults_of_pages_for_half_of_the_idle_time_are_the_cause_of_host_work() -> None:
    account = pd.DataFrame({"idle_ns": [8e6, 10e6]})
    names = [f"[CUDA memcpy Unified {way}]" for way in ("Device-to-Host", "Host-to-Device")]
    moves = pd.DataFrame(
        {
            "operation": names,
            "count": [900, 500],
            "total_ns": [1e6, 4e6],
            "total_bytes": [9e6, 9e6],
            "rank": 0,
        }
    )
    (moved,) = with_page_waits([finding(13)], account, moves, moves_of(moves), 100_000_000)
    assert moved.cause == Cause.PAGE_MIGRATION
    # From the moves alone to all idle time with the moves back.
    assert (moved.saving_ns, moved.saving_low_ns, moved.saving_high_ns) == (9_000_000, 500_000, 11_000_000)
    (said,) = moving_pages(pd.DataFrame({"span_ns": [20e6], "exposed_mem_ns": [1e6]}), moves, [moved])
    assert said.reason.startswith("the profiler slows each of the 1,400 moves of pages")
    fewer = moves_of(moves.assign(count=[700, 500]))
    (host,) = with_page_waits([finding(5)], account, moves, fewer, 100_000_000)
    assert host.cause == Cause.HOST_WORK


def test_copies_that_the_replay_prices_are_one_finding() -> None:
    copies, host = finding(None, cause=Cause.BLOCKING_COPY), finding(9)
    priced = finding(9, cause=Cause.BLOCKING_COPY)
    for replayed in ([priced], [replace(host, alternatives=(priced,))]):
        assert without_judged_copies([copies, host], replayed) == [host]
    assert without_judged_copies([copies, host], [host]) == [copies, host]


@pytest.mark.parametrize(("lengths", "percent"), [((30, 80, 80, 80), 12), ((80, 30, 30, 30), 38)])
def test_threads_that_wait_at_a_barrier_have_less_work(lengths: tuple[int, ...], percent: int) -> None:
    waits = [
        (100 * at + length, 100 * at + 80, "!$omp implicit barrier", thread)
        for at in range(10)
        for thread, length in enumerate(lengths)
    ]
    loops = [(100 * at, 100 * at + 80, "!$omp for", thread) for at in range(10) for thread in range(4)]
    whole = [(0, 1000, "main", 0)]
    (unjudged,) = unjudged_threads({0: timeline(ranges=[*whole, *loops, *waits])})
    assert "4 threads of rank 0 wait between 0 ns and 500.0 ns" in unjudged.reason
    assert f"up to {percent} %" in unjudged.reason


def test_threads_that_share_a_range_unevenly_are_not_judged_in_silence() -> None:
    regions = [
        (100 * at, 100 * at + length, "OpenMP Parallel", thread)
        for at in range(10)
        for thread, length in enumerate((30, 80))
    ]
    others = [(0, 900, "main", 0), (10, 400, "loader", 5), (20, 30, "loader", 6), (40, 50, "loader", 6)]
    (unjudged,) = unjudged_threads({0: timeline(), 3: timeline(ranges=[*regions, *others])})
    assert unjudged.what == "threads in OpenMP Parallel"
    assert unjudged.reason.startswith("2 threads of rank 3 take between 300.0 ns and 800.0 ns in it. Shared ")
    assert "up to 26 % of the time less" in unjudged.reason  # 250 of 980 ns
    assert not [*unjudged_threads({0: timeline(ranges=others)})]


@pytest.mark.parametrize(("length", "sentences"), [(90, 1), (2, 0)])
def test_mpi_on_threads_other_than_the_main_one_is_told(length: int, sentences: int) -> None:
    calls = [(100 * at, 100 * at + 30, 1, 1, 0) for at in range(10)]
    calls += [(100 * at, 100 * at + length, 1, 2, 0) for at in range(9)]
    threaded = replace(timeline(), mpi_calls=MpiCalls(*np.array(calls).T))
    single = replace(timeline(), mpi_calls=MpiCalls(*np.array(calls[:10]).T))
    assert not [*unjudged_threads({0: single})]
    unjudged = [*unjudged_threads({0: single, 1: threaded})]
    assert len(unjudged) == sentences
    for item in unjudged:
        assert item.reason.startswith("2 threads of rank 1 call MPI, and 73 % of their time there is not on ")


def test_rare_long_steps_are_compared_with_steps_of_their_kind() -> None:
    """A step of 0.75 ms is long among those of 0.5 ms, while every fifth step takes 8 ms."""
    spikes = finding(2, 1, Cause.STEP_SPIKES)
    assert rare_steps(spikes).reason.startswith("much longer than similar steps, which costs 2.000 ms of")


@pytest.mark.parametrize(("span", "named"), [(8 * MS, True), (400 * MS, False)])
def test_a_kernel_is_measured_only_where_it_is_a_part_of_the_capture(span: int, named: bool) -> None:
    """Rebuilt from a public export: one kernel took 4 ms of 5.5 s, in which pages moved."""
    timelines = simulate([[Launch(4 * MS)]], 1)
    timelines[0] = replace(timelines[0], ranges=timelines[0].ranges.take(np.zeros(0, np.int64)))
    run = inputs_of(timelines)
    cast(Any, run.tables)["device_breakdown"] = run.tables["device_breakdown"].assign(span_ns=span)
    explanation, _ = explain_run(run)
    assert (explanation.step.kernel is not None) == named


def test_a_saving_counts_the_steps_that_lost_their_kernels_without_it() -> None:
    """Rebuilt from a trace that lost the kernels of five of twelve steps: their causes are unknown."""
    simulated = simulate([[Host(5 * MS), Launch(5 * MS), Wait()]], 12)
    lost = np.isin(np.arange(12), (3, 4, 6, 8, 9))
    simulated[0] = replace(simulated[0], kernels=simulated[0].kernels.take(~lost))
    lost_kernels = Loss(LossKind.MISSING, Subject.CALL, 5, 12)
    inputs = replace(inputs_of(simulated), losses={0: (lost_kernels,)})
    explanation, _ = explain_run(inputs)
    (host,) = (item for item in explanation.findings if item.cause == Cause.HOST_WORK)
    # The last of the other seven steps has no end.
    assert host.saving_ns == pytest.approx(5 * MS * 6 / 11, rel=0.01)
    assert {item.value for item in host.evidence if item.analysis == "step_account"} == {5_014_000}


@pytest.mark.parametrize("without_end", [(), (5, 14, 30)])
def test_kernels_without_an_end_begin_steps(without_end: tuple[int, ...]) -> None:
    """Rebuilt from a trace of rocprofv3 without API calls, in which three kernels had no end."""
    ends = [0 if row in without_end else row * MS + MS // 2 for row in range(1, 41)]
    profile = with_possible_times(timeline([(row * MS, end, COMP, None) for row, end in enumerate(ends, 1)]))
    inputs = replace(inputs_of({0: profile}), losses={0: profile.origin.losses})
    explanation, _ = explain_run(inputs)
    assert Cause.STEP_SPIKES not in {item.cause for item in explanation.findings}
    assert (explanation.step.elapsed_ns, explanation.step.steps) == (MS, 39)
    assert all(item.what != Cause.STEP_SPIKES for item in explanation.not_judged)
