"""The job request: what a user asks for, on the command line, in a job file or from Python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpcprof.common.errors import UsageError
from hpcprof.submit.config import Setting, read_settings
from hpcprof.submit.jobs.builder import make_job
from hpcprof.submit.jobs.job import Job
from hpcprof.submit.profilers import NONE
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.sites.files import load_site, load_site_file
from hpcprof.submit.sites.model import Site

if TYPE_CHECKING:
    from hpcprof.submit.jobs.job_file import JobFile

SINGLE = (
    *("site", "workload", "nodes", "ranks_per_node", "profiler", "profile_ranks", "capture_steps"),
    *("queue", "account", "walltime", "job_name"),
    *("cpus_per_rank", "gpus_per_rank", "mem", "constraint"),
)
"""The fields whose value in the request replaces that of the job file."""
_NOT_THE_JOB = ("template", "runs_dir", "defaults", "option_defaults")
_FLAGS = {
    "job_file": "--job",
    "options": "-o",
    "profiler_options": "--profiler-option",
    "scheduler_args": "--scheduler-arg",
}

T = TypeVar("T")


@dataclass(frozen=True)
class JobRequest:
    """A user's request for a job. A field that is None or empty was not given.

    Attributes
    ----------
    program : tuple of str
        The command of each rank, or the arguments of the workload.
    workload : str or None
        A built-in workload.
    job_file : Path or None
        A file with more of the request; the fields given here override it.
    site, site_file : str or None, Path or None
        The name of a site, or the path of a site file, which overrides the name.
    nodes, ranks_per_node : int or None
        The size of the job; 1 by default.
    profiler, profile_ranks, capture_steps : str or None
        The profiler, the rank selection, and the measured steps to capture.
    stacks : bool or None
        Whether the profiler records call stacks.
    profiler_options, options : mapping of str to str
        The profiler's options and the site's.
    queue, account, walltime, job_name : str or None
        As the scheduler takes them; the site's or the workload's by default.
    cpus_per_rank, gpus_per_rank : int or None
        What each rank gets; by default what the site says.
    mem, constraint : str or None
        The memory on each node, and the kind of nodes.
    scheduler_args : tuple of str
        Further options of the scheduler, which become directives.
    after : tuple of str
        Runs or sweeps that must have succeeded before, named as for `hpcprof status`.
    template : Path or None
        A template of job.sh, instead of the scheduler's.
    runs_dir : Path
        The folder of runs.
    defaults : tuple of Setting
        The personal defaults among the values above; `merged` sets them.
    option_defaults : mapping of str to Setting
        The personal defaults for options of the site that are not among ``options``; `merged` sets them.
    """

    program: tuple[str, ...] = ()
    workload: str | None = None
    job_file: Path | None = None
    site: str | None = None
    site_file: Path | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None
    profiler: str | None = None
    profile_ranks: str | None = None
    profiler_options: Mapping[str, str] = field(default_factory=dict)
    capture_steps: str | None = None
    stacks: bool | None = None
    queue: str | None = None
    account: str | None = None
    walltime: str | None = None
    job_name: str | None = None
    cpus_per_rank: int | None = None
    gpus_per_rank: int | None = None
    mem: str | None = None
    constraint: str | None = None
    scheduler_args: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    template: Path | None = None
    runs_dir: Path = Path("runs")
    defaults: tuple[Setting, ...] = ()
    option_defaults: Mapping[str, Setting] = field(default_factory=dict)

    def given(self) -> list[str]:
        """Return the names of the fields that describe the job and were given."""
        names = [f.name for f in fields(self) if f.name not in _NOT_THE_JOB]
        # No GPUs (0) are asked for; a text or a list that is empty is not.
        return [name for name in names if (value := getattr(self, name)) or value == 0]

    def to_arguments(self) -> list[str]:
        """Return the arguments of ``hpcprof submit`` that ask for the same."""
        words: list[str] = []
        for name in (*self.given(), "template"):
            value = getattr(self, name)
            if name == "program" or value is None:
                continue
            if value is True:
                words.append(flag_of(name))
                continue
            if isinstance(value, Mapping):
                value = [f"{key}={text}" for key, text in value.items()]
            values = value if isinstance(value, list | tuple) else [value]
            words += [word for one in values for word in (flag_of(name), str(one))]
        if self.runs_dir != Path("runs"):
            words += ["--runs-dir", str(self.runs_dir)]
        return [*words, "--", *self.program] if self.program else words

    def merged(self) -> JobRequest:
        """Return the request with the values of its job file filled in, then with the personal defaults.

        Raises
        ------
        UsageError
            If a file cannot be read, or a value in it is wrong.
        """
        settings = read_settings()
        request = self._with_job_file()
        return request._with_defaults(settings) if settings else request

    def _with_job_file(self) -> JobRequest:
        if self.job_file is None:
            return self
        from hpcprof.submit.jobs.job_file import load_job_file  # 1 ms that few commands need

        file = load_job_file(self.job_file)
        changes: dict[str, Any] = {
            name: getattr(file, name) for name in SINGLE if getattr(self, name) is None
        }
        return replace(
            self,
            job_file=None,
            program=self.program or tuple(file.program or ()),
            after=self.after or tuple(file.after),
            scheduler_args=self.scheduler_args or tuple(file.scheduler_args),
            options={**file.options, **self.options},
            profiler_options={**file.profiler_options, **self.profiler_options},
            stacks=_or(self.stacks, file.stacks),
            **changes,
        )

    def _with_defaults(self, settings: Mapping[str, Setting]) -> JobRequest:
        """Return the request with the personal defaults for its site filled in."""
        chosen = [settings["site"]] if "site" in settings and not (self.site or self.site_file) else []
        request = replace(self, site=chosen[0].value, defaults=tuple(chosen)) if chosen else self
        name = request.site_file.stem if request.site_file else _or(request.site, "local")
        used: dict[str, Setting] = {}
        for key in ("account", "queue"):
            setting = settings.get(f"sites.{name}.{key}")
            if setting is None and key in settings and not request._runs_here():
                setting = settings[key]
            if setting is not None and getattr(self, key) is None:
                used[key] = setting
        options = {
            key.removeprefix(f"sites.{name}.options."): setting
            for key, setting in settings.items()
            if key.startswith(f"sites.{name}.options.")
        }
        return replace(
            request,
            defaults=(*request.defaults, *used.values()),
            option_defaults={key: s for key, s in options.items() if key not in self.options},
            account=used["account"].value if "account" in used else self.account,
            queue=used["queue"].value if "queue" in used else self.queue,
        )

    def _runs_here(self) -> bool:
        return find_scheduler(self.load_site().scheduler).runs_here

    def resolve(self, draft: bool = False) -> tuple[Site, Job]:
        """Return the site and the checked job; a draft may lack what the site requires.

        Raises
        ------
        UsageError
            For the first value that is wrong; the message names it, and what would be valid.
        """
        request = self.merged()
        site = request.load_site()
        return site, request.job_at(site, draft)

    def load_site(self) -> Site:
        """Load the site that a merged request names.

        Raises
        ------
        UsageError
            If there is no such site, or its file is wrong.
        """
        if self.site_file is not None:
            return load_site_file(self.site_file)
        with _naming([setting for setting in self.defaults if setting.key == "site"]):
            return load_site(_or(self.site, "local"))

    def job_at(self, site: Site, draft: bool = False) -> Job:
        """Return the checked job of a merged request at a site.

        Raises
        ------
        UsageError
            For the first value that is wrong; the message names it, and what would be valid.
        """
        chosen = [setting for setting in self.defaults if setting.key != "site"]
        with _naming([*chosen, *self.option_defaults.values()]):
            return make_job(
                site,
                workload=self.workload,
                arguments=list(self.program),
                name=self.job_name,
                nodes=_or(self.nodes, 1),
                ranks_per_node=_or(self.ranks_per_node, 1),
                walltime=self.walltime,
                profiler=_or(self.profiler, NONE.name),
                profile_ranks=_or(self.profile_ranks, "all"),
                profiler_options=self.profiler_options,
                stacks=bool(self.stacks),
                capture_steps=_or(self.capture_steps, ""),
                queue=_or(self.queue, ""),
                account=_or(self.account, ""),
                cpus_per_rank=self.cpus_per_rank,
                gpus_per_rank=self.gpus_per_rank,
                mem=_or(self.mem, ""),
                constraint=_or(self.constraint, ""),
                scheduler_args=self.scheduler_args,
                options=self.options,
                option_defaults={key: s.value for key, s in self.option_defaults.items()},
                after=self._run_ids(),
                draft=draft,
            )

    def to_job_file(self) -> JobFile:
        """Return a merged request as a job file, with hpcprof's defaults but not those of the site."""
        from hpcprof.submit.jobs.job_file import JobFile

        return JobFile(
            site=_or(self.site, "local"),
            workload=self.workload,
            program=list(self.program) or None,
            nodes=_or(self.nodes, 1),
            ranks_per_node=_or(self.ranks_per_node, 1),
            profiler=_or(self.profiler, NONE.name),
            profile_ranks=_or(self.profile_ranks, "all"),
            profiler_options=dict(self.profiler_options),
            capture_steps=self.capture_steps or None,
            stacks=self.stacks or None,
            queue=self.queue or None,
            account=self.account or None,
            cpus_per_rank=self.cpus_per_rank,
            gpus_per_rank=self.gpus_per_rank,
            mem=self.mem or None,
            constraint=self.constraint or None,
            scheduler_args=list(self.scheduler_args),
            walltime=self.walltime or None,
            job_name=self.job_name or None,
            options={**{key: s.value for key, s in self.option_defaults.items()}, **self.options},
            after=list(self.after),
        )

    def _run_ids(self) -> list[str]:
        if not self.after:
            return []
        # A job without predecessors does without the modules that read runs.
        from hpcprof.submit.runs.directory import find_runs

        return [run.id for reference in self.after for run in find_runs(reference, self.runs_dir)]


@contextmanager
def _naming(defaults: Sequence[Setting]) -> Iterator[None]:
    """Add to an error which of the values that it names are personal defaults."""
    try:
        yield
    except UsageError as error:
        text = str(error)
        named = [s for s in defaults if re.search(rf"(?<!\w){re.escape(s.value)}(?!\w)", text)]
        if not named:
            raise
        shown = ", ".join(f"{s.key} = {s.value} in {s.source}" for s in named)
        raise UsageError(f"{text.rstrip('.')} (a personal default: {shown}).") from None


def flag_of(field: str) -> str:
    """Return the option of the command line that sets a field of the request."""
    return _FLAGS.get(field, f"--{field.replace('_', '-')}")


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
