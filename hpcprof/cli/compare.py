"""``hpcprof compare``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.cli.completion import complete_baselines, complete_runs, complete_targets
from hpcprof.cli.conventions import GATE_EXIT, UNJUDGED_EXIT, command_with_examples, echo, write_page
from hpcprof.cli.options import (
    FiniteFloat,
    flag,
    format_among,
    html_option,
    repeatable,
    store_options,
    with_default,
)
from hpcprof.cli.report import collect_first
from hpcprof.cli.tables import console, write_analysis
from hpcprof.common.errors import UsageError, writing

if TYPE_CHECKING:
    from hpcprof.report.comparison import Comparison
    from hpcprof.results.store.store import Store

_SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
"""The variable that names the file of the summary in GitHub Actions."""


@command_with_examples(
    "compare",
    "hpcprof compare 20261120 20261121 --html comparison.html",
    "hpcprof compare --a RUN1 --a RUN2 --b RUN3 --b RUN4 --fail-on-regression",
    "hpcprof compare --baseline main RUN3 RUN4 --fail-on-regression --format github",
)
@store_options
@format_among(
    *("table", "csv", "json", "github", "junit"),
    help="json has everything, csv the metrics. github writes an annotation for GitHub Actions and a summary "
    "in Markdown, junit a report that GitLab and Jenkins show.",
)
@html_option("comparison")
@click.option(
    "--baseline",
    metavar="NAME",
    shell_complete=complete_baselines,
    help="Compare with this baseline (hpcprof baseline set), in place of --a.",
)
@repeatable("--a", "a", metavar="RUN", shell_complete=complete_runs, help="A baseline run. Repeatable.")
@repeatable("--b", "b", metavar="RUN", shell_complete=complete_runs, help="A candidate run. Repeatable.")
@flag(
    "--fail-on-regression",
    help="Exit with status 3 if steps are slower in B, or what --gate names has grown: by at least 1 %, with "
    "a confidence interval above 1. With status 4 if nothing could be judged, as with one run per side.",
)
@with_default(
    "--margin",
    type=FiniteFloat(0, 100, min_open=True),
    default=1,
    metavar="PERCENT",
    help="Steps are equivalent if the confidence interval of their ratio is within this margin around 1.",
)
@repeatable(
    "--gate",
    "gates",
    type=click.Choice(["energy", "memory", "io"]),
    help="Also judge the energy of a step, the peaks of memory, or reads and writes, as the step is judged. "
    "Repeatable.",
)
@repeatable(
    "--notify",
    metavar="TARGET",
    shell_complete=complete_targets,
    help="Notify of a regression: a target as for submit --notify. Repeatable.",
)
@flag(
    "--anyway",
    "--force",
    "force",
    help="Also compare different programs, numbers of ranks, or runs with themselves.",
)
@click.argument("words", nargs=-1, metavar="[A B | RUN…]", shell_complete=complete_runs)
def command(
    runs_dir: Path,
    db: str | None,
    form: str,
    html: Path | None,
    baseline: str | None,
    a: tuple[str, ...],
    b: tuple[str, ...],
    fail_on_regression: bool,
    margin: float,
    gates: tuple[str, ...],
    notify: tuple[str, ...],
    force: bool,
    words: tuple[str, ...],
) -> None:
    """Compare runs B with runs A: whether steps are slower, and what explains it.

    A is the baseline and B the candidate. Each is a run id, a name that means one run, or a path; a sweep
    means all of its runs. Confidence intervals come from the variation between runs, so they need at least
    two runs per side. With one run per side there are figures but no verdict. Earlier runs of the same job
    in the folder of runs count as further runs of A if they are like those of A. With --baseline, all runs
    named are candidates. A run of which nothing has been collected yet is collected first.
    """
    if baseline is not None:
        if a or bool(b) == bool(words):
            raise UsageError("name the candidates: hpcprof compare --baseline NAME RUN…, without --a.")
    elif (bool(a), bool(b), len(words)) not in ((False, False, 2), (True, True, 0)):
        raise UsageError("name both sides: hpcprof compare A B, or with repeats --a A1 --a A2 --b B1 --b B2.")
    targets = _targets(notify)
    from hpcprof.report.ci import artifact_sentence
    from hpcprof.report.comparison import compare_runs, regression_reasons
    from hpcprof.results.across.named_baselines import baseline_runs
    from hpcprof.results.collect.missing import find_collected_sides
    from hpcprof.results.collect.run_names import typed_run
    from hpcprof.results.store.store import open_store

    store = open_store(db, runs_dir)
    before, after = (a, b) if a else (words[:1], words[1:])
    if baseline is not None:
        before = tuple(typed_run(run) for run in baseline_runs(baseline, store, runs_dir))
        after = b or words
    baselines, candidates = find_collected_sides((before, after), store, runs_dir, collect_first)
    compared = compare_runs(baselines, candidates, store, margin, force, gates)
    if compared.regressed and (targets or form in ("github", "junit")):
        reasons = [*regression_reasons(compared, store), artifact_sentence(html, os.environ)]
        compared = replace(compared, reasons=[sentence for sentence in reasons if sentence])
    _write(form, compared, store)
    if html is not None:
        from hpcprof.report.comparison_page import html_comparison

        write_page(html, html_comparison(compared, store), form)
    if conclusion := compared.conclusion():
        echo(conclusion, err=True)
    if compared.regressed:
        _notify(targets, compared)
    if fail_on_regression and (compared.regressed or not compared.is_judged(gates)):
        sys.exit(GATE_EXIT if compared.regressed else UNJUDGED_EXIT)


def _targets(words: tuple[str, ...]) -> Mapping[str, str]:
    if not words:
        return {}
    from hpcprof.runs.config import named_targets
    from hpcprof.submit.notify import targets

    return targets(words, named_targets())


def _notify(targets: Mapping[str, str], compared: Comparison) -> None:
    if not targets:
        return
    from hpcprof.node.notify import send, send_at_once
    from hpcprof.report.ci import verdict_sentence

    run = compared.candidate[-1].id
    document = {
        "event": "regression",
        "run": run,
        "baseline": [run.id for run in compared.baseline],
        "candidate": [run.id for run in compared.candidate],
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "text": f"hpcprof: {run}: {verdict_sentence(compared)}",
    }
    failed = send_at_once(targets, lambda name: send(targets[name], document))
    for name, reason in failed.items():
        echo(f"hpcprof: warning: {name} was not told: {reason}.", err=True)


def _write(form: str, compared: Comparison, store: Store) -> None:
    if form == "json":
        echo(json.dumps(compared.as_json(), indent=1))
    elif form == "github":
        from hpcprof.report.ci import github_annotation, job_address, markdown_summary

        echo(github_annotation(compared))
        _summarize(markdown_summary(compared, job_address(os.environ)))
    elif form == "junit":
        from hpcprof.report.ci import junit_report

        echo(junit_report(compared, datetime.now(timezone.utc)))
    elif form == "table":
        show_comparison(compared, store)
    else:
        write_analysis(form, compared.analysis, compared.table)


def _summarize(text: str) -> None:
    """Add a text to the summary of the GitHub job, or outside of one print it."""
    path = os.environ.get(_SUMMARY_VARIABLE)
    if not path:
        echo(text)
        return
    with writing(Path(path)), Path(path).open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def show_comparison(compared: Comparison, store: Store) -> None:
    """Print the sides, what explains the difference of the step, and the metrics."""
    for label, runs in (("A (baseline): ", compared.baseline), ("B (candidate):", compared.candidate)):
        echo(f"{label} {', '.join(map(compared.named, runs))}")
    out = console()
    out.print(compared.explanation(store, out.width), crop=False)
    out.print(f"\n{compared.analysis.title}", style="bold")
    write_analysis("table", *compared.metrics_to_show())
