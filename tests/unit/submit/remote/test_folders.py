"""Hostile answers of a host: nothing but the plain files that were asked for is written."""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath

import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.common.processes import Piped
from hpcprof.submit.remote import folders, host
from hpcprof.submit.remote.folders import RemoteFile, fetch_files, list_files
from hpcprof.submit.remote.host import Host
from hpcprof.submit.schedulers.submitting_shell import UNSET_OPTIONS

FOLDER = PurePosixPath("/home/me/runs/one")


class Answer(Host):
    """A host that sends the same bytes to every command."""

    def __new__(cls, sent: bytes) -> Answer:
        made = super().__new__(cls)
        object.__setattr__(made, "sent", sent)
        return made

    def __init__(self, sent: bytes) -> None:
        super().__init__("evil")

    @contextmanager
    def reached(self, words: Sequence[str], seconds: float, asking: bool = False) -> Iterator[Piped]:
        piped = Piped.__new__(Piped)
        piped.stdin, piped.stdout = io.BytesIO(), io.BytesIO(vars(self)["sent"])
        piped.exit_code, piped.stderr = 0, ""
        yield piped


def test_a_command_is_one_line_which_csh_needs_as_the_users_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    reached = Answer.reached

    def noted(self: Answer, words: Sequence[str], seconds: float) -> AbstractContextManager[Piped]:
        seen.extend(words)
        return reached(self, words, seconds)

    monkeypatch.setattr(Answer, "reached", noted)
    Answer(b"").run(["sbatch", "job.sh"], "/runs", {"LANG": "C"}, UNSET_OPTIONS)
    assert seen[-1].endswith("; export LANG=C; cd /runs || exit 1; exec sbatch job.sh")
    assert "\n" not in seen[-1]


def test_csh_takes_nothing_in_a_command_for_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    @contextmanager
    def noted(command: Sequence[str], **_: object) -> Iterator[Piped]:
        sent.append(command[-1])
        with Answer(b"").reached(command, 1) as piped:
            yield piped

    monkeypatch.setattr(host, "piped", noted)
    monkeypatch.setattr(host, "_ssh", lambda *_: ("ssh",))
    Host("there").run(["printf", "a!b 'c!'"])
    assert sent[0].count("!") == sent[0].count(r"'\!'") == 2
    script = shlex.split(sent[0])[-1]
    assert shlex.split(script) == ["exec", "printf", "a!b 'c!'"]


def archive(*members: tarfile.TarInfo, content: bytes = b"12345") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return made.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 5) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size if kind == tarfile.REGTYPE else 0
    return made


def fetch(sent: bytes, target: Path, size: int = 5, most: int = 100) -> folders.Fetched:
    return fetch_files(Answer(sent), FOLDER, {"logs/job.out": RemoteFile(size, 10**18)}, target, most)


def test_a_file_that_was_asked_for_is_written_with_its_time(tmp_path: Path) -> None:
    fetched = fetch(archive(member("logs/job.out")), tmp_path)
    assert fetched.files == ["logs/job.out"]
    assert (tmp_path / "logs/job.out").read_bytes() == b"12345"
    assert (tmp_path / "logs/job.out").stat().st_mtime_ns == 10**18


@pytest.mark.parametrize(
    "sent",
    [
        member("/etc/passwd"),
        member("logs/../../escaped"),
        member("logs/other"),
        member("logs/job.out", tarfile.SYMTYPE, "/etc/passwd"),
        member("logs/job.out", tarfile.LNKTYPE, "/etc/passwd"),
        member("logs/job.out", tarfile.CHRTYPE),
        member("logs/job.out", tarfile.FIFOTYPE),
        member("logs/job.out", tarfile.DIRTYPE),
        member("logs/" + "x" * 200),  # a long name comes as a member of its own kind
    ],
    ids=lambda one: f"{one.type!r} {one.name[:20]}",
)
def test_anything_else_ends_the_transfer_and_writes_nothing(sent: tarfile.TarInfo, tmp_path: Path) -> None:
    with pytest.raises(HpcprofError, match="evil sent"):
        fetch(archive(sent), tmp_path / "copy")
    assert not [*tmp_path.rglob("*")]


def test_the_same_file_twice_ends_the_transfer(tmp_path: Path) -> None:
    with pytest.raises(HpcprofError, match="not asked for"):
        fetch(archive(member("logs/job.out"), member("logs/job.out")), tmp_path)


def test_a_file_that_is_larger_than_the_limit_is_left_or_refused(tmp_path: Path) -> None:
    assert fetch(b"", tmp_path, size=101).skipped == [f"{FOLDER}/logs/job.out (101 B) was left on evil"]
    big = member("logs/job.out", size=101)
    with pytest.raises(HpcprofError, match="not asked for"):
        fetch(archive(big, content=bytes(101)), tmp_path)


@pytest.mark.parametrize("cut", [0, 100, 512, 515, 1000])
def test_a_cut_archive_is_a_broken_connection(cut: int, tmp_path: Path) -> None:
    with pytest.raises(HpcprofError, match="was lost while files were sent"):
        fetch(archive(member("logs/job.out"))[:cut], tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_noise_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(HpcprofError, match="something other than an archive"):
        fetch(b"Welcome to evil!\n" * 100, tmp_path)


def test_names_that_no_run_has_are_not_listed() -> None:
    names = [
        "logs/a",
        "/logs/a",
        "logs/../a",
        "../a",
        "logs//a",
        "other/a",
        "logs/a\nb",
        "logs/a\x1b[2J",
        "-logs",
    ]
    sent = b"".join(f"5 12.5 {name}".encode() + b"\0" for name in names)
    assert list_files(Answer(sent), FOLDER, ["logs"]) == {"logs/a": RemoteFile(5, 12_500_000_000)}
    assert list_files(Answer(b"junk\0x y logs/a\0-1 5 logs/b\0" + sent), FOLDER, ["logs"]).keys() == {
        "logs/a"
    }


def test_a_listing_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_MAX_FILES", 3)
    with pytest.raises(HpcprofError, match="more than 3 files"):
        list_files(Answer(b"5 1 logs/a\0" * 4), FOLDER, ["logs"])
