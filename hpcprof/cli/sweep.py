"""``hpcprof sweep``."""

from __future__ import annotations

import sys
from typing import Any

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.options import job_options, job_values, site_and_job
from hpcprof.cli.tables import show
from hpcprof.sweep import parse_parameters, points, program_at


@click.command(
    "sweep",
    epilog=examples(
        "hpcprof sweep --workload sequence-parallel -P hidden-size=256,512 -P dtype=float32,bfloat16",
        "hpcprof sweep -P lr=0.1,0.01 -- python train.py --lr {lr}",
    ),
)
@job_options
@click.option(
    "-P",
    "--parameter",
    "parameters",
    multiple=True,
    required=True,
    metavar="KEY=VALUE,…",
    help="Values of one parameter. Repeatable: every combination is a run.",
)
@click.option("--dry-run", is_flag=True, help="Show the runs, and submit nothing.")
def command(parameters: tuple[str, ...], dry_run: bool, **options: Any) -> None:
    """Submit a run for every combination of parameters.

    A parameter replaces {KEY} in the program's arguments; a built-in workload gets it as --KEY VALUE.
    Every run is checked before the first one is submitted.
    """
    values = job_values(options)
    combinations = points(parse_parameters(parameters))
    jobs = []
    for point in combinations:
        program = program_at(point, values["program"], values.get("workload"))
        jobs.append(site_and_job({**values, "program": program}))
    if dry_run:
        show([(str(i), " ".join(jobs[i][1].arguments)) for i in range(len(jobs))], ("run", "arguments"))
        return
    from hpcprof.submission import submit

    line = ["hpcprof", *sys.argv[1:]]
    for point, (site, job) in zip(combinations, jobs, strict=True):
        run = submit(site, job, options["runs_dir"], line, options["template"])
        click.echo(f"submitted {run.id}  {' '.join(f'{key}={value}' for key, value in point.items())}")
