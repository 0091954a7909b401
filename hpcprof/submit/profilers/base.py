"""Declarations of profilers: their start by the rank wrapper, and their settings."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from hpcprof.common.errors import UsageError, unknown
from hpcprof.common.paths import script_beside
from hpcprof.runs.job import Job
from hpcprof.runs.job_name import JAX_MODULES, imported_modules, runs_python
from hpcprof.submit.linked_libraries import is_compiled
from hpcprof.submit.sites.model import Vendor
from hpcprof.workloads import catalogue

OUTPUT = "{output}"
"""Placeholder in an argument for the path of the rank's profile, without its suffix."""

PATTERN = "{pattern}"
"""Placeholder for the same path with %% for %, for profilers to which % begins a variable."""

FOLDER = "{profiles}"
"""Placeholder for the folder of the run's profiles."""

NAME = "{name}"
"""Placeholder for the name of the rank's profile in that folder, without its suffix."""

SCRATCH = "{scratch}"
"""Placeholder for a temporary folder of the rank on the node."""

SESSION = "{session}"
"""Placeholder for the name of that folder, which no other rank on the node has."""

GPUS = "{gpus}"
"""Placeholder for the numbers of the GPUs that the rank sees."""

SECONDS = "{seconds}"
"""Placeholder for how long the profiler may capture, in seconds."""

WITH_MPI = "{with_mpi}"
"""Placeholder at the end of a list for ``,mpi``, or nothing where the MPI of the program is unknown."""

PULSE = "hpcprof_pulse.py"
"""The module of the pulse in `START_UP`."""

PROGRAM_WORDS = "hpcprof_program_words.py"
"""The module in `START_UP` that finds the MPI behind a command."""

START_UP = "hook"
"""The folder of a run with the modules that Python imports when it starts on a profiled rank."""

Settings = Mapping[str, str]


@dataclass(frozen=True)
class Setting:
    """A setting for ``--profiler-option KEY=VALUE``. ``valid`` lists its values; empty accepts any."""

    help: str
    default: str = ""
    valid: tuple[str, ...] = ()


@dataclass(frozen=True)
class Versioned:
    """A flag that some versions of a tool lack or spell differently.

    The rank wrapper uses the first of ``spellings`` that the tool's help lists, with ``=value`` unless that
    is empty, or with the value as a word of its own if they are not ``joined``. It stops with an error if the
    help lists none, unless the flag is not ``required``.
    """

    spellings: tuple[str, ...]
    value: str = ""
    required: bool = True
    joined: bool = True


@dataclass(frozen=True)
class PerfEvents:
    """Flags that need perf events, and those that replace them on nodes that refuse these to users.

    The rank wrapper decides on the node, by ``perf_event_paranoid``. If they are refused, the first rank of
    the node says on its error output what ``missing`` names.
    """

    permitted: tuple[str, ...]
    refused: tuple[str, ...]
    missing: str


@dataclass(frozen=True)
class OnNode:
    """Flags that the rank wrapper chooses on the node by a test of the shell.

    The flags are ``passed`` if the test passes, else ``failed``. The test may call ``mpi_is openmpi`` or
    ``mpi_is mpich``, which tells the library of the program. If it fails, the first rank of the node says
    ``missing`` on its error output, unless that is empty.
    """

    test: str
    passed: tuple[str, ...]
    failed: tuple[str, ...] = ()
    missing: str = ""


Word = str | Versioned | PerfEvents | OnNode


@dataclass(frozen=True)
class Target:
    """The target of a profiler.

    ``workload`` is None for a program of the user's, which may not open a capture range as workloads do.
    ``captures`` is the number of spans of steps to capture, 0 for all measured steps. ``profiled`` is how
    many of the ``ranks`` run under the profiler. ``in_python`` says that it is a program in Python, and
    ``uses_jax`` that it imports JAX. ``no_hook`` says that the user wants it left alone. ``is_compiled``
    says of a program with steps to capture that it is known to be none in Python.
    """

    workload: str | None
    ranks: int
    captures: int = 0
    profiled: int = 0
    nodes: int = 1
    in_python: bool = True
    uses_jax: bool = False
    no_hook: bool = False
    is_compiled: bool = False

    @property
    def marks_steps(self) -> bool:
        """True if a workload, or the start-up hook in a program of PyTorch, marks the steps to capture."""
        if self.workload is not None:
            return catalogue.find(self.workload).marks_steps
        return self.captures > 0 and not (self.is_compiled or self.uses_jax)


def target_of(job: Job) -> Target:
    """Return the facts about a job that its profiler needs."""
    if job.workload is not None:
        in_python, in_jax = True, catalogue.find(job.workload).uses_jax
    else:
        in_python = runs_python(job.arguments)
        in_jax = bool(imported_modules(job.arguments, job.directory) & JAX_MODULES)
    return Target(
        job.workload,
        job.ranks,
        job.capture_steps.count(",") + 1 if job.capture_steps else 0,
        len(job.profiled_ranks),
        job.nodes,
        in_python=in_python,
        no_hook=job.no_hook,
        uses_jax=in_jax,
        is_compiled=bool(job.capture_steps) and is_compiled(job.arguments, job.directory),
    )


@dataclass(frozen=True)
class Profiler:
    """A profiler that runs a rank."""

    name: str
    """The value of ``--profiler``."""
    summary: str
    """One line for people."""
    settings: dict[str, Setting] = field(default_factory=dict)
    """The settings by name."""
    foreign: Settings = field(default_factory=dict)
    """Settings of other profilers that users may expect, each with a sentence on what takes their place."""
    check: Callable[[Target, Settings], object] = lambda target, settings: None
    """Raises `UsageError` for a combination that must not be run."""
    command: tuple[str, ...] = ()
    """The command that starts the profiler; empty if it runs inside the program."""
    flags: Callable[[Target, Settings], tuple[Word, ...]] = lambda target, settings: ()
    """The words between the command and the program, in any order; they may contain `OUTPUT` and `GPUS`."""
    time_limit: Callable[[Target, Settings], tuple[str, ...]] = lambda target, settings: ()
    """The flags that stop the capture after `SECONDS`, while the program goes on; empty for none."""
    window: Callable[[Target, Settings], bool] = lambda target, settings: False
    """True if the start-up hook ends the recording after a window of steps, while the program goes on."""
    environment: Callable[[Target, Settings], dict[str, str]] = lambda target, settings: {}
    """The environment variables of the profiled ranks; they may contain `FOLDER`."""
    afterwards: Callable[[Target, Settings], list[tuple[str, ...]]] = lambda target, settings: []
    """The commands on the node after the program, each only if the one before succeeded; they may contain
    `OUTPUT`, `SCRATCH`, `FOLDER` and `NAME`.
    """
    stacks: Settings = field(default_factory=dict)
    """The settings that record call stacks (``--stacks``); empty if it records none."""
    start_up: Callable[[Target], Mapping[str, str]] = lambda target: {}
    """The texts, by path, of Python modules in the run's `START_UP`, which is first on the
    ``PYTHONPATH`` of the profiled ranks. Python imports ``sitecustomize`` among them when it starts.
    """
    complaint: Callable[[str], str] = lambda text: ""
    """The reason of its failure in the output of a rank, as the end of a sentence; empty for none."""
    chatter: str = ""
    """A regular expression for its lines in the program's output, to hide them; empty for none."""
    counters: Callable[[Target, Settings], bool] = lambda target, settings: False
    """True if it reads hardware counters, as only one program can at once."""
    needs_gpus: Callable[[Settings], bool] = lambda settings: False
    """True if it profiles GPUs, so that a job without any would profile nothing."""
    in_program: str = ""
    """A word that an executable contains if this profiler is built into it; empty for other profilers."""
    suffix: str | Callable[[Settings], str] = ""
    """The suffix of the profile of each rank; empty if it leaves no file for each."""
    needs: str = ""
    """The program that must be on the PATH; by default that of ``command``."""
    reader_package: str = ""
    """The optional Python package that reads its profiles; empty for none."""
    becomes_program: bool = False
    """True if the process of ``command`` becomes the program's: a signal to it reaches the program."""
    starts_scripts: bool = True
    """False if it starts executables alone: no script, and no link of another name."""
    vendors: tuple[Vendor, ...] = ()
    """The vendors of the GPUs that it can profile; empty for any."""
    capabilities: tuple[str, ...] = ()
    """The Linux capabilities that it needs in a container."""

    def suffix_of(self, settings: Settings) -> str:
        """Return the suffix of the profile of each rank."""
        return self.suffix if isinstance(self.suffix, str) else self.suffix(settings)

    def resolve(self, given: Settings) -> dict[str, str]:
        """Return every setting with its value or default; `UsageError` for an unknown setting or value."""
        for key, value in given.items():
            if key in self.foreign:
                raise UsageError(f"--profiler-option {key}: {self.name} {self.foreign[key]}.")
            if key not in self.settings:
                raise unknown("profiler option", key, self.settings, f" of {self.name}")
            valid = self.settings[key].valid
            if valid and value not in valid:
                raise unknown("value", value, valid, f" of the profiler option {key}")
        return {key: given.get(key, setting.default) for key, setting in self.settings.items()}


def capture_setting(recorded: str) -> Setting:
    """Return the setting ``capture`` of a profiler that can record only what the program marks."""
    otherwise = (
        "workloads and PyTorch with --capture-steps, else from the start to step 29 or 10 s after step 10"
    )
    meanings = f"range: only {recorded}; whole: everything; auto: range for hpcprof's {otherwise}"
    return Setting(meanings, "auto", ("auto", "range", "whole"))


NONE = Profiler("none", "run the program as it is")


def captures_range(target: Target, settings: Settings) -> bool:
    """Return whether only what the program marks is captured, by the setting ``capture``."""
    return settings["capture"] == "range" or (settings["capture"] == "auto" and target.marks_steps)


def records_window(target: Target, settings: Settings) -> bool:
    """Return whether a program of the user's is recorded from its start to the end of a window of steps."""
    by_default = settings["capture"] == "auto" and not captures_range(target, settings)
    return by_default and not target.no_hook


def no_trace(text: str) -> str:
    """Return why a rank has no trace or profile, as its wrapper says, as a `Profiler.complaint`."""
    match = re.search(r"^hpcprof: no (?:trace|profile): (.*)", text, re.MULTILINE | re.DOTALL)
    return f": {match[1].strip().rstrip('.')}" if match else ""


def check_one_archive(target: Target, title: str, advice: str) -> None:
    """Check that the profiler ``title``, with one archive for all, runs on all ranks and the whole time."""
    if target.profiled not in (0, target.ranks):
        reason = f"{title} records all ranks into one archive"
        sentence = f"--profile-ranks: {reason}: leave --profile-ranks out, or give all."
        raise UsageError(sentence, "profiler", "profile_ranks")
    if target.captures:
        raise UsageError(f"--capture-steps: {title} records the whole program; {advice}.", "capture_steps")


def whole_number(settings: Settings, key: str, least: int) -> int:
    """Return a setting as a whole number of at least ``least``."""
    text = settings[key]
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        sentence = f"--profiler-option {key}={text}: write a whole number from {least}."
        raise UsageError(sentence, f"profiler_options.{key}")
    return int(text)


def collect_by_script(module: str, written: str) -> Callable[[Target, Settings], list[tuple[str, ...]]]:
    """Return `Profiler.afterwards` with a module's script, which names the files in ``written`` by rank."""
    script = script_beside(module)
    command = ("/bin/sh", "-c", script, "hpcprof", written, OUTPUT, f"{FOLDER}/processes/{NAME}")
    return lambda target, settings: [command]


def trace_names(settings: Settings, traces: Collection[str]) -> list[str]:
    """Return the names in the setting ``trace``, which is joined by commas."""
    names = [name for name in settings["trace"].split(",") if name]
    for name in names:
        if name not in traces:
            where, field = " of the profiler option trace", "profiler_options.trace"
            raise unknown("value", name, traces, where, fields=[field])
    return names
