"""The study of roles: a program runs as single ranks of a larger job, one after another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcprof.common.errors import UsageError
from hpcprof.study.runs import Progress, StudyRuns

if TYPE_CHECKING:  # the command's help needs none of these
    from hpcprof.runs.directory import Run
    from hpcprof.submit.jobs.job import JobSpec

ROLE_PROGRAM = Path(__file__).parents[1] / "workloads" / "role.py"
"""The file that runs a program as one rank."""


@dataclass(frozen=True)
class Role:
    """A rank of a larger job that ran alone: its run, and its step in ns without communication."""

    rank: int
    run: "Run"
    step_ns: int


def run_roles(
    request: "JobSpec",
    world_size: int,
    ranks: Sequence[int],
    *,
    db: str | None = None,
    progress: Progress | None = None,
    command_line: Sequence[str] | None = None,
) -> list[Role]:
    """Profile a program of PyTorch as some ranks of a larger job, as ``hpcprof study roles`` does.

    Parameters
    ----------
    request : JobSpec
        The job. Its program is ``python FILE …`` or ``python -m MODULE …``; its profiler is by default torch.
    world_size : int
        The number of ranks that the program believes to have.
    ranks : sequence of int
        The ranks that it runs as, one run for each.
    db, progress, command_line
        As for `run_slowdown`.

    Raises
    ------
    UsageError
        If the request is wrong; then nothing is submitted.
    HpcprofError
        If a run fails or has no steps.
    """
    from hpcprof.results.across.predictions import measured_step
    from hpcprof.submit.jobs.merge import merged
    from hpcprof.submit.jobs.request import resolve

    request = merged(request)
    if outside := [rank for rank in ranks if rank >= world_size]:
        numbers = f"{world_size:,} ranks are numbered from 0 to {world_size - 1}"
        raise UsageError(f"--roles {outside[0]}: {numbers}.")
    if (request.nodes or 1, request.ranks_per_node or 1) != (1, 1):
        raise UsageError("study roles runs one rank at a time: leave out --nodes and --ranks-per-node.")
    interpreter, *program = request.program or [""]
    if request.workload or not Path(interpreter).name.startswith("python") or not program:
        raise UsageError("study roles needs a Python program after --, such as python train.py.")
    jobs = [
        resolve(
            replace(
                request,
                program=(interpreter, str(ROLE_PROGRAM), str(rank), str(world_size), *program),
                profiler=request.profiler or "torch",
                job_name=request.job_name or f"role-{rank}",
            )
        )
        for rank in ranks
    ]
    runs = StudyRuns(len(jobs), request.runs_dir, request.template, db, progress, command_line)
    roles = []
    with runs.cancelled_on_interrupt():
        for number, (rank, (site, job)) in enumerate(zip(ranks, jobs, strict=True), 1):
            run = runs.make(number, site, job)
            roles.append(Role(rank, run, measured_step(run, runs.store)[0]))
    return roles
