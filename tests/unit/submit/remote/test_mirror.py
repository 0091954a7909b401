"""The copy of a host's run on this machine."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, cast

from hpcprof.submit.remote import mirror
from hpcprof.submit.remote.folders import Fetched, RemoteFile
from hpcprof.submit.remote.host import Host
from tests.submitted_run import MakeRun
from tests.submitted_run import make_run as make_run

if TYPE_CHECKING:
    import pytest


class Login:
    """A host whose runs are in one folder."""

    def folder(self, run_id: str) -> PurePosixPath:
        return PurePosixPath("/runs", run_id)


def test_samples_that_a_further_start_has_moved_there_are_none_of_that_start_here(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(finished="0", seen="1")
    (run.path / "telemetry").mkdir()
    names = ("moved", "again", "purged")
    for name in names:
        (run.path / f"telemetry/{name}.jsonl").write_text("{}\n")
    there = [
        "state/attempt",
        "telemetry/again.jsonl",
        *(f"attempts/1/telemetry/{n}.jsonl" for n in names[:2]),
    ]
    monkeypatch.setattr(mirror, "list_files", lambda *_: dict.fromkeys(there, RemoteFile(3, 1)))
    monkeypatch.setattr(mirror, "fetch_files", lambda *_: Fetched())
    mirror.update(run, cast(Host, Login()))
    assert sorted(path.name for path in (run.path / "telemetry").iterdir()) == ["again.jsonl", "purged.jsonl"]
    assert [path.name for path in (run.path / "state").iterdir()] == ["seen"]
