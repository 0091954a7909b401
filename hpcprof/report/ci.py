"""A comparison for CI: annotations and a summary for GitHub Actions, and a JUnit report."""

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from xml.etree import ElementTree

from hpcprof.analysis.comparison.compare import REGRESSION
from hpcprof.analysis.framework.outcome import Row
from hpcprof.common.units import signed_ns, visible
from hpcprof.profiles.kernel_names import short_name
from hpcprof.report.comparison import Comparison, in_a_sentence
from hpcprof.report.formatting import format_value

_MAX_KERNELS = 8
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""The characters that an XML 1.0 document cannot have, not even escaped."""

_JOB_ADDRESS = re.compile(r"https?://[\w.~%/:+-]+", re.ASCII)

_TITLE = "hpcprof compare"


def verdict_sentence(compared: Comparison) -> str:
    """Return the verdict, the metrics that decide with their intervals, and the difference, in one line."""
    if not compared.table.rows:
        return "; ".join(compared.table.reasons.values())
    first, *other_rows = compared.table.rows
    worse = [row for row in other_rows if row["verdict"] == REGRESSION]
    judgement = compared.other_clocks() + "; ".join(map(_metric_sentence, [first, *worse]))
    difference = f" {in_a_sentence(compared.waterfall)}" if compared.waterfall else ""
    reasons = "".join(f" {sentence}" for sentence in compared.reasons) if compared.regressed else ""
    return visible(f"{judgement}.{difference}{reasons}")


def _metric_sentence(row: Row) -> str:
    sentence = f"{row['verdict']}: {row['metric']} {_value(row, 'a')} in A, {_value(row, 'b')} in B"
    if row["ci_low"] is not None:
        sentence += f", ratio {row['ratio']:.4f} ({row['ci_low']:.4f} to {row['ci_high']:.4f})"
    return sentence


def _value(row: Row, side: str) -> str:
    return format_value(row["metric"], row[side])


def job_address(environment: Mapping[str, str]) -> str:
    """Return the address of the CI job that this is; empty if a browser could not open it."""
    github = [environment.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")]
    job = "{}/{}/actions/runs/{}".format(*github) if all(github) else environment.get("CI_JOB_URL", "")
    return job if _JOB_ADDRESS.fullmatch(job) else ""


def artifact_sentence(page: Path | None, environment: Mapping[str, str]) -> str:
    """Return the place of a comparison's page, among the artifacts of a CI job; empty without a page."""
    job = job_address(environment)
    return f"The page is {page}{job and f', an artifact of {job}'}." if page else ""


def github_annotation(compared: Comparison) -> str:
    """Return the workflow command that shows the verdict; a regression is an error."""
    level = "error" if compared.regressed else "warning" if compared.is_open else "notice"
    title = _escaped_message(_TITLE).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_escaped_message(verdict_sentence(compared))}"


def _escaped_message(text: str) -> str:
    """Escape the message of a workflow command: nothing in it may end the line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def markdown_summary(compared: Comparison, job: str = "") -> str:
    """Return the comparison in Markdown, for the summary of a job; of addresses, only ``job`` is a link."""
    verdict = verdict_sentence(compared)
    lines = [f"## {_TITLE}", "", job.join(map(_cell, verdict.split(job))) if job else _cell(verdict), ""]
    waterfall = compared.waterfall
    if waterfall is not None:
        lines += ["| part of a step | difference |", "|---|---:|"]
        lines += [f"| {_cell(name)} | {signed_ns(change)} |" for name, change in waterfall.parts.items()]
        lines += [f"| **step** | **{signed_ns(waterfall.difference_ns)}** |", ""]
    rows = compared.rows("kernel_difference")[:_MAX_KERNELS] if compared.differences else []
    if rows:
        names = ("count", "shape", "duration")
        lines += [f"| kernel | change | difference | {' | '.join(names)} |", "|---|---|---:|---:|---:|---:|"]
        lines += [_kernel_line(row, names) for row in rows]
        lines.append("")
    for label, runs in (("A (baseline)", compared.baseline), ("B (candidate)", compared.candidate)):
        lines.append(f"- {label}: {_cell(', '.join(run.id for run in runs))}")
    for fact in compared.differing:
        lines.append(f"- {_cell(fact.name)}: {_cell(' or '.join(fact.a))} → {_cell(' or '.join(fact.b))}")
    return "\n".join([*lines, ""])


def _kernel_line(row: Row, names: tuple[str, ...]) -> str:
    effects = " | ".join(signed_ns(row[f"{name}_effect_ns"]) for name in names)
    change = f"{row['change']} from {short_name(row['was'])}" if row["was"] else row["change"]
    name = _cell(short_name(row["name"]))
    return f"| {name} | {_cell(change)} | {signed_ns(row['difference_ns'])} | {effects} |"


def _cell(text: str) -> str:
    """Escape a text for a cell: a name in a profile is neither markup, nor a link, nor a column."""
    plain = escape(visible(text), quote=False).replace("://", "&#58;//").replace("www.", "www&#46;")
    for character in "\\`*[]|!@":
        plain = plain.replace(character, f"&#{ord(character)};")
    return plain


def junit_report(compared: Comparison, now: datetime) -> str:
    """Return the verdict as a JUnit report with one test case, as the schemas of Ant and Jenkins want it.

    A regression is its failure; a comparison without a verdict is skipped.
    """
    row = compared.table.rows[0] if compared.table.rows else None
    failed, skipped = compared.regressed, compared.is_open
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        {
            **{"id": "0", "package": "hpcprof", "name": _TITLE, "hostname": "localhost"},
            # Ant's schema allows no time zone.
            **{"timestamp": f"{now.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}", "time": "0"},
            **{"tests": "1", "failures": str(int(failed)), "errors": "0", "skipped": str(int(skipped))},
        },
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, runs in (("baseline", compared.baseline), ("candidate", compared.candidate)):
        value = _in_xml(", ".join(run.id for run in runs))
        ElementTree.SubElement(properties, "property", {"name": name, "value": value})
    candidate = _in_xml(", ".join(run.id for run in compared.candidate))
    metric = _in_xml(str(row["metric"])) if row else "step"
    case = ElementTree.SubElement(suite, "testcase", {"classname": candidate, "name": metric, "time": "0"})
    sentence = _in_xml(verdict_sentence(compared))
    if failed:
        failure = ElementTree.SubElement(case, "failure", {"message": sentence, "type": REGRESSION})
        failure.text = sentence
    elif skipped:
        ElementTree.SubElement(case, "skipped", {"message": sentence})
    ElementTree.SubElement(suite, "system-out").text = sentence
    ElementTree.SubElement(suite, "system-err")
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def _in_xml(text: str) -> str:
    """Return a text as XML may have it; a path on Linux need not be UTF-8."""
    return _NOT_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", visible(text))
