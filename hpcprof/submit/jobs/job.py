"""The job: what a user may ask for, each option declared once, and the checked job that it becomes.

`JobSpec` declares the options, and ``options.txt`` says what they mean. From its fields derive the options of
the commands and their completion, the keys of a job file and their JSON Schema, the arguments of
`hpcprof.submit_job`, and the reference of all of them. `Job`, which is recorded in the run, has the same
values, checked and filled in.
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
from hpcprof.common.paths import read_table
from hpcprof.common.units import parse_memory
from hpcprof.runs.job import Job as Job
from hpcprof.submit.jobs.walltime import (
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

    help: str = ""
    """Its meaning, in sentences: that of ``options.txt``."""
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
    alone: str = ""
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


def _option(empty: Callable[[], object] | None = None, **fields: Any) -> Any:
    """Return a field of `JobSpec` that declares an option; not given it is None, or what ``empty`` makes."""
    metadata = {"option": Option(**fields)}
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

    job_file: Path | None = _option(flags=("--job",), in_job_file=False)
    site: str | None = _option(default="that of hpcprof config, or local", words=Words.SITES)
    site_file: Path | None = _option(in_job_file=False)
    host: str | None = _option(default="the site's", in_job_file=False, words=Words.HOSTS)
    workload: str | None = _option(words=Words.WORKLOADS)
    nodes: int | None = _option(least=1)
    ranks_per_node: int | None = _option(least=1)
    profiler: str | None = _option(words=Words.PROFILERS)
    profile_ranks: str | None = _option()
    profiler_options: Mapping[str, str] = _option(
        dict, flags=("--profiler-option",), words=Words.PROFILER_OPTIONS
    )
    inspector: bool | None = _option()
    capture_steps: str | None = _option()
    stacks: bool | None = _option()
    queue: str | None = _option(words=Words.QUEUES, of_site=True)
    account: str | None = _option()
    cpus_per_rank: int | None = _option(default="the site's", least=1, resource=True)
    gpus_per_rank: int | None = _option(default="the site's", least=0, resource=True)
    mem: str | None = _option(default="the site's", metavar="SIZE", parse=parse_memory, resource=True)
    constraint: str | None = _option(one_word=True, resource=True)
    reservation: str | None = _option(one_word=True, resource=True)
    scheduler_args: tuple[str, ...] = _option(tuple, flags=("--scheduler-arg",), metavar="ARG", resource=True)
    launcher_args: tuple[str, ...] = _option(tuple, flags=("--launcher-arg",), metavar="ARG")
    walltime: str | None = _option(parse=parse_walltime, of_site=True)
    job_name: str | None = _option(default="the workload's or the script's")
    options: Mapping[str, str] = _option(dict, flags=("-o", "--option"), words=Words.SITE_OPTIONS)
    after: tuple[str, ...] = _option(tuple, metavar="RUN", words=Words.RUNS)
    stall_timeout: str | None = _option(default="10m", metavar="TIME", parse=parse_stall_timeout)
    on_stall: str | None = _option(choices=("report", "stop", "resubmit"))
    signal: str | None = _option(metavar="NAME@SECONDS", parse=parse_signal)
    on_timeout: str | None = _option(choices=("report", "resubmit"))
    leftover_grace: str | None = _option(default="30s", metavar="TIME", parse=parse_leftover_grace)
    capture_when: str | None = _option(default="off", metavar="slow[:PERCENT]", parse=parse_capture_when)
    memory_history: str | None = _option(default="off", metavar="STEPS[@RANKS]", parse=parse_memory_history)
    stage_env: str | None = _option(metavar="[FOLDER]", alone="active")
    reference: bool | None = _option()
    no_hook: bool | None = _option()
    no_telemetry: bool | None = _option()
    notify: tuple[str, ...] = _option(tuple, metavar="TARGET", words=Words.TARGETS)
    template: Path | None = _option(in_job_file=False)

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


_MEANINGS = dict(read_table(Path(__file__).with_name("options.txt")))
OPTIONS: dict[str, Option] = {
    item.name: replace(
        item.metadata["option"],
        name=item.name,
        help=_MEANINGS[item.name].replace("{profilers}", ", ".join(PROFILERS)),
    )
    for item in fields(JobSpec)
    if item.metadata
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
