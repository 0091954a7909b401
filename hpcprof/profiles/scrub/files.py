"""Copies profiles into a folder without what should not be shared."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from hpcprof.common.atomic import replacing
from hpcprof.common.errors import DamagedInput, HpcprofError, UsageError
from hpcprof.common.units import counted
from hpcprof.profiles.readers.declaration import Scrubber, load
from hpcprof.profiles.readers.discovery import BUILT_IN, reader_of, reading_profile
from hpcprof.profiles.scrub.memory import SNAPSHOT
from hpcprof.profiles.scrub.names import Names
from hpcprof.profiles.scrub.stalls import EVIDENCE, is_evidence
from hpcprof.profiles.scrub.telemetry import SAMPLES, is_samples

REMAINS = (
    "names of kernels, ranges and functions stay, without the paths, hosts, users and secrets that are "
    "recognized in them: look at them before you share a copy."
)
"""The private data that may remain in a copy."""

# PyTorch's own names: HOST_PID.TIME.pt.trace.json
_HOST_IN_NAME = re.compile(r"(.+)_\d+\.\d{10,}\.pt\.trace\.json(?:\.gz)?$")


class Scrubbed(msgspec.Struct):
    """The copies with what was left out of each, skipped files, and private words in names."""

    written: list[tuple[Path, list[str]]] = msgspec.field(default_factory=list)
    skipped: list[str] = msgspec.field(default_factory=list)
    in_names: dict[Path, list[str]] = msgspec.field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """A sentence for each copy whose name contains a host or a user."""
        return [
            f"the name of {path} holds {', '.join(words)}: rename it before you share it."
            for path, words in self.in_names.items()
        ]


def scrub_files(
    files: Iterable[Path], folder: Path, progress: Callable[[Path], None] = lambda path: None
) -> Scrubbed:
    """Copy profiles under their names without what should not be shared.

    ``folder`` is created if it does not exist; nothing in it is replaced. Raises UsageError, before anything
    is written, if a file cannot be scrubbed or two files have the same name, and HpcprofError if a copy
    cannot be written.
    """
    paths = list(files)
    scrubbers = _scrubbers(paths, folder)
    result, names = Scrubbed(), Names()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, scrubber in zip(paths, scrubbers, strict=True):
            progress(path)
            target = folder / path.name
            try:
                with replacing(target) as temporary, reading_profile(path):
                    left_out = load(scrubber.function)(path, temporary, names)
            except DamagedInput as error:
                result.skipped.append(str(error))
                continue
            if names.with_secrets:
                left_out = [*left_out, f"secrets in {counted(len(names.with_secrets), 'name')}"]
                names.with_secrets.clear()
            result.written.append((target, left_out))
            if words := _private_words(target, names):
                result.in_names[target] = words
    except OSError as error:
        raise HpcprofError(f"cannot write to {folder}: {error.strerror}.") from None
    return result


def _scrubbers(paths: list[Path], folder: Path) -> list[Scrubber]:
    scrubbers = []
    targets: dict[Path, Path] = {}
    for path in paths:
        scrubbers.append(_scrubber(path))
        target = folder / path.name
        if target.exists():
            raise UsageError(f"{target} exists and is not replaced: give another --output.")
        if target in targets:
            raise UsageError(f"{targets[target]} and {path} have the same name: scrub them into two folders.")
        targets[target] = path
    return scrubbers


def _scrubber(path: Path) -> Scrubber:
    if is_evidence(path):
        return EVIDENCE
    if path.name.lower().endswith(SNAPSHOT.suffixes):
        return SNAPSHOT
    if is_samples(path):
        return SAMPLES
    reader = reader_of(path)
    scrubber = reader.scrubber if reader else None
    if scrubber and path.name.lower().endswith(scrubber.suffixes):
        return scrubber
    hint = f": {scrubber.otherwise}" if scrubber and scrubber.otherwise else ""
    readers = (scrubbed.scrubber for scrubbed in BUILT_IN if scrubbed.scrubber)
    valid = "; ".join(kind.files for kind in (*readers, EVIDENCE, SAMPLES, SNAPSHOT))
    raise UsageError(f"{path} cannot be scrubbed{hint}. Valid are: {valid}.")


def _private_words(path: Path, names: Names) -> list[str]:
    private = names.private_in(path.name)
    user = os.environ.get("USER", "")
    if len(user) > 2 and re.search(rf"(?<![A-Za-z0-9]){re.escape(user)}(?![A-Za-z0-9])", path.name):
        private.append(user)
    if host := _HOST_IN_NAME.match(path.name):
        private.append(host[1])
    return sorted(set(private))
