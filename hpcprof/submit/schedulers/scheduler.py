"""Schedulers: what their jobs may ask for, how their scripts are spelled, and how jobs are submitted.

A scheduler is one package: a subclass of `Scheduler` and the client that it returns, which runs the
scheduler's commands. The subclass is imported for every command that makes a job, so it is light. Another
package adds one by an entry point of the group ``hpcprof.schedulers`` that names the subclass.
"""

import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from hpcprof.common.errors import UsageError
from hpcprof.runs.job import Job
from hpcprof.submit.schedulers.base import SchedulerClient
from hpcprof.submit.sites.machine import Ask, Machine
from hpcprof.submit.sites.model import LauncherName, Queue, Site

JOB_SCRIPT = "job.sh"
GPUS = "GPUs"
"""The setting of every directive that requests GPUs; see `Scheduler.settings`."""
WRAPPER = "wrapper.sh"

_DIRECTIVE = re.compile(r"[\w.,:/=@+&-]+", re.ASCII)


class JobArrays(msgspec.Struct, frozen=True):
    """The spelling of a job array for a scheduler."""

    mark: str
    """The beginning of a directive: ``#SBATCH``."""
    directives: str
    """The lines that make a script an array; ``{}`` is replaced by its indices, such as ``0-7%2``."""
    index_variable: str
    """The environment variable with a member's index."""
    index_in_path: str
    """The text that the scheduler replaces by the index in the path of a log."""
    shared: str = ""
    """The beginning of a directive in whose path it replaces nothing; all members share the first one's."""
    least_members: int = 1
    """The fewest members that it accepts."""
    forbidden: str = ""
    """A regular expression for a directive that no array may have; empty for none."""
    forbidden_reason: str = ""
    """The reason, as a sentence without its full stop."""


class DaskJobs(msgspec.Struct, frozen=True):
    """The start of workers in jobs of a scheduler by dask-jobqueue."""

    cluster: str
    """Its class."""
    replaced: Sequence[str]
    """The beginnings of its directives that those of hpcprof replace."""
    kept: Sequence[str]
    """The beginnings of the directives of hpcprof that it writes itself: the job's name and its logs."""


@dataclass(frozen=True)
class Rendering:
    """The values of a script beyond the site and the job: resolved paths and commands."""

    run_directory: Path
    command_line: list[str]
    launch: list[str]
    program: list[str]
    template: Path | None = None


class FurtherFile(msgspec.Struct, frozen=True):
    """A file beside job.sh and wrapper.sh, and the values of its template beyond those of job.sh."""

    name: str
    template: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Shortcoming:
    """A shortcoming of a scheduler's setup and its remedy, each in one sentence."""

    observation: str
    remedy: str


class NoKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a scheduler that has none of its own in a site file."""


class Scheduler:
    """A scheduler. Subclasses set ``name`` and ``title``, return a client, and override what differs."""

    name: ClassVar[str]
    """The value of ``scheduler`` in a site file."""
    title: ClassVar[str]
    """The name in sentences."""
    keys: ClassVar[type[msgspec.Struct]] = NoKeys
    """The keys of its own, which a site file has under the scheduler's name."""
    template_folders: ClassVar[Sequence[Path]] = ()
    """Folders with templates of the package's own, searched after the user's and before hpcprof's."""
    template_filters: ClassVar[Mapping[str, Callable[..., str]]] = {}
    """Jinja filters of the package's own templates."""
    submitted_file: ClassVar[str] = JOB_SCRIPT
    """The file of the run directory that is handed over."""
    named_files: ClassVar[Mapping[str, str]] = {}
    """Further files of a run that its job.sh may name, with their templates."""
    arrays: ClassVar[JobArrays | None] = None
    """The spelling of job arrays, None if there are none."""
    dask_jobs: ClassVar[DaskJobs | None] = None
    """The start of workers in its jobs by dask-jobqueue, None if that does not know the scheduler."""
    starters: ClassVar[Sequence[LauncherName]] = ()
    """The launchers that can start one torchrun on each node of a job."""
    resources: ClassVar[Sequence[str]] = ()
    """The fields of a `Job` by which users ask for resources, as far as jobs of this scheduler have them."""
    no_resources: ClassVar[str] = "does not support this option"
    """The reason why there are no others, as the end of a sentence that begins with the site."""
    resource_options: ClassVar[Mapping[str, str]] = {}
    """Options of its sites that ask for the same as a field of a job, by that field."""
    passes_environment: ClassVar[bool] = True
    """True if a job has the environment of the shell that submits it."""
    masks_gpus: ClassVar[bool] = False
    """True if a job sees only the GPUs that it was given."""
    commands: ClassVar[Sequence[str]] = ()
    """The programs that must be on the PATH to submit, poll and cancel."""
    job_id_variable: ClassVar[str] = ""
    """The environment variable that is set inside a job, and only there; empty for none."""
    shell_prefixes: ClassVar[tuple[str, ...]] = ()
    """The beginnings of variables by which users change its jobs; a note says that hpcprof ignores them."""
    shell_options: ClassVar[Mapping[str, str]] = {}
    """The variables among them for which a job has a field of its own, with that field."""
    silence_remedy: ClassVar[str] = ""
    """The advice of hpcprof doctor if it does not answer, as a sentence; by default to ask the operators."""
    gives_all_memory: ClassVar[bool] = False
    """True if ``--mem 0`` asks it for all memory of the nodes."""
    runs_here: ClassVar[bool] = False
    """True if jobs run on this machine."""
    runs_in_image: ClassVar[bool] = False
    """True if jobs run in a container image, which has its own hpcprof and sees no file of this machine."""
    quoted_options: ClassVar[str] = r"\Z"
    """A regular expression of the start of options whose values with spaces are quoted; by default none."""
    sends_signal: ClassVar[bool] = False
    """True if its directives ask for the signal ahead of the limit; otherwise job.sh sends it."""
    own_options: ClassVar[Mapping[str, str]] = {}
    """The settings that hpcprof sets itself, each with the end of a sentence on what to do instead."""
    dependency: ClassVar[str] = ""
    """The setting among them by which a job waits for others: without --after users may pass it on."""
    requeues: ClassVar[bool] = False
    """True if its job.sh can have its own job queued again; its template does it."""

    def keys_of(self, site: Site) -> Any:
        """Return the scheduler's own keys of a site, as `keys`, with defaults filled in."""
        fields = site.scheduler_keys.keys() & set(self.keys.__struct_fields__)
        return msgspec.convert({field: site.scheduler_keys[field] for field in fields}, self.keys)

    @property
    def template(self) -> str:
        """The template of job.sh; ``job/NAME.sh.j2`` by default."""
        return f"job/{self.name}.sh.j2"

    @property
    def installed(self) -> bool:
        """True if this machine has its commands: if not, its sites are other machines."""
        return all(shutil.which(command) for command in self.commands)

    def client(self) -> SchedulerClient:
        """Return the client, which speaks to the scheduler; import its module here, not at the top.

        A scheduler without a client raises NotImplementedError.
        """
        raise NotImplementedError(f"{type(self).__name__} has no client")

    def check(self, job: Job, site: Site) -> None:
        """Check values that only this scheduler would reject or change silently: `UsageError` names one."""

    def accepts_queue(self, queue: str) -> bool:
        """Return whether a queue may exist that the site file does not list, such as a reservation's."""
        return False

    def queue_names(self, queue: str) -> list[str]:
        """Return the queues that a job's queue names: some schedulers take one of several."""
        return [queue]

    def queue_of(self, site: Site, job: Job) -> Queue | None:
        """Return the first queue of a job that the site lists, None if it lists none of them."""
        return next((site.queues[name] for name in self.queue_names(job.queue) if name in site.queues), None)

    def chunks(self, job: Job, queue: Queue) -> tuple[int, str]:
        """Return a job's number of units of a queue, and the unit; `Queue.chunks` has the valid numbers."""
        return job.nodes, "nodes"

    def resource_directives(self, job: Job) -> dict[str, str]:
        """Return the directives for what the user asks for, except GPUs, by field of the job."""
        return {}

    def own_directives(self, job: Job) -> list[str]:
        """Return the directives of what the user asks for, without ``#PBS`` or ``#SBATCH``."""
        lines = [*self.resource_directives(job).values(), *job.scheduler_args]
        return [re.sub(f"^({self.quoted_options})(.* .*)$", r'\1"\2"', line) for line in lines]

    def site_directives(self, site: Site, job: Job) -> list[str]:
        """Return the directives of the site, its queue and its options that the user does not replace."""
        queue = self.queue_of(site, job)
        lines = [*site.directives, *(queue.directives if queue else [])]
        for key, option in site.options.items():
            if option.directive and job.options.get(key):
                lines.append(option.directive.replace("{}", directive_value(job.options[key])))
        replaced = {setting for line in self.own_directives(job) for setting in self.settings(line)}
        return [line for line in lines if not self.settings(line) <= replaced]

    def directives(self, site: Site, job: Job) -> list[str]:
        """Return the directives that the template does not write itself: ``directives`` in templates."""
        return [*self.site_directives(site, job), *self.own_directives(job)]

    def template_values(self, site: Site, job: Job, rendering: Rendering) -> Mapping[str, Any]:
        """Return the template values of this scheduler, in addition to those of every template."""
        return {}

    def settings(self, directive: str) -> frozenset[str]:
        """Return the settings of a directive: names that are equal if two directives exclude each other."""
        return frozenset({directive})

    def own_settings(self, site: Site) -> Mapping[str, str]:
        """Return the settings that no user may pass on, by default `own_options`."""
        return self.own_options

    def allocated_nodes(self, environment: Mapping[str, str]) -> int:
        """Return the number of nodes of the job that a shell with this environment is in."""
        return 1

    def job_name(self, name: str) -> str:
        """Return a job's name as the scheduler accepts it."""
        return name

    def localize(self, site: Site, job: Job, rendering: Rendering) -> tuple[Job, Rendering]:
        """Return job and rendering with paths as the job sees them; `UsageError` for what it cannot have."""
        return job, rendering

    def revised(self, script: str) -> str:
        """Return the text of job.sh, rendered from any template, as the scheduler accepts it."""
        return script

    def further_files(
        self, site: Site, job: Job, run_id: str, scripts: Mapping[str, str]
    ) -> Sequence[FurtherFile]:
        """Return the files to render beside ``scripts``, the texts of job.sh and wrapper.sh."""
        files = self.named_files.items()
        return [
            FurtherFile(name, template, {}) for name, template in files if f"/{name}" in scripts[JOB_SCRIPT]
        ]

    def question(self, site: Site) -> list[str]:
        """Return a command that succeeds only if the scheduler answers; empty if there is none."""
        return []

    def shortcoming(self, answer: str) -> Shortcoming | None:
        """Return a shortcoming of the scheduler's setup, from the output of the command of `question`."""
        return None

    def probe(self, ask: Ask) -> Machine:
        """Return the queues and nodes of this machine, as the scheduler's commands show them."""
        return Machine()


def directive_value(text: str) -> str:
    """Return a value for a directive after checking that it is one word, since directives have no quotes."""
    if not _DIRECTIVE.fullmatch(text):
        valid = "letters, digits, _ . , : / = @ + & and - (for a run's path, choose another --runs-dir)"
        raise UsageError(f"{text!r} cannot be written to a batch directive: use only {valid}.")
    return text


def directive_path(text: str, refused: str = r"[%{}\\]") -> str:
    """Return a path for a directive split as by a shell, without what ``refused`` matches (%, {})."""
    wrong = [letter for letter in text if not letter.isprintable() or re.match(refused, letter)]
    if not wrong:
        return text if _DIRECTIVE.fullmatch(text) else shlex.quote(text)
    raise UsageError(f"{text!r} has {wrong[0]!r}, which a batch directive cannot: choose another --runs-dir.")


def gpus_are_shared(site: Site, job: Job) -> bool:
    """Return whether a node has more ranks than GPUs, in a job without a number of GPUs per rank."""
    return job.gpus_per_rank is None and job.ranks_per_node > (site.node.gpus or job.ranks_per_node)


def gpus_per_node(job: Job) -> int:
    """Return the GPUs on each node that the user asks for, by default one for each rank."""
    return job.ranks_per_node * (1 if job.gpus_per_rank is None else job.gpus_per_rank)
