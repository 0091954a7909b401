"""The run: the directory of one submission, its manifest, and how users name it."""

import os
import platform
import re
import secrets
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path

import msgspec

from hpcprof.common import __version__
from hpcprof.common.atomic import write_atomically
from hpcprof.common.decode import from_json, is_plausible_time, parse_count, read_file, read_text
from hpcprof.common.errors import HpcprofError, UsageError, unknown
from hpcprof.common.paths import absolute_path, modification_time, working_folder
from hpcprof.common.private import make_private, private_mode
from hpcprof.common.processes import CommandNotStarted, CommandTimedOut, run_command
from hpcprof.runs.config import default_runs_dir, group_may_read
from hpcprof.runs.job import Job
from hpcprof.runs.rank_selection import place_conditions

MANIFEST = "run.json"
SCHEMA_VERSION = 1
FOLDERS = ("state", "logs", "results", "profiles")
ARRAY_SCRIPT = "array.sh"
"""The script in the directory of a sweep; its members' directories are named SWEEP.INDEX."""

JOB_ID_FILE = "job_id"
"""The state file in which a job notes its id."""
SUBMISSION_FILE = "submission"
"""The state file with what the scheduler wrote to standard error when it accepted the job."""

_MAX_NAME_BYTES, _MAX_PATH_LENGTH, _SHOWN_CHARACTERS = 255, 4096, 40
MAX_RANKS = 1_000_000
"""Maximum number of ranks of a run; a number above it is damage."""

_MAX_ATTEMPTS = 100_000
"""Maximum number of starts of a job; a number above it is damage."""

_LISTED_RUNS = 3
_GIT_SECONDS = 10.0
_SAFE_ID = re.compile(r"(?!\.{1,2}$)[^/\0-\x1f]{1,250}")
_MEMBER = re.compile(r"(?P<sweep>.+-[0-9a-f]{4})\.\d+")
_ID = re.compile(r"(?:\d{8}-\d{6}-)?(?P<name>.+)-(?P<key>(?:[0-9a-f]{4}|[0-9a-f]{8})(?:\.\d+)?)", re.DOTALL)
"""An id: the time of a submission, the name of the job or of the folder, and a key of hexadecimal digits."""


class GitState(msgspec.Struct, frozen=True):
    """The state of the user's repository when the run was submitted."""

    commit: str
    dirty: bool


class SiteRecord(msgspec.Struct, frozen=True):
    """The keys of a run's site that its readers need; `hpcprof.submit.sites.model.recorded_site` has all."""

    name: str
    scheduler: str
    host: str = ""
    user: str = ""
    darshan_logs: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """The content of ``run.json``. ``files`` maps names in the run directory to sizes in bytes."""

    id: str
    created: str
    command_line: list[str]
    job: Job
    site_keys: msgspec.Raw = msgspec.field(name="site")
    scheduler_job_id: str = ""
    git: GitState | None = None
    files: dict[str, int] = {}
    hpcprof_version: str = __version__
    python_version: str = platform.python_version()
    schema_version: int = SCHEMA_VERSION

    @property
    def site(self) -> SiteRecord:
        """The site of the job."""
        return from_json(self.site_keys, SiteRecord)


@dataclass(frozen=True)
class Run:
    """A run directory, or a folder of profiles that hpcprof did not make (``manifest`` is None).

    ``files`` are its profiles, None for all readable profiles of the folder. ``beside`` are further files of
    the run that the user named: snapshots of memory, logs.
    """

    id: str
    path: Path
    manifest: Manifest | None = None
    files: tuple[Path, ...] | None = None
    beside: tuple[Path, ...] | None = None

    @property
    def submission(self) -> Manifest:
        """The manifest of a run that hpcprof submitted; `UsageError` for a folder of profiles."""
        if self.manifest is None:
            raise UsageError(f"{self.path} is a folder of profiles that hpcprof did not submit.")
        return self.manifest

    @property
    def job_id(self) -> str:
        """The scheduler's id of the run's job: as submitted, or as the job noted it; empty if unknown."""
        submitted = self.manifest.scheduler_job_id if self.manifest else ""
        return submitted or self.state_file(JOB_ID_FILE) or ""

    def state_file(self, name: str) -> str | None:
        """Return the text of a file in ``state/``, without its line break; None if it does not exist yet."""
        try:
            return read_text(self.path / "state" / name).strip()
        except (OSError, ValueError):  # the name may come from another file
            return None

    @property
    def script(self) -> str | None:
        """The text of job.sh; None if it is gone."""
        try:
            return read_text(self.path / "job.sh")
        except OSError:
            return None

    @property
    def attempt(self) -> int:
        """The number of the last start of the job, from 1: schedulers and users start jobs again."""
        number = parse_count(self.state_file("attempt") or "") or 1
        return number if number <= _MAX_ATTEMPTS else 1

    def outputs(self, attempt: int | None = None) -> Path:
        """Return the folder with the logs, profiles and results of an attempt, by default the last."""
        number = self.attempt if attempt is None else attempt
        return self.path if number <= 1 else self.path / "attempts" / str(number)

    def profiled_attempt(self) -> int:
        """Return the number of the last attempt that has profiles; that of the last if none has."""
        attempts = range(self.attempt, 0, -1)
        return next(
            (number for number in attempts if any((self.outputs(number) / "profiles").glob("[!.]*"))),
            self.attempt,
        )

    @property
    def profiled_ranks(self) -> list[int]:
        """The ranks under the profiler: by the usual layout until the nodes have noted others."""
        job = self.submission.job
        if job.profiler == "none" or not place_conditions(job.profile_ranks):
            return job.profiled_ranks
        return [*self.rank_notes("profiled")] or job.profiled_ranks

    def rank_notes(self, fact: str) -> dict[int, str]:
        """Return the texts of the files ``state/rankNNNNN.FACT`` by rank, in their order."""
        paths = sorted((self.path / "state").glob(f"rank*.{fact}"))
        ranks = {path.name: parse_count(path.stem.removeprefix("rank")) for path in paths}
        texts = {rank: self.state_file(name) for name, rank in ranks.items() if rank is not None}
        return {rank: text for rank, text in texts.items() if text is not None}

    def rank_exit_codes(self) -> dict[int, int]:
        """Return the exit codes by rank; a rank that was killed has none."""
        codes = {rank: parse_count(text) for rank, text in self.rank_notes("exit").items()}
        return {rank: code for rank, code in codes.items() if code is not None}


def runs_directory(folder: Path | None = None) -> Path:
    """Return the folder of runs: ``folder``, else ``$HPCPROF_RUNS``, the personal default, or ``./runs``."""
    return folder or default_runs_dir()


def typed_name(path: Path) -> str:
    """Return the name of a run or a sweep for a command: its id, or its path if it is elsewhere."""
    path = absolute_path(path)
    if path.parent == absolute_path(runs_directory()):
        return path.name
    relative = os.path.relpath(path, working_folder())
    return shlex.quote(str(path) if relative.startswith("..") else relative)


def new_run_id(job_name: str, runs: Path) -> str:
    """Make a run directory that did not exist, and return its id: time, name of the job and a random part."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", job_name).strip("-.") or "job"
    try:
        group = group_may_read()
        make_private(runs, group)
        while True:
            run_id = f"{datetime.now():%Y%m%d-%H%M%S}-{name[:60]}-{secrets.token_hex(2)}"
            with suppress(FileExistsError):
                make_private(runs / run_id, group, exist_ok=False)
                return run_id
    except OSError as error:
        raise HpcprofError(f"cannot make a run directory in {runs}: {error.strerror}.") from None


def create(
    run_id: str,
    runs: Path,
    site: msgspec.Struct,
    job: Job,
    command_line: list[str],
    scripts: Mapping[str, str],
    code: Path | None = None,
) -> Run:
    """Write a run's scripts and manifest, and the commit of the folder ``code``, into its directory."""
    path = absolute_path(runs / run_id)
    try:
        for folder in FOLDERS:
            (path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in scripts.items():
            (path / name).parent.mkdir(exist_ok=True, parents=True)
            write_atomically(path / name, text, private_mode(group_may_read(), text.startswith("#!")))
    except OSError as error:
        raise HpcprofError(f"cannot write the run directory {path}: {error.strerror}.") from None
    manifest = Manifest(
        id=run_id,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command_line=command_line,
        job=job,
        site_keys=site_keys(site),
        git=_git_state(code) if code is not None else None,
    )
    return save(Run(run_id, path, manifest))


def site_keys(site: msgspec.Struct) -> msgspec.Raw:
    """Return a site as the manifest records it."""
    return msgspec.Raw(msgspec.json.encode(site))


def save(run: Run) -> Run:
    """Write the manifest of a run with the files that it has now, and return the run as written."""
    manifest = msgspec.structs.replace(run.submission, files=_sizes(run.path))
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode()
    write_atomically(run.path / MANIFEST, text + "\n", private_mode(group_may_read()))
    return Run(run.id, run.path, manifest)


def update_files(run: Run) -> list[str]:
    """Write the files that a run has now into its manifest, if it has one; return the error if that fails."""
    try:
        if run.manifest is not None:
            save(run)
    except OSError as error:
        return [f"the list of files in {run.path} was not updated: {error.strerror}."]
    return []


def _sizes(folder: Path) -> dict[str, int]:
    paths = (path for path in sorted(folder.rglob("*")) if path.name != MANIFEST and path.name[0] != ".")
    return {str(path.relative_to(folder)): path.stat().st_size for path in paths if path.is_file()}


def open_run(path: Path) -> Run:
    """Open a run directory, or adopt a folder of profiles, whose id is made from its path."""
    path = absolute_path(path)
    if not has_manifest(path):
        return Run(adopted_id(path.name, path), path)
    try:
        manifest = from_json(read_file(path / MANIFEST), Manifest)
        _ = manifest.site
        if not is_plausible_time(datetime.fromisoformat(manifest.created)):
            raise ValueError(f"it has an impossible time, {manifest.created}")
        if not 0 < manifest.job.ranks <= MAX_RANKS:
            raise ValueError(f"it has {manifest.job.ranks} ranks")
        if not _SAFE_ID.fullmatch(manifest.id):
            raise ValueError(f"its id {manifest.id[:80]!r} is not the name of a folder")
    except OSError as error:
        unreadable = path / MANIFEST if os.access(path, os.X_OK) else path
        raise HpcprofError(f"{unreadable} cannot be read: {error.strerror}.") from None
    except (ValueError, OverflowError) as error:
        raise HpcprofError(f"{path / MANIFEST} cannot be read: {error}.") from None
    if manifest.schema_version != SCHEMA_VERSION:
        raise HpcprofError(
            f"{path / MANIFEST} has schema version {manifest.schema_version}; "
            f"this hpcprof ({__version__}) reads version {SCHEMA_VERSION}."
        )
    return Run(manifest.id, path, manifest)


def has_manifest(folder: Path) -> bool:
    """Return whether a folder has a manifest, which `open_run` may not be able to read."""
    try:
        (folder / MANIFEST).lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # of a zero byte
        return False
    except OSError:
        pass  # the folder may be another user's
    return True


def adopted_id(name: str, path: Path, *files: str) -> str:
    """Return the id of profiles that hpcprof did not make: those in a folder, or some files in it.

    A database cannot hold bytes of a name that are not UTF-8: the replacement character stands for them.
    """
    parts = [os.fsencode(path.resolve()), *map(os.fsencode, files)]
    shown_name = os.fsencode(name).decode("utf-8", "replace")
    return f"{shown_name or 'root'}-{sha256(bytes(1).join(parts)).hexdigest()[:8]}"


def all_runs(runs: Path, skipped: list[str] | None = None) -> list[Run]:
    """Return the runs in ``runs``, oldest first; errors of unreadable runs go into ``skipped`` if given."""
    opened_runs = []
    for manifest in _manifests(runs):
        try:
            opened_runs.append(open_run(manifest.parent))
        except HpcprofError as error:
            if skipped is None:
                raise
            skipped.append(str(error))
    return sorted(opened_runs, key=lambda run: datetime.fromisoformat(run.submission.created).timestamp())


def submitted_ids(runs: Path) -> list[str]:
    """Return the names of the run directories in a folder, oldest first."""
    return [manifest.parent.name for manifest in _manifests(runs)]


def submission_time(path: Path) -> float:
    """Return the time of a run's submission, in s since 1970; 0 without a manifest, -1 if it is damaged."""
    try:
        manifest = open_run(path).manifest
    except HpcprofError as error:
        import logging  # takes 4 ms

        logging.getLogger("hpcprof").warning("hpcprof: skipped: %s", error)
        return -1.0
    if manifest is None:
        return 0.0
    created = datetime.fromisoformat(manifest.created).timestamp()
    # The manifest has whole seconds. The time of job.sh is exact, unless a file server's clock sets it.
    _, written = _age(path / MANIFEST)
    return written if created <= written < created + 2 else created


def _newest(paths: Sequence[Path]) -> Path:
    """Return the run that was submitted last. Ids have local times, which differ by zone and season.

    Runs that cannot be read, as those of other users, are left out.
    """
    readable = [path for path in paths if os.access(path / MANIFEST, os.R_OK)] or [*paths]
    while len(readable) > 1 and submission_time(readable[-1]) < 0:
        readable.pop()
    with suppress(ValueError):
        earliest = datetime.strptime(readable[-1].name[:8], "%Y%m%d") - timedelta(days=1)
        recent = [path for path in readable if path.name[:8] >= f"{earliest:%Y%m%d}"]
        return max(reversed(recent), key=submission_time)
    return readable[-1]


def _manifests(runs: Path) -> list[Path]:
    try:
        folders = [Path(entry.path) for entry in os.scandir(runs) if entry.is_dir()]
    except OSError:
        return []
    manifests = [folder / MANIFEST for folder in folders if has_manifest(folder)]
    return sorted(manifests, key=lambda manifest: (*_age(manifest), number_in_sweep(manifest.parent.name)))


def number_in_sweep(run_id: str) -> int:
    """Return the number of a member of a sweep, whose scripts are written at once; 0 of other runs."""
    return int(run_id.rpartition(".")[2]) if sweep_of(run_id) else 0


def sweep_of(run_id: str) -> str | None:
    """Return the id of the array sweep that a run is a member of."""
    match = _MEMBER.fullmatch(run_id)
    return match["sweep"] if match else None


def find_runs(reference: str, runs: Path) -> list[Run]:
    """Return the runs that a user named: all members of a sweep, in order, or the run of `find_run`."""
    return find_sweep(reference, runs) or [find_run(reference, runs)]


def find_sweep(reference: str, runs: Path) -> list[Run]:
    """Return the members of the sweep that a user named, in order; none if the name is not a sweep's.

    A sweep is named by its id, a name that means it alone, or the path of its directory, which only an array
    has. The whole id of a run is recognized without listing the folder.
    """
    check_reference(reference)
    if reference == "last" or has_manifest(runs / reference):
        return []
    path, name, folder = Path(reference), reference, runs
    if reference and ((path / ARRAY_SCRIPT).is_file() or ("/" in reference and not path.exists())):
        name, folder = path.resolve().name, path.resolve().parent
    members = _members(name, [m.parent.name for m in folder.glob(f"*/{MANIFEST}")])
    return [open_run(folder / member) for member in members]


def _members(reference: str, ids: Sequence[str]) -> list[str]:
    matching = matching_ids(reference, ids)
    sweeps = {sweep_of(name) for name in matching}
    sweep = sweeps.pop() if len(sweeps) == 1 else None
    if sweep is None or not matching_ids(reference, [sweep]):
        return []
    return sorted(matching, key=number_in_sweep)


def matching_ids(reference: str, ids: Iterable[str]) -> list[str]:
    """Return the ids that match a name by the first rule that fits: id, name, beginning of id, name, key."""
    unique_ids = dict.fromkeys(ids)
    if not reference:
        return []
    parts = {name: _ID.fullmatch(name) for name in unique_ids}
    rules: list[Callable[[str], bool]] = [
        lambda name: name == reference,
        lambda name: (match := parts[name]) is not None and match["name"] == reference,
        lambda name: name.startswith(reference),
        lambda name: (match := parts[name]) is not None and name[match.start("name") :].startswith(reference),
        lambda name: (match := parts[name]) is not None and match["key"].startswith(reference),
    ]
    return next((names for rule in rules if (names := [name for name in unique_ids if rule(name)])), [])


def check_reference(reference: str) -> None:
    """Check that a name of a run, or a path, is not longer than file systems allow."""
    longest = max(map(len, reference.encode("utf-8", "replace").split(b"/")))
    if longest > _MAX_NAME_BYTES or len(reference) > _MAX_PATH_LENGTH:
        beginning = f"{reference[:_SHOWN_CHARACTERS]}…"
        raise UsageError(
            f"run {beginning!r}: a name of {len(reference):,} characters is longer than any run's."
        )


def no_runs(runs: Path, *, collected: bool = False) -> str:
    """Return the sentence about a folder of runs without jobs; the store may have ``collected`` runs."""
    if collected:
        return f"no job in {runs}: the runs that hpcprof list shows were imported, or their folders removed."
    return f"no runs in {runs} yet: hpcprof run -- COMMAND starts one, hpcprof open PATH shows profiles."


def ambiguous(reference: str, ids: Sequence[str]) -> UsageError:
    """Return the error of a name that several runs match, with the last ones."""
    more = f" and {len(ids) - _LISTED_RUNS} more" if len(ids) > _LISTED_RUNS else ""
    listed = ", ".join(ids[-_LISTED_RUNS:])
    return UsageError(f"run {reference!r} is ambiguous: it matches {listed}{more}.")


def find_run(reference: str, runs: Path, other_names: Sequence[str] = ()) -> Run:
    """Return the run of an id, a name of one id, a path or ``last``; errors also list ``other_names``."""
    check_reference(reference)
    manifests = _manifests(runs)
    ids = [m.parent.name for m in manifests]
    if reference == "last":
        if not ids:
            raise UsageError(no_runs(runs, collected=bool(other_names)))
        return open_run(_newest([manifest.parent for manifest in manifests]))
    if reference in ids:
        return open_run(runs / reference)
    if "/" not in reference:
        matching = matching_ids(reference, ids)
        if len(matching) == 1:
            return open_run(runs / matching[0])
        if members := _members(reference, ids):
            sweep, first = sweep_of(members[0]), members[0]
            sentence = f"{sweep} is a sweep of {len(members)} runs: name one of them, for example {first}."
            raise UsageError(sentence)
        if len(matching) > 1:
            raise ambiguous(reference, matching)
    path = Path(reference)
    # An empty name, as a quoted variable that is not set, would be the current folder.
    if reference and path.is_dir():
        return open_run(path)
    if reference and path.exists():
        raise UsageError(f"{path} is a file, not the folder of a run.")
    is_file_name = path.suffix != "" and not path.suffix[1:].isdecimal()
    if "/" in reference or is_file_name:
        elsewhere = "" if "/" in reference else f", and no such run in {runs}"
        raise UsageError(f"there is no file or folder {path}{elsewhere}.")
    if not (ids or other_names):
        sentence = f"unknown run {reference!r}: there is no such file or folder, and no run in {runs}."
        raise UsageError(sentence)
    where = f" (there is no such file or folder, and hpcprof list shows no such run in {runs})"
    raise unknown("run", reference, dict.fromkeys([*ids, *other_names]), where, listed=_LISTED_RUNS)


def find_submitted_runs(references: Sequence[str], runs: Path) -> list[Run]:
    """Return the runs and the members of sweeps that a user named, as `find_runs` does for each name."""
    matching = [run for reference in references for run in find_runs(reference, runs)]
    # A folder of profiles among them is an error.
    return [run for run in matching if run.submission]


def log_files(run: Run, rank: int | None = None) -> list[Path]:
    """Return the logs of a rank, or of job.sh and rank 0; the profiler's if the program never started."""
    names = ("job", "rank00000") if rank is None else (f"rank{rank:05d}",)
    present = []
    for name in names:
        logs = (run.path if name == "job" else run.outputs()) / "logs"
        # The profiler's log, or what job.sh has copied there where PBS brings its output at the end.
        instead = run.path / "state/job.err" if name == "job" else logs / f"{name}.profiler"
        output = [path for path in (logs / f"{name}.out", logs / f"{name}.err") if path.is_file()]
        present += output or ([instead] if instead.is_file() else [])
    if not present:
        raise UsageError(f"{logs} has no logs of {' or '.join(names)}.")
    return present


def _age(manifest: Path) -> tuple[str, float]:
    """Return a sort key: the time in the id, then the time when job.sh was written."""
    return manifest.parent.name[:15], modification_time(manifest.parent / "job.sh")


def _git_state(directory: Path) -> GitState | None:
    def git(*arguments: str) -> str | None:
        try:
            result = run_command(["git", "-C", str(directory), *arguments], timeout=_GIT_SECONDS)
        except (CommandNotStarted, CommandTimedOut):
            return None
        return result.stdout.strip() if result.exit_code == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    return GitState(commit, dirty=bool(git("status", "--porcelain", "--untracked-files=no")))
