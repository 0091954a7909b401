"""Analyses over several runs, through the command line."""

from __future__ import annotations

import csv
import io
import json
import lzma
import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest

import hpcprof as library
import hpcprof as package
from hpcprof.analysis.framework.outcome import empty_table
from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
from hpcprof.common.errors import UsageError
from hpcprof.common.units import format_ns
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import Timeline
from hpcprof.profiles.timeline_parquet import RankEvents
from hpcprof.results.collect.kept_events import finish, keep_timeline
from hpcprof.results.store.rank_tables import ANALYSES_WITH_EVENTS
from hpcprof.workloads.schema import SCHEMA_VERSION, Correctness, RankResult, write
from hpcprof.workloads.schema import summarize as statistics
from tests.conftest import Hpcprof
from tests.integration.conftest import Database, on_sqlite

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def exports(tmp_path: Path, hpcprof: Hpcprof) -> Callable[..., str]:
    """Make a collected folder with real exports of some ranks."""

    def make(name: str, *ranks: int) -> str:
        folder = tmp_path / name
        folder.mkdir()
        for rank in ranks:
            packed = (DATA / f"sp_bf16_rank{rank}.sqlite.xz").read_bytes()
            (folder / f"rank{rank}.sqlite").write_bytes(lzma.decompress(packed))
        assert hpcprof("collect", name).returncode == 0
        return name

    return make


def measured(folder: Path, step_ns: int, ranks: int = 1, length: int = 256) -> str:
    """Leave the results of a workload that ran without a profiler."""
    times = [step_ns, step_ns + 10, step_ns - 10]
    result = RankResult(
        schema_version=SCHEMA_VERSION,
        workload="sequence-parallel",
        mode="serial",
        rank=0,
        world_size=ranks,
        local_rank=0,
        host="node0",
        device="cpu",
        backend="gloo",
        parameters={"sequence_length": length},
        versions={},
        profiler="none",
        step_ns=times,
        phase_ns={},
        summary={"step": statistics(times)},
        latency_ns=times,
        correctness=Correctness(True, 0.0, 1e-5, 1, "float64"),
        notes=[],
    )
    write(result, folder / "results")
    return folder.name


def rows(text: str, name: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(text)
    assert all(list(row) == [c.name for c in ACROSS_RUNS[name].columns] for row in found)
    return found


def metrics(text: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(text)["metrics"]
    assert all(list(row) == [c.name for c in ACROSS_RUNS["compare"].columns] for row in found)
    return found


def test_the_difference_of_two_real_runs_is_explained_to_the_nanosecond(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    for name in ("host_work", "late_rank_gpu"):
        (tmp_path / name).mkdir()
        for rank in range(2):
            packed = (DATA / f"planted_{name}_rank{rank}.sqlite.xz").read_bytes()
            (tmp_path / name / f"rank{rank}.sqlite").write_bytes(lzma.decompress(packed))
    assert hpcprof("collect", "host_work").returncode == 0
    compared = hpcprof("compare", "host_work", "late_rank_gpu", "--format", "json")
    said = [line for line in compared.stderr.splitlines() if line.endswith(": collecting it first")]
    assert [line.split()[3].rpartition("-")[0] for line in said] == ["late_rank_gpu"]
    found = json.loads(compared.stdout)
    steps = [
        json.loads(hpcprof("explain", name, "--format", "json").stdout)["step"]
        for name in ("host_work", "late_rank_gpu")
    ]
    # Both sides are as they were recorded.
    a, b = (step["recorded_elapsed_ns"] or step["elapsed_ns"] for step in steps)
    difference = b - a
    assert found["waterfall"]["difference_ns"] == difference
    assert sum(part["difference_ns"] for part in found["waterfall"]["parts"]) == difference
    for row in found["kernels"]:
        effects = sum(row[f"{effect}_effect_ns"] for effect in ("count", "shape", "duration"))
        assert effects == row["difference_ns"] == row["b_ns"] - row["a_ns"]
    assert json.dumps(found).count("give at least two runs per side") == 1
    table = hpcprof("compare", "host_work", "late_rank_gpu").stdout
    assert found["difference"].split(":")[0] in table
    command = next(line.split(": ", 1)[1] for line in table.splitlines() if "--analysis kernel" in line)
    assert hpcprof(*shlex.split(command)[1:]).returncode == 0


def test_two_real_runs_are_compared(hpcprof: Hpcprof, exports: Callable[..., str]) -> None:
    a, b = exports("a", 0, 1), exports("b", 0, 1)
    done = hpcprof("compare", a, b, "--format", "json", "--fail-on-regression")
    assert done.returncode == 4
    found = {row["metric"]: row for row in metrics(done.stdout)}
    # What `report` says of the same profiles.
    summary = json.loads(hpcprof("report", a, "--analysis", "steps_summary", "--format", "json").stdout)
    assert found["step_p50_ns"]["a"] == found["step_p50_ns"]["b"] == summary[0]["p50_ns"]
    assert "phase matmul_1 p50_ns" in found
    assert {row["verdict"] for row in found.values()} == {"one run each: no statistics"}
    assert "Inconclusive: give at least two runs per side." in done.stderr
    table = hpcprof("compare", a, b).stdout
    assert "step p50" in table
    assert format_ns(summary[0]["p50_ns"]) in table
    assert all(len(line) <= 80 for line in table.splitlines() if "ms" in line)
    reported = hpcprof("report", b, "--analysis", "compare", "--against", a, "--format", "csv").stdout
    assert [row["metric"] for row in csv.DictReader(io.StringIO(reported))] == list(found)


def test_copies_of_a_run_are_no_repeats_of_it(hpcprof: Hpcprof, exports: Callable[..., str]) -> None:
    a, copy, b = exports("a", 0), exports("copy", 0), exports("b", 1)
    done = hpcprof("compare", "--a", a, "--a", copy, "--b", b)
    assert done.returncode == 2
    assert "have the same profiles, byte for byte; repeats must be distinct runs." in done.stderr


def test_a_regression_ends_with_status_3_where_that_is_asked_for(hpcprof: Hpcprof, tmp_path: Path) -> None:
    usual = [measured(tmp_path / f"a{i}", time) for i, time in enumerate((1000, 1010, 990))]
    slower = [measured(tmp_path / f"b{i}", time) for i, time in enumerate((1200, 1210, 1190))]
    sides = [word for name in usual for word in ("--a", name)]
    sides += [word for name in slower for word in ("--b", name)]
    tell = tmp_path / "tell"
    tell.write_text(f"#!/bin/sh\ncat >{tmp_path}/told\n")
    tell.chmod(0o700)
    gate = ("--fail-on-regression", "--notify", str(tell), "--format", "json")
    done = hpcprof("compare", *sides, *gate)
    assert done.returncode == 3
    assert done.stderr == "Regression: elapsed per step, noted by the program.\n"
    told = json.loads((tmp_path / "told").read_text())
    assert (told["event"], len(told["baseline"]), len(told["candidate"])) == ("regression", 3, 3)
    assert told["text"].startswith(
        f"hpcprof: {told['run']}: regression: own_elapsed_per_step_ns 1.000 µs in A, "
    )
    row = metrics(done.stdout)[0]
    assert (row["n_a"], row["n_b"], row["verdict"]) == (3, 3, "regression")
    assert row["ratio"] == pytest.approx(1.2, abs=1e-3)
    assert hpcprof("compare", *sides).returncode == 0
    back = [{"--a": "--b", "--b": "--a"}.get(word, word) for word in sides]
    done = hpcprof("compare", *back, "--fail-on-regression")
    assert done.returncode == 0
    assert "improvement" in done.stdout


@pytest.fixture
def slower(hpcprof: Hpcprof, tmp_path: Path) -> list[str]:
    """Name three runs as the baseline ``main``, and return three that are 20 % slower."""
    usual = [measured(tmp_path / f"a{i}", time) for i, time in enumerate((1000, 1010, 990))]
    done = hpcprof("baseline", "set", "main", *usual)
    assert done.returncode == 0, done.stderr
    return [measured(tmp_path / f"b{i}", time) for i, time in enumerate((1200, 1210, 1190))]


def test_a_regression_against_a_named_baseline_is_an_error_in_github_and_a_failure_in_junit(
    hpcprof: Hpcprof, slower: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = ("compare", "--baseline", "main", *slower, "--fail-on-regression", "--format")
    done = hpcprof(*gate, "github")
    assert done.returncode == 3
    annotation, _, summary = done.stdout.partition("\n")
    assert annotation.startswith(
        "::error title=hpcprof compare::regression: own_elapsed_per_step_ns 1.000 µs in A"
    )
    assert "ratio 1.2000 (" in annotation
    assert summary.startswith("## hpcprof compare\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert hpcprof(*gate, "github").stdout == annotation + "\n"
    assert (tmp_path / "summary.md").read_text(encoding="utf-8") == summary
    done = hpcprof(*gate, "junit")
    assert done.returncode == 3
    suite = ElementTree.fromstring(done.stdout).find("testsuite")
    assert suite is not None
    counts = {"tests": "1", "failures": "1", "errors": "0", "skipped": "0"}
    assert suite.attrib | counts == suite.attrib
    failure = suite.find("testcase/failure")
    assert failure is not None and "ratio 1.2000" in failure.attrib["message"]


def test_a_program_reads_baselines_and_histories(
    slower: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = library.open(slower[0]).against("compare", *library.open_baseline("main"))
    assert rows[rows["metric"] == "own_elapsed_per_step_ns"]["n_a"].tolist() == [3]
    library.set_baseline("slow", slower)
    assert [run.id.partition("-")[0] for run in library.open_baseline("slow")] == slower
    with pytest.raises(library.UsageError, match="no run in runs has a step time"):
        library.histories(metric="speed")


def test_baselines_are_listed_and_removed_and_wrong_names_are_one_sentence(
    hpcprof: Hpcprof, slower: list[str]
) -> None:
    (row,) = json.loads(hpcprof("baseline", "list", "--format", "json").stdout)
    assert row["name"] == "main"
    assert [name.rpartition("-")[0] for name in row["runs"].split()] == ["a0", "a1", "a2"]
    for words, says in (
        (("compare", "--baseline", "mian", *slower), "unknown baseline 'mian'; did you mean 'main'?"),
        (("compare", "--baseline", "main"), "name the candidates: hpcprof compare --baseline NAME RUN…"),
        (("compare", "--baseline", "main", "--a", "a0", slower[0]), "name the candidates"),
        (("baseline", "set", "two words", slower[0]), "baseline 'two words': a name has 1 to 64 letters"),
        (("baseline", "set", "main", slower[0], slower[0]), "is listed twice"),
        (("baseline", "set", "main", "none"), "unknown run 'none'"),
        (("baseline", "rm", "other"), "unknown baseline 'other'"),
    ):
        done = hpcprof(*words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert says in done.stderr
    assert hpcprof("baseline", "rm", "main").stdout == "removed baseline main\n"
    assert "no baselines" in hpcprof("baseline", "list").stdout
    assert "there are no baselines in" in hpcprof("compare", "--baseline", "main", *slower).stderr


def test_what_the_runs_differ_in_is_said(hpcprof: Hpcprof, tmp_path: Path) -> None:
    a, b = measured(tmp_path / "a", 1000), measured(tmp_path / "b", 1000, length=512)
    assert "parameter sequence_length: 256 in A, 512 in B" in hpcprof("compare", a, b).stdout


def test_different_numbers_of_ranks_are_compared_with_force(hpcprof: Hpcprof, tmp_path: Path) -> None:
    a, b = measured(tmp_path / "a", 1000), measured(tmp_path / "b", 1000, ranks=2)
    done = hpcprof("compare", a, b)
    assert done.returncode == 2
    assert "different numbers of ranks (1, 2): hpcprof compare --anyway --a " in done.stderr
    assert hpcprof("compare", a, b, "--force").returncode == 0


def test_kernels_of_two_real_runs_are_compared(hpcprof: Hpcprof, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copy(DATA / "ddp_steps_rank0.pt.trace.json.gz", tmp_path / name / "rank0.pt.trace.json.gz")
        hpcprof("collect", name)
    command = ("report", "a", "--analysis", "slowdown_pairs", "--against", "b", "--format", "json")
    done = hpcprof(*command)
    found = rows(done.stdout, "slowdown_pairs")
    assert [row["name"] for row in found[:2]] == ["(total)", "(control)"]
    # The same trace twice. It has four steps, which is too few for an interval.
    assert all(row["slowdown"] == pytest.approx(1, abs=0.05) for row in found)
    assert found[0]["ci_low"] is None
    assert "the baseline runs communicate too" in done.stderr
    # What a collect kept serves when the profile is gone.
    profile = tmp_path / "b/rank0.pt.trace.json.gz"
    kept = read_profile(profile)
    assert isinstance(kept, Timeline)
    asked = "SELECT run_id, sha256 FROM profiles WHERE run_id LIKE 'b-%'"
    (found_b,) = json.loads(hpcprof("query", asked, "--format", "json").stdout)
    events = RankEvents(tmp_path / "runs/timeline", found_b["run_id"], 0, found_b["sha256"])
    keep_timeline(events, kept)
    finish(events, kept, {name: empty_table(ANALYSES[name]) for name in ANALYSES_WITH_EVENTS})
    profile.unlink()
    assert hpcprof(*command).stdout == done.stdout
    shutil.rmtree(tmp_path / "runs/timeline")
    done = hpcprof(*command)
    assert done.returncode == 1
    assert "the profile of rank 0 is no longer in" in done.stderr


def test_runs_without_overlap_say_so(hpcprof: Hpcprof, exports: Callable[..., str]) -> None:
    done = hpcprof("report", exports("a", 0), "--analysis", "slowdown_pairs", "--against", exports("b", 0))
    assert done.returncode == 0
    assert done.stdout.startswith("communication covers no compute kernel inside a step")


def test_a_roofline_takes_its_times_from_another_run(
    hpcprof: Hpcprof, exports: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "ncu").mkdir()
    shutil.copy(DATA / "ncu/sp.details.csv.gz", tmp_path / "ncu/rank0.csv.gz")
    hpcprof("collect", "ncu")
    command = ("report", "ncu", "--analysis", "roofline", "--format", "json")
    # Without peaks, a bound or times, there is nothing to say of these kernels but their names.
    assert rows(hpcprof(*command).stdout, "roofline") == []
    joined = rows(hpcprof(*command, "--against", exports("nsys", 0)).stdout, "roofline")
    shapes = hpcprof("report", "nsys", "--analysis", "kernels_by_shape", "--format", "json").stdout
    times = {(row["name"], row["grid"]): round(row["med_ns"]) for row in json.loads(shapes)}
    known = [row for row in joined if row["in_situ_ns"] is not None]
    assert known
    assert all(row["in_situ_ns"] == times[row["name"], row["grid"]] for row in known)


def test_scaling_goes_over_all_runs_or_those_named(hpcprof: Hpcprof, tmp_path: Path) -> None:
    names = [measured(tmp_path / f"{ranks}", 4000 // ranks + 100, ranks) for ranks in (1, 2, 4)]
    command = ("report", *names, "--analysis", "scaling", "--format", "json")
    done = hpcprof(*command)
    found = rows(done.stdout, "scaling")
    assert [row["ranks"] for row in found] == [1, 2, 4]
    assert [row["speedup"] for row in found] == [1.0, round(4100 / 2100, 4), round(4100 / 1100, 4)]
    assert all(str(row["parameters"]).startswith("sequence_length=256 in all") for row in found)
    assert {(row["program"], row["kind"]) for row in found} == {("sequence-parallel", "strong")}
    assert "strong" in hpcprof("report", *names, "--analysis", "scaling").stdout
    nothing = hpcprof("report", "--analysis", "scaling")
    assert nothing.returncode == 0
    assert "runs with step times: 0 of 0" in " ".join(nothing.stdout.split())


def test_imported_profiles_scale_once_their_program_has_a_name(
    hpcprof: Hpcprof, exports: Callable[..., str], tmp_path: Path
) -> None:
    names = [exports("on_four", 0), exports("on_two", 0)]
    with closing(sqlite3.connect(tmp_path / "on_two/rank0.sqlite")) as export, export:
        export.execute(
            """UPDATE META_DATA_CAPTURE SET value = replace(value, 'WORLD_SIZE="4', 'WORLD_SIZE="2')"""
        )
    command = ("report", "--analysis", "scaling", "--format", "json")
    done = hpcprof(*command)
    assert rows(done.stdout, "scaling") == []
    hint = re.search(r"; (hpcprof collect .* --program) NAME names it", done.stderr)
    assert hint is not None
    assert hpcprof(*shlex.split(hint[1])[1:], "my program").returncode == 0
    for name in names:
        assert hpcprof("collect", name, "--program", "my program").returncode == 0
        # The name stays when the run is collected again.
        assert "0 profiles collected" in hpcprof("collect", name).stdout
    found = rows(hpcprof(*command).stdout, "scaling")
    # The number of ranks is what the profiles record, though each folder has one of them.
    assert [(row["program"], row["kind"], row["ranks"]) for row in found] == [
        ("my program", "unknown", 2),
        ("my program", "unknown", 4),
    ]
    done = hpcprof("collect", names[0], "--program", " ")
    assert done.returncode == 2
    assert done.stderr == "hpcprof: --program ' ': give the name of the program that ran.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("compare", "a"), "name both sides"),
        (("compare", "a", "a", "--a", "a"), "name both sides"),
        (("compare", "--a", "a"), "name both sides"),
        (("compare", "a", "none"), "unknown run 'none'"),
        (("compare", "a", "empty"), "has no profile."),
        (
            ("compare", "--a", "a", "--a", "a", "--b", "a"),
            "is listed twice on one side; repeats must be distinct runs",
        ),
        (("report", "a", "--analysis", "slowdown_pairs"), "name those with --against RUN"),
        (("report", "a", "--analysis", "kernels", "--against", "a"), "--against goes with --analysis"),
        (("report", "a", "--against", "a"), "--against goes with --analysis"),
        (("report", "a", "a"), "a report shows one run, but 2 are given"),
        (("report", "--analysis", "scaling", "--html", "x.html"), "--html shows one run"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    measured(tmp_path / "a", 1000)
    (tmp_path / "empty").mkdir()
    done = hpcprof(*arguments)
    assert done.returncode in (1, 2)
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


@on_sqlite
def test_runs_are_compared_in_python(profiles: Path, database: Database, tmp_path: Path) -> None:
    shutil.copytree(profiles, tmp_path / "again")
    a, b = package.open(profiles), package.open(tmp_path / "again")
    a.collect(), b.collect()
    found = b.against("compare", a)
    assert found.set_index("metric").ratio["step_p50_ns"] == 1.0
    assert "communication covers no compute kernel" in b.against("slowdown_pairs", a).attrs["reasons"][-1]
    with pytest.raises(UsageError, match="analysis over several runs"):
        b.analysis("compare")
    with pytest.raises(UsageError, match="compares nothing without other runs"):
        b.against("roofline")
