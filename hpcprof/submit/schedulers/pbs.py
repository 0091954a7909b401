"""PBS Pro and OpenPBS: what their jobs may ask for, the directives, the commands and what they print.

The output of the commands was seen on OpenPBS 23.06.06, unless noted otherwise. States are those of the PBS
reference guide, "Job States". Parsers raise `Unreachable` if the server did not answer.

A finished job has ``job_state`` F (a subjob of an array: X), and:

================================= ======== ===========
case                              substate Exit_status
================================= ======== ===========
success                           92       0
failure                           93       the code
walltime                          93       -29
deleted while running             91       271, or 0
deleted while queued              91       absent
removed by its dependency         92       absent
array with a failed subjob        93       0
its node's daemon died            93       -20
================================= ======== ===========
"""

import json
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from hpcprof.common.errors import SchedulerError, UsageError
from hpcprof.common.grouping import grouped
from hpcprof.runs.job import Job
from hpcprof.submit.schedulers.base import NODE_LOST, JobState, Record
from hpcprof.submit.schedulers.batch import BatchScheduler
from hpcprof.submit.schedulers.command import (
    Unreachable,
    complaint,
    parse_array_indices,
    read_options,
    read_words,
    run_file_suffix,
    run_scheduler_command,
    run_submission,
    seconds_since,
    submission_error,
)
from hpcprof.submit.schedulers.scheduler import (
    DaskJobs,
    JobArrays,
    Rendering,
    Shortcoming,
    directive_path,
    gpus_per_node,
)
from hpcprof.submit.sites.machine import Ask, Machine, most_common_node, parse_count
from hpcprof.submit.sites.model import Chunk, LauncherName, Node, NodeRequest, Queue, Site

# How PBS names the queues of reservations (PBS Professional Reference Guide: reservation ID).
_RESERVATION = re.compile(r"[RMS]\d+(\..*)?")

_SCATTER = "-l place=scatter"
_SHELL = "pbs_shell"
# A comma and @ mean something in -S; quotes do not help.
_SHELL_PATH = re.compile(r"[\w./:=+&-]+", re.ASCII)
_RESOURCE = re.compile(r"(?P<name>[A-Za-z][\w-]*)=[\w.,/@-]+", re.ASCII)
_OPTIONS = read_options(__file__)


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
    named_files = {_SHELL: "job/pbs_shell.sh.j2"}  # noqa: RUF012 (never changed)
    shell_prefixes = ("PBS_DPREFIX", "PBS_SHELL")
    template_filters = {"directive_path": partial(directive_path, refused=r"\\|[^ -~]")}  # noqa: RUF012 (never changed)
    passes_environment = False  # hpcprof calls qsub without -V
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
    own_options = _OPTIONS.own
    dependency = "-W depend"
    quoted_options = "-v "
    log_flags = ("-o", "-e")
    keeps_history: ClassVar[bool] = True
    """True if the server keeps finished jobs; false for this process once the server has denied it."""

    def check(self, job: Job, site: Site) -> None:
        """Check that the chunk can have what the user asks for; a constraint names resources of it."""
        for option, value in {"--cpus-per-rank": job.cpus_per_rank, "--mem": job.mem}.items():
            if value and _counts_gpus(site, job):
                share = f"queue {job.queue} of {site.name} gives each GPU its share of a node"
                field = option[2:].replace("-", "_")
                raise UsageError(f"{option} {value}: {share}; leave it out.", field, "queue")
        for part in job.constraint.split(":") if job.constraint else ():
            match = _RESOURCE.fullmatch(part)
            if match is None:
                valid = "RESOURCE=VALUE, as in gpu_type=a100, several joined by a colon"
                sentence = (
                    f"--constraint {job.constraint}: PBS chooses nodes by their resources; write {valid}."
                )
                raise UsageError(sentence, "constraint")
            if taken := _OPTIONS.own.get(f"-l {match['name']}"):
                advice = f"hpcprof sets {match['name']} itself; {taken}"
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

    def directives(self, site: Site, job: Job) -> list[str]:
        """Return those of the site and the user; PBS puts several chunks on one host unless it must not."""
        lines = super().directives(site, job)
        placed = any("-l place" in self.settings(line) for line in lines)
        return lines if placed or job.nodes == 1 else [*lines, _SCATTER]

    def revised(self, script: str) -> str:
        """Return the script without hpcprof's ``place`` if it has no ``select``: PBS refuses that."""
        has_select = re.search(r"^#PBS\b.*-l\s*(\S+,)?select=", script, re.MULTILINE)
        return script if has_select else script.replace(f"#PBS {_SCATTER}\n", "")

    def allocated_nodes(self, environment: Mapping[str, str]) -> int:
        """Return the number of hosts in the file that PBS lists them in, one line for each process."""
        with suppress(OSError):
            hosts = Path(environment.get("PBS_NODEFILE", "")).read_text(encoding="utf-8").split()
            return len(set(hosts)) or 1
        return 1

    def settings(self, directive: str) -> frozenset[str]:
        """Return the option, with the names of the resources (``-l``) or attributes (``-W``) that it sets.

        Those that join, leave behind or remove output (``-j``, ``-k``, ``-R``) set where it goes, as ``-o``
        and ``-e`` do; ``-k`` with ``d`` only writes it there at once.
        """
        option, values = directive[:2], directive[2:].strip()
        if option in ("-j", "-k", "-R") and not {"d", "n"} & set(values):
            return frozenset(f"-{kind}" for kind in values)
        if option not in ("-l", "-W"):
            return frozenset({option})
        return frozenset(f"{option} {value.partition('=')[0]}" for value in values.split(","))

    def accepts_queue(self, queue: str) -> bool:
        """Return whether a queue is that of a reservation, or of another server (``queue@server``)."""
        return _RESERVATION.fullmatch(queue) is not None or "@" in queue

    def check_awaited(self, job_ids: Sequence[str]) -> None:
        """Refuse to wait for members of arrays."""
        arrays = [job_id for job_id in job_ids if "[" in job_id]
        if arrays:
            reason = "is a member of an array, and PBS cannot wait for the success of a member"
            advice = "submit this job when it has ended, or the sweep without --array"
            raise SchedulerError(f"job {arrays[0]}, which this one must wait for, {reason}: {advice}.")

    def submit(
        self, script: Path, directory: Path, after: Sequence[str] = (), options: Sequence[str] = ()
    ) -> str:
        """Submit by ``qsub``, without the environment: exported functions break qstat's JSON."""
        depends = ["-W", f"depend=afterok:{':'.join(after)}"] if after else []
        submission = run_submission(["qsub", *depends, *options, str(script)], directory)
        return parse_qsub(*submission.answer)

    def states(self, job_ids: Sequence[str], since: datetime) -> Mapping[str, Record]:
        """Ask for each job or array separately, up to `POLL_SECONDS`: of several ids ``qstat`` prints one."""
        groups = grouped((array_of(job_id), job_id) for job_id in job_ids)
        records: dict[str, Record] = {}
        deadline = time.monotonic() + POLL_SECONDS
        for count, (ids, group) in enumerate(groups.items()):
            if time.monotonic() > deadline:
                late = f"not asked for: PBS took {POLL_SECONDS:.0f} s for {count} of {len(groups)} jobs"
                records.update(dict.fromkeys(group, Record(JobState.UNKNOWN, late)))
                continue
            try:
                records.update(records_by_id_of_run(self._qstat(ids), group))
            except Unreachable:
                raise
            except SchedulerError as error:  # of this job alone
                records.update(dict.fromkeys(group, Record(JobState.UNKNOWN, str(error))))
        return name_dead_nodes(records)

    def submitted_from(self, script: Path, owner: str) -> str:
        """Look for the script among the user's jobs with its name; qselect prints only their ids."""
        try:
            name = parse_job_name(script.read_text(encoding="utf-8", errors="replace")) or script.name
        except OSError:
            return ""
        listing = run_scheduler_command(["qselect", "-u", owner, "-N", name])
        jobs = (
            (job_id, run_scheduler_command([*QSTAT, job_id])) for job_id in parse_qselect(*listing.answer)
        )
        return next((job_id for job_id, record in jobs if was_submitted_from(script, record.stdout)), "")

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Delete the jobs; they remain listed as running for some seconds."""
        parse_qdel(*run_scheduler_command(["qdel", *job_ids]).answer)

    def _qstat(self, job_id: str) -> Mapping[str, Record]:
        members = ["-t"] if "[" in job_id else []
        if PbsScheduler.keeps_history:
            listing = run_scheduler_command([*QSTAT_HISTORY, *members, job_id])
            if not has_no_history(listing.stderr):
                return parse_qstat(*listing.answer)
            PbsScheduler.keeps_history = False
        return parse_qstat(*run_scheduler_command([*QSTAT, *members, job_id]).answer)

    def member_id(self, array_id: str, index: int) -> str:
        """Return ``123[4].server``."""
        return member_of(array_id, index)

    def largest_array(self) -> int | None:
        """Ask for the server's max_array_size."""
        return parse_largest_array(*run_scheduler_command(QSTAT_SERVER).answer)

    def question(self, site: Site) -> list[str]:
        """Return the command that asks for the server and its settings."""
        return QSTAT_SERVER

    def shortcoming(self, answer: str) -> Shortcoming | None:
        """Return the loss if the server keeps no finished jobs."""
        if parse_job_history(answer):
            return None
        return Shortcoming(
            "PBS keeps no job history, so only the files of a run show how it ended: a job that PBS killed "
            "(walltime, memory, a lost node) is failed with the reason 'ended without a record'.",
            "Ask the operators to set job_history_enable on the server.",
        )

    def probe(self, ask: Ask) -> Machine:
        """Return the queues from qstat, none larger than the machine, and the nodes from pbsnodes."""
        queues = parse_qstat_queues(ask(["qstat", "-Q", "-f", "-F", "json"])).queues
        text = ask(["pbsnodes", "-a", "-F", "json"])
        if count := len(_json_object(text, "nodes")):
            queues = {
                name: msgspec.structs.replace(queue, max_nodes=min(queue.max_nodes or count, count))
                for name, queue in queues.items()
            }
        default = re.search(r'"default_queue"\s*:\s*"(.*?)"', ask(QSTAT_SERVER))
        chosen = default[1] if default and default[1] in queues else ""
        return Machine(queues, chosen, parse_pbsnodes(text))


def _counts_gpus(site: Site, job: Job) -> bool:
    """Return whether a chunk of the job's queue is one GPU, with its share of a node, not a whole node."""
    queue = site.queues.get(job.queue)
    return queue is not None and queue.chunk is Chunk.GPU


def _chunk(site: Site, job: Job, select: str) -> list[str]:
    """Return the resources of a chunk, the site's ``select`` first, with an ``mpiprocs`` for each rank."""
    extra = {"ncpus": str(job.ranks_per_node * job.cpus_per_rank)} if job.cpus_per_rank else {}
    if job.gpus_per_rank is not None:
        extra["ngpus"] = str(gpus_per_node(job))
    if job.mem:
        extra["mem"] = f"{job.mem.lower()}b"
    extra |= dict(part.partition("=")[::2] for part in job.constraint.split(":") if part)
    node_counts: dict[str, int | None] = {}
    if _counts_gpus(site, job):
        extra.pop("ngpus", None)
    elif site.node_request is NodeRequest.CHUNK and (site.node.cores or site.node.gpus or extra):
        node_counts = {"ncpus": site.node.cores, "ngpus": site.node.gpus, "mpiprocs": job.ranks_per_node}
    resources = dict(part.partition("=")[::2] for part in select.split(":") if part)
    node = {key: str(count) for key, count in node_counts.items() if count}
    return [
        f"{key}={value}" if value else key
        for key, value in {**resources, **node, **resources, **extra}.items()
    ]


QSTAT = ("qstat", "-f", "-F", "json")
QSTAT_SERVER = ["qstat", "-B", "-f", "-F", "json"]
# Shows finished jobs too, for as long as the server keeps their history.
QSTAT_HISTORY = ("qstat", "-x", "-f", "-F", "json")

POLL_SECONDS = 20.0
"""Maximum time for all questions of a poll, in seconds; the other jobs are asked for in the next poll."""


def name_dead_nodes(records: Mapping[str, Record]) -> Mapping[str, Record]:
    """Name the dead nodes of jobs that run: PBS calls a job running until its first node is given up."""
    if not any(record.nodes for record in records.values()):
        return records
    try:
        down = parse_down_nodes(run_scheduler_command(["pbsnodes", "-l"]).stdout)
    except SchedulerError:  # the states are known all the same
        return records
    records_by_id = {}
    for job_id, record in records.items():
        lost = " and ".join(sorted(record.nodes & down))
        words = f"{lost} {'are' if ' and ' in lost else 'is'} down, so the job cannot continue"
        records_by_id[job_id] = replace(record, reason=words) if lost else record
    return records_by_id


def records_by_id_of_run(records: Mapping[str, Record], job_ids: Sequence[str]) -> dict[str, Record]:
    """Return the records of jobs by the ids that hpcprof has; qstat may print them differently."""
    return {
        job_id: records[name]
        for job_id in job_ids
        if (name := job_id if job_id in records else next((n for n in records if same_job(n, job_id)), ""))
    }


# Error codes of PBS are 15000 and more; a command's exit code is their last eight bits.
_UNKNOWN_JOB = 153
_FINISHED_JOB = 35
_FINISHED_MEMBER = 55  # of an array
_USAGE = 2

_JOB_ID = re.compile(r"\d+(\[\d*\])?(\.\S+)?")
_NO_ANSWER = ("cannot connect", "Connection refused", "Unknown Host", "Connection timed out")


def parse_qsub(code: int, out: str, error: str) -> str:
    """Return the job id that qsub printed."""
    ids = [line.strip() for line in out.splitlines() if _JOB_ID.fullmatch(line.strip())]
    if code == 0 and ids:
        return ids[-1]
    words_of_qsub = _complaint(error if code else f"{error}\n{out}")
    meaning = "an option or directive is wrong" if code == _USAGE else meanings().refusals.get(code, "")
    refused = code != 0 and "Connection timed out" not in error
    raise submission_error(
        "qsub", f"{meaning}: {words_of_qsub}" if meaning else words_of_qsub, refused=refused
    )


def parse_job_name(script: str) -> str:
    """Return the name that a script's directives give its job, the last one counts; empty if none does."""
    names = re.findall(r"^#PBS\b.*\s-N\s*(\S+)", script, re.MULTILINE)
    return names[-1] if names else ""


def parse_qselect(code: int, out: str, error: str) -> list[str]:
    """Return the ids that qselect printed, newest first; there may be none. An array has one."""
    _check(code, out, error, "qselect")
    return [line.strip() for line in reversed(out.splitlines()) if _JOB_ID.fullmatch(line.strip())]


def was_submitted_from(script: Path, out: str) -> bool:
    """Return whether ``qstat -f -F json`` printed a job whose script has this path: qsub's last argument."""
    match = re.search(r'^\s*"Submit_arguments"\s*:\s*"(.*)"\s*,?\s*$', out, re.MULTILINE)
    # Not as JSON: the job's environment can make it invalid.
    path = json.dumps(run_file_suffix(script), ensure_ascii=False)[1:-1]
    return match is not None and match[1].endswith(path)


def has_no_history(error: str) -> bool:
    """Return whether ``qstat -x`` was refused, with code 0, as OpenPBS keeps no history by default."""
    return "not configured to maintain job history" in error


def parse_job_history(out: str) -> bool:
    """Return whether the server keeps finished jobs, by ``qstat -B -f -F json``; it omits what is unset."""
    return re.search(r'"job_history_enable"\s*:\s*"?True', out) is not None


def parse_qstat(code: int, out: str, error: str) -> Mapping[str, Record]:
    """Return the records by job id that ``qstat -f -F json`` printed for one id, with or without ``-x``.

    A job that is unknown (exit code 153), or has finished without a history (35), is left out. With ``-t``
    the members of an array have records too.
    """
    if code in (_UNKNOWN_JOB, _FINISHED_JOB):
        return {}
    _check(code, out, error)
    try:
        document = json.loads(out, strict=False)  # line breaks in values are taken as they are
    except ValueError:
        document = _parse_damaged_json(out)
    if not isinstance(document, dict):
        raise SchedulerError("the output of qstat is not a JSON object.")
    stamp = str(document.get("timestamp"))
    asked_at = float(stamp) if re.fullmatch(r"\d+(\.\d*)?", stamp) else None
    jobs = document.get("Jobs") or {}  # absent where there is no job to show
    # qstat writes some attributes as numbers and booleans.
    attributes = {
        job_id: {name: str(value) for name, value in job.items() if not isinstance(value, dict | list)}
        for job_id, job in jobs.items()
    }
    records = {
        job_id: replace(
            record_from_attributes(job, asked_at),
            script=job.get("Submit_arguments", ""),
            submitted_seconds=seconds_since(job.get("ctime", ""), "%a %b %d %H:%M:%S %Y", asked_at),
        )
        for job_id, job in attributes.items()
        if array_of(job_id) == job_id or "array_index" in job
    }
    for job_id, job in attributes.items():
        if "[]" in job_id:
            for member, record in _records_from_array(job_id, job, records[job_id]).items():
                records.setdefault(member, record)
    return records


def _records_from_array(array_id: str, job: Mapping[str, str], record: Record) -> dict[str, Record]:
    """Return the records of the members that wait, or that ended with their array before they ran.

    PBS makes a separate job, which has an ``array_index``, of a member when it starts. Until then it shows
    the array's attributes for the member, with another member's exit status among them (``status_subjob`` of
    OpenPBS, src/server/stat_job.c). So the state comes from the array, and a member that was deleted while it
    waited has none.
    """
    all_indices = parse_array_indices(job.get("array_indices_submitted", ""))
    if record.state in (JobState.QUEUED, JobState.CANCELLED):
        members = dict.fromkeys(all_indices, record)
    else:
        waiting = parse_array_indices(job.get("array_indices_remaining", ""))
        members = dict.fromkeys(waiting, Record(JobState.QUEUED, "waits for its turn in the array"))
    return {member_of(array_id, index): member for index, member in members.items()}


def parse_largest_array(code: int, out: str, error: str) -> int | None:
    """Return the ``max_array_size`` that ``qstat -B -f -F json`` printed; None if it is missing."""
    _check(code, out, error)
    match = re.search(r'"max_array_size"\s*:\s*"?(\d+)', out)
    return int(match[1]) if match else None


def parse_qdel(code: int, out: str, error: str) -> None:
    """Check the result of qdel; a job that has finished or is unknown need not be deleted."""
    if code not in (0, _UNKNOWN_JOB, _FINISHED_JOB, _FINISHED_MEMBER):
        raise SchedulerError(f"qdel did not delete the job: {_complaint(error or out)}.")


def parse_down_nodes(out: str) -> frozenset[str]:
    """Return the nodes that are down in the list of ``pbsnodes -l``; jobs on offline nodes continue."""
    lines = [line.split() for line in out.splitlines()]
    return frozenset(words[0] for words in lines if len(words) > 1 and "down" in words[1].split(","))


def array_of(job_id: str) -> str:
    """Return the id of a member's array; other ids are returned unchanged."""
    return re.sub(r"\[\d+\]", "[]", job_id, count=1)


def member_of(array_id: str, index: int) -> str:
    """Return the id of a member: ``123[4].server`` of ``123[].server``."""
    return array_id.replace("[]", f"[{index}]", 1)


def same_job(name: str, job_id: str) -> bool:
    """Return whether two ids name the same job: servers differ in how much of their name they print."""
    first, _, first_server = name.partition(".")
    second, _, second_server = job_id.partition(".")
    servers = (first_server.partition(".")[0], second_server.partition(".")[0])
    return first == second and (servers[0] == servers[1] or "" in servers)


def _parse_damaged_json(out: str) -> dict[str, Any]:
    """Read the attributes that matter from the invalid JSON of one job.

    An exported shell function or a quote in the job's environment can make it invalid. ``job_state`` and
    ``substate`` come before the environment, so their first line counts; ``comment`` and ``Exit_status`` come
    after it, so their last line counts.
    """
    job_ids = re.findall(r'^\s*"(\d+(?:\[\d*\])?\.[^"\s]+)"\s*:\s*\{\s*$', out, re.MULTILINE)
    lines = re.findall(r'^\s*"([A-Za-z_]+)"\s*:\s*(?:"(.*)"|(-?[0-9.]+))\s*,?\s*$', out, re.MULTILINE)
    values = [(name, text or number) for name, text, number in lines]
    first = dict(reversed(values))
    last = dict(values)
    if len(job_ids) != 1 or "job_state" not in first:
        raise SchedulerError("the output of qstat is not valid JSON.")
    job = {name: first[name] for name in ("job_state", "substate", "Hold_Types", "depend") if name in first}
    job |= {
        name: last[name] for name in ("comment", "Exit_status", "history_timestamp", "etime") if name in last
    }
    return {"timestamp": first.get("timestamp"), "Jobs": {job_ids[0]: job}}


def _check(code: int, out: str, error: str, command: str = "qstat") -> None:
    if code == 0:
        return
    reason = _complaint(error or out)
    if any(words in error for words in _NO_ANSWER):
        raise Unreachable(f"PBS did not answer: {reason}.")
    raise SchedulerError(f"{command} failed with exit code {code}: {reason}.")


def _complaint(error: str) -> str:
    lines = re.sub(r"\n(?:\S*/)?q(?:sub|stat|del|select): +", "; ", error.strip())
    return re.sub(r"^(?:\S*/)?q(?:sub|stat|del|select): +", "", complaint(lines))


_DELETED_SUBSTATE = "91"
_FAILED_SUBSTATE = "93"
_WALLTIME = -29
_NODE_LOST = -20
_BY_SIGTERM = 256 + signal.SIGTERM  # qdel ends a job by SIGTERM


class _Meanings(msgspec.Struct):
    refusals: dict[int, str]
    killed: dict[int, str]
    holds: dict[str, str]
    queued: dict[str, str]
    running: dict[str, str]


meanings = cache(lambda: read_words(__file__, _Meanings))
"""The tables of the file of words."""

# (n1:ncpus=4+n2[0]:ncpus=4)+(n3:ncpus=8)
_VNODE = re.compile(r"[(+]([^\s:()+]+):")


def record_from_attributes(job: Mapping[str, str], asked_at: float | None) -> Record:
    """Return a job's record from the attributes of ``qstat -f`` at the server's time ``asked_at`` (s)."""
    state = job.get("job_state", "")
    comment = job.get("comment", "")
    if state in ("F", "X"):
        return _ended_record(job, asked_at)
    if state in ("Q", "H", *meanings().queued):
        # An array has the exit status of one of its members.
        lost = job.get("Exit_status") == str(_NODE_LOST) and "array" not in job
        return Record(JobState.QUEUED, _pending_reason(state, job, comment), node_lost=lost)
    if state == "R" or state in meanings().running:
        # After qdel the job still has state R for seconds; only the comment shows the deletion.
        dying = "terminated by" in comment
        nodes = frozenset(_VNODE.findall(job.get("exec_vnode", "")))
        return Record(
            JobState.RUNNING, "being deleted" if dying else meanings().running.get(state, ""), nodes=nodes
        )
    if state == "M":
        return Record(JobState.UNKNOWN, "it was moved to another server")
    return Record(JobState.UNKNOWN, f"PBS calls its state {state or 'nothing'}")


def _pending_reason(state: str, job: Mapping[str, str], comment: str) -> str:
    _, _, reason = comment.partition("Can Never Run:")
    if reason:
        return f"it can never run: {reason.strip()}"
    if state == "H":
        if "s" in job.get("Hold_Types", "") and job.get("depend"):
            return f"waits for another job ({job['depend']})"
        holds = [words for letter, words in meanings().holds.items() if letter in job.get("Hold_Types", "")]
        return "; ".join([*holds, comment] if comment else holds)
    return comment.removeprefix("Not Running:").strip() or meanings().queued.get(state, "")


def _ended_record(job: Mapping[str, str], asked_at: float | None) -> Record:
    when = job.get("history_timestamp", "")
    ended_seconds = asked_at - float(when) if asked_at is not None and when.isdigit() else None
    text = job.get("Exit_status")
    if text is None:
        return Record(JobState.CANCELLED, _never_ran(job), None, ended_seconds)
    code = int(float(text))
    if code == _WALLTIME:
        return Record(JobState.TIMEOUT, "", None, ended_seconds)
    if job.get("substate") == _DELETED_SUBSTATE or code == _BY_SIGTERM:
        return Record(JobState.CANCELLED, _canceller(job), None, ended_seconds)
    if code < 0:
        comment = job.get("comment", "")
        unknown = f"PBS could not run it (Exit_status {code})" + f": {comment}" * bool(comment)
        words = NODE_LOST if code == _NODE_LOST else meanings().killed.get(code, unknown)
        return Record(JobState.FAILED, words, None, ended_seconds)
    if code > 256:
        return Record(JobState.FAILED, f"ended by {_signal_name(code - 256)}", 256 - code, ended_seconds)
    if 128 < code < 128 + signal.NSIG:
        return Record(JobState.FAILED, f"exit code {code} ({_signal_name(code - 128)})", code, ended_seconds)
    if code > 0:
        return Record(JobState.FAILED, "", code, ended_seconds)
    if job.get("substate") == _FAILED_SUBSTATE:
        return Record(JobState.FAILED, "a job of the array failed", None, ended_seconds)
    unwritten = job.get("Stageout_status") == "0"
    return Record(
        JobState.COMPLETED, "PBS could not write its output files" if unwritten else "", 0, ended_seconds
    )


def _never_ran(job: Mapping[str, str]) -> str:
    _, _, reason = job.get("comment", "").partition("Can Never Run:")
    if reason:
        return f"deleted from the queue; it could never run: {reason.removesuffix('and terminated').strip()}"
    if job.get("substate") != _DELETED_SUBSTATE and job.get("depend"):
        return "removed by PBS: a job that it depended on did not succeed"
    return " ".join(filter(None, ("deleted", _canceller(job), "while it waited in the queue")))


def _canceller(job: Mapping[str, str]) -> str:
    """Return who deleted a job, as ``by USER@HOST``; empty if PBS does not say."""
    match = re.search(r" terminated (by \S+)$", job.get("comment", ""))
    return match[1] if match else ""


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"


def parse_qstat_queues(text: str) -> Machine:
    """Read the output of ``qstat -Q -f -F json``; a disabled queue is left out."""
    queues = {}
    entries = _json_object(text, "Queue").items()
    enabled = {name: entry for name, entry in entries if entry.get("enabled") == "True"}
    for name, entry in enabled.items():
        least, most = (entry.get(f"resources_{end}", {}) for end in ("min", "max"))
        routes = str(entry.get("route_destinations", ""))
        queues[name] = Queue(
            min_nodes=parse_count(least.get("nodect")) or 1,
            max_nodes=parse_count(most.get("nodect")),
            min_walltime=str(least.get("walltime", "")),
            max_walltime=str(most.get("walltime", "")),
            # A destination may be disabled, or on another server.
            routes=[queue for route in routes.split(",") if (queue := route.split("@")[0]) in enabled],
            route_only=entry.get("from_route_only") == "True",
        )
    return Machine(queues)


def parse_pbsnodes(text: str) -> Node:
    """Return the most common node in the output of ``pbsnodes -a -F json``."""
    nodes, memory = [], []
    for entry in _json_object(text, "nodes").values():
        resources = entry.get("resources_available", {})
        gpus = parse_count(resources.get("ngpus")) or None
        nodes.append(Node(cores=parse_count(resources.get("ncpus")), gpus=gpus))
        size = re.fullmatch(r"(\d+)([kmgt]?)b", str(resources.get("mem", "")))
        memory.append(int(size[1]) * 1024 ** " kmgt".index(size[2] or " ") // 1024**2 if size else 0)
    return most_common_node(nodes, memory)


def _json_object(text: str, key: str) -> dict[str, dict[str, Any]]:
    """Return one object of PBS's JSON; empty if the JSON is damaged, as by an exported shell function."""
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    json_object = data.get(key, {}) if isinstance(data, dict) else {}
    return json_object if isinstance(json_object, dict) else {}
