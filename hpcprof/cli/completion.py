"""Completion of values in bash, zsh and fish, by click's `shell_complete`.

Nothing here asks a scheduler, reads a profile or imports pandas. Nothing is offered after a
mistake on the line or in a file: the command itself reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.common.errors import HpcprofError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hpcprof.results.store.store import Store
    from hpcprof.submit.sites.model import Site

Offer = Callable[[click.Context, str], Iterable[str]]
Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


def _completer(offer: Offer, fallback: str = "") -> Completer:
    """Return a `shell_complete` that offers words which begin as the incomplete one.

    ``fallback`` is what the shell completes where no word matches: ``"dir"`` or ``"file"``.
    """

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem  # every command imports this module

        try:
            words = [word for word in offer(context, incomplete) if word.startswith(incomplete)]
        except (HpcprofError, OSError):
            words = []
        if not words and fallback:
            return [CompletionItem(incomplete, type=fallback)]
        return [CompletionItem(word) for word in words]

    return complete


def among(words: tuple[str, ...]) -> Completer:
    """Return a `shell_complete` that offers a few fixed words."""
    return _completer(lambda context, incomplete: words)


def _module_offer(module: str, name: str) -> Offer:
    """Return an offer of the words in a variable or a function of a module, which is imported on request."""

    def offer(context: click.Context, incomplete: str) -> Iterable[str]:
        words = getattr(import_module(module), name)
        return list(words() if callable(words) else words)

    return offer


_sites = _module_offer("hpcprof.submit.sites.files", "site_files")


def _analyses(context: click.Context, incomplete: str) -> Iterable[str]:
    from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES

    return sorted({*ANALYSES, *ACROSS_RUNS})


def _store(context: click.Context) -> Store:
    from hpcprof.results.store.store import open_store
    from hpcprof.runs.directory import runs_directory

    return open_store(context.params.get("db"), runs_directory(context.params.get("runs_dir")))


def _site(context: click.Context) -> Site:
    from hpcprof.submit.jobs.job import JobSpec
    from hpcprof.submit.jobs.merge import merged, site_of

    site, site_file, job_file = map(context.params.get, ("site", "site_file", "job_file"))
    return site_of(merged(JobSpec(site=site, site_file=site_file, job_file=job_file)))


def _queues(context: click.Context, incomplete: str) -> Iterable[str]:
    # A command for runs names no site: the first run has recorded it.
    if "runs" in context.params:
        from hpcprof.runs.directory import find_runs, runs_directory
        from hpcprof.submit.sites.model import recorded_site

        folder = runs_directory(context.params.get("runs_dir"))
        manifest = find_runs((context.params["runs"] or ("last",))[0], folder)[0].manifest
        return _queue_names(recorded_site(manifest)) if manifest else ()
    return _queue_names(_site(context))


def _queue_names(site: Site) -> list[str]:
    return [name for name, queue in site.queues.items() if not queue.route_only]


def _site_options(context: click.Context, incomplete: str) -> Iterable[str]:
    options = _site(context).options
    key, separator, value = incomplete.partition("=")
    if not separator:
        return [f"{name}=" for name in options]
    valid = options[key].valid if key in options else []
    # Several values are joined by colons.
    before, colon, _ = value.rpartition(":")
    return [f"{key}={before}{colon}{word}" for word in valid if word not in before.split(":")]


def _profilers(context: click.Context, incomplete: str) -> Iterable[str]:
    from hpcprof.submit.jobs.checks import AUTO, profilers_at

    site = _site(context)
    return [*profilers_at(site), *([AUTO] if site.profiler else [])]


def _profiler_options(context: click.Context, incomplete: str) -> Iterable[str]:
    from hpcprof.submit.profilers import find_profiler
    from hpcprof.submit.profilers.base import NONE

    return [f"{key}=" for key in find_profiler(context.params.get("profiler") or NONE.name).settings]


def _runs(context: click.Context, incomplete: str) -> Iterator[str]:
    """Yield ``last``, then the runs and the array sweeps, the newest first.

    A command that reads results also gets the imported runs, which only the database has.
    """
    from hpcprof.runs.directory import MANIFEST, runs_directory, sweep_of

    yield "last"
    folder = runs_directory(context.params.get("runs_dir"))
    ids = sorted((path.parent.name for path in folder.glob(f"*/{MANIFEST}")), reverse=True)
    sweeps = (sweep for run in ids if (sweep := sweep_of(run)))
    yield from dict.fromkeys((*ids, *sweeps))
    if any(parameter.name == "db" for parameter in context.command.params):
        store = _store(context)
        yield from (row.id for row in (store.runs() if store.exists() else ()) if row.id not in ids)


def _baselines(context: click.Context, incomplete: str) -> Iterable[str]:
    from hpcprof.results.across.named_baselines import named_baselines

    return [baseline.name for baseline in named_baselines(_store(context))]


def _programs(context: click.Context, incomplete: str) -> Iterable[str]:
    store = _store(context)
    rows = store.runs() if store.exists() else []
    return sorted({name for row in rows if (name := row.program or row.workload)})


def _config_keys(context: click.Context, incomplete: str) -> Iterator[str]:
    from hpcprof.runs.config import GENERAL_KEYS, SITE_KEYS
    from hpcprof.submit.sites.files import load_site, site_files

    yield from GENERAL_KEYS
    if not incomplete.startswith("sites."):
        yield from ("notify.", "sites.")
        return
    for name in sorted(site_files()):
        if not incomplete.startswith(f"sites.{name}."):
            yield f"sites.{name}."
            continue
        yield from (f"sites.{name}.{key}" for key in SITE_KEYS)
        yield from (f"sites.{name}.options.{key}" for key in load_site(name).options)


def _config_values(context: click.Context, incomplete: str) -> Iterable[str]:
    from hpcprof.runs.config import ACCESS, Engine, split_key
    from hpcprof.submit.sites.files import load_site

    keys = split_key(context.params.get("key") or "")
    if keys == ["site"]:
        return _sites(context, incomplete)
    if keys[0] == "notify":
        return ("slack:", "teams:", "mail:", "https://")
    if keys == ["container_engine"]:
        return [engine.value for engine in Engine]
    if keys == ["access"]:
        return ACCESS
    # The other keys are sites.NAME.queue, sites.NAME.host and sites.NAME.options.OPTION.
    if len(keys) == 3 and keys[2] == "queue":
        return _queue_names(load_site(keys[1]))
    if len(keys) == 3 and keys[2] == "host":
        return _hosts(context, incomplete)
    return load_site(keys[1]).options[keys[3]].valid if len(keys) == 4 else ()


def _hosts(context: click.Context, incomplete: str) -> Iterator[str]:
    with suppress(OSError):
        for line in (Path.home() / ".ssh/config").read_text(encoding="utf-8", errors="replace").splitlines():
            word, *names = line.split() or [""]
            if word.lower() == "host":
                yield from (name for name in names if not {*name} & {*"*?!"})  # no patterns


complete_sites = _completer(_sites)
complete_hosts = _completer(_hosts)
complete_queues = _completer(_queues)
complete_site_options = _completer(_site_options)
complete_workloads = _completer(_module_offer("hpcprof.workloads.catalogue", "WORKLOADS"))
complete_profilers = _completer(_profilers)
complete_profiler_options = _completer(_profiler_options)
complete_analyses = _completer(_analyses)
complete_causes = _completer(_module_offer("hpcprof.analysis.explain.cause", "cause_names"))
complete_runs = _completer(_runs, "dir")
complete_baselines = _completer(_baselines)
complete_programs = _completer(_programs)
complete_metrics = _completer(_module_offer("hpcprof.results.across.history", "METRICS"))
complete_templates = _completer(_module_offer("hpcprof.submit.rendering.templates", "template_files"))
complete_targets = _completer(_module_offer("hpcprof.runs.config", "named_targets"))
complete_config_keys = _completer(_config_keys)
complete_config_values = _completer(_config_values)
complete_files = _completer(lambda context, incomplete: (), "file")
