"""``hpcprof explain``."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.cli.completion import complete_causes, complete_runs
from hpcprof.cli.conventions import GATE_EXIT, UNJUDGED_EXIT, command_with_examples, echo
from hpcprof.cli.options import flag, format_among, repeatable, store_options
from hpcprof.cli.progress import ExplainingLine
from hpcprof.cli.report import collect_first

if TYPE_CHECKING:
    from hpcprof.analysis.explain.explanation import Explanation
    from hpcprof.analysis.explain.gates import Gate


@command_with_examples(
    "explain",
    "hpcprof explain",
    "hpcprof explain RUN --format json",
    "hpcprof explain --fail-on host_sync --fail-on exposed_communication:10",
)
@store_options
@format_among("text", "json", help="json gives times in whole nanoseconds.")
@repeatable(
    "--fail-on",
    metavar="CAUSE[:PERCENT]",
    shell_complete=complete_causes,
    help="Exit with status 3 if there is a finding of this cause, or one that costs at least PERCENT of the "
    "step, and with 4 if no cause named could be judged. Repeatable.",
)
@flag("--as-recorded", help="Explain the step as it was recorded, with the profiler's share.")
@click.argument("run", default="last", metavar="[RUN]", shell_complete=complete_runs)
def command(
    runs_dir: Path, db: str | None, form: str, fail_on: tuple[str, ...], as_recorded: bool, run: str
) -> None:
    """Explain where step time is lost, and what each cause costs.

    A finding is shown if a replay of the run without it shortens the step by at least 3 %, and by 1 % at the
    lower bound. Costs that hide behind the GPU, and what could not be judged, follow.

    The first explanation of a run reads its timelines; it is then kept in the results database. RUN is a run
    id, a name that means one run, a path, or last (the default).
    """
    from hpcprof.analysis.explain.gates import parse_gate
    from hpcprof.results.ask.explanation import explain
    from hpcprof.results.ask.tables import on_all_cpus
    from hpcprof.results.collect.missing import find_collected_run
    from hpcprof.results.collect.run_names import command_line
    from hpcprof.results.store.store import open_store

    gates = [parse_gate(text) for text in fail_on]
    store = open_store(db, runs_dir)
    collected_run = find_collected_run(run, store, runs_dir, collect_first)
    with ExplainingLine() as progress:
        explanation = explain(collected_run, store, progress, on_all_cpus, as_recorded=as_recorded)
    if form == "json":
        echo(json.dumps(explanation.in_short().as_json(), indent=1))
    else:
        from hpcprof.cli.tables import console
        from hpcprof.report.explanation import explanation_text

        out = console()
        in_full = partial(command_line, store, "report", collected_run.id, "--analysis")
        out.print(explanation_text(explanation, out.width, in_full), crop=False)
    if code := _gate_exit(gates, explanation):
        sys.exit(code)


def _gate_exit(gates: "list[Gate]", explanation: "Explanation") -> int:
    """Return the exit code of the gates, and name each finding and each cause that could not be judged."""
    from hpcprof.report.explanation import named, saved

    broken, judged = False, not gates
    for gate in gates:
        reason = gate.unknown_in(explanation)
        judged |= not reason
        if reason:
            echo(f"hpcprof: --fail-on {gate.cause} could not be judged: {reason}", err=True)
        for finding in gate.broken_by(explanation):
            echo(f"hpcprof: found {named(finding, explanation)}: {saved(finding, explanation)}", err=True)
            broken = True
    return GATE_EXIT if broken else 0 if judged else UNJUDGED_EXIT
