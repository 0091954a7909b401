"""A comparison as CI shows it: nothing in a profile is a command, markup or broken XML."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest

from hpcprof.analysis.comparison.run_differences import Difference
from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.report import comparison
from hpcprof.report.ci import artifact_sentence, github_annotation, junit_report, markdown_summary
from hpcprof.report.comparison import Comparison
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run
from tests.unit.explanations import MS, explained, finding

NOW = datetime(2026, 11, 22, 10, 30, tzinfo=timezone(timedelta(hours=2)))

HOSTILE = (
    "k</td><script>|`::error::\n::set-output name=x::[a](b) & \x1b[31m %0A\r##[stop-commands]x "
    "https://evil.example www.evil.example javascript:alert(1) @everybody"
)


def compared(verdict: str, kernel: str = "gemm") -> Comparison:
    row = {
        **{"metric": "step_p50_ns", "a": 1e6, "b": 1.2e6, "ratio": 1.2, "ci_low": 1.1, "ci_high": 1.3},
        **{"verdict": verdict},
    }
    parts: dict[str, list[Any]] = {
        "part": ["step", "compute"],
        "a_ns": [1, 1],
        "b_ns": [2, 2],
        "difference_ns": [1, 1],
    }
    kernels: dict[str, list[Any]] = {
        **{"name": [kernel], "was": [kernel], "change": ["renamed"], "difference_ns": [1]},
        **{f"{effect}_effect_ns": [0] for effect in ("count", "shape", "duration")},
    }
    tables = {"step_difference": AnalysisTable(parts), "kernel_difference": AnalysisTable(kernels)}
    return Comparison(
        [Run("a|b", Path("a"))],
        [Run(kernel, Path("b"))],
        ACROSS_RUNS["compare"],
        AnalysisTable({key: [value] for key, value in row.items()}),
        tables,
        [Difference("environment X", (kernel,), ("y",))],
    )


@pytest.mark.parametrize(
    ("verdict", "level", "failures", "skipped"),
    [
        ("regression", "error", "1", "0"),
        ("equivalent", "notice", "0", "0"),
        ("improvement", "notice", "0", "0"),
        ("inconclusive", "warning", "0", "1"),
        ("one run each: no statistics", "warning", "0", "1"),
    ],
)
def test_only_a_regression_is_an_error_and_a_doubt_is_skipped(
    verdict: str, level: str, failures: str, skipped: str
) -> None:
    found = compared(verdict)
    assert github_annotation(found).startswith(
        f"::{level} title=hpcprof compare::{verdict}: step_p50_ns 1.000 ms"
    )
    (suite,) = ElementTree.fromstring(junit_report(found, NOW))
    assert (suite.attrib["failures"], suite.attrib["skipped"]) == (failures, skipped)


def test_an_annotation_is_one_line_whatever_it_says() -> None:
    found = github_annotation(compared("regression\n::stop-commands::x"))
    assert "\n" not in found
    assert github_annotation(compared("equivalent")).count("%25") == 0


def test_a_hostile_name_is_text_in_markdown_and_in_xml() -> None:
    summary = markdown_summary(compared("regression", HOSTILE))
    forbidden = ("<script>", "[a](b)", "\x1b", "##[", "https://", "www.", "@everybody")
    assert not [text for text in forbidden if text in summary.lower()]
    table = [line for line in summary.splitlines() if line.startswith("| k")]
    assert len(table) == 2 and {line.count("|") for line in table} == {7}
    assert not any(line.startswith("::") for line in summary.splitlines())
    (suite,) = ElementTree.fromstring(junit_report(compared("regression", HOSTILE), NOW))
    assert "<script>" in suite.find("testcase").attrib["classname"]


# The rules of the schema for Apache Ant (github.com/windyroad/JUnit-Schema, JUnit.xsd), the strictest in use:
# the attributes of each element, all required, and its children in their order. The schema of Jenkins
# (jenkinsci/xunit-plugin, junit-10.xsd) allows the same and more.
NUMBER, WORD = r"\d+(\.\d+)?", r"\S(.*\S)?"
ATTRIBUTES = {
    "testsuites": {},
    "testsuite": {
        **{"id": r"\d+", "package": WORD, "name": WORD, "hostname": WORD, "time": NUMBER},
        **{"timestamp": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"},
        **dict.fromkeys(("tests", "failures", "errors", "skipped"), r"\d+"),
    },
    "properties": {},
    "property": {"name": WORD, "value": ".*"},
    "testcase": {"classname": WORD, "name": WORD, "time": NUMBER},
    "failure": {"message": ".*", "type": ".*"},
    "skipped": {"message": ".*"},
    "system-out": {},
    "system-err": {},
}
CHILDREN = {
    "testsuites": r"(testsuite )*",
    "testsuite": r"properties (testcase )*system-out system-err ",
    "properties": r"(property )*",
    "testcase": r"((skipped|error|failure) )?",
}


@pytest.mark.parametrize("verdict", ["regression", "equivalent", "inconclusive"])
@pytest.mark.parametrize("kernel", ["gemm", HOSTILE, "\ufffe\udcff"])
def test_a_junit_report_keeps_the_rules_of_the_schemas(verdict: str, kernel: str) -> None:
    text = junit_report(compared(verdict, kernel), NOW)
    report = ElementTree.fromstring(text)
    for element in report.iter():
        rules = ATTRIBUTES[element.tag]
        assert element.attrib.keys() == rules.keys()
        assert all(re.fullmatch(rules[name], value, re.DOTALL) for name, value in element.attrib.items())
        children = "".join(f"{child.tag} " for child in element)
        assert re.fullmatch(CHILDREN.get(element.tag, ""), children), element.tag
    (suite,) = report
    assert suite.attrib["timestamp"] == "2026-11-22T08:30:00"
    assert text.encode().startswith(b"<?xml version='1.0' encoding='utf-8'?>")


def test_a_hostile_name_ends_no_annotation_and_begins_none() -> None:
    found = replace(compared("regression"), reasons=[f"Largest increase: kernel {HOSTILE}."])
    annotation = github_annotation(found)
    assert annotation.isprintable() and annotation.startswith("::error title=hpcprof compare::regression")
    assert "%250A" in annotation and "%0A" not in annotation.replace("%250A", "")


@pytest.mark.parametrize("job", ["javascript:alert(1)", "https://ci.example/1\n::error::x", "https://a](b"])
def test_an_address_that_is_none_is_no_link(job: str) -> None:
    assert artifact_sentence(Path("a.html"), {"CI_JOB_URL": job}) == "The page is a.html."
    reasons = [artifact_sentence(Path("a.html"), {"CI_JOB_URL": "https://ci.example/1"})]
    summary = markdown_summary(replace(compared("regression"), reasons=reasons), "https://ci.example/1")
    assert "an artifact of https://ci.example/1." in summary


def test_an_annotation_escapes_what_github_documents() -> None:
    # github.com/actions/toolkit, command.ts: a message escapes %, CR and LF, a property : and , as well.
    found = compared("100 %: a,b")
    assert github_annotation(found).startswith("::notice title=hpcprof compare::100 %25: a,b: step_p50_ns")


def test_a_regression_names_its_reason_and_its_page() -> None:
    reasons = ["Cause: host work in data on rank 3, 12.0 ms a step.", "Largest increase: kernel gemm."]
    for verdict, said in (("regression", True), ("equivalent", False)):
        found = replace(compared(verdict), reasons=reasons)
        assert all((reason in github_annotation(found)) is said for reason in reasons)
        assert all((reason in junit_report(found, NOW)) is said for reason in reasons)


def test_the_page_is_an_artifact_of_the_job() -> None:
    github = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "me/x", "GITHUB_RUN_ID": "7"}
    page = Path("c.html")
    where = "The page is c.html, an artifact of https://github.com/me/x/actions/runs/7."
    assert artifact_sentence(page, github) == where
    assert artifact_sentence(page, {"CI_JOB_URL": "https://g/1"}).endswith("an artifact of https://g/1.")
    assert artifact_sentence(page, {}) == "The page is c.html."
    assert artifact_sentence(None, github) == ""


def test_the_reason_is_the_cause_that_grew_and_what_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    sync, late = finding(9.0, cause=Cause.HOST_SYNC), finding(4.0, cause=Cause.LATE_RANK_HOST)
    grown = replace(sync, saving_ns=10 * MS)
    explanations = {"a|b": explained(sync), "gemm": explained(grown, replace(late, ranks=(1,)))}
    monkeypatch.setattr(comparison, "_find_explanation", lambda run, store: explanations[run.id])
    regressed = compared("regression")
    cause, increase = comparison.regression_reasons(regressed, cast(Store, None))
    assert cause.startswith("Cause: ") and cause.endswith("in data on rank 1, 4.000 ms a step.")
    assert increase == "Largest increase: kernel gemm, 1.000 ns a step."
    step: dict[str, list[Any]] = {"part": ["step"], "a_ns": [0], "b_ns": [9 * MS], "difference_ns": [9 * MS]}
    differences = {**regressed.differences, "step_difference": AnalysisTable(step)}
    slower = replace(regressed, differences=differences)
    part, _ = comparison.regression_reasons(slower, cast(Store, None))
    assert part.startswith("Part of it: ") and part.endswith("4.000 ms a step.")
