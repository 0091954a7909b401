"""Slurm: what its jobs may ask for, the directives that ask for it, its commands and what they print.

The output of the commands was seen on Slurm 22.05.8, unless noted otherwise. States and reasons are those of
squeue's manual, "JOB STATE CODES" and "JOB REASON CODES". Parsers raise `Unreachable` if the controller or
the database did not answer.
"""

import getpass
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.errors import SchedulerError, UsageError
from hpcprof.runs.job import Job
from hpcprof.submit.jobs.job import OPTIONS
from hpcprof.submit.jobs.walltime import format_walltime, parse_walltime
from hpcprof.submit.mpi_types import LIST_TYPES, finds_type, two_ranks
from hpcprof.submit.profilers.base import PROGRAM_WORDS, START_UP
from hpcprof.submit.schedulers.base import JobState, Record, user_name
from hpcprof.submit.schedulers.batch import BatchScheduler, check_whole_minutes, records_by_place
from hpcprof.submit.schedulers.command import (
    Refused,
    Unreachable,
    complaint,
    ids_by_place,
    parse_array_indices,
    read_options,
    read_words,
    remote_runs,
    run_file_suffix,
    run_scheduler_command,
    run_submission,
    seconds_since,
    submission_error,
)
from hpcprof.submit.schedulers.scheduler import (
    GPUS,
    DaskJobs,
    JobArrays,
    Rendering,
    directive_path,
    gpus_are_shared,
    gpus_per_node,
)
from hpcprof.submit.sites.machine import Ask, Machine, most_common_node, parse_count
from hpcprof.submit.sites.model import LauncherName, Node, NodeRequest, Queue, Required, Site, Vendor

_OPTIONS = read_options(__file__)
_FLAGS = {
    "cpus_per_rank": "--cpus-per-task",
    "mem": "--mem",
    "constraint": "--constraint",
    "reservation": "--reservation",
}
"""The options of sbatch for fields of a job."""

_SHORTEST_PREFIX = len("--ti")
"""Minimum characters of an abbreviated option that are looked up."""

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
    gives_all_memory = True
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
    quoted_options = r"--[\w-]+="
    template_filters = {  # noqa: RUF012 (never changed)
        "directive_path": lambda text: directive_path(text, refused=r"\\").replace("%", "%%")
    }
    sends_signal = True
    dependency = "--dependency"
    requeues = True

    def check(self, job: Job, site: Site) -> None:
        """Check that the walltime has whole minutes, as Slurm rounds it up, and that the job may requeue."""
        again = [field for field in ("on_stall", "on_timeout") if getattr(job, field) == "resubmit"]
        if again and "--no-requeue" in self.directives(site, job):
            sentence = f"{OPTIONS[again[0]].flag} resubmit: --no-requeue forbids it; leave it out."
            raise UsageError(sentence, again[0], "scheduler_args")
        check_whole_minutes(job, self.title)

    def resource_directives(self, job: Job) -> dict[str, str]:
        """Return the directives for CPUs, memory and kind of nodes, and for a job that may run again."""
        lines = {f: f"{flag}={value}" for f, flag in _FLAGS.items() if (value := getattr(job, f))}
        again = [field for field in ("on_timeout", "on_stall") if getattr(job, field) == "resubmit"]
        lines |= dict.fromkeys(again, "--requeue")
        # job.sh sends the signal where it acts on the limit itself.
        signals = job.signal and job.on_timeout != "resubmit"
        return lines | ({"signal": f"--signal={job.signal}"} if signals else {})

    def settings(self, directive: str) -> frozenset[str]:
        """Return the long name of an option, which may be abbreviated, or the common name of alternatives."""
        name = directive.replace(" ", "=").partition("=")[0]
        if not name.startswith("--"):
            name = _OPTIONS.long_names.get(name[:2], name[:2])
        elif name not in _OPTIONS.exclusive and len(name) >= _SHORTEST_PREFIX:
            name = next((setting for setting in _OPTIONS.own if setting.startswith(name)), name)
        if name == "--gres" and "gpu" in directive:
            name = GPUS
        return frozenset({_OPTIONS.exclusive.get(name, name)})

    def directives(self, site: Site, job: Job) -> list[str]:
        """Return the directives of the site and the user, and the one that requests a node's GPUs."""
        lines, job_lines = self.site_directives(site, job), self.own_directives(job)
        if site.launcher.name is not LauncherName.SRUN or job.workers:
            # Slurm would signal steps of srun alone; the script passes the signal on.
            job_lines = [re.sub("^--signal=(?!.*:)", "--signal=B:", line) for line in job_lines]
        if job.gpus_per_rank is not None:
            lines = [line for line in lines if GPUS not in self.settings(line) or _counts_gpus(line)]
            queue = site.queues.get(job.queue)
            if queue and queue.shared and gpus_per_node(job) < (site.node.gpus or 0):
                lines = [line for line in lines if line != "--exclusive"]
            lines = fit_gpus(lines, job)
        lines = [_fit_ranks(line, site, job) for line in lines]
        requesting = [line for line in job_lines if GPUS in self.settings(line)]
        return [*lines, *_gpu_request(site, job, [*lines, *requesting]), *job_lines]

    def template_values(self, site: Site, job: Job, rendering: Rendering) -> Mapping[str, Any]:
        """Return ``mpi_trial``, the commands by which job.sh finds srun's MPI type; empty if it is given."""
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
        """Return the number of nodes that Slurm sets in the environment."""
        return int(environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES") or 1)

    def own_settings(self, site: Site) -> dict[str, str]:
        """Return the options that the script or another option of hpcprof has."""
        return {**_OPTIONS.own, self.keys_of(site).queue_directive: "give --queue"}

    def queue_names(self, queue: str) -> list[str]:
        """Return the partitions of a list: Slurm takes the first queue in which the job can start."""
        return queue.split(",")

    def submit(
        self, script: Path, directory: Path, after: Sequence[str] = (), options: Sequence[str] = ()
    ) -> str:
        """Submit by ``sbatch --parsable``; the job id is ``123``, or ``123;cluster`` on another cluster."""
        depends = []
        if after:
            text = script.read_text("utf-8", "replace") if script.is_file() else ""
            here = ("", os.environ.get("SLURM_CLUSTERS"))
            for number, _, cluster in (job_id.partition(";") for job_id in after):
                directive = rf"^#SBATCH (?:--clusters[= ]|-M ?){cluster}$"
                if cluster not in here and not re.search(directive, text, re.MULTILINE):
                    advice = f"--scheduler-arg=--clusters={cluster}, or submit it when that job has ended"
                    raise Refused(f"job {number} runs on cluster {cluster}, and this one does not: {advice}.")
            numbers = ":".join(job_id.partition(";")[0] for job_id in after)
            # Without the second option, a job whose dependency fails stays in the queue, as a script may ask.
            stays = "--kill-on-invalid-dep" in text
            depends = [f"--dependency=afterok:{numbers}", *([] if stays else ["--kill-on-invalid-dep=yes"])]
        submission = run_submission(["sbatch", "--parsable", *depends, *options, str(script)], directory)
        try:
            return parse_sbatch(*submission.answer)
        except Refused as error:
            if "other parameter too long" not in str(error):
                raise
            size = f"{script.name} has {script.stat().st_size:,} bytes"
            raise Refused(f"{error} {size}; scontrol show config has the site's max_script_size.") from None

    def log_options(self, out: Path, err: Path) -> list[str]:
        """Return ``--output`` and ``--error``, in which % would begin a pattern."""
        return [option.replace("%", "%%") for option in super().log_options(out, err)]

    def states(self, job_ids: Sequence[str], since: datetime) -> Mapping[str, Record]:
        """Ask squeue for each cluster's jobs, then sacct for those it lacks and for who cancelled one."""
        return records_by_place(job_ids, partial(_records, since))

    def submitted_from(self, script: Path, owner: str) -> str:
        """Look for the script among the user's jobs; ended ones are listed for a while."""
        listing = run_scheduler_command(
            ["squeue", "--noheader", "--states=all", f"--user={owner}", f"--format={SCRIPTS_FORMAT}"]
        )
        scripts = reversed(parse_scripts(*listing.answer).items())
        return next((number for path, number in scripts if path.endswith(run_file_suffix(script))), "")

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel the jobs; scancel succeeds even for unknown jobs."""
        for cluster, numbers in ids_by_place(job_ids).items():
            members = [number for number in numbers if "_" in number]
            if members:
                # A waiting member that is cancelled leaves no record, and jobs that wait for its success then
                # start (seen on 22.05); a hold makes a separate job of it first. For members that already
                # run the hold fails, which does no harm.
                run_scheduler_command(["scontrol", *_of_cluster(cluster), "hold", ",".join(members)])
            parse_scancel(*run_scheduler_command(["scancel", *_of_cluster(cluster), *numbers]).answer)

    def member_id(self, array_id: str, index: int) -> str:
        """Return ``123_4``, or ``123_4;cluster``."""
        number, separator, cluster = array_id.partition(";")
        return f"{number}_{index}{separator}{cluster}"

    def largest_array(self) -> int | None:
        """Ask for Slurm's MaxArraySize."""
        return parse_largest_array(*run_scheduler_command(["scontrol", "show", "config"]).answer)

    def question(self, site: Site) -> list[str]:
        """Return the command that fails at once without a controller; others try for a minute."""
        return ["scontrol", "ping"]

    def probe(self, ask: Ask) -> Machine:
        """Return the partitions from sinfo, and the nodes and how jobs ask for them from scontrol."""
        listing = parse_sinfo(ask(["sinfo", "--noheader", "--noconvert", f"--format={SINFO_FORMAT}"]))
        node = parse_scontrol_nodes(ask(["scontrol", "show", "nodes"]))
        config = ask(["scontrol", "show", "config"])
        # Only the plugin cons_tres knows --gpus-per-node (slurm.conf: SelectType).
        plugin = re.search(r"^SelectType\s*=\s*select/(\w+)", config, re.MULTILINE) if node.gpus else None
        by_node = plugin is not None and plugin[1] == "cons_tres"
        request = (NodeRequest.GPUS_PER_NODE if by_node else NodeRequest.GRES) if plugin else None
        # With associations, or a value that implies them, Slurm refuses jobs without an account of the user
        # (slurm.conf: AccountingStorageEnforce).
        enforced = re.search(r"^AccountingStorageEnforce\s*=\s*(\S+)", config, re.MULTILINE)
        strict = {"associations", "limits", "qos", "safe", "wckeys", "all"}
        requires = (Required.ACCOUNT,) if enforced and strict & {*enforced[1].lower().split(",")} else ()
        accounts = ""
        if re.search(r"^AccountingStorageType\s*=\s*accounting_storage/slurmdbd", config, re.MULTILINE):
            show = ["sacctmgr", "--noheader", "--parsable2", "show", "associations"]
            accounts = ask([*show, f"user={getpass.getuser()}", "format=account"])
        # One line per cluster and partition.
        names = {line.strip() for line in accounts.splitlines()} - {""}
        return Machine(listing.queues, listing.default_queue, node, request, requires, tuple(sorted(names)))


def _fit_ranks(directive: str, site: Site, job: Job) -> str:
    """Fit a directive of the site, which is for one rank per GPU, to ranks that share GPUs and cores."""
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

    usable = [option for option in options if job.gpus_per_rank or not _counts_gpus(option)]
    return [_GPU_COUNT.sub(fitted, option) for option in usable]


def _counts_gpus(option: str) -> bool:
    """Return whether `fit_gpus` can put another number of GPUs into an option."""
    return _GPU_COUNT.match(option) is not None


def _gpu_request(site: Site, job: Job, directives: Iterable[str]) -> list[str]:
    requests_gpus = job.gpus_per_rank is not None
    count = gpus_per_node(job) if requests_gpus else site.node.gpus
    options = [*directives, *site.launcher.arguments]
    if not count or any(_counts_gpus(other) if requests_gpus else "gpu" in other for other in options):
        return []
    if site.node_request is NodeRequest.GRES:
        return [f"--gres=gpu:{count}"]
    # Where the site says nothing, GPUs are requested only if the user asks for them.
    wanted = site.node_request is NodeRequest.GPUS_PER_NODE or (
        requests_gpus and site.node_request is NodeRequest.NONE
    )
    return [f"--gpus-per-node={count}"] if wanted else []


def _array_option(numbers: Iterable[str]) -> str:
    """Return the option for the jobs to ask for: an array once, for all its members."""
    return f"--jobs={','.join(dict.fromkeys(number.partition('_')[0] for number in numbers))}"


def records_of_members(records: Mapping[str, Record], numbers: Iterable[str]) -> dict[str, Record]:
    """Return the records of jobs; a member without one gets the record of its array or of component +0."""
    aliases = {number: (number, number.partition("_")[0], f"{number}+0") for number in numbers}
    listed = {number: [name for name in names if name in records] for number, names in aliases.items()}
    return {number: records[names[0]] for number, names in listed.items() if names}


def _records(since: datetime, cluster: str, numbers: Iterable[str]) -> dict[str, Record]:
    """Return the records of a cluster's jobs; jobs that only an unreachable database may know are unknown."""
    listed = _squeue([*numbers], cluster)
    absent = [number for number in numbers if number not in listed]
    try:
        listed |= _sacct(absent, cluster, since)
    except SchedulerError as error:
        if not listed:
            raise
        return listed | dict.fromkeys(absent, Record(JobState.UNKNOWN, str(error)))
    cancelled = [number for number, record in listed.items() if record.state is JobState.CANCELLED]
    with suppress(SchedulerError):  # only the user who cancelled stays unknown
        listed |= _sacct([number for number in cancelled if not listed[number].reason], cluster, since)
    return listed


def _squeue(numbers: Sequence[str], cluster: str) -> dict[str, Record]:
    # --states=all lists ended jobs too, from the controller's memory, for MinJobAge (300 s by default), as
    # scontrol does, but many jobs at once. --array prints one line per member, waiting ones included.
    options = ["--states=all", "--array", _array_option(numbers), f"--Format={SQUEUE_FORMAT}"]
    listing = run_scheduler_command(["squeue", "--noheader", *options, *_of_cluster(cluster)])
    return records_of_members(parse_squeue(*listing.answer, time.time()), numbers)


def _sacct(numbers: Sequence[str], cluster: str, since: datetime) -> dict[str, Record]:
    if not numbers:
        return {}
    # The default window starts at midnight.
    start = since.astimezone(timezone.utc).strftime("--starttime=%Y-%m-%dT%H:%M:%S")
    options = [_array_option(numbers), start, *_of_cluster(cluster), "--format"]
    for fields in (SACCT_FIELDS, SACCT_FIELDS[:-1]):
        words = ["sacct", "--parsable2", "--noheader", "--allocations", *options, ",".join(fields)]
        listing = run_scheduler_command(words)
        if "Invalid field" not in listing.stderr:  # SubmitLine is of 21.08
            break
    return records_of_members(parse_sacct(*listing.answer, time.time()), numbers)


def _of_cluster(cluster: str) -> list[str]:
    return [f"--clusters={cluster}"] if cluster else []


# Columns of fixed width, which no value but the reason and the command can fill; these may contain spaces.
# The command is (null) without a file. The job's name is left out, since it may contain anything.
_REASON, _SUBMITTED = 200, 24
SQUEUE_FORMAT = (
    f"JobArrayID:40,State:24,exit_code:12,EndTime:24,Reason:{_REASON},SubmitTime:{_SUBMITTED},Command:1024"
)
# The id of a job or a whole array, then the script that was submitted.
SCRIPTS_FORMAT = "%F %o"
# A partition (* marks the default) with its state, time limit, job sizes (1-infinite) and number of nodes.
SINFO_FORMAT = "%P|%a|%l|%s|%D"
# SubmitLine may contain anything, also the separator.
SACCT_FIELDS = ("JobID", "State", "ExitCode", "End", "Submit", "SubmitLine")

_TIME = "%Y-%m-%dT%H:%M:%S"
_JOB_ID = re.compile(r"\d+(;\S+)?")
_ARRAY_LIMITS = re.compile(r"MaxArraySize\s*=\s*(\d+)|\bmax_array_tasks=(\d+)")
# sbatch has not reached the controller, so that no job can have been accepted.
_NOT_REACHED_MESSAGE = "Unable to contact slurm controller (connect failure)"


def parse_sbatch(code: int, out: str, error: str) -> str:
    """Return the job id that ``sbatch --parsable`` printed: ``123`` or ``123;cluster``."""
    lines = out.split("\n")
    ids = [line.strip() for line in lines if _JOB_ID.fullmatch(line.strip())]
    if code == 0 and ids:
        return ids[-1]
    reason = _complaint(error if code else f"{error}\n{out}")
    silent = any(words in error for words in meanings().silent)
    refused = code != 0 and (_NOT_REACHED_MESSAGE in error or not silent)
    raise submission_error("sbatch", reason, refused=refused)


def parse_squeue(code: int, out: str, error: str, now: float) -> Mapping[str, Record]:
    """Return the records that squeue printed in SQUEUE_FORMAT at ``now`` (s since 1970)."""
    if code != 0 and "Invalid job id" in error:
        return {}
    _check("squeue", code, error)
    records = {}
    for line in out.splitlines():
        values = line.split(maxsplit=4)
        if len(values) == 5:  # a line "CLUSTER: name" comes before another cluster's jobs
            job_id, state, status, end, columns = values
            record = _record(state, columns[:_REASON].strip(), _from_wait_status(status), end, now)
            columns = columns[_REASON:]
            submitted = seconds_since(columns[:_SUBMITTED].strip(), _TIME, now)
            script = columns[_SUBMITTED:].strip()
            records[job_id] = replace(record, script=script, submitted_seconds=submitted)
    return _by_member(records)


def parse_scripts(code: int, out: str, error: str) -> dict[str, str]:
    """Return the newest job or array of each script, from ``squeue --noheader --format=SCRIPTS_FORMAT``."""
    _check("squeue", code, error)
    lines = [line.partition(" ") for line in out.splitlines()]
    jobs = [(int(number), script) for number, _, script in lines if number.isdigit()]
    return {script: str(number) for number, script in sorted(jobs)}


def parse_sacct(code: int, out: str, error: str, now: float) -> Mapping[str, Record]:
    """Return the records of ended jobs that ``sacct --parsable2 --noheader --allocations`` printed.

    A job that sacct shows as waiting or running though squeue no longer lists it is left out: accounting lags
    by seconds, or has missed the end. Without accounting the result is empty.
    """
    if code != 0 and "accounting storage is disabled" in error:
        return {}
    _check("sacct", code, error)
    records = {}
    for line in out.splitlines():
        values = line.split("|", maxsplit=len(SACCT_FIELDS) - 1)
        if len(values) >= 4 and values[0] != "JobID":
            job_id, state, exit_code, end, submitted, command = [*values, "", ""][: len(SACCT_FIELDS)]
            record = _record(state, "", _from_pair(exit_code), end, now)
            if record.state.ended:
                seconds = seconds_since(submitted, _TIME, now)
                records[job_id] = replace(record, script=command, submitted_seconds=seconds)
    return _by_member(records)


def parse_largest_array(code: int, out: str, error: str) -> int | None:
    """Return the largest array by ``scontrol show config`` and ``max_array_tasks``, None without them."""
    _check("scontrol", code, error)
    return min((int(size or tasks) for size, tasks in _ARRAY_LIMITS.findall(out)), default=None)


def parse_scancel(code: int, out: str, error: str) -> None:
    """Check the result of scancel, which also succeeds for ended and unknown jobs."""
    if code != 0 and "already completing or completed" not in error and "Invalid job id" not in error:
        raise SchedulerError(f"scancel did not cancel the job: {_complaint(error or out)}.")


def _by_member(records: Mapping[str, Record]) -> dict[str, Record]:
    """Give each member in a line such as ``129_[2-3%2]`` its record, unless it has a line of its own."""
    by_id = dict(records)
    for job_id, record in records.items():
        array, _, text = job_id.partition("_[")
        for index in parse_array_indices(text.rstrip("]")):
            by_id.setdefault(f"{array}_{index}", record)
    return by_id


def _record(state: str, reason: str, code: int | None, end: str, now: float) -> Record:
    word = state.split()[0].rstrip("+")  # "CANCELLED by 1000"; sacct marks a cut with +
    present, words = meanings().states.get(word, (JobState.UNKNOWN, f"Slurm calls its state {word}"))
    if word == "PENDING":
        words = pending_reason(reason)
    elif present is JobState.CANCELLED and reason == "DependencyNeverSatisfied":
        words = "a job that it depended on did not succeed"
    elif word == "CANCELLED" and (who := re.search(r" by (\d+)", state)):
        words = f"by {f'user {who[1]}' if remote_runs.get() else user_name(int(who[1]))}"
    elif word == "FAILED" and reason == "JobLaunchFailure":
        words = f"ended by signal {-code}" if code and code < 0 else "Slurm could not start job.sh"
    if not present.ended:
        return Record(present, words)
    # An exit code of 0 with a failure means nothing: timeouts and lost nodes are 0:0 in sacct.
    exit_code = code if present is JobState.COMPLETED or code else None
    return Record(present, words, exit_code, seconds_since(end, _TIME, now))


def _from_wait_status(text: str) -> int | None:
    """Read squeue's exit_code, a status of wait(2): 768 is exit code 3, 11 is signal 11."""
    if not text.isdigit():
        return None
    status = int(text)
    return status >> 8 if status >> 8 else -(status & 0x7F)


def _from_pair(text: str) -> int | None:
    """Read sacct's ``code:signal``; sacct subtracts 128, so that a segmentation fault is 11:0."""
    code, _, signal = text.partition(":")
    if not code.isdigit() or not signal.isdigit():
        return None
    return int(code) or -int(signal)


def _check(command: str, code: int, error: str) -> None:
    # With --clusters squeue exits with 0 all the same (OSC/ood_core#149).
    if any(words in error for words in meanings().silent):
        raise Unreachable(f"Slurm did not answer: {_complaint(error)}.")
    if code != 0:
        raise SchedulerError(f"{command} failed: {_complaint(error)}.")


def _complaint(error: str) -> str:
    lines = [re.sub(r"^\w+: (?:error: |fatal: )?", "", line) for line in error.splitlines()]
    text = complaint("\n".join(line for line in lines if not line.startswith("Try ")))
    return text.removeprefix("Batch job submission failed: ").replace(" Batch job submission failed:", ":")


class _Meanings(msgspec.Struct):
    silent: list[str]
    states: dict[str, tuple[JobState, str]]
    never: dict[str, str]
    waiting: dict[str, str]


meanings = cache(lambda: read_words(__file__, _Meanings))
"""The words for states and reasons, from the file beside this module."""

# A single job exceeds such a limit, whatever else runs: QOSMaxNodePerJobLimit and the like.
_PER_JOB = re.compile(r"(?:Assoc|QOS|Max)\w*PerJob(?:Limit)?$")


def pending_reason(reason: str) -> str:
    """Return in plain words why a job waits, with Slurm's own, squeue's ``reason``, in parentheses."""
    word = reason.partition(",")[0].strip("() ").replace(" ", "_")
    if word in ("", "None"):
        return ""
    if word in meanings().never:
        return f"it can never run: {meanings().never[word]} ({reason})"
    if _PER_JOB.match(word):
        return f"it can never run: it exceeds a limit for one job ({reason})"
    if word in meanings().waiting:
        return f"{meanings().waiting[word]} ({reason})"
    if word.startswith(("AssocGrp", "QOSGrp")):
        whose = "account" if word.startswith("Assoc") else "QOS"
        return f"the {whose}'s jobs together use all of a limit ({reason})"
    if word.startswith(("Assoc", "QOS", "Max")):
        return f"a limit of the account, the QOS or the user is reached ({reason})"
    return reason


_PAIR = re.compile(r"(?:^|\s)(\w+)=(\S*)")
_GPU = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?:(\d+)")


def parse_sinfo(text: str) -> Machine:
    """Read the output of ``sinfo --noheader --noconvert --format=SINFO_FORMAT``: a row for each partition."""
    queues, default = {}, ""
    rows = (line.split("|") for line in text.splitlines() if line.count("|") == 4 and "|up|" in line)
    for name, _, walltime, sizes, nodes in rows:
        least, _, most = sizes.partition("-")
        limits = [parse_count(most or least), parse_count(nodes)]
        queues[name.rstrip("*")] = Queue(
            min_nodes=parse_count(least) or 1,
            max_nodes=min((limit for limit in limits if limit), default=None),
            max_walltime=_walltime(walltime),
        )
        default = name.rstrip("*") if name.endswith("*") else default
    return Machine(queues, default)


def parse_scontrol_nodes(text: str) -> Node:
    """Return the most common node in the output of ``scontrol show nodes``."""
    nodes, memory = [], []
    for block in _blocks(text):
        memory.append(parse_count(block.get("RealMemory")) or 0)
        threads = parse_count(block.get("ThreadsPerCore")) or 1
        cpus = parse_count(block.get("CPUEfctv")) or parse_count(block.get("CPUTot"))
        gpus = _GPU.findall(block.get("Gres", ""))
        model = gpus[0][0] if gpus else ""
        nodes.append(
            Node(
                cores=cpus // threads if cpus else None,
                threads=threads,
                gpus=sum(int(count) for _, count in gpus) or None,
                gpu=model,
                vendor=Vendor.AMD if model.lower().startswith("mi") else Vendor.NVIDIA,
            )
        )
    return most_common_node(nodes, memory)


def _blocks(text: str) -> Iterator[dict[str, str]]:
    """Yield the ``Key=Value`` pairs of each record; an empty line, or a name, begins a new record."""
    for block in re.split(r"\n\s*\n|\n(?=NodeName=)", text):
        pairs = dict(_PAIR.findall(block))
        if pairs:
            yield pairs


def _walltime(limit: str) -> str:
    """Return a time limit of Slurm: 1-02:03:04, 02:03:04, 02:03 (minutes, seconds) or 30 (minutes)."""
    with suppress(UsageError):  # UNLIMITED, infinite
        minutes = f"{limit}m" if limit.isdigit() else ""
        return format_walltime(parse_walltime(minutes or ("00:" * (limit.count(":") == 1) + limit)))
    return ""
