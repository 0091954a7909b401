"""Targets of messages: named in the user's own configuration, or given on the command line.

They are secrets. A run has only their names; what these mean is in files that only the user can read, where
job.sh finds it on the node.
"""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from hpcprof.common.atomic import replacing
from hpcprof.common.decode import read_text
from hpcprof.common.errors import UsageError, unknown, writing
from hpcprof.common.masking import TARGET_NAME
from hpcprof.common.paths import user_config
from hpcprof.common.units import visible
from hpcprof.runs.directory import Run

FLAG = "--notify"

_resolved: dict[str, str] = {}
"""The targets of this process's jobs by name. A job has the names alone, so that nothing shows a target."""


def folder() -> Path:
    """Return the user's folder of targets, a file each."""
    return user_config() / "notify"


def check_target(text: str, where: str) -> None:
    """Check a target; ``where`` names the place that it comes from."""
    from hpcprof.node.notify import kind_of  # 40 ms that few commands need

    try:
        kind_of(text)
    except ValueError as error:
        raise UsageError(f"{where}: {error}.") from None


def targets(texts: Sequence[str], named: dict[str, str], job_file: str = "") -> dict[str, str]:
    """Return targets by the names that a run may show.

    ``texts`` are names in the user's configuration (``named``), or targets, whose names are made of their
    hashes; those of a ``job_file`` are names.
    """
    names = {}
    for text in texts:
        if TARGET_NAME.fullmatch(text):
            if text not in named:
                advice = "hpcprof config set notify.NAME TARGET adds one"
                raise unknown("name", text, named, f" of {FLAG}; {advice}")
            names[text] = named[text]
        elif job_file:
            raise UsageError(f"{job_file}: notify names targets of your own configuration (notify.NAME).")
        else:
            check_target(text, FLAG)
            names[f"given-{sha256(text.encode()).hexdigest()[:12]}"] = text
    return names


def remote_names(names: Sequence[str], host: str) -> list[str]:
    """Return the names of targets of a job on a host, which has the targets: they are not sent there."""
    if not all(TARGET_NAME.fullmatch(text) for text in names):
        place = f"~/.config/hpcprof/{folder().name}/NAME"
        raise UsageError(f"{FLAG}: give a NAME for a job on {host}; its target is in {place} there.")
    return list(names)


def remember(named: dict[str, str]) -> list[str]:
    """Return the names of targets, which `write_targets` writes when a job with these names is submitted."""
    _resolved.update(named)
    return list(named)


def write_targets(names: Sequence[str]) -> None:
    """Write the targets of a job to files that only the user can read; an earlier job's files remain."""
    for name in _resolved.keys() & {*names}:
        path = folder() / name
        with writing(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(path) as temporary:
                temporary.touch(mode=0o600, exist_ok=False)
                temporary.write_text(_resolved[name] + "\n", encoding="utf-8")


def failed_notices(run: Run) -> str:
    """Return the targets that got no message from a run, with the reasons; empty if none is known."""
    path = run.path / "state" / "not_told"
    return visible(read_text(path).strip()) if path.is_file() else ""
