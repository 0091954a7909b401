"""Slurm: what its jobs may ask for, the directives that ask for it, and the commands."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.errors import SchedulerError, UsageError
from hpcprof.runs.job import Job
from hpcprof.submit.jobs.job import OPTIONS
from hpcprof.submit.mpi_types import LIST_TYPES, finds_type, two_ranks
from hpcprof.submit.profilers.base import PROGRAM_WORDS, START_UP
from hpcprof.submit.schedulers.base import JobState, Record
from hpcprof.submit.schedulers.batch import BatchScheduler, check_whole_minutes
from hpcprof.submit.schedulers.command import run_scheduler_command, run_submission
from hpcprof.submit.schedulers.scheduler import (
    GPUS,
    DaskJobs,
    JobArrays,
    Rendering,
    directive_path,
    gpus_are_shared,
    gpus_per_node,
)
from hpcprof.submit.schedulers.slurm import client
from hpcprof.submit.sites.machine import Ask, Machine
from hpcprof.submit.sites.model import LauncherName, NodeRequest, Site

_SHORT = {
    "-A": "--account",
    "-C": "--constraint",
    "-G": "--gpus",
    "-J": "--job-name",
    "-N": "--nodes",
    "-W": "--wait",
    "-a": "--array",
    "-c": "--cpus-per-task",
    "-d": "--dependency",
    "-e": "--error",
    "-n": "--ntasks",
    "-o": "--output",
    "-p": "--partition",
    "-q": "--qos",
    "-t": "--time",
    "-w": "--nodelist",
    "-x": "--exclude",
}
"""The short options, with their long names, that other directives may have by their long names."""

_FLAGS = {
    "cpus_per_rank": "--cpus-per-task",
    "mem": "--mem",
    "constraint": "--constraint",
    "reservation": "--reservation",
}
"""The options of sbatch for fields of a job."""

_OUTPUT = "the output goes to logs/ of the run"
_RANKS = "give --nodes and --ranks-per-node"
_OWN_SETTINGS = {
    "--account": "give --account",
    "--array": "give --array to hpcprof sweep",
    "--dependency": "give --after",
    "--error": _OUTPUT,
    "--job-name": "give --job-name",
    "--nodes": "give --nodes",
    "--ntasks": _RANKS,
    "--ntasks-per-node": "give --ranks-per-node",
    "--output": _OUTPUT,
    "--test-only": "give --dry-run",
    "--time": "give --walltime",
    "--wait": "give --wait",
    "--wrap": "write the command after --",
}
"""Settings of the script or of other options of hpcprof, each with the end of a sentence of advice."""

_MEMORY = "the memory"
_CPUS = "the CPUs of a rank"
_COMMON = {
    "--mem": _MEMORY,
    "--mem-per-cpu": _MEMORY,
    "--mem-per-gpu": _MEMORY,
    "--cpus-per-task": _CPUS,
    "--cpus-per-gpu": _CPUS,
    "--gpus": GPUS,
    "--gpus-per-node": GPUS,
    "--gpus-per-socket": GPUS,
    "--gpus-per-task": GPUS,
}
"""Options that exclude each other, with what they set."""
_SHORTEST_PREFIX = len("--ti")

_GPU_COUNT = re.compile(
    r"(?P<option>--gpus-per-task|--gpus-per-node|--gres(?==gpu))=(?P<kind>[A-Za-z][\w:.-]*:)?\d+"
)
"""An option of sbatch or srun that counts GPUs, such as ``--gres=gpu:a100:4``."""


class SlurmKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a site file under ``slurm``."""

    queue_directive: str = "--partition"
    """The option that names the queue: --partition or --qos."""


class SlurmScheduler(BatchScheduler):
    """Slurm, by sbatch, squeue, sacct and scancel."""

    name = "slurm"
    keys = SlurmKeys
    title = "Slurm"
    commands = ("sbatch", "squeue", "scancel")
    job_id_variable = "SLURM_JOB_ID"
    shell_prefixes = (
        *("SBATCH_", "SRUN_", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION", "SLURM_HINT", "SLURM_HOSTFILE"),
        *("SLURM_MPI_TYPE", "SLURM_NETWORK"),
    )
    shell_options = {  # noqa: RUF012 (never changed)
        "SBATCH_ACCOUNT": "account",
        "SBATCH_CONSTRAINT": "constraint",
        "SBATCH_PARTITION": "queue",
        "SBATCH_RESERVATION": "reservation",
        "SBATCH_TIMELIMIT": "walltime",
    }
    silence_remedy = "Ask the operators whether Slurm is running."
    arrays = JobArrays("#SBATCH", "#SBATCH --array={}", "SLURM_ARRAY_TASK_ID", "%a")
    dask_jobs = DaskJobs(
        "SLURMCluster",
        replaced=tuple(
            f"#SBATCH {flag}" for flag in ("-p ", "-A ", "-n ", "--cpus-per-task=", "--mem=", "-t ")
        ),
        kept=("--job-name=", "--output=", "--error="),
    )
    starters = (LauncherName.SRUN,)
    resources = (*_FLAGS, "gpus_per_rank", "scheduler_args")
    masks_gpus = True
    quotes_values = True
    template_filters = {"directive_path": directive_path}  # noqa: RUF012 (never changed)
    sends_signal = True
    requeues = True

    def check(self, job: Job, site: Site) -> None:
        """Check that the walltime is one of whole minutes, to which Slurm would round it up; and requeues."""
        again = [field for field in ("on_stall", "on_timeout") if getattr(job, field) == "resubmit"]
        if again and "--no-requeue" in self.directives(site, job):
            flag = OPTIONS[again[0]].flag
            raise UsageError(
                f"{flag} resubmit: --no-requeue forbids it; leave it out.", again[0], "scheduler_args"
            )
        check_whole_minutes(job, self.title)

    def resource_directives(self, job: Job) -> dict[str, str]:
        """Return the directives for CPUs, memory and kind of nodes, and for a job that may run again."""
        found = {f: f"{flag}={value}" for f, flag in _FLAGS.items() if (value := getattr(job, f))}
        found |= {
            field: "--requeue" for field in ("on_timeout", "on_stall") if getattr(job, field) == "resubmit"
        }
        # job.sh sends the signal where it acts on the limit itself.
        asked = job.signal and job.on_timeout != "resubmit"
        return found | ({"signal": f"--signal={job.signal}"} if asked else {})

    def own_directives(self, job: Job) -> list[str]:
        """Return the directives of the user, with quotes around a value that has spaces."""
        lines = super().own_directives(job)
        return [re.sub(r"^(--[\w-]+=)(.* .*)$", r'\1"\2"', line) for line in lines]

    def settings(self, directive: str) -> frozenset[str]:
        """Return the long name of the option, or what several options set in common.

        sbatch accepts the beginning of a long option; that of one in `_OWN_SETTINGS` is taken for it.
        """
        name = directive.replace(" ", "=").partition("=")[0]
        if not name.startswith("--"):
            name = _SHORT.get(name[:2], name[:2])
        elif name not in _COMMON and len(name) >= _SHORTEST_PREFIX:
            name = next((own for own in _OWN_SETTINGS if own.startswith(name)), name)
        if name == "--gres" and "gpu" in directive:
            name = GPUS
        return frozenset({_COMMON.get(name, name)})

    def directives(self, site: Site, job: Job) -> list[str]:
        """Return the directives of the site and the user, and the one that requests a node's GPUs."""
        lines, own = self.site_directives(site, job), self.own_directives(job)
        if site.launcher.name is not LauncherName.SRUN or job.workers:
            # Slurm would signal steps of srun alone; the script passes the signal on.
            own = [re.sub("^--signal=(?!.*:)", "--signal=B:", line) for line in own]
        if job.gpus_per_rank is not None:
            lines = [line for line in lines if GPUS not in self.settings(line) or _counts_gpus(line)]
            if _shares_node(site, job):
                lines = [line for line in lines if line != "--exclusive"]
            lines = fit_gpus(lines, job)
        lines = [_fit_ranks(line, site, job) for line in lines]
        requesting = [line for line in own if GPUS in self.settings(line)]
        return [*lines, *_gpu_request(site, job, [*lines, *requesting]), *own]

    def template_values(self, site: Site, job: Job, rendering: Rendering) -> Mapping[str, Any]:
        """Return ``mpi_trial``, the commands by which job.sh finds srun's MPI type; empty if it need not."""
        if not finds_type(site, job):
            return {"mpi_trial": {}}
        asks = ["python3", str(rendering.run_directory / START_UP / PROGRAM_WORDS)]
        trial = {
            "list": LIST_TYPES,
            "has_mpi": [*asks, "has", *rendering.program],
            "start": two_ranks(fit_gpus(site.launcher.arguments, job), job.nodes),
            "program": [*asks, "joins", *rendering.program],
        }
        return {"mpi_trial": trial}

    def allocated_nodes(self, environment: Mapping[str, str]) -> int:
        """Return what Slurm says in the environment."""
        return int(environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES") or 1)

    def own_settings(self, site: Site) -> dict[str, str]:
        """Return the options that the script or another option of hpcprof has."""
        return {**_OWN_SETTINGS, self.keys_of(site).queue_directive: "give --queue"}

    def queue_names(self, queue: str) -> list[str]:
        """Return the partitions of a list: Slurm takes the first one in which the job can start."""
        return queue.split(",")

    def submit(
        self, script: Path, directory: Path, after: Sequence[str] = (), options: Sequence[str] = ()
    ) -> str:
        """Submit by ``sbatch --parsable``; the job id is ``123``, or ``123;cluster`` on another cluster."""
        depends = []
        if after:
            numbers = ":".join(job_id.partition(";")[0] for job_id in after)
            # Without the second option a job whose dependency fails stays in the queue.
            depends = [f"--dependency=afterok:{numbers}", "--kill-on-invalid-dep=yes"]
        done = run_submission(["sbatch", "--parsable", *depends, *options, str(script)], directory)
        return client.parse_sbatch(done.exit_code, done.stdout, done.stderr)

    def log_options(self, out: Path, err: Path) -> list[str]:
        """Return ``--output`` and ``--error``, in which % would begin a pattern."""
        return [option.replace("%", "%%") for option in super().log_options(out, err)]

    def states(self, job_ids: Sequence[str], since: datetime) -> Mapping[str, Record]:
        """Ask squeue once for each cluster's jobs, then sacct once for those that squeue no longer lists.

        Accounting alone knows who cancelled a job.
        """
        records: dict[str, Record] = {}
        for cluster, numbers in _by_cluster(job_ids).items():
            known = client.of_members(client.squeue(client.whole(numbers), cluster), numbers)
            missing = [number for number in numbers if number not in known]
            if missing:
                known.update(client.of_members(client.sacct(client.whole(missing), cluster, since), missing))
            cancelled = [
                number
                for number, record in known.items()
                if record.state is JobState.CANCELLED and not record.reason
            ]
            with suppress(SchedulerError):  # that they were cancelled is known
                if cancelled:
                    whole = client.whole(cancelled)
                    known.update(client.of_members(client.sacct(whole, cluster, since), cancelled))
            records.update({numbers[number]: record for number, record in known.items()})
        return records

    def submitted_from(self, script: Path, owner: str) -> str:
        """Look for the script among the user's jobs; ended ones are listed for a while."""
        done = run_scheduler_command(
            ["squeue", "--noheader", "--states=all", f"--user={owner}", f"--format={client.SCRIPTS_FORMAT}"]
        )
        return client.parse_scripts(done.exit_code, done.stdout, done.stderr).get(str(script), "")

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel the jobs; scancel succeeds even for unknown jobs."""
        for cluster, numbers in _by_cluster(job_ids).items():
            members = [number for number in numbers if "_" in number]
            if members:
                # A waiting member that is cancelled leaves no record, and jobs that wait for its success then
                # start (seen on 22.05); a hold makes a separate job of it first. For members that already
                # run the hold fails, which does no harm.
                run_scheduler_command(["scontrol", *client.of_cluster(cluster), "hold", ",".join(members)])
            done = run_scheduler_command(["scancel", *client.of_cluster(cluster), *numbers])
            client.parse_scancel(done.exit_code, done.stdout, done.stderr)

    def member_id(self, array_id: str, index: int) -> str:
        """Return ``123_4``, or ``123_4;cluster``."""
        number, separator, cluster = array_id.partition(";")
        return f"{number}_{index}{separator}{cluster}"

    def largest_array(self) -> int | None:
        """Ask for Slurm's MaxArraySize."""
        done = run_scheduler_command(["scontrol", "show", "config"])
        return client.parse_largest_array(done.exit_code, done.stdout, done.stderr)

    def question(self, site: Site) -> list[str]:
        """Return the command that fails at once if no controller runs; others ask for a minute."""
        return ["scontrol", "ping"]

    def probe(self, ask: Ask) -> Machine:
        """Return the partitions and nodes that scontrol or sinfo show."""
        return client.probe_slurm(ask)


def _by_cluster(job_ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return ids by the cluster that they name, empty for the default one, and there by their number."""
    clusters: dict[str, dict[str, str]] = {}
    for job_id in job_ids:
        number, _, cluster = job_id.partition(";")
        clusters.setdefault(cluster, {})[number] = job_id
    return clusters


def _shares_node(site: Site, job: Job) -> bool:
    """Return whether a job asks for a part of the GPUs of a node that its queue lets jobs share."""
    queue = site.queues.get(job.queue)
    return queue is not None and queue.shared and gpus_per_node(job) < (site.node.gpus or 0)


def _fit_ranks(directive: str, site: Site, job: Job) -> str:
    """Return a directive of the site for a rank of each GPU, fitted to ranks that share GPUs and cores."""
    option, _, count = directive.partition("=")
    if option == "--gpus-per-task" and (gpus_are_shared(site, job) or job.workers):
        # One process starts all workers of a node.
        return f"--gpus-per-node={min(gpus_per_node(job), site.node.gpus or job.ranks_per_node)}"
    if option == "--cpus-per-task" and count.isdigit() and site.node.cores:
        share = site.node.cores * site.node.threads // job.ranks_per_node
        return f"{option}={max(1, min(int(count), share))}"
    return directive


def fit_gpus(options: Iterable[str], job: Job) -> list[str]:
    """Return options of sbatch or srun with the numbers of GPUs that the user asks for, if any."""
    if job.gpus_per_rank is None:
        return list(options)

    def fitted(match: re.Match[str]) -> str:
        count = job.gpus_per_rank if match["option"] == "--gpus-per-task" else gpus_per_node(job)
        return f"{match['option']}={match['kind'] or ''}{count}"

    kept = [option for option in options if job.gpus_per_rank or not _counts_gpus(option)]
    return [_GPU_COUNT.sub(fitted, option) for option in kept]


def _counts_gpus(option: str) -> bool:
    """Return whether `fit_gpus` can put another number of GPUs into an option."""
    return _GPU_COUNT.match(option) is not None


def _gpu_request(site: Site, job: Job, directives: Iterable[str]) -> list[str]:
    """Return the directive that requests a node's GPUs; none if something else does."""
    asked = job.gpus_per_rank is not None
    count = gpus_per_node(job) if asked else site.node.gpus
    others = [*directives, *site.launcher.arguments]
    if not count or any(_counts_gpus(other) if asked else "gpu" in other for other in others):
        return []
    if site.node_request is NodeRequest.GRES:
        return [f"--gres=gpu:{count}"]
    # Where the site says nothing, GPUs are requested only if the user asks for them.
    wanted = site.node_request is NodeRequest.GPUS_PER_NODE or (
        asked and site.node_request is NodeRequest.NONE
    )
    return [f"--gpus-per-node={count}"] if wanted else []
