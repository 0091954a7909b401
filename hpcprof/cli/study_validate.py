"""``hpcprof study validate``."""

from typing import TYPE_CHECKING, Any

import click

from hpcprof.cli.conventions import command_with_examples, echo, typed_command
from hpcprof.cli.job_options import job_options
from hpcprof.cli.options import db_option, repeatable, with_default
from hpcprof.cli.progress import WaitingLine
from hpcprof.cli.study_slowdown import folder_to_resume
from hpcprof.study.validation import resume_validation, run_validation

if TYPE_CHECKING:
    from hpcprof.study.validation import ValidationStudy
    from hpcprof.submit.jobs.job import JobSpec

_FIRST_COLUMNS = (
    *("fault", "cost_ns", "first_finding", "right", "saving_ns", "error_ns", "expected"),
    *("finding_range", "finding_ranks"),
)
"""The columns that a narrow terminal shows, the most telling first."""


@command_with_examples(
    "validate",
    "hpcprof study validate --ranks-per-node 2 -- --model gpt2 --precision bf16",
    "hpcprof study validate --faults gc,late_rank_gpu:matmuls=4,rank=0 … -- --model gpt2",
    "hpcprof study validate --profiler torch --ranks-per-node 2 -- --device cpu",
    "hpcprof study validate --resume runs/20261121-132501-validate-5755",
)
@job_options
@db_option
@repeatable(
    "--faults",
    metavar="CAUSE[:KEY=VALUE,…],…",
    help="Faults to inject. Repeatable.  [default: all that the training can have]",
)
@with_default(
    "--block-steps", type=click.IntRange(min=4), default=10, help="Steps of a block with or without a fault."
)
@with_default(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=3,
    help="Times that each fault has two blocks with it and two without it.",
)
@click.option("--resume", metavar="FOLDER", help="Continue the study in this folder, as it was planned.")
@click.pass_context
def validate(
    context: click.Context,
    /,
    request: "JobSpec",
    db: str | None,
    faults: tuple[str, ...],
    block_steps: int,
    repeats: int,
    resume: str | None,
) -> None:
    """Check what explain finds: inject known faults into a training, and measure what each really costs.

    The first run trains without a profiler. For each fault, blocks of steps with and without it alternate:
    their difference is what it costs. Then a run for each fault is profiled on every rank, under Nsight
    Systems or with --profiler torch, and explained. The table compares the first finding and its predicted
    saving with the fault and its cost. It is written as validation.csv into the study's folder.

    The program is the workload ddp; the study sets its number of steps. --resume keeps the runs that have
    succeeded, waits for one that has not ended, and makes the others.
    """
    folder = folder_to_resume(context, resume, request.runs_dir)
    with WaitingLine() as line:
        how: dict[str, Any] = {"db": db, "progress": line.show_message, "command_line": typed_command()}
        if folder is not None:
            study = resume_validation(folder, **how)
        else:
            named = split_faults(faults)
            study = run_validation(request, faults=named, block_steps=block_steps, repeats=repeats, **how)
    _show(study)


def split_faults(texts: tuple[str, ...]) -> list[str]:
    """Return the faults in texts that list them with commas; commas also separate the keys of a fault."""
    faults: list[str] = []
    for part in ",".join(texts).split(","):
        if faults and "=" in part and ":" not in part:
            faults[-1] += f",{part}"
        else:
            faults.append(part)
    return faults if texts else []


def _show(study: "ValidationStudy") -> None:
    from hpcprof.cli.tables import show_what_fits
    from hpcprof.report.exports import write_csv
    from hpcprof.report.formatting import cell, header
    from hpcprof.study.validation_table import COLUMNS, summary

    rows = [validation.row() for validation in study.found]
    names = [column.name for column in COLUMNS]
    write_csv(study.folder / "validation.csv", names, rows)
    echo("")
    order = [*_FIRST_COLUMNS, *(name for name in names if name not in _FIRST_COLUMNS)]
    cells = {header(name): [cell(name, row[name]) for row in rows] for name in names}
    show_what_fits(cells, [header(name) for name in order], header("finding_range"))
    echo(summary(study.found))
    echo(f"runs and table of the study: {study.folder}")
