"""Progress on a terminal: one line that is redrawn in place, below what is printed meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from hpcprof.cli.conventions import echo
from hpcprof.common.decode import visible_lines
from hpcprof.common.units import counted, format_duration
from hpcprof.submit.jobs.walltime import format_walltime

if TYPE_CHECKING:
    from pathlib import Path

    from rich.text import Text
    from typing_extensions import Self

    from hpcprof.study.runs import Message
    from hpcprof.submit.schedulers.base import JobStatus


_BAR_WIDTH = 24
QUIET_SECONDS = 2.0
"""Time for which a command tells no progress where there is no terminal, in seconds."""


class ProgressLine:
    """One line at the bottom of a terminal, a context manager; without a terminal nothing is drawn.

    ``text`` returns the line as it is now, by default that of the last `update`; it is cut at the edge of the
    terminal, and not drawn while empty. It is drawn on standard output unless ``on_error_output``, cleared at
    the end unless ``permanent``, and if ``ticking`` drawn again every half second, for a line that shows the
    time.
    """

    def __init__(
        self,
        text: Callable[[], str] | None = None,
        *,
        on_error_output: bool = False,
        permanent: bool = False,
        ticking: bool = False,
    ) -> None:
        self._updated = ""
        self._text = text or (lambda: self._updated)
        self._on_error_output, self._kept, self._ticking = on_error_output, permanent, ticking
        # Messages go to standard error: both must be the terminal.
        self.drawn = sys.stderr.isatty() and (on_error_output or sys.stdout.isatty())
        self._live: Any = None

    def __enter__(self) -> Self:
        if self.drawn:
            # Imported here: rich takes longer to load than most commands run.
            from rich.live import Live

            from hpcprof.cli.tables import console

            self._live = Live(
                get_renderable=self._line,
                console=console(stderr=self._on_error_output),
                auto_refresh=self._ticking,
                refresh_per_second=2,
                transient=not self._kept,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self) -> Text:
        from rich.text import Text

        return Text(self._text(), no_wrap=True, overflow="ellipsis")

    def update(self, text: str) -> None:
        """Change the line."""
        self._updated = text
        self.refresh()

    def refresh(self) -> None:
        """Redraw the line."""
        if self._live is not None:
            self._live.refresh()

    def print(self, text: str, nl: bool = True, err: bool = False) -> None:
        """Print text above the line, as ``click.echo`` does without one.

        If a program redraws the line, only its end is shown.
        """
        if self._live is None:
            click.echo(text, nl=nl, err=err)  # which may be output of a program, as it is
            return
        for line in visible_lines(text):
            self._live.console.out(line, highlight=False)


class SearchingLine(ProgressLine):
    """The search for runs below a folder, on standard error; without a terminal one line if it takes long."""

    def __init__(self) -> None:
        super().__init__(on_error_output=True, ticking=True)
        self._began: float | None = time.monotonic()
        self._folders = 0

    def __call__(self, folder: Path, runs: int) -> None:
        """Show that one more folder below ``folder`` is searched, in which ``runs`` were found so far."""
        self._folders += 1
        searching = f"searching {folder} for runs and profiles"
        self._updated = f"{searching}: {counted(self._folders, 'folder')}, {counted(runs, 'run')}"
        if not self.drawn and self._began and time.monotonic() - self._began > QUIET_SECONDS:
            echo(f"hpcprof: {searching}", err=True)
            self._began = None


class ExplainingLine(ProgressLine):
    """The progress of an explanation on standard error: the ranks that were read, then the time."""

    def __init__(self) -> None:
        super().__init__(self._progress, on_error_output=True, ticking=True)
        self._began = time.monotonic()
        self._done = self._ranks = 0

    def __call__(self, count: int, ranks: int) -> None:
        """Show that ``count`` of ``ranks`` ranks were read."""
        self._done, self._ranks = count, ranks

    def _progress(self) -> str:
        doing = "judging causes" if self._done == self._ranks else "reading"
        elapsed = format_duration(time.monotonic() - self._began)
        if not self._ranks:
            return ""
        return f"{bar(self._done, self._ranks)} {self._done} of {self._ranks} ranks, {doing}, {elapsed}"


def bar(part: int, total: int) -> str:
    """Return a bar of text that is filled as far as something is done."""
    return f"[{'=' * (_BAR_WIDTH * part // total):{_BAR_WIDTH}}]"


class WaitingLine(ProgressLine):
    """The progress of the runs that a command waits for: which run, its state, the time, and what is left.

    On a terminal the states of a run appear in the line only, elsewhere each change is a line. ``limit`` is
    the walltime limit in seconds, to be shown.
    """

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(self._progress, ticking=True)
        self._limit = limit
        self._began = self._told = time.monotonic()
        self._state = self._which = ""
        self._left: float | None = None

    def show_state(self, status: JobStatus, seconds: float) -> None:
        """Show a change of the state of a run, ``seconds`` after the beginning of the wait for it."""
        from hpcprof.submit.waiting import describe_change

        self._state = str(status)
        if self.drawn:
            self.refresh()
        else:
            echo(describe_change(status, seconds))

    def show_message(self, message: Message) -> None:
        """Show a message of a study, a warning on standard error."""
        from hpcprof.study.runs import MessageKind

        if message.run:
            self._told = time.monotonic()
            if not self._which:
                self._began = self._told
            self._which, self._state = f"run {message.run} of {message.runs}", ""
            self._left = message.seconds_left
        if message.kind is MessageKind.STATE:
            self._state = message.text
        if message.kind is MessageKind.WARNING:
            self.print(f"hpcprof: {message}", err=True)
        elif message.kind is MessageKind.OUTPUT:
            self.print(message.text, nl=False)
        elif message.kind is MessageKind.STEP or not self.drawn:
            self.print(message.text)
        self.refresh()

    def _progress(self) -> str:
        if not (self._which or self._state):
            return ""
        now = time.monotonic()
        parts = [self._which, self._state, f"{format_duration(now - self._began)} elapsed"]
        remaining = (self._left or 0.0) - (now - self._told)
        if remaining >= 1:
            parts.append(f"about {format_duration(remaining)} left")
        if self._limit is not None:
            parts.append(f"limit {format_walltime(self._limit)}")
        return ", ".join(filter(None, parts))
