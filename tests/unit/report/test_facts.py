"""The head of a report: the workload's own figures and the stragglers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from hpcprof.analysis.explain.explanation import HOOK, StepSummary
from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.analysis.stalls.evidence import Stall, StallKind
from hpcprof.cli.list import command as list_runs
from hpcprof.profiles.readers.results import parse_result
from hpcprof.report.contents import Contents
from hpcprof.report.facts import facts, step_range, stragglers
from hpcprof.results.store.tables import GpuRow, ProfileRow
from hpcprof.runs.directory import Run
from hpcprof.workloads.schema import RankResult
from tests.submitted_run import MakeRun, make_run
from tests.unit.explanations import MS, explained, finding

__all__ = ["make_run"]
DATA = Path(__file__).parents[3] / "docs" / "data"


def contents(result: RankResult) -> Contents:
    return Contents(Run("r", Path("r")), None, [], {}, {}, [result], [], lambda *options: options[-1])


def result_of(name: str) -> RankResult:
    return parse_result((DATA / f"{name}.json").read_text())


def test_the_gpus_of_all_ranks_count_and_shared_ones_once() -> None:
    def counted(devices: str, *uuids: str | None) -> str:
        profiles = {
            rank: ProfileRow("r", rank, "f", "", 0, "otf2", None, devices, None, None, 0) for rank in range(2)
        }
        gpus = [
            GpuRow("r", rank, number, "H200", uuid, *[None] * 5)
            for rank in range(2)
            for number, uuid in enumerate(uuids)
        ]
        run = contents(result_of("h200x4-8192-12288-49152"))
        return dict(facts(dataclasses.replace(run, profiles=profiles, gpus=gpus)))["GPUs"]

    assert counted("H200, H200") == counted("H200, H200", None, None) == "4 x H200"
    assert counted("H200", "GPU-a", "GPU-b") == "2 x H200"
    assert counted("H200", "GPU-a") == "1 x H200"
    assert (counted("", None, None), counted("")) == ("no work recorded on H200", "none recorded")


def test_the_findings_begin_with_a_stall_and_without_an_account_with_the_noted_steps() -> None:
    stall = Stall(StallKind.INSIDE, (1,), (0,))
    noted = StepSummary(30 * MS, 9, 2, 0, None, elapsed_ns=31 * MS, source=HOOK)
    explanation = dataclasses.replace(explained(finding(0), step=noted), stall=stall)
    run = dataclasses.replace(contents(result_of("h200x4-4608-9216-9216")), explanation=explanation)
    verdict, step = (text for _, text in facts(run)[1:3])
    assert verdict.startswith("The run stood still. Rank 1 ")
    assert step.startswith("A step takes 31.00 ms (elapsed time per step of 9 steps that the program noted")
    account = {"step_kinds": AnalysisTable({"kind": [0]})}
    first, second = (text for _, text in facts(dataclasses.replace(run, analyses=account))[1:3])
    assert (first, second.startswith("A step takes")) == (verdict, False)


def test_every_point_of_a_sweep_has_the_step_time_of_its_fastest_mode() -> None:
    swept = facts(contents(result_of("h200x4-sweep-8192-32768")))
    times = [text for label, text in swept if label == "step time"]
    assert [text.partition(",")[0] for text in times] == [
        "sequence-length=8192: p50 3.357 ms",
        "sequence-length=16384: p50 6.621 ms",
        "sequence-length=4096: p50 1.677 ms",
    ]
    assert all("copy-engine, the fastest of 4 modes" in text for text in times)


def test_results_are_wrong_where_one_point_of_a_sweep_is() -> None:
    right = result_of("h200x4-8192-12288-49152")
    mode = right.modes["chunked"]
    assert mode.correctness is not None
    check = dataclasses.replace(mode.correctness, passed=False, relative_error=float("nan"))
    modes = {**right.modes, "chunked": dataclasses.replace(mode, correctness=check)}
    wrong = dataclasses.replace(right, modes=modes)
    swept = dataclasses.replace(right, points=[right, wrong])
    for result, verdict in ((right, "correct: "), (wrong, "wrong on rank 0: "), (swept, "wrong on rank 0: ")):
        assert dict(facts(contents(result)))["results"].startswith(verdict)


def test_a_mode_without_overlap_is_named_in_the_words_of_the_workload() -> None:
    said = [text for label, text in facts(contents(result_of("h200x4-4608-9216-9216"))) if label == "overlap"]
    assert len(said) == 1 and said[0].startswith("chunked did not overlap here")
    swept = facts(contents(result_of("h200x4-sweep-8192-32768")))
    (text,) = [text for label, text in swept if label == "overlap"]
    assert text.startswith("sequence-length=4096: chunked did not overlap here")
    assert "overlap" not in dict(facts(contents(result_of("h200x4-8192-12288-49152"))))


def test_stragglers_are_named_with_lateness_cost_and_uncertainty() -> None:
    def row(
        rank: int, verdict: str, cost: float = 0.0, most: int | None = None, cost_ns: int = 149_400
    ) -> dict[str, object]:
        return {
            "rank": rank,
            "steps": 40,
            "lateness_p50_ns": 512_300,
            "uncertainty_ns": 1_900,
            "lateness_high_ns": most,
            "elapsed_ns": 1_000_000,
            "cost_ns": cost_ns,
            "cost_pct": cost,
            "verdict": verdict,
        }

    even = [row(i, "even") for i in range(3)]
    assert stragglers([*even, row(3, "straggler", 14.94)], "") == (
        "the lateness of rank 3 costs 149.4 µs a step, 14.9 % of 1.000 ms (judged over 40 steps, "
        "clocks ± 1.900 µs)"
    )
    many = stragglers([row(i, "straggler", float(i), cost_ns=i) for i in range(9)], "")
    assert many.startswith("the lateness of rank 8 ")
    assert many.endswith("; and 6 more")
    together = stragglers([*even, row(6, "straggler", 14.94), row(7, "straggler", 14.94)], "")
    assert together.startswith("the lateness of ranks 6, 7 costs 149.4 µs a step, ") and ";" not in together
    assert stragglers([*even, row(3, "unknown")], "hpcprof x") == "unknown for 1 of 4 ranks: see hpcprof x"
    assert stragglers([*even, row(3, "late", 3.04)], "") == (
        "none, but the lateness of rank 3 costs 149.4 µs a step, 3.0 % of 1.000 ms (judged over 40 steps, "
        "clocks ± 1.900 µs)"
    )
    assert stragglers([*even, row(3, "unknown", most=42_000)], "") == (
        "none among 4 ranks (n=40 steps), but up to 4.2 % of the step time may be hidden"
    )
    assert stragglers([*even, row(3, "unknown", most=50_000)], "").startswith("unknown for 1 of 4 ranks")
    assert stragglers(even, "") == "none among 3 ranks (n=40 steps)"
    both = stragglers([*even, row(3, "straggler", 14.94), row(4, "unknown")], "hpcprof x")
    assert both.endswith("clocks ± 1.900 µs); unknown for 1 of 5 ranks: see hpcprof x")
    assert stragglers(even[:1], "") == ""


def ranges(*rows: tuple[int, str, str, int, int]) -> list[dict[str, object]]:
    """Return rows of ``step_ranges``."""
    return [dict(zip(("rank", "range", "source", "instances", "chosen"), row, strict=True)) for row in rows]


def test_the_head_says_which_range_is_the_step_and_which_others_could_be() -> None:
    found = ranges(
        (0, "iteration", "iteration", 10, 1),
        (0, "forward", "repeats", 10, 0),
        (0, "backward", "automatic", 10, 0),
        (1, "iteration", "iteration", 12, 1),
    )
    assert step_range(found) == "iteration, 10 to 12 on each of 2 ranks; also possible: backward, forward"
    cut = step_range(found, steps={0: 9, 1: 12})
    assert cut == "iteration, 10 to 12 on each of 2 ranks (9 to 12 steps); also possible: backward, forward"
    assert step_range(found, steps={0: 10, 1: 12}) == step_range(found)
    assert step_range(ranges((0, "[pl]\nbatch", "Lightning", 3, 1))) == (
        "[pl]\\nbatch, known from Lightning, 3 on 1 rank"
    )
    assert step_range(ranges((0, "loop", "automatic", 9, 1))) == "loop, found as it repeats, 9 on 1 rank"
    torch_step = step_range(ranges((0, "ProfilerStep#N", "PyTorch profiler", 9, 1)))
    assert torch_step == "steps of PyTorch's profiler, 9 on 1 rank"
    assert "known from PyTorch's optimizers, 9" in step_range(ranges((0, "step", "optimizer", 9, 1)))
    assert step_range(ranges((0, "loop", "--step-range", 9, 1))).startswith("loop, named by --step-range, 9")


def test_without_steps_the_head_names_the_ranges_that_repeat() -> None:
    rows = ranges(*((0, name, "repeats", 9, 0) for name in "abcdef"))
    assert step_range(rows) == (
        "none found: figures are per capture; possible: a, b, c, d and 2 more; "
        "hpcprof collect --step-range a takes the first"
    )
    assert step_range([]) == ""
    long = step_range(ranges((0, f"begin{'x' * 500}end", "repeats", 9, 0)))
    assert len(long) < 250 and "beginx" in long and long.endswith("xend")


def test_the_findings_come_right_after_the_run_and_name_the_command_for_the_rest() -> None:
    empty = Contents(
        Run("r", Path("r")),
        None,
        [],
        {},
        {},
        [],
        [],
        lambda *options: options[-1],
        explaining="hpcprof explain r",
    )
    assert facts(empty)[:2] == [("run", "r"), ("findings", "hpcprof explain r computes them")]
    failed = dataclasses.replace(empty, unexplained="the profile of rank 0 is gone.")
    assert facts(failed)[1] == ("findings", "could not be computed: the profile of rank 0 is gone.")
    head = facts(dataclasses.replace(empty, explanation=explained(finding(13, 11), finding(2))))
    assert head[1:4] == [
        (
            "findings",
            "1. host work in data on all ranks: 13.00 ms of each step, 13.0 % "
            "(between 11.00 ms and 13.00 ms)",
        ),
        ("", "remedy: Prefetch."),
        ("", "details: hpcprof explain r"),
    ]


def test_a_command_of_a_thousand_files_is_shortened_in_tables_and_reports(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("7", "local", started="now", finished="0")
    job = msgspec.structs.replace(run.submission.job, arguments=["sum", *map(str, range(5000))])
    manifest = msgspec.structs.replace(run.submission, job=job)
    (run.path / "run.json").write_bytes(msgspec.json.encode(manifest))
    run = dataclasses.replace(run, manifest=manifest)
    report = dict(facts(Contents(run, None, [], {}, {}, [], [], lambda *options: options[-1])))["job"]
    assert (report[:8], report[-12:], len(report)) == ("sum 0 1 ", "4999 on here", 1007)
    monkeypatch.setenv("HPCPROF_RUNS", str(run.path.parent))
    table, whole = (CliRunner().invoke(list_runs, words).output for words in ([], ["--format", "json"]))
    assert "sum 0 1 " in table and len(table.splitlines()[1]) < 600
    assert " 2500 " in whole and " 2500 " not in table


def test_what_cannot_be_explained_has_no_findings() -> None:
    assert "findings" not in dict(facts(contents(result_of("h200x4-8192-12288-49152"))))
