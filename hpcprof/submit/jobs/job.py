"""The job: what a user may ask for, each option declared once, and the checked job that it becomes.

`JobSpec` declares the options. From its fields derive the options of the commands and their completion, the
keys of a job file and their JSON Schema, the arguments of `hpcprof.submit_job`, and the reference of all of
them. `Job`, which is recorded in the run, has the same values, checked and filled in.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from hpcprof.common.errors import UsageError
from hpcprof.common.masking import masked_targets
from hpcprof.common.units import parse_memory
from hpcprof.runs.job import Job as Job
from hpcprof.submit.jobs.walltime import (
    AUTO_STALL,
    parse_leftover_grace,
    parse_signal,
    parse_stall_timeout,
    parse_walltime,
)
from hpcprof.submit.profilers import PROFILERS

_DEFAULT_PCT = 20
_MAX_PCT = 10_000
_SLOW_TRIGGER = re.compile(r"slow(?::(?P<percent>[0-9]{1,5}))?")


def parse_capture_when(text: str) -> int:
    """Return the percentage by which steps must slow down to be recorded; 0 for ``off``."""
    if text == "off":
        return 0
    match = _SLOW_TRIGGER.fullmatch(text)
    percent = int(match["percent"] or _DEFAULT_PCT) if match else 0
    if not 0 < percent <= _MAX_PCT:
        raise UsageError(f"--capture-when {text}: write slow, slow:PERCENT with 1 to {_MAX_PCT}, or off.")
    return percent


OUT_OF_MEMORY = "oom"
"""The value of ``--memory-history`` that keeps snapshots only when a rank runs out of memory."""

MAX_SNAPSHOTS = 8
_SPAN = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_STEPS = re.compile(rf"(?P<steps>[0-9]{{1,9}}(?:,[0-9]{{1,9}})*)(?:@(?P<ranks>{_SPAN}(?:,{_SPAN})*))?")


def parse_memory_history(text: str) -> str:
    """Return the steps and the ranks of snapshots as they are written; empty for ``off``."""
    if text in ("off", OUT_OF_MEMORY):
        return "" if text == "off" else text
    match = _STEPS.fullmatch(text)
    if match is None:
        valid = "steps as in 5,10, steps of some ranks as in 5,10@0,4-7, oom, or off"
        raise UsageError(f"--memory-history {text}: write {valid}.")
    steps = match["steps"].split(",")
    if len(steps) > MAX_SNAPSHOTS:
        raise UsageError(f"--memory-history {text}: {len(steps)} steps; at most {MAX_SNAPSHOTS} are kept.")
    for span in (match["ranks"] or "").split(","):
        low, _, high = span.partition("-")
        if high and int(high) < int(low):
            sentence = f"--memory-history {text}: the span {span} is empty; write the lower number first."
            raise UsageError(sentence)
    return text


class Words(Enum):
    """The words that a shell offers as the value of an option."""

    SITES = auto()
    HOSTS = auto()
    WORKLOADS = auto()
    PROFILERS = auto()
    PROFILER_OPTIONS = auto()
    QUEUES = auto()
    SITE_OPTIONS = auto()
    RUNS = auto()
    TARGETS = auto()


@dataclass(frozen=True)
class Option:
    """The declaration of an option of a job."""

    help: str
    """Its meaning, in sentences."""
    default: str = ""
    """The value if none is given, for people; by default that of `Job`, unless this is empty."""
    flags: tuple[str, ...] = ()
    """Its flags on the command line, by default one like the name: ``--ranks-per-node``."""
    metavar: str = ""
    """The name of its value in the help, by default that of its type."""
    least: int | None = None
    """The least value of a number."""
    parse: Callable[[str], object] | None = None
    """``text -> value of Job``, for a text that is not taken as it is; raises `UsageError`."""
    flag_value: str = ""
    """The value of the option if it is given without one; empty if it needs one."""
    one_word: bool = False
    """True if a text becomes a part of a directive, in which nothing can be quoted."""
    choices: tuple[str, ...] = ()
    """Its valid values; empty if these are not a few fixed ones."""
    words: Words | None = None
    """The words that a shell offers as its value."""
    of_site: bool = False
    """True if the site's key of the same name is the default."""
    resource: bool = False
    """True if it asks for resources of the nodes: only a scheduler that lists it in ``resources`` has it."""
    in_job_file: bool = True
    """True if it is a key of a job file."""
    name: str = ""
    """The name of the field."""

    @property
    def flag(self) -> str:
        """The flag by which messages name it."""
        return self.flags[0] if self.flags else f"--{self.name.replace('_', '-')}"

    @property
    def default_value(self) -> object:
        """The value of a job that does not say otherwise; None or empty if there is none for all sites."""
        value = None if self.of_site else _DEFAULTS.get(self.name)
        return self.default if self.default and (value or value == 0) else value

    @property
    def described(self) -> str:
        """Its meaning and its default."""
        default = self.default or ("the site's" if self.of_site else self.default_value)
        return f"{self.help}  [default: {default}]" if default else self.help

    def shown(self, value: object) -> str:
        """Return the option with a value, as a user writes it."""
        return f"{self.flag} {' '.join(value) if isinstance(value, list | tuple) else value}"


@dataclass(frozen=True)
class ValueOrigin:
    """The origin of a value that is not on the command line."""

    place: str
    """The file, and the line in it."""
    key: str
    """The key in the file."""
    personal: bool = False
    """True if it is a personal default, which gives way to whatever else sets the same."""


def _option(help: str, empty: Callable[[], object] | None = None, **fields: Any) -> Any:
    """Return a field of `JobSpec` that declares an option; not given it is None, or what ``empty`` makes."""
    metadata = {"option": Option(help, **fields)}
    return (
        field(default_factory=empty, metadata=metadata) if empty else field(default=None, metadata=metadata)
    )


@dataclass(frozen=True)
class JobSpec:
    """A user's request for a job. A field that is None or empty was not given.

    Values of an upper request replace a lower one's; mappings are merged. ``program`` is
    the command of each rank, or the arguments of the workload, and ``runs_dir`` the folder of runs.
    ``origins`` has the origin of each value that a file gave, with a dot before the key of a mapping:
    ``options.python``.
    """

    program: tuple[str, ...] = ()

    job_file: Path | None = _option(
        "Job file; options on the command line override it.", flags=("--job",), in_job_file=False
    )
    site: str | None = _option(
        "Site to run on (hpcprof sites list).", default="that of hpcprof config, or local", words=Words.SITES
    )
    site_file: Path | None = _option("Site file, instead of a name.", in_job_file=False)
    host: str | None = _option(
        "Login node to submit from, as ssh takes it: HOST or USER@HOST. A site of that name is used.",
        default="the site's",
        in_job_file=False,
        words=Words.HOSTS,
    )
    workload: str | None = _option("Built-in workload; its arguments go after --.", words=Words.WORKLOADS)
    nodes: int | None = _option("Number of nodes.", least=1)
    ranks_per_node: int | None = _option("Number of ranks on each node.", least=1)
    profiler: str | None = _option(
        f"{', '.join(PROFILERS)}, a plug-in, or auto: the site's, or what is here.", words=Words.PROFILERS
    )
    profile_ranks: str | None = _option("Ranks to profile: all, none, 0,4-7, local=0, nodes=0-1, every=16.")
    profiler_options: Mapping[str, str] = _option(
        "Option of the profiler. Repeatable.",
        dict,
        flags=("--profiler-option",),
        words=Words.PROFILER_OPTIONS,
    )
    inspector: bool | None = _option(
        "Record every collective with NCCL's Inspector (NCCL 2.28): the same as --profiler inspector."
    )
    capture_steps: str | None = _option(
        "Steps to profile, counted from 0, as in 10-12. By default the PyTorch profiler records "
        "5-24, or as many as 10 s hold, and the workload ddp 20 of its last epoch. Compiled programs, "
        "and those in JAX under other profilers, are recorded from their start."
    )
    stacks: bool | None = _option(
        "Record call stacks, so that findings name file and line (nsys, torch). The program "
        "runs somewhat slower."
    )
    queue: str | None = _option("Queue, partition or QOS.", words=Words.QUEUES, of_site=True)
    account: str | None = _option("Account or project that is charged.")
    cpus_per_rank: int | None = _option("CPUs for each rank.", default="the site's", least=1, resource=True)
    gpus_per_rank: int | None = _option("GPUs for each rank.", default="the site's", least=0, resource=True)
    mem: str | None = _option(
        "Memory on each node, as in 64G; 0 for all (Slurm).",
        default="the site's",
        metavar="SIZE",
        parse=parse_memory,
        resource=True,
    )
    constraint: str | None = _option(
        "Kind of nodes: a constraint (Slurm), RESOURCE=VALUE (PBS) or LABEL=VALUE (Kubernetes).",
        one_word=True,
        resource=True,
    )
    reservation: str | None = _option(
        "Reservation to run in (Slurm; for PBS give its queue).", one_word=True, resource=True
    )
    scheduler_args: tuple[str, ...] = _option(
        "Option passed on to the scheduler, as in --scheduler-arg=--exclude=n3. Repeatable.",
        tuple,
        flags=("--scheduler-arg",),
        metavar="ARG",
        resource=True,
    )
    launcher_args: tuple[str, ...] = _option(
        "Option of the launcher (srun, mpiexec, …), as in --launcher-arg=--cpu-bind=none. Repeatable.",
        tuple,
        flags=("--launcher-arg",),
        metavar="ARG",
    )
    walltime: str | None = _option(
        "Time limit: HH:MM:SS, D-HH:MM:SS, 90m, 12h or 1d12h.", parse=parse_walltime, of_site=True
    )
    job_name: str | None = _option("Name of the job.", default="the workload's or the script's")
    options: Mapping[str, str] = _option(
        "Option of the site (hpcprof sites show). Repeatable.",
        dict,
        flags=("-o", "--option"),
        words=Words.SITE_OPTIONS,
    )
    after: tuple[str, ...] = _option(
        "Run or array that must succeed before the job starts. Repeatable.",
        tuple,
        metavar="RUN",
        words=Words.RUNS,
    )
    stall_timeout: str | None = _option(
        "Time without progress of any rank after which the run counts as stalled: 12s, 10m, 1h, off, or "
        "auto: 10m, but at most half of the time limit.",
        default=AUTO_STALL,
        metavar="TIME",
        parse=parse_stall_timeout,
    )
    on_stall: str | None = _option(
        "report: keep evidence of a stall. stop: then end the job, with exit code 5. "
        "resubmit: then run it again, once.",
        choices=("report", "stop", "resubmit"),
    )
    signal: str | None = _option(
        "Signal to the program ahead of the time limit, so that it can save: NAME@SECONDS, as in USR1@120.",
        metavar="NAME@SECONDS",
        parse=parse_signal,
    )
    on_timeout: str | None = _option(
        "report: the job ends at its time limit. resubmit: the program gets --signal (by default TERM@60), "
        "and when it has ended the job runs again, up to three times.",
        choices=("report", "resubmit"),
    )
    leftover_grace: str | None = _option(
        "Time for processes that the program leaves behind, such as daemons, to end by themselves while its "
        "profiler waits for them; then they are ended.",
        default="30s",
        metavar="TIME",
        parse=parse_leftover_grace,
    )
    capture_when: str | None = _option(
        "Record steps with the PyTorch profiler when the last 20 take PERCENT (20) longer than those "
        "before: slow, slow:PERCENT or off. At most twice.",
        default="off",
        metavar="slow[:PERCENT]",
        parse=parse_capture_when,
    )
    memory_history: str | None = _option(
        "Keep what PyTorch's GPU memory holds, and which lines allocated it, after these steps (5,10, or "
        "5,10@0,4-7 on some ranks), and of all ranks when one runs out of memory (oom: only then).",
        default="off",
        metavar="STEPS[@RANKS]",
        parse=parse_memory_history,
    )
    stage_env: str | None = _option(
        "Pack an environment of Python (conda, pixi, venv or uv) and unpack it on each node's own disk "
        "before the ranks start. Without a folder, that of the program or the active one.",
        metavar="[FOLDER]",
        flag_value="active",
    )
    reference: bool | None = _option(
        "Run the program without the profiler first, in the same job, for what its steps take alone."
    )
    no_hook: bool | None = _option(
        "Leave Python programs alone: no step times without a profiler, less evidence of a stall."
    )
    no_telemetry: bool | None = _option(
        "Do not sample what the nodes do: clocks, power, memory, network, file systems."
    )
    notify: tuple[str, ...] = _option(
        "Notify when the job starts, stalls or ends: a name of hpcprof config (notify.NAME), "
        "slack:URL, teams:URL, mail:ADDRESS, a URL or a command. Repeatable.",
        tuple,
        metavar="TARGET",
        words=Words.TARGETS,
    )
    template: Path | None = _option("Template of job.sh, instead of the scheduler's.", in_job_file=False)

    runs_dir: Path = Path("runs")
    origins: Mapping[str, ValueOrigin] = field(default_factory=dict)

    def given(self) -> list[str]:
        """Return the names of the fields that describe the job and were given."""
        names = [name for name in ("program", *OPTIONS) if name != "template"]
        # No GPUs (0) are asked for; a text or a list that is empty is not.
        return [name for name in names if (value := getattr(self, name)) or value == 0]

    def over(self, lower: "JobSpec") -> "JobSpec":
        """Return this request, completed by the values of a request of lower precedence."""
        changes: dict[str, Any] = {}
        for name in ("program", *OPTIONS):
            upper, below = getattr(self, name), getattr(lower, name)
            if isinstance(upper, Mapping):
                changes[name] = {**below, **upper}
            elif self.lacks(name):
                changes[name] = below
        taken = {key: origin for key, origin in lower.origins.items() if self.lacks(key)}
        return replace(self, **changes, origins={**self.origins, **taken})

    def lacks(self, key: str) -> bool:
        """Return whether a value was not given: a field, or with a dot after it a key of a mapping."""
        name, _, inner = key.partition(".")
        value = getattr(self, name)
        return inner not in value if inner else value is None or value == ()

    def to_arguments(self) -> list[str]:
        """Return the arguments of ``hpcprof submit`` that ask for the same."""
        words: list[str] = []
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if value is True:
                words.append(option.flag)
                continue
            if isinstance(value, Mapping):
                value = tuple(f"{key}={text}" for key, text in value.items())
            elif not isinstance(value, tuple):
                value = () if value is None or value is False else (value,)
            words += [word for item in value for word in (option.flag, str(item))]
        if self.runs_dir != Path("runs"):
            words += ["--runs-dir", str(self.runs_dir)]
        words = masked_targets(words)
        return [*words, "--", *self.program] if self.program else words


OPTIONS: dict[str, Option] = {
    item.name: replace(item.metadata["option"], name=item.name) for item in fields(JobSpec) if item.metadata
}
"""The options of a job by name, in the order of the help."""
OPTION_TYPES: dict[str, Any] = {name: JobSpec.__annotations__[name] for name in OPTIONS}
"""The declared types of the options by name."""
_IN_WORDS = {str: "str", int: "int", bool: "bool", Path: "path", tuple: "sequence of str", Mapping: "mapping"}


def kind_of(name: str) -> type:
    """Return the type of an option's value: a scalar type, `tuple` or `Mapping`."""
    declared = OPTION_TYPES[name]
    inner = get_args(declared)
    kind: type = inner[0] if type(None) in inner else get_origin(declared)
    return kind


JobSpec.__doc__ = f"{JobSpec.__doc__}\n    Parameters\n    ----------\n" + "".join(
    f"    {name} : {_IN_WORDS[kind_of(name)]}, optional\n        {option.help}\n"
    for name, option in OPTIONS.items()
)


_DEFAULTS = {
    item.name: item.default for item in msgspec.structs.fields(Job) if isinstance(item.default, str | int)
}
