"""PBS Pro and OpenPBS: what their jobs may ask for, the directives that ask for it, and the commands."""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from hpcprof.common.errors import SchedulerError, UsageError
from hpcprof.runs.job import Job
from hpcprof.submit.schedulers.base import JobState, Record
from hpcprof.submit.schedulers.batch import BatchScheduler
from hpcprof.submit.schedulers.command import Unreachable, run_scheduler_command, run_submission
from hpcprof.submit.schedulers.pbs import client
from hpcprof.submit.schedulers.scheduler import (
    JOB_SCRIPT,
    DaskJobs,
    FurtherFile,
    JobArrays,
    Rendering,
    Shortcoming,
    directive_path,
    gpus_per_node,
)
from hpcprof.submit.sites.machine import Ask, Machine
from hpcprof.submit.sites.model import Chunk, LauncherName, NodeRequest, Queue, Site

# How PBS names the queues of reservations (PBS Professional Reference Guide: reservation ID).
_RESERVATION = re.compile(r"[RMS]\d+(\..*)?")

_SCATTER = "-l place=scatter"
_SHELL = "pbs_shell"
# A comma and @ mean something in -S; quotes do not help.
_SHELL_PATH = re.compile(r"[\w./:=+&-]+", re.ASCII)
_RESOURCE = re.compile(r"(?P<name>[A-Za-z][\w-]*)=[\w.,/@-]+", re.ASCII)
_OF_OPTIONS = {
    "select": "give --nodes",
    "nodes": "give --nodes",
    "mpiprocs": "give --ranks-per-node",
    "ncpus": "give --cpus-per-rank",
    "ngpus": "give --gpus-per-rank",
    "mem": "give --mem",
    "walltime": "give --walltime",
}
"""The resources that options of hpcprof set, each with the end of a sentence on what to do."""
_OWN_OPTIONS = {
    "-A": "give --account",
    "-I": "a run cannot be interactive",
    "-J": "give --array to hpcprof sweep",
    "-N": "give --job-name",
    "-S": "the first line of job.sh names its shell",
    "-W block": "give --wait",
    "-W depend": "give --after",
    "-e": "the output goes to logs/ of the run",
    "-o": "the output goes to logs/ of the run",
    "-q": "give --queue",
    "-z": "it needs the job's id",
}


class PbsKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a site file under ``pbs``."""

    select: str = ""
    """Text that is appended to -l select=N:."""


class PbsScheduler(BatchScheduler):
    """PBS, by qsub, qstat and qdel."""

    name = "pbs"
    keys = PbsKeys
    title = "PBS"
    commands = ("qsub", "qstat", "qdel")
    job_id_variable = "PBS_JOBID"
    shell_prefixes = ("PBS_DPREFIX", "PBS_SHELL")
    template_filters = {"directive_path": partial(directive_path, refused=r"\\|[^ -~]")}  # noqa: RUF012 (never changed)
    passes_environment = False  # hpcprof calls qsub without -V
    silence_remedy = "Ask the operators whether PBS is running."
    dask_jobs = DaskJobs(
        "PBSCluster",
        replaced=tuple(f"#PBS {flag} " for flag in ("-q", "-A", "-l")),
        kept=("-N ", "-o ", "-e ", "-S "),
    )
    arrays = JobArrays(
        "#PBS",
        # PBS accepts no array that cannot be run again.
        "#PBS -r y\n#PBS -J {}",
        "PBS_ARRAY_INDEX",
        "^array_index^",  # seen to work on OpenPBS 23.06
        shared="#PBS -S ",
        least_members=2,
        forbidden=r"#PBS\s+-r\s*n",
        forbidden_reason="PBS accepts no array that cannot be run again (-r n)",
    )
    resources = ("cpus_per_rank", "gpus_per_rank", "mem", "constraint", "scheduler_args")
    starters = (LauncherName.PALS, LauncherName.MPICH, LauncherName.OPENMPI)
    keeps_history: ClassVar[bool] = True
    """True if the server keeps finished jobs; false for this process once the server has denied it."""

    def check(self, job: Job, site: Site) -> None:
        """Check that the chunk can have what the user asks for; a constraint names resources of it."""
        for option, value in {"--cpus-per-rank": job.cpus_per_rank, "--mem": job.mem}.items():
            if value and _counts_gpus(site, job):
                raise UsageError(
                    f"{option} {value}: queue {job.queue} of {site.name} gives each GPU its share of a node; "
                    "leave it out.",
                    *(option[2:].replace("-", "_"), "queue"),
                )
        for part in job.constraint.split(":") if job.constraint else ():
            match = _RESOURCE.fullmatch(part)
            if match is None:
                raise UsageError(
                    f"--constraint {job.constraint}: PBS chooses nodes by their resources; write "
                    "RESOURCE=VALUE, as in gpu_type=a100, several joined by a colon.",
                    "constraint",
                )
            if match["name"] in _OF_OPTIONS:
                advice = f"hpcprof sets {match['name']} itself; {_OF_OPTIONS[match['name']]}"
                raise UsageError(f"--constraint {part}: {advice}.", "constraint")

    def chunks(self, job: Job, queue: Queue) -> tuple[int, str]:
        """Return the number of chunks of ``select``: nodes, or GPUs if the queue counts these."""
        return (gpus_per_node(job), "GPUs") if queue.chunk is Chunk.GPU else (job.nodes, "nodes")

    def template_values(self, site: Site, job: Job, rendering: Rendering) -> Mapping[str, Any]:
        """Return the number and the resources of ``-l select=chunks:chunk``, and whether ``-S`` is ours."""
        chunks, _ = self.chunks(job, site.queues.get(job.queue, Queue()))
        own_shell = _SHELL_PATH.fullmatch(str(rendering.run_directory)) is not None and not any(
            "-S" in self.settings(line) for line in self.directives(site, job)
        )
        chunk = _chunk(site, job, self.keys_of(site).select)
        return {"chunks": chunks, "chunk": chunk, "own_shell": own_shell}

    def further_files(
        self, site: Site, job: Job, run_id: str, scripts: Mapping[str, str]
    ) -> Sequence[FurtherFile]:
        """Return the shell that runs job.sh (``-S``), if job.sh names it."""
        named = f"/{_SHELL}" in scripts[JOB_SCRIPT]
        return [FurtherFile(_SHELL, "job/pbs_shell.sh.j2", {})] if named else []

    def directives(self, site: Site, job: Job) -> list[str]:
        """Return those of the site and the user; PBS puts several chunks on one host unless it must not."""
        lines = super().directives(site, job)
        placed = any("-l place" in self.settings(line) for line in lines)
        return lines if placed or job.nodes == 1 else [*lines, _SCATTER]

    def revised(self, script: str) -> str:
        """Return the script without our ``place`` if it has no ``select``, since PBS refuses that."""
        has_select = re.search(r"^#PBS\b.*-l\s*(\S+,)?select=", script, re.MULTILINE)
        return script if has_select else script.replace(f"#PBS {_SCATTER}\n", "")

    def allocated_nodes(self, environment: Mapping[str, str]) -> int:
        """Return the number of hosts in the file that PBS lists them in, one line for each process."""
        with suppress(OSError):
            hosts = Path(environment.get("PBS_NODEFILE", "")).read_text(encoding="utf-8").split()
            return len(set(hosts)) or 1
        return 1

    def settings(self, directive: str) -> frozenset[str]:
        """Return the option, with the names of the resources (``-l``) or attributes (``-W``) that it sets."""
        option, values = directive[:2], directive[2:].strip()
        if option not in ("-l", "-W"):
            return frozenset({option})
        return frozenset(f"{option} {value.partition('=')[0]}" for value in values.split(","))

    def own_settings(self, site: Site) -> dict[str, str]:
        """Return the options and resources that the script or another option of hpcprof has."""
        return {**_OWN_OPTIONS, **{f"-l {name}": advice for name, advice in _OF_OPTIONS.items()}}

    def accepts_queue(self, queue: str) -> bool:
        """Return whether a queue is that of a reservation, or of another server (``queue@server``)."""
        return _RESERVATION.fullmatch(queue) is not None or "@" in queue

    def check_awaited(self, job_ids: Sequence[str]) -> None:
        """Refuse to wait for members of arrays."""
        arrays = [job_id for job_id in job_ids if "[" in job_id]
        if arrays:
            raise SchedulerError(
                f"job {arrays[0]}, which this one must wait for, is a member of an array, and PBS cannot "
                "wait for the success of a member: submit this job when it has ended, or the sweep without "
                "--array."
            )

    def submit(
        self, script: Path, directory: Path, after: Sequence[str] = (), options: Sequence[str] = ()
    ) -> str:
        """Submit by ``qsub``, without the environment: exported functions break qstat's JSON."""
        depends = ["-W", f"depend=afterok:{':'.join(after)}"] if after else []
        done = run_submission(["qsub", *depends, *options, str(script)], directory)
        return client.parse_qsub(done.exit_code, done.stdout, done.stderr)

    def log_options(self, out: Path, err: Path) -> list[str]:
        """Return ``-o`` and ``-e``."""
        return ["-o", str(out), "-e", str(err)]

    def states(self, job_ids: Sequence[str], since: datetime) -> Mapping[str, Record]:
        """Ask for each job or whole array by itself, and stop after a while.

        ``qstat -F json`` prints only the first of several ids (seen on OpenPBS 23.06). Without an id it
        prints every job of the server, with its history: a load that sites do not accept.
        """
        groups: dict[str, list[str]] = {}
        for job_id in job_ids:
            groups.setdefault(client.array_of(job_id), []).append(job_id)
        records: dict[str, Record] = {}
        deadline = time.monotonic() + client.ALL_SECONDS
        for count, (asked, group) in enumerate(groups.items()):
            if time.monotonic() > deadline:
                late = f"not asked for: PBS took {client.ALL_SECONDS:.0f} s for {count} of {len(groups)} jobs"
                records.update(dict.fromkeys(group, Record(JobState.UNKNOWN, late)))
                continue
            try:
                records.update(client.pick(self._qstat(asked), group))
            except Unreachable:
                raise
            except SchedulerError as error:  # of this job alone
                records.update(dict.fromkeys(group, Record(JobState.UNKNOWN, str(error))))
        return client.on_dead_nodes(records)

    def submitted_from(self, script: Path, owner: str) -> str:
        """Look for the script among the user's jobs of its name, of which qselect prints the ids alone."""
        try:
            name = client.parse_job_name(script.read_text(encoding="utf-8", errors="replace")) or script.name
        except OSError:
            return ""
        done = run_scheduler_command(["qselect", "-u", owner, "-N", name])
        for job_id in client.parse_qselect(done.exit_code, done.stdout, done.stderr):
            asked = run_scheduler_command([*client.QSTAT, job_id])
            if client.was_submitted_from(script, asked.stdout):
                return job_id
        return ""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Delete the jobs; they remain listed as running for some seconds."""
        done = run_scheduler_command(["qdel", *job_ids])
        client.parse_qdel(done.exit_code, done.stdout, done.stderr)

    def _qstat(self, job_id: str) -> Mapping[str, Record]:
        members = ["-t"] if "[" in job_id else []
        if PbsScheduler.keeps_history:
            done = run_scheduler_command([*client.QSTAT_HISTORY, *members, job_id])
            if not client.has_no_history(done.stderr):
                return client.parse_qstat(done.exit_code, done.stdout, done.stderr)
            PbsScheduler.keeps_history = False
        done = run_scheduler_command([*client.QSTAT, *members, job_id])
        return client.parse_qstat(done.exit_code, done.stdout, done.stderr)

    def member_id(self, array_id: str, index: int) -> str:
        """Return ``123[4].server``."""
        return client.member_of(array_id, index)

    def largest_array(self) -> int | None:
        """Ask for the server's max_array_size."""
        done = run_scheduler_command(["qstat", "-B", "-f", "-F", "json"])
        return client.parse_largest_array(done.exit_code, done.stdout, done.stderr)

    def question(self, site: Site) -> list[str]:
        """Return the command that asks for the server and its settings."""
        return ["qstat", "-B", "-f", "-F", "json"]

    def shortcoming(self, answer: str) -> Shortcoming | None:
        """Return what is lost if the server keeps no finished jobs."""
        if client.parse_job_history(answer):
            return None
        return Shortcoming(
            "PBS keeps no job history, so only the files of a run show how it ended: a job that PBS killed "
            "(walltime, memory, a lost node) is failed with the reason 'ended without a record'.",
            "Ask the operators to set job_history_enable on the server.",
        )

    def probe(self, ask: Ask) -> Machine:
        """Return the queues and nodes that qstat and pbsnodes show."""
        return client.probe_pbs(ask)


def _counts_gpus(site: Site, job: Job) -> bool:
    """Return whether a chunk of the job's queue is one GPU, with its share of a node, not a whole node."""
    queue = site.queues.get(job.queue)
    return queue is not None and queue.chunk is Chunk.GPU


def _chunk(site: Site, job: Job, select: str) -> list[str]:
    """Return the resources of a chunk: those of the site's ``select`` come first.

    ``mpiprocs`` gives the node one line for each rank in ``$PBS_NODEFILE``. Requests of the user replace
    the site's.
    """
    asked = _asked_resources(job)
    whole: dict[str, int | None] = {}
    if _counts_gpus(site, job):
        asked.pop("ngpus", None)
    elif site.node_request is NodeRequest.CHUNK and (site.node.cores or site.node.gpus or asked):
        whole = {"ncpus": site.node.cores, "ngpus": site.node.gpus, "mpiprocs": job.ranks_per_node}
    given = dict(_pair(part) for part in select.split(":") if part)
    node = {key: str(count) for key, count in whole.items() if count}
    return [f"{key}={value}" if value else key for key, value in {**given, **node, **given, **asked}.items()]


def _asked_resources(job: Job) -> dict[str, str]:
    """Return the resources of a node that the user asks for, by PBS's names."""
    asked = {}
    if job.cpus_per_rank:
        asked["ncpus"] = str(job.ranks_per_node * job.cpus_per_rank)
    if job.gpus_per_rank is not None:
        asked["ngpus"] = str(gpus_per_node(job))
    if job.mem:
        asked["mem"] = f"{job.mem.lower()}b"
    return {**asked, **dict(_pair(part) for part in job.constraint.split(":") if part)}


def _pair(part: str) -> tuple[str, str]:
    key, _, value = part.partition("=")
    return key, value
