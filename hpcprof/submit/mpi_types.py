"""The MPI type of srun, its option ``--mpi``: the protocol by which MPI programs find their other ranks.

srun starts all ranks of a program, whatever the type. They are ranks of one MPI job only if the MPI library
speaks that protocol (MPICH: pmi2, Open MPI: pmix); otherwise each of them is rank 0 of 1, and exits with 0.
Which types Slurm lists says little: a type that it lists may lack its library on the nodes. Two ranks tell.
"""

import re
from collections.abc import Sequence
from itertools import islice

from hpcprof.runs.directory import Run
from hpcprof.runs.job import Job
from hpcprof.submit.container.ranks import uses_container
from hpcprof.submit.sites.model import LauncherName, Site, recorded_site

OPTION = "mpi"
"""The option of a site that holds the type; empty for Slurm's default."""

AUTO = "auto"
"""The value of the option with which a job finds the type itself."""

LIST_TYPES = ("srun", "--mpi=list")

BOTH_JOIN = "import sys; from mpi4py import MPI; sys.exit(MPI.COMM_WORLD.size != 2)"
"""A Python program that exits with 0 if it runs as one of two ranks of an MPI job."""

# Types are lower case; "none" connects no ranks.
_TYPE = re.compile(r"\b(?:pmi|cray_)\w+")


def parse_mpi_types(text: str) -> list[str]:
    """Return the types that ``srun --mpi=list`` prints, without versions of a listed type."""
    names = set(_TYPE.findall(text))
    return sorted(name for name in names if re.sub(r"_v\d+$", "", name) not in names - {name})


def fixed_type(site: Site) -> str:
    """Return the type in the arguments of the site's launcher; empty if they name none."""
    match = re.search(r"(?:^| )--mpi[= ](\S+)", " ".join(site.launcher.arguments))
    return match[1] if match else ""


def type_argument(job: Job) -> list[str]:
    """Return srun's argument for the type that the job names."""
    chosen = job.options.get(OPTION, "")
    return [f"--mpi={chosen}"] if chosen and chosen != AUTO else []


def finds_type(site: Site, job: Job) -> bool:
    """Return whether job.sh finds the type with two ranks, if it sees an MPI library behind the program."""
    return (
        site.launcher.name is LauncherName.SRUN
        and job.options.get(OPTION) == AUTO
        and not fixed_type(site)
        and job.ranks > 1
        and not uses_container(job)
    )


def two_ranks(arguments: Sequence[str], nodes: int) -> list[str]:
    """Return srun's argv for two ranks, on two nodes if there are as many; ``arguments`` are the site's."""
    nodes = min(nodes, 2)
    shape = [f"--nodes={nodes}", "--ntasks=2", f"--ntasks-per-node={2 // nodes}"]
    return ["srun", *arguments, *shape]


def ranks_apart(run: Run) -> str:
    """Return a sentence if the ranks of a run are not one MPI job, by the notes of the node."""
    if run.manifest is None:
        return ""
    ranks, advice = run.manifest.job.ranks, "name after -- the program that it starts, or see --template"
    for rank, name in run.rank_notes("launcher").items():
        return f"rank {rank} has started {name}, which starts ranks within this one: {advice}"
    sizes = {run.state_file(path.name) or "0" for path in islice((run.path / "state").glob("rank*.mpi"), 16)}
    if unexpected := sizes - {"0", "1", str(ranks)}:
        inner_ranks = f"{max(unexpected)} ranks within one of the job's"
        return f"a launcher in the program has started {inner_ranks}: {advice}"
    if ranks < 2 or sizes != {"1"}:
        return ""
    launcher = recorded_site(run.manifest).launcher.name
    if launcher is LauncherName.SRUN:
        advice = f"-o {OPTION}=TYPE gives srun --mpi=TYPE, one that srun --mpi=list shows"
    else:
        advice = f"start them with the {launcher.value} of the program's MPI"
    return f"each rank is an MPI job of its own, rank 0 of 1 instead of {run.manifest.job.ranks}: {advice}"
