"""The check of MPI: two ranks that the site's launcher starts are ranks of one job."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hpcprof.common.errors import HpcprofError
from hpcprof.common.processes import NO_WORKING_FOLDER
from hpcprof.submit import mpi_types
from hpcprof.submit.doctor.machine import (
    TRIAL_MINUTES,
    TRIAL_QUEUE_SECONDS,
    Answer,
    CheckResult,
    Inspected,
    NotGranted,
    absent,
    broken,
    ok,
    trial_job,
    warning,
)
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.request import make_job
from hpcprof.submit.launchers import ROOT_REMEDY, refuses_root
from hpcprof.submit.schedulers.polling import LISTING_SECONDS
from hpcprof.submit.sites.environment import active_environment, active_prefix, added_folders
from hpcprof.submit.sites.model import LauncherName

# One write per rank, so that the lines of two ranks cannot mix.
_RANKS = (
    "import os; from mpi4py import MPI; world = MPI.COMM_WORLD; "
    "os.write(1, b'rank %d of %d\\n' % (world.rank, world.size))"
)
# Asks the library for its version without starting MPI, which some login nodes forbid.
_LIBRARY = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
)
# Open MPI refuses to start more ranks than there are cores, which does not mean that it does not work.
_OPEN_MPI = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def mpi(machine: Inspected) -> CheckResult:
    """Check that two ranks belong to one MPI job; on a batch system only inside a job, or with ``probe``."""
    launcher = machine.site.launcher.name
    if machine.scheduler.runs_in_image:
        observation = "The image that the jobs run in has an MPI of its own."
        return absent(observation, "Run hpcprof container test IMAGE.")
    if launcher in (LauncherName.TORCHRUN, LauncherName.NONE):
        return ok(f"The site starts its ranks without MPI (launcher {launcher.value}).")
    if launcher in (LauncherName.FLUX, LauncherName.IBRUN, LauncherName.JSRUN):
        return ok(f"The site starts its ranks by {launcher.value}, which works in jobs only.")
    if launcher is LauncherName.SRUN:
        return probe_srun(machine).finding
    return _mpiexec(machine)


def _mpiexec(machine: Inspected) -> CheckResult:
    launcher = machine.site.launcher.name
    command = "mpirun" if launcher is LauncherName.OPENMPI else "mpiexec"
    mpiexec = machine.mpiexec() if launcher is LauncherName.MPIEXEC else machine.which(command)
    if not (machine.scheduler.runs_here or machine.in_job):
        return _probe_in_job(machine) if machine.probe else _launcher_of_jobs(machine, command, mpiexec)
    if mpiexec is None:
        return _no_launcher(command)
    answer = machine.run([mpiexec, "-n", "2", machine.python, "-c", NO_WORKING_FOLDER + _RANKS], _OPEN_MPI)
    ranks = sorted(re.findall(r"rank \d+ of \d+", answer.stdout))
    if answer.ok and ranks == ["rank 0 of 2", "rank 1 of 2"]:
        return ok(f"{mpiexec} starts 2 ranks of one job.")
    # Many sites start no ranks on a login node, which proves nothing about their jobs.
    judge = broken if machine.scheduler.runs_here else warning
    output = answer.stderr + answer.stdout
    if "No module named 'mpi4py'" in output:
        return _without_mpi4py(machine)
    if ranks == ["rank 0 of 1", "rank 0 of 1"]:
        remedy = "Build mpi4py with the MPI of this mpiexec, or use the mpiexec of mpi4py's MPI."
        other = f"it does not belong to the MPI of {machine.python}"
        return judge(f"{mpiexec} starts 2 jobs of one rank: {other}.", remedy)
    if refuses_root(output):
        return judge(f"{mpiexec} is Open MPI's, which refuses to run as root.", ROOT_REMEDY)
    remedy = "Repair or reinstall MPI." if machine.scheduler.runs_here else "Try it in a job on the site."
    return judge(f"{mpiexec} does not start 2 ranks: {answer.why}.", remedy)


def _no_launcher(command: str) -> CheckResult:
    remedy = "Load the site's MPI module, or install hpcprof[workloads]."
    return absent(f"{command} is not on the PATH.", remedy)


def _launcher_of_jobs(machine: Inspected, command: str, binary: str | None) -> CheckResult:
    """Name the launcher that a job finds; this shell may find another one."""
    site, probe = machine.site, "Add --probe to start two ranks."
    if not machine.scheduler.passes_environment and site.launcher.name is not LauncherName.MPIEXEC:
        folders = added_folders(site)
        in_jobs = shutil.which(command, path=os.pathsep.join(folders)) if folders else None
        if in_jobs is not None:
            return ok(f"Jobs run {in_jobs}; no ranks were started.", probe)
        if site.modules or folders is None:
            observation = f"Jobs run the {command} of the site's modules and setup; no ranks were started."
            return ok(observation, probe)
        prefix = active_prefix(machine.environment)
        if prefix and binary is not None and binary.startswith(f"{prefix}/"):
            lines = json.dumps(active_environment(machine.environment)["setup"])
            observation = (
                f"{binary} was found, but {machine.scheduler.title} passes no environment on: a job runs the "
                f"{command} that its node has on the PATH, if any."
            )
            return warning(observation, f"Add to the site: setup: {lines}.")
    if binary is None:
        return _no_launcher(command)
    return ok(f"{binary} was found, and no ranks were started.", probe)


def _probe_in_job(machine: Inspected) -> CheckResult:
    """Start two ranks as a job of the site does: with its environment, modules, set-up lines and launcher."""
    from hpcprof.submit.waiting import describe_failure

    program = (machine.python, "-c", NO_WORKING_FOLDER + _RANKS)
    try:
        with trial_job(machine, program, 2, "--probe") as (run, status, output):
            launcher = run.state_file("launcher") or program[0]
            lines = sorted(re.findall(r"rank \d+ of \d+", output))
            details = [*filter(None, map(str.strip, describe_failure(run, status)[1:]))]
            reason = " ".join(details[:2]) or str(status)
    except HpcprofError as error:
        remedy = "Try again later." if isinstance(error, NotGranted) else "Try it with hpcprof submit."
        return warning(f"No ranks were started: {error}", remedy)
    if lines == ["rank 0 of 2", "rank 1 of 2"]:
        return ok(f"Jobs run {launcher}, which starts 2 ranks of one job.")
    remedy = "Name the modules or the environment of the MPI that mpi4py uses in the site (modules, setup)."
    if lines == ["rank 0 of 1", "rank 0 of 1"]:
        observation = f"Jobs run {launcher}, which starts 2 jobs of one rank: mpi4py has another MPI."
        return broken(observation, remedy)
    return broken(f"Jobs run {launcher}, which fails: {reason}.", remedy)


def _without_mpi4py(machine: Inspected) -> CheckResult:
    remedy = "Install hpcprof[workloads] if you want to run hpcprof's own workloads."
    return warning(f"{machine.python} has no mpi4py, so no ranks were started.", remedy)


@dataclass(frozen=True)
class Probe:
    """The MPI type that connects two ranks of srun: empty for Slurm's default, None if none does."""

    finding: CheckResult
    type: str | None = None


def probe_srun(machine: Inspected) -> Probe:
    """Compare the site's type of ``srun --mpi`` with those of Slurm, and try them if ranks may start."""
    if not machine.which("srun"):
        return Probe(absent("srun is not on the PATH.", f"Use a login node of {machine.site.name}."))
    answer = machine.run(mpi_types.LIST_TYPES)
    listed = answer.stdout + answer.stderr
    types = mpi_types.parse_mpi_types(listed)
    option = machine.site.options.get(mpi_types.OPTION)
    wanted = mpi_types.fixed_type(machine.site) or (option.default if option else "")
    if not answer.ok or not types:
        observation = f"srun --mpi=list names no type that connects ranks: {answer.why}."
        remedy = "Ask the operators which launcher MPI programs need, and name it under launcher in the site."
        return Probe(warning(observation, remedy))
    if wanted not in ("", mpi_types.AUTO) and not re.search(rf"\b{re.escape(wanted)}\b", listed):
        observation = f"The site names srun --mpi={wanted}, but srun has {', '.join(types)}."
        return Probe(broken(observation, _type_remedy("one of them")))
    if not machine.starts_ranks:
        finds = ", and jobs find the one that works" if wanted == mpi_types.AUTO else ""
        observation = f"srun has the types {', '.join(types)}{finds}; no ranks were started."
        return Probe(ok(observation, "Add --probe to start two ranks."))
    # Asked first, while the other checks run: a silent Slurm takes up all these seconds.
    question = machine.scheduler.question(machine.site)
    if not machine.in_job and not machine.run(question, seconds=LISTING_SECONDS).ok:
        return _no_allocation("Slurm does not answer")
    return _probe_with_ranks(machine, types, wanted)


def _no_allocation(reason: object) -> Probe:
    remedy = "Try again later, or inside a job; SALLOC_PARTITION and SALLOC_ACCOUNT choose where to wait."
    return Probe(warning(f"No ranks were started: {reason}.", remedy))


def _type_remedy(type_: str) -> str:
    return f"Set the default of the site's option {mpi_types.OPTION} to {type_}."


def _probe_with_ranks(machine: Inspected, types: Sequence[str], wanted: str) -> Probe:
    version = machine.run([machine.python, "-c", NO_WORKING_FOLDER + _LIBRARY])
    if "No module named 'mpi4py'" in version.stderr:
        return Probe(_without_mpi4py(machine))
    if not version.ok:
        observation = f"{machine.python} cannot load its MPI library: {version.why}."
        return Probe(broken(observation, "Load the MPI module that mpi4py needs."))
    # "MPICH Version:      5.0.2", "Open MPI v5.0.11, package: …"
    library = " ".join(version.stdout.partition("\n")[0].partition(",")[0].replace("Version:", "").split())
    first = "" if wanted == mpi_types.AUTO else wanted
    # An argument of the launcher cannot be taken back, so Slurm's default cannot be tried beside it.
    candidates = dict.fromkeys([first, *([] if mpi_types.fixed_type(machine.site) else [""]), *types])
    try:
        with _allocation(machine) as job:
            works, answer = _first_that_works(machine, job, list(candidates))
    except NotGranted as reason:
        return _no_allocation(reason)
    return _judge(library, list(candidates), wanted, works, answer)


def _judge(library: str, candidates: Sequence[str], wanted: str, works: str | None, answer: Answer) -> Probe:
    tried = ", ".join(candidate or "Slurm's default" for candidate in candidates)
    if works is None:
        observation = f"srun makes no job of 2 ranks of {library} (tried {tried}): {answer.why}."
        remedy = "Use an MPI that knows one of these types: MPICH needs pmi2, Open MPI needs pmix."
        return Probe(broken(observation, remedy))
    how = f"srun --mpi={works}" if works else "srun and Slurm's default type"
    if wanted in (works, mpi_types.AUTO):
        return Probe(ok(f"2 ranks of {library} form one job with {how}."), works)
    which = f"--mpi={wanted}" if wanted else "Slurm's default type"
    observation = f"2 ranks of {library} form no job with srun and {which}, but they do with {how}."
    return Probe(broken(observation, _type_remedy(works or '""')), works)


def _first_that_works(
    machine: Inspected, job: Sequence[str], types: Sequence[str]
) -> tuple[str | None, Answer]:
    answer = Answer(None)
    for candidate in types:
        named = [f"--mpi={candidate}"] if candidate else []
        # An allocation may have one core, and a step in it already, as an interactive one has.
        command = [*mpi_types.two_ranks(machine.site.launcher.arguments, 1), *job, "--overcommit", *named]
        answer = machine.run([*command, machine.python, "-c", NO_WORKING_FOLDER + mpi_types.BOTH_JOIN])
        if answer.ok:
            return candidate, answer
    return None, answer


@contextmanager
def _allocation(machine: Inspected) -> Iterator[list[str]]:
    """Yield srun's arguments for a job with room for two ranks: the present one, or one of its own."""
    if machine.in_job:
        yield ["--overlap"]
        return
    site = machine.site
    where = [f"{machine.scheduler.keys_of(site).queue_directive}={site.queue}"] if site.queue else []
    shape = ["--nodes=1", "--ntasks=2", f"--time={TRIAL_MINUTES}", "--job-name=hpcprof-probe"]
    # GPUs and kinds of nodes, as the site's jobs ask for them.
    job = make_job(site, JobSpec(("true",), ranks_per_node=2), draft=True)
    directives = [word for line in machine.scheduler.directives(site, job) for word in shlex.split(line)]
    command = ["salloc", "--no-shell", f"--immediate={TRIAL_QUEUE_SECONDS}", *shape, *where, *directives]
    answer = machine.run(command, seconds=TRIAL_QUEUE_SECONDS + 30.0)
    granted = re.search(r"Granted job allocation (\d+)", answer.stderr)
    if granted is None:
        waited = "Connection timed out" in answer.stderr or answer.exit_code is None
        late = f"Slurm gave no node within {TRIAL_QUEUE_SECONDS} s"
        raise NotGranted(late if waited else answer.why)
    try:
        yield [f"--jobid={granted[1]}"]
    finally:
        machine.run(["scancel", granted[1]])
