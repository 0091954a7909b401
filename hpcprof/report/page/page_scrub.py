"""Pages for sharing, without hosts, users, paths, command lines and logs."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
from markupsafe import Markup

from hpcprof.analysis.explain.explanation import Explanation, Finding
from hpcprof.profiles.scrub.names import Names, hosts_and_users
from hpcprof.report.contents import Contents
from hpcprof.submit.runs.directory import Run
from hpcprof.submit.runs.failures import RankFailure

SAID = "This page is scrubbed: hosts, users, paths, command lines and logs are left out."

PRIVATE_FACTS = ("folder", "job")
"""Facts that consist of a path or of a command line."""

_HOMES = ("home", "users", "Users")

Clean = Callable[[Any], Any]
"""Returns a value of a page without what may not be shared; markup stays as it is."""


def scrubbed(contents: Contents) -> tuple[Contents, Clean]:
    """Return the contents of a run for a page that may be shared, and what cleans every text made of them.

    Logs and commands are left out. Hosts become ``<host 1>``, users ``<user 1>`` and absolute paths
    ``<path 1>``, in names of kernels and ranges too; equal names stay equal.
    """
    names = Names()
    hosts = {profile.host for profile in contents.profiles.values() if profile.host}
    names.know(hosts_and_users(sorted(hosts), sorted(_users(contents))))
    profiles = {
        rank: msgspec.structs.replace(row, host=names.numbered("host", row.host)) if row.host else row
        for rank, row in contents.profiles.items()
    }
    left = replace(
        contents,
        profiles=profiles,
        failures=[replace(failure, last_lines=[]) for failure in contents.failures],
        in_full=lambda name: f"the analysis {name}",
        explaining="",
        explanation=_without_files(contents.explanation),
        collect="hpcprof collect",
    )
    return left, lambda value: _cleaned(value, names)


def _without_files(explanation: Explanation | None) -> Explanation | None:
    """Return an explanation whose sources have no files, which are paths."""
    if explanation is None:
        return None

    def cleaned(finding: Finding) -> Finding:
        sources = finding.source and tuple(replace(one, file=None) for one in finding.source)
        return replace(finding, source=sources, alternatives=tuple(map(cleaned, finding.alternatives)))

    return replace(
        explanation,
        findings=tuple(map(cleaned, explanation.findings)),
        hidden=tuple(map(cleaned, explanation.hidden)),
    )


def shared_name(run: Run) -> str:
    """Return a run's id; of a folder, whose name is part of the id, only the digits that tell runs apart."""
    return run.id if run.manifest else f"run {run.id.rpartition('-')[2]}"


def _users(contents: Contents) -> set[str]:
    """Return the user who makes the page, and those whose homes the run's folder is in."""
    parts = contents.run.path.absolute().parts
    of_homes = {name for home, name in pairwise(parts) if home in _HOMES}
    try:
        return {*of_homes, getpass.getuser()}
    except (KeyError, OSError):  # In some containers nobody has a name.
        return of_homes


def _cleaned(value: Any, names: Names) -> Any:
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return names.cleaned(value)
    if isinstance(value, Mapping):
        return {_cleaned(key, names): _cleaned(one, names) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(one, names) for one in value]
    return names.cleaned(str(value)) if isinstance(value, RankFailure) else value
