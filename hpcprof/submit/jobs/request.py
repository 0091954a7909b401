"""The job request: what a user asks for, on the command line, in a job file or from Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpcprof.submit.jobs.builder import make_job
from hpcprof.submit.jobs.job import Job
from hpcprof.submit.profilers import NONE
from hpcprof.submit.sites.files import load_site, load_site_file
from hpcprof.submit.sites.model import Site

if TYPE_CHECKING:
    from hpcprof.submit.jobs.job_file import JobFile

_SINGLE = (
    *("site", "workload", "nodes", "ranks_per_node", "profiler", "profile_ranks", "capture_steps"),
    *("queue", "account", "walltime", "job_name"),
    *("cpus_per_rank", "gpus_per_rank", "mem", "constraint"),
)
"""The fields whose value in the request replaces that of the job file."""
_FLAGS = {
    "job_file": "--job",
    "options": "-o",
    "profiler_options": "--profiler-option",
    "scheduler_args": "--scheduler-arg",
}


T = TypeVar("T")


@dataclass(frozen=True)
class JobRequest:
    """What a user asks for. A field that is None or empty was not given.

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

    def given(self) -> list[str]:
        """Return the names of the fields that describe the job and were given."""
        names = [f.name for f in fields(self) if f.name not in ("template", "runs_dir")]
        # No GPUs (0) are asked for; a text or a list that is empty is not.
        return [name for name in names if (value := getattr(self, name)) or value == 0]

    def to_arguments(self) -> list[str]:
        """Return the arguments of ``hpcprof submit`` that ask for the same."""
        words: list[str] = []
        for name in (*self.given(), "template"):
            value = getattr(self, name)
            if name == "program" or value is None:
                continue
            if isinstance(value, Mapping):
                value = [f"{key}={text}" for key, text in value.items()]
            values = value if isinstance(value, list | tuple) else [value]
            words += [word for one in values for word in (flag_of(name), str(one))]
        if self.runs_dir != Path("runs"):
            words += ["--runs-dir", str(self.runs_dir)]
        return [*words, "--", *self.program] if self.program else words

    def merged(self) -> JobRequest:
        """Return the request with the values of its job file filled in.

        Raises
        ------
        UsageError
            If the job file cannot be read, or a value in it is wrong.
        """
        if self.job_file is None:
            return self
        from hpcprof.submit.jobs.job_file import load_job_file  # 1 ms that few commands need

        file = load_job_file(self.job_file)
        changes: dict[str, Any] = {
            name: getattr(file, name) for name in _SINGLE if getattr(self, name) is None
        }
        return replace(
            self,
            job_file=None,
            program=self.program or tuple(file.program or ()),
            after=self.after or tuple(file.after),
            scheduler_args=self.scheduler_args or tuple(file.scheduler_args),
            options={**file.options, **self.options},
            profiler_options={**file.profiler_options, **self.profiler_options},
            **changes,
        )

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
        return load_site(_or(self.site, "local"))

    def job_at(self, site: Site, draft: bool = False) -> Job:
        """Return the checked job of a merged request at a site.

        Raises
        ------
        UsageError
            For the first value that is wrong; the message names it, and what would be valid.
        """
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
            capture_steps=_or(self.capture_steps, ""),
            queue=_or(self.queue, ""),
            account=_or(self.account, ""),
            cpus_per_rank=self.cpus_per_rank,
            gpus_per_rank=self.gpus_per_rank,
            mem=_or(self.mem, ""),
            constraint=_or(self.constraint, ""),
            scheduler_args=self.scheduler_args,
            options=self.options,
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
            queue=self.queue or None,
            account=self.account or None,
            cpus_per_rank=self.cpus_per_rank,
            gpus_per_rank=self.gpus_per_rank,
            mem=self.mem or None,
            constraint=self.constraint or None,
            scheduler_args=list(self.scheduler_args),
            walltime=self.walltime or None,
            job_name=self.job_name or None,
            options=dict(self.options),
            after=list(self.after),
        )

    def _run_ids(self) -> list[str]:
        if not self.after:
            return []
        # A job without predecessors does without the modules that read runs.
        from hpcprof.submit.runs.directory import find_runs

        return [run.id for reference in self.after for run in find_runs(reference, self.runs_dir)]


def flag_of(field: str) -> str:
    """Return the option of the command line that sets a field of the request."""
    return _FLAGS.get(field, f"--{field.replace('_', '-')}")


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
