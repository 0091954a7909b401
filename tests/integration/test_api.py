"""The Python interface, and the notebook that shows it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest

import hpcprof
from hpcprof.analysis.framework.outcome import AnalysisTable, empty_table
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.results.api import Results
from tests.integration.conftest import Database, on_sqlite

ROOT = Path(__file__).parents[2]


def test_importing_hpcprof_imports_nothing_that_takes_time() -> None:
    program = "import sys; before = set(sys.modules); import hpcprof; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert imported - sys.stdlib_module_names == {"hpcprof"}
    assert imported.isdisjoint({"asyncio", "email", "http", "importlib", "sqlite3", "subprocess", "urllib"})


def test_a_run_is_opened_collected_and_read(profiles: Path, database: Database) -> None:
    run = hpcprof.open(profiles)
    with pytest.raises(HpcprofError, match=r"has not been collected: call collect\(\) first"):
        run.kernels()
    assert len(run.collect().read) == 2
    assert run.ranks == [0, 1]
    kernels = run.kernels()
    assert list(kernels.columns) == [column.name for column in ANALYSES["kernels"].columns]
    assert kernels.total_ns.dtype == np.int64
    assert kernels[kernels.name.str.startswith("nccl")].groupby("rank").total_ns.sum().to_dict() == {
        0: 31250790,
        1: 32709576,
    }
    assert kernels.equals(run.analysis("kernels"))
    assert repr(run) == f"<hpcprof run {run.id}: {profiles}>"


@on_sqlite
def test_notebooks_show_what_the_pages_show(profiles: Path, database: Database) -> None:
    run = hpcprof.open(profiles)
    assert "no profile of it has been collected" in str(run._repr_html_())
    run.collect()
    explanation = run.explain()
    said = [str(run._repr_html_()), str(explanation._repr_html_())]
    assert all('<article class="finding"' in html and "&amp;" not in html for html in said)
    assert ["account-title" in html for html in said] == [True, False]
    finding = explanation.shown()[0]
    assert finding.remedy in unescape(str(finding._repr_html_()))
    assert "Elapsed time per step" in str(run.whatif()._repr_html_())
    assert 'srcdoc="&lt;!DOCTYPE html&gt;' in str(run.show_timeline(height=300)._repr_html_())
    compared = hpcprof.compare([run], [run], force=True)
    # The names and units of a comparison's page.
    assert "<td>elapsed per step</td>" in str(compared._repr_html_())
    with pytest.raises(UsageError, match="at least one run on each side"):
        hpcprof.compare([run], [])
    with pytest.raises(UsageError, match="a list of runs"):
        hpcprof.compare(["last"], [run])  # type: ignore[list-item]
    assert run.arrow("kernels").to_pydict() == run.kernels().to_dict("list")


@on_sqlite
def test_profiles_are_collected_and_each_rank_is_reported(
    profiles: Path, database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    done: list[tuple[int, int, str]] = []
    first = hpcprof.collect_profiles(
        profiles, jobs=2, progress=lambda ranks, of, path: done.append((ranks, of, path.name))
    )
    assert sorted(path.name for path in first.read) == ["rank0.sqlite", "rank1.sqlite"]
    assert [(ranks, of) for ranks, of, _ in done] == [(1, 2), (2, 2)]
    assert hpcprof.open(profiles).ranks == [0, 1]
    again = hpcprof.collect_profiles(str(profiles))
    assert (len(again.read), len(again.unchanged)) == (0, 2)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(UsageError, match="unknown run 'none'"):
        hpcprof.collect_profiles("none")


@on_sqlite
def test_a_folder_stands_for_the_profiles_below_it(profiles: Path, database: Database) -> None:
    twice = profiles.parent / "twice"
    twice.mkdir()
    for name in ("rank0.sqlite", "rank00.sqlite"):
        (twice / name).write_bytes((profiles / "rank0.sqlite").read_bytes())
    found = hpcprof.collect_profiles(profiles.parent, program="train")
    assert sorted(path.name for path in found.read) == ["rank0.sqlite", "rank1.sqlite"]
    # What cannot be collected is named, and the others are collected.
    (skipped,) = found.skipped
    assert "rank 0" in skipped and "rank00.sqlite" in skipped
    run = hpcprof.open(profiles)
    row = run.store.run(run.id)
    assert row is not None and row.program == "train"
    with pytest.raises(HpcprofError, match="rank 0"):
        hpcprof.collect_profiles(twice)


@on_sqlite
def test_every_analysis_is_a_method_that_completion_offers(profiles: Path, database: Database) -> None:
    run = hpcprof.open(str(profiles))
    run.collect()
    assert set(ANALYSES) <= set(dir(run))
    for name in ANALYSES:
        assert list(getattr(run, name)().columns) == [column.name for column in ANALYSES[name].columns]
    with pytest.raises(AttributeError, match="'kernel' is neither an analysis nor an attribute"):
        _ = run.kernel
    with pytest.raises(UsageError, match="did you mean 'kernels'"):
        run.analysis("kernel")


def test_what_is_missing_has_a_reason_and_whole_numbers_stay_whole(
    profiles: Path, database: Database
) -> None:
    run = hpcprof.open(profiles)
    run.collect()
    run.store.put_run(run.id, {"steps": empty_table(ANALYSES["steps"], {-1: "too few"})}, checksums(run))
    assert run.steps().empty
    assert run.steps().attrs["reasons"] == {-1: "too few"}
    assert run.reasons("steps").values.tolist() == [[-1, "steps", "too few"]]
    assert "steps" in set(run.reasons().analysis)
    database.execute("UPDATE analysis_kernels SET total_ns = NULL WHERE position = 0")
    assert str(run.kernels().total_ns.dtype) == "Int64"
    assert int(run.kernels().total_ns.isna().sum()) == 2


@on_sqlite
def test_what_the_profiles_lack_is_a_table_and_beside_what_it_touches(
    profiles: Path, database: Database
) -> None:
    path = min(profiles.glob("*.sqlite"))
    with sqlite3.connect(path) as export:
        export.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start + (1 << 60) WHERE rowid = 1")
    export.close()
    run = hpcprof.open(profiles)
    run.collect()
    lost = run.losses()
    assert list(lost.columns) == ["rank", "kind", "subject", "count", "of", "detail", "sentence"]
    (row,) = lost[lost.detail == "duration"].itertuples()
    assert (row.rank, row.kind, row.subject, row.count) == (0, "row", "kernel", 1)
    assert row.sentence in run.kernels().attrs["losses"][0]
    assert run.ranges().attrs["losses"] == ()


def reason_only(reason: str) -> AnalysisTable:
    return AnalysisTable({}, {-1: reason})


def checksums(run: Results) -> dict[int, str]:
    return {rank: profile.sha256 for rank, profile in run.store.profiles(run.id).items()}


@on_sqlite
def test_a_timeline_is_read_from_the_profile(profiles: Path, database: Database) -> None:
    timeline = hpcprof.open(profiles).timeline(1)
    assert timeline.origin.rank == 1
    assert len(timeline.kernels) == 172
    with pytest.raises(UsageError, match="unknown rank '7'"):
        hpcprof.open(profiles).timeline(7)


def test_runs_and_databases_are_found_as_on_the_command_line(
    profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=f"no runs in {tmp_path / 'none'} yet"):
        hpcprof.open(runs_dir=tmp_path / "none")
    run = hpcprof.open(profiles, runs_dir=tmp_path / "runs")
    run.collect()
    assert (tmp_path / "runs/hpcprof.db").exists()
    other = hpcprof.open(profiles, db=str(tmp_path / "other.db"))
    assert not other.store.exists()
    monkeypatch.setenv("HPCPROF_RUNS", str(tmp_path / "runs"))
    assert hpcprof.open(profiles).ranks == [0, 1]


NOTEBOOK = ROOT / "examples/notebook/results.ipynb"


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if "outputs" in cell)


@pytest.mark.slow
def test_the_notebook_runs_from_beginning_to_end(profiles: Path, tmp_path: Path) -> None:
    from nbclient import NotebookClient
    from nbformat import read

    hpcprof.open(profiles, runs_dir=tmp_path / "runs").collect()
    notebook = read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HPCPROF_RUNS": str(tmp_path / "runs"),
        "HPCPROF_EXAMPLE_RUN": str(profiles),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    client = NotebookClient(notebook, timeout=480, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment)
    shown = json.dumps(notebook)
    assert "matmul_1" in shown
    assert "nvjet_sm90" in shown


def test_the_public_names_import_neither_numpy_nor_pandas_until_they_are_used() -> None:
    program = (
        "import sys, hpcprof\n"
        "assert issubclass(hpcprof.UsageError, hpcprof.HpcprofError)\n"
        "from hpcprof.plugins import analyses, profilers, readers, schedulers\n"
        "assert not {'numpy', 'pandas', 'sqlalchemy'} & {*sys.modules}\n"
        "from hpcprof.results.collect import Collected\n"
        "from hpcprof.results.history import History, HistoryPoint\n"
        "from hpcprof.plugins import data\n"
        "for module in (hpcprof, analyses, data, profilers, readers, schedulers):\n"
        "    for name in module.__all__:\n"
        "        getattr(module, name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
