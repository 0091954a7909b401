"""Runs and sweeps are found by what the user calls them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from hpcprof.common.decode import LARGEST_FILE
from hpcprof.common.errors import UsageError
from hpcprof.runs.directory import (
    Manifest,
    Run,
    SiteRecord,
    adopted_id,
    all_runs,
    ambiguous,
    create,
    find_run,
    find_runs,
    log_files,
    matching_ids,
    no_runs,
    save,
    site_keys,
    sweep_of,
)
from hpcprof.runs.job import Job
from hpcprof.submit.sites.files import load_site
from tests.jobs import make_job

SITE = SiteRecord("local", "local")


def a_run(folder: Path, run_id: str) -> None:
    (folder / run_id).mkdir(parents=True)
    (folder / run_id / "run.json").write_text("{}")
    (folder / run_id / "job.sh").touch()


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs: a sweep of eleven, another of two, and a run whose name looks like a member."""
    monkeypatch.setattr("hpcprof.runs.directory.open_run", lambda path: Run(path.name, path))
    runs = tmp_path / "runs"
    for index in range(11):
        a_run(runs, f"20261121-143005-train-3fa9.{index}")
    (runs / "20261121-143005-train-3fa9").mkdir()
    (runs / "20261121-143005-train-3fa9" / "array.sh").touch()
    for index in range(2):
        a_run(runs, f"20261121-150000-train-77aa.{index}")
    a_run(runs, "20261121-160000-abcd.7-12ef")
    return runs


def test_a_sweep_is_named_by_its_id_a_beginning_of_it_or_its_directory(sweep: Path) -> None:
    whole = [f"20261121-143005-train-3fa9.{index}" for index in range(11)]
    for reference in (whole[0].removesuffix(".0"), "20261121-14", str(sweep / whole[0].removesuffix(".0"))):
        assert [run.id for run in find_runs(reference, sweep)] == whole


def test_a_member_is_named_as_any_run(sweep: Path) -> None:
    for member in ("20261121-143005-train-3fa9.1", "20261121-143005-train-3fa9.10"):
        assert [run.id for run in find_runs(member, sweep)] == [member]
        assert find_run(member, sweep).id == member
    assert find_runs("last", sweep)[0].id == "20261121-160000-abcd.7-12ef"
    assert sweep_of("20261121-160000-abcd.7-12ef") is None


def test_what_fits_several_sweeps_is_refused_and_so_is_a_sweep_for_one_run(sweep: Path) -> None:
    with pytest.raises(UsageError, match="is ambiguous"):
        find_runs("20261121", sweep)
    with pytest.raises(
        UsageError, match=r"-77aa is a sweep of 2 runs: name one of them, for example .*77aa\.0"
    ):
        find_run("20261121-15", sweep)


IDS = [
    "20261121-143005-train-3fa9",
    "20261121-150000-train-long-77aa",
    "train-0dbb1234",
    "train-fsdp-0c0ffee0",
    "other-3f001122",
]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("20261121-143005-train-3fa9", IDS[:1]),
        ("train-fsdp", IDS[3:4]),  # the exact name of a folder beats longer ones
        ("train", [IDS[0], IDS[2]]),
        ("train-l", IDS[1:2]),
        ("train-3", IDS[:1]),
        ("0dbb", IDS[2:3]),
        ("77aa", IDS[1:2]),
        ("3f", [IDS[0], IDS[4]]),
        ("20261121-14", IDS[:1]),
        ("oth", IDS[4:]),
        ("rain", []),
        ("", []),
    ],
)
def test_a_name_matches_ids_in_the_closest_way(name: str, found: list[str]) -> None:
    assert matching_ids(name, IDS) == found


def test_a_job_or_a_key_that_means_one_run_finds_it(sweep: Path) -> None:
    assert find_run("abcd.7", sweep).id == "20261121-160000-abcd.7-12ef"
    assert find_run("12ef", sweep).id == "20261121-160000-abcd.7-12ef"
    assert len(find_runs("77aa", sweep)) == 2
    assert find_run("77aa.1", sweep).id == "20261121-150000-train-77aa.1"


def test_the_logs_of_a_rank_are_those_of_its_program_or_the_profilers_if_that_never_started_it(
    tmp_path: Path,
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "rank00002.profiler").touch()
    run = Run("r", tmp_path)
    assert log_files(run, 2) == [logs / "rank00002.profiler"]
    (logs / "rank00002.err").touch()
    (logs / "rank00002.out").touch()
    assert log_files(run, 2) == [logs / "rank00002.out", logs / "rank00002.err"]


def test_the_log_of_a_job_that_pbs_has_not_brought_yet_is_the_copy_that_the_job_keeps(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "state/job.err").touch()
    run = Run("r", tmp_path)
    assert log_files(run) == [tmp_path / "state/job.err"]
    (tmp_path / "logs/job.err").touch()
    assert log_files(run) == [tmp_path / "logs/job.err"]


def submitted(runs: Path, run_id: str) -> Path:
    """Make the directory of a run, and return its manifest."""
    job = Job(name="t", site="local", workload=None, arguments=["true"], directory="/")
    (runs / run_id).mkdir(parents=True)
    manifest = Manifest(run_id, "2026-11-28T10:38:22+00:00", ["hpcprof"], job, site_keys(SITE))
    path = runs / run_id / "run.json"
    path.write_bytes(msgspec.json.encode(manifest))
    return path


def replaced(old: bytes, new: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new))


def instead(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte that is no UTF-8": (replaced(b'"created":"', b'"created":"\xb2'), "codec can't decode byte 0xb2"),
    "no number": (replaced(b'"nodes":1', b'"nodes":NaN'), "JSON is malformed"),
    "a number without end": (replaced(b'"nodes":1', b'"nodes":1e999'), "out of range"),
    "no ranks": (replaced(b'"nodes":1', b'"nodes":0'), "it has 0 ranks"),
    "ranks that no machine has": (replaced(b'"nodes":1', b'"nodes":1' + 30 * b"0"), "it has 1000"),
    "another type": (replaced(b'"nodes":1', b'"nodes":[]'), "Expected `int`"),
    "no time": (replaced(b'"created":"2026', b'"created":"26'), "Invalid isoformat"),
    "a time that no other zone has": (replaced(b'"created":"2026', b'"created":"0001'), "an impossible time"),
    "a time without a zone": (replaced(b'+00:00","command', b'","command'), "an impossible time"),
    "a path as id": (replaced(b'"id":"', b'"id":"../'), "is not the name of a folder"),
    "depth": (lambda path: path.write_bytes(b'{"site":' + b"[" * 100_000), "recursion"),
    "nothing": (lambda path: path.write_bytes(b""), "truncated"),
    "more than is read": (lambda path: os.truncate(path, LARGEST_FILE + 1), "larger than 100 MB"),
    "a folder": (instead(Path.mkdir), "not a regular file"),
    "a pipe": (instead(os.mkfifo), "not a regular file"),
    "a link to itself": (instead(lambda path: path.symlink_to(path.name)), "symbolic links"),
    "a link to nothing": (instead(lambda path: path.symlink_to("gone")), "No such file"),
}


def test_bytes_of_a_name_that_are_not_utf_8_are_replaced_in_an_id(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    assert adopted_id(name, tmp_path / name).startswith("caf\N{REPLACEMENT CHARACTER}-")
    assert adopted_id("", tmp_path).startswith("root-")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_manifest_is_named_and_takes_no_other_run_away(damage: str, tmp_path: Path) -> None:
    good, bad = "20261128-100000-a-0000", "20261128-110000-b-1111"
    submitted(tmp_path, good)
    act, reason = DAMAGE[damage]
    act(submitted(tmp_path, bad))
    skipped: list[str] = []
    assert [run.id for run in all_runs(tmp_path, skipped)] == [good]
    (sentence,) = skipped
    assert sentence.startswith(f"{tmp_path / bad / 'run.json'} cannot be read: ")
    assert reason in sentence
    assert find_run(good, tmp_path).id == good


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\xb2", b"9" * 5000, b"nan", b"", None])
def test_a_damaged_file_of_a_rank_is_no_exit_code(content: bytes | None, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/rank00000.exit").write_text("3\n")
    (tmp_path / "state/rankxx.exit").write_text("0\n")
    if content is None:
        os.mkfifo(tmp_path / "state/rank00001.exit")
    else:
        (tmp_path / "state/rank00001.exit").write_bytes(content)
    assert Run("a", tmp_path).rank_exit_codes() == {0: 3}
    assert Run("a", tmp_path).state_file("a\0b") is None


def test_runs_of_one_second_are_in_the_order_of_their_sweep(tmp_path: Path) -> None:
    site = load_site("local")
    names = [f"20261129-152005-train-3c4d.{number}" for number in (10, 3, 7, 2, 11, 5, 9, 0, 8, 1, 6, 4)]
    for name in names:
        run = create(name, tmp_path, site, make_job(site, arguments=["true"]), [], {"job.sh": "#!/bin/sh\n"})
        os.utime(run.path / "job.sh", (1, 1))
        created = "2026-11-29T15:20:05+00:00"
        save(Run(name, run.path, msgspec.structs.replace(run.submission, created=created)))
    assert [run.id.rpartition(".")[2] for run in all_runs(tmp_path)] == [*map(str, range(12))]


def test_the_last_run_is_the_one_submitted_last_whatever_time_zone_its_id_has(tmp_path: Path) -> None:
    site = load_site("local")
    for name, created in (
        ("20261129-231640-tokyo-1a2b", "14:16:40"),
        ("20261129-152005-train-3c4d", "14:20:05"),
    ):
        run = create(name, tmp_path, site, make_job(site, arguments=["true"]), [], {"job.sh": "#!/bin/sh\n"})
        save(
            Run(
                name, run.path, msgspec.structs.replace(run.submission, created=f"2026-11-29T{created}+00:00")
            )
        )
        when = datetime.fromisoformat(f"2026-11-29T{created}+00:00").timestamp()
        os.utime(run.path / "job.sh", (when, when))
    assert find_run("last", tmp_path).id == "20261129-152005-train-3c4d"
    assert [run.id[9:15] for run in all_runs(tmp_path)] == ["231640", "152005"]
    # A run that was edited or copied later is not a later one.
    os.utime(tmp_path / "20261129-231640-tokyo-1a2b/job.sh")
    assert find_run("last", tmp_path).id == "20261129-152005-train-3c4d"


def test_the_last_run_is_one_that_the_user_can_read(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: "abcd.7" not in str(path))
    assert find_run("last", sweep).id == "20261121-150000-train-77aa.1"


def test_the_last_run_is_named_and_skipped_if_it_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site, name = load_site("local"), "20261129-152005-train-3c4d"
    create(name, tmp_path, site, make_job(site, arguments=["true"]), [], {"job.sh": "#!/bin/sh\n"})
    for damaged in ("copied-by-hand", "20261129-162005-train-5e6f"):
        a_run(tmp_path, damaged)
        (tmp_path / damaged / "run.json").write_bytes(b'{"id": "\xff"}')
    assert find_run("last", tmp_path).id == name
    assert all(name in caplog.text for name in ("copied-by-hand", "20261129-162005-train-5e6f"))


def test_a_mistyped_file_is_no_run_and_a_long_list_of_runs_is_cut(tmp_path: Path, sweep: Path) -> None:
    with pytest.raises(UsageError, match=r"^there is no file or folder trace\.nsys-rep, and no such run in "):
        find_run("trace.nsys-rep", sweep)
    with pytest.raises(UsageError, match=r"^/dev/null is a file, not the folder of a run"):
        find_run("/dev/null", sweep)
    sentence = str(ambiguous("2026", [f"2026-{number:02}" for number in range(20)]))
    assert sentence == (
        "run '2026' is ambiguous: it matches "
        f"{', '.join(f'2026-{number:02}' for number in range(17, 20))} and 17 more."
    )
    with pytest.raises(UsageError, match=f"^{re.escape(no_runs(tmp_path))}$"):
        find_run("last", tmp_path)
