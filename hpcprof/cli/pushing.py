"""Pushing runs at the end of a command, and its progress line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hpcprof.cli.conventions import echo
from hpcprof.cli.progress import ProgressLine, bar
from hpcprof.common.errors import HpcprofError

if TYPE_CHECKING:
    from hpcprof.results.across.push import HubAddress
    from hpcprof.results.store.store import Store
    from hpcprof.runs.directory import Run


def hub_to_push_to(url: str | None) -> HubAddress | None:
    """Return the hub that ``--push`` names, with the token in the environment; None without one."""
    if url is None:
        return None
    from hpcprof.results.across.push import hub_address

    return hub_address(url, None)


def push_each(
    hub: HubAddress,
    runs: Sequence[Run],
    store: Store,
    scrub: bool = False,
    collect: Callable[[Run], object] | None = None,
) -> bool:
    """Push runs one after the other, print where each is, and return whether the hub has all of them.

    A failure is told on standard error, and the next run follows: it is not the result of a job. If given,
    ``collect`` is called with each run before.
    """
    from hpcprof.results.across.push import push_run

    complete = True
    for run in runs:
        try:
            if collect is not None:
                collect(run)
            with ProgressLine(on_error_output=True) as line:
                address = push_run(run, store, hub, partial(_show_sent, line, run.id), scrub)
        except HpcprofError as error:
            echo(f"hpcprof: {run.id} was not pushed: {error}", err=True)
            complete = False
        else:
            echo(f"{run.id}: {address}")
    return complete


def _show_sent(line: ProgressLine, run_id: str, sent: int, total: int) -> None:
    line.update(f"pushing {run_id} {bar(sent, total)}" if total else "")
