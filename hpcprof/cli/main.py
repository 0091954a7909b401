"""The ``hpcprof`` command: find the subcommand, and turn exceptions into sentences and exit codes."""

import atexit
import errno
import gc
import io
import os
import re
import signal
import sys
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import click
from click.core import ParameterSource
from click.exceptions import NoArgsIsHelpError

from hpcprof.cli.conventions import Group, echo, examples, verbose_option
from hpcprof.cli.options import flag
from hpcprof.common import __version__
from hpcprof.common.errors import HpcprofError, InformationRequested
from hpcprof.common.logs import log_invocation

# One file per command, imported on first use; the sentences are here so that --help imports none of them.
SECTIONS = {
    "Submit and follow": {
        "submit": "Render a job's scripts and hand them to the scheduler.",
        "run": "Submit a job, wait for it, collect and explain its profiles, and show the report.",
        "sweep": "Submit a run for every combination of parameters.",
        "resubmit": "Submit the job of a run again, unchanged.",
        "render": "Print or write the scripts that submit would use.",
        "list": "List the runs, oldest first.",
        "status": "Show the state of runs.",
        "logs": "Show the output of a run.",
        "capture": "Record the next steps of a running PyTorch job.",
        "cancel": "End a run with all its processes.",
        "tag": "Add tags to a run, or remove them.",
        "rm": "Remove runs and their collected results.",
        "gc": "Remove old runs and orphaned results.",
    },
    "Collect and ask": {
        "open": "Show what profiles say: collect, explain and report them.",
        "collect": "Read profiles into the results database.",
        "report": "Report where the time of a run went.",
        "explain": "Explain where step time is lost, and what each cause costs.",
        "whatif": "Predict the step time of a run with changed times.",
        "predict": "Predict the step time of a program on other ranks, from a run on a few.",
        "compare": "Compare runs B with runs A: whether steps are slower, and what explains it.",
        "history": "Show a metric of all runs of a program over time, and where it changed.",
        "baseline": "Name the runs that others are compared with.",
        "query": "Query the results database, or the events of runs, with SQL.",
    },
    "Studies": {"study": "Run a program several times under profilers, and analyze the runs together."},
    "Share and export": {
        "serve": "Show runs and their results in a browser.",
        "mcp": "Answer an agent's questions about runs, over standard input and output.",
        "push": "Send results and kept events of runs to a hub.",
        "scrub": "Copy profiles with private data removed.",
        "export": "Write results and timelines for other programs.",
    },
    "Sites, templates and containers": {
        "sites": "List, show, check or create sites.",
        "config": "Show or change your defaults, such as site and account.",
        "templates": "List, export or check templates.",
        "container": "Render, build and run a container image with the profilers.",
        "doctor": "Check what works here, and suggest fixes.",
    },
}
COMMANDS = {name: sentence for section in SECTIONS.values() for name, sentence in section.items()}

_COMPLETION_VARIABLE = "_HPCPROF_COMPLETE"
"""The variable by which a shell asks for completions."""
_STDOUT, _STDERR = 1, 2
_NEW_OBJECTS = 100_000


class LazyGroup(Group):
    """A group whose commands are imported on first use."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the commands in the order in which --help lists them."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import and return a command, or None if there is none of that name."""
        if name in COMMANDS and name not in self.commands:
            self.add_command(import_module(f"hpcprof.cli.{name}").command, name)
        return super().get_command(context, name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of commands, with the sentences in one column, without importing a command."""
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), sentence) for name, sentence in commands.items()])


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("hpcprof submit --workload sequence-parallel --ranks-per-node 2 --profiler torch --wait"),
)
@click.version_option(__version__, prog_name="hpcprof")
@flag("--debug", help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Describe a run once: submit it, profile the right ranks, and explain what came back."""


verbose_option(cli)


def main() -> None:
    """Run the command line; the only place where an exception becomes an exit code."""
    if sys.getfilesystemencoding().lower() != "utf-8":
        # Scripts are UTF-8: in another locale the arguments would not keep their bytes.
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    debug = "--debug" in takewhile(lambda word: word.startswith("-"), sys.argv[1:])
    _open_standard_files()
    _ignore_invalid_terminal_size()
    _collect_garbage_seldom()
    _interrupt_on_signals()
    try:
        if _COMPLETION_VARIABLE in os.environ:
            from hpcprof.cli.shells import register_shells

            register_shells()
        log_invocation(__version__, sys.argv[1:])
        sys.exit(cli.main(prog_name="hpcprof", standalone_mode=False))
    except InformationRequested as request:
        echo(request.text)
        sys.exit()
    except HpcprofError as error:
        _fail(error, f"{error}", error.exit_code, debug)
    except NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(error, _click_sentence(error), error.exit_code, debug)
    except (click.Abort, KeyboardInterrupt) as error:
        # click raises Abort from the interrupt, which may name a run that was being submitted.
        named = f"{error.__cause__ or error}"
        _fail(error, f"interrupted: {named}." if named else "interrupted.", 130, debug)
    except BrokenPipeError:
        # The reader of a pipe has ended, as in hpcprof list | head: this is not an error.
        _discard_output()
        sys.exit(141)
    except OSError as error:
        _discard_output()
        _fail(error, _system_sentence(error), 1, debug)
    except UnicodeEncodeError as error:
        part = error.object[max(0, error.start - 20) : error.end + 20]
        _fail(error, f"{part!r} is not valid UTF-8.", 2, debug)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        sentence = f"internal error: {cause}. Run hpcprof --debug … and report the traceback."
        _fail(error, sentence, 1, debug)


def _interrupt_on_signals() -> None:
    """Let SIGTERM end a command as Ctrl-C does: what it has started ends, or is named. So does SIGHUP."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
        # Studies and servers handle SIGTERM in their own way.
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))


def _open_standard_files() -> None:
    """Open the standard files that the caller closed (``>&-``); the next file would get their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    # Python has None for a closed file.
    sys.stdout = sys.stdout or os.fdopen(_STDOUT, "w")
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Characters that the terminal lacks, and paths that are not UTF-8, must not stop a report.
        utf8 = "utf" in sys.stdout.encoding.lower()
        sys.stdout.reconfigure(errors="surrogateescape" if utf8 else "replace")


def _collect_garbage_seldom() -> None:
    """Search for garbage in cycles after 100,000 new objects instead of 700, and not at exit.

    Measured by ``benchmarks/garbage_collection.py``: 11 % of the CPU time of ``--help``, 13 % of ``submit
    --dry-run``, 27 % of ``report``.
    """
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)


def _ignore_invalid_terminal_size() -> None:
    """Ignore a terminal size that is not a positive number: Rich accepts 0, and fails on some digits."""
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch(r"0*[1-9][0-9]{0,8}", os.environ.get(name, "")):
            os.environ.pop(name, None)


def _discard_output() -> None:
    """Discard output that cannot be written, so that Python does not report it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_TYPE_WORDS = {"integer": "a whole number", "float": "a number"}


def _click_sentence(error: click.ClickException) -> str:
    """Return the error of click on one line, with the command whose help lists the options.

    A default and a variable are not blamed on the option, which nobody has typed.
    """
    is_missing = isinstance(error, click.MissingParameter)
    if isinstance(error, click.BadParameter) and not is_missing and error.ctx and error.param:
        source = error.ctx.get_parameter_source(error.param.name or "")
        if source in (ParameterSource.DEFAULT, ParameterSource.ENVIRONMENT):
            variable = f"{error.param.envvar}: " if source is ParameterSource.ENVIRONMENT else ""
            return f"{variable}{error.message.rstrip('.')}: give another {error.param.opts[0]}."
    sentence = re.sub(r"\((Did you mean[^?]*\?)\)", r"\1", " ".join(error.format_message().split()))
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option):
        sentence = f"{sentence.rstrip('.')} {error.param.metavar or ''}".rstrip()
    sentence = re.sub(r"a valid (integer|float)( range)?\b", lambda kind: _TYPE_WORDS[kind[1]], sentence)
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context and "unexpected extra argument" in sentence:
        options = {param.opts[0]: param.metavar for param in context.command.params if param.opts}
        if "--program" in options:
            sentence = f"{sentence.rstrip('.')}: --program {options['--program']} chooses the runs."
    sentence = sentence if sentence.endswith((".", "?")) else f"{sentence}."
    return f"{sentence} See {context.command_path} --help." if context else sentence


def _system_sentence(error: OSError) -> str:
    """Return a system error, such as a full disk, that no command has explained better."""
    try:
        Path.cwd()
    except OSError:
        return "the current directory no longer exists: change to another one."
    where = "the output could not be written: " if error.errno == errno.ENOSPC else ""
    where = f"{error.filename}: " if error.filename else where
    return f"{where}{error.strerror or error}."


def _fail(error: BaseException, sentence: str, code: int, debug: bool) -> None:
    if debug:
        raise error
    echo(f"hpcprof: {sentence}", err=True)
    sys.exit(code)
