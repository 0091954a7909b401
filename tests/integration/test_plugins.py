"""Other packages add to hpcprof by entry points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Hpcprof
from tests.integration.plugin_package import install, search_path

DATA = Path(__file__).parents[1] / "data"

_ANALYSES = """
import pandas as pd

from hpcprof.analysis.framework.declaration import Analysis, Reads, Scope, columns
from hpcprof.analysis.framework.outcome import Outcome, no_rows

LONGEST = Analysis(
    "longest", "Longest kernels", Scope.RANK, columns("rank kernel:text ns"), "extras_analyses:longest",
    sort_by=("-ns",),
)
LAST = Analysis(
    "last", "Last steps", Scope.RUN, columns("steps"), "extras_analyses:last", needs=("step_times",)
)
MEASURED = Analysis(
    "measured", "Measured kernels", Scope.RANK, columns("rank kernels"), "extras_analyses:measured",
    reads=Reads.KERNEL_REPORT,
)
ACROSS = Analysis(
    "across", "Runs", Scope.STORE, columns("run:text steps"), "extras_analyses:across", needs=("step_times",)
)
WRONG = "not an analysis"


def longest(timeline):
    table = timeline.kernels
    if timeline.origin.rank == 1:
        return no_rows("rank 1 is left out")
    rows = (table.end - table.start).argsort()[-3:]
    names = timeline.names(table.name[rows])
    return Outcome(pd.DataFrame({"kernel": names, "ns": (table.end - table.start)[rows]}))


def last(results):
    return Outcome(pd.DataFrame({"steps": [len(results["step_times"])]}), "all of them")


def measured(report):
    return Outcome(pd.DataFrame({"kernels": [len(report.kernels)]}))


def across(runs):
    return Outcome(pd.DataFrame({"run": [run.id for run in runs],
                                 "steps": [len(run.tables["step_times"]) for run in runs]}))
"""


@pytest.fixture
def _analyses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("longest", "last", "measured", "across", "wrong")
    objects = {name: f"extras_analyses:{name.upper()}" for name in names} | {"gone": "extras_gone:GONE"}
    install(tmp_path / "installed", {"extras_analyses": _ANALYSES}, {"hpcprof.analyses": objects})
    monkeypatch.setenv("PYTHONPATH", search_path(tmp_path / "installed"))


@pytest.mark.usefixtures("_analyses")
def test_an_analysis_of_another_package_is_computed_when_it_is_asked_for(
    profiles: Path, hpcprof: Hpcprof
) -> None:
    assert hpcprof("collect", str(profiles)).returncode == 0
    done = hpcprof("report", str(profiles), "--analysis", "longest", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "rank 1: rank 1 is left out"
    rows = json.loads(done.stdout)
    assert [(row["rank"], list(row)) for row in rows] == [(0, ["rank", "kernel", "ns"])] * 3
    assert [row["ns"] for row in rows] == sorted((row["ns"] for row in rows), reverse=True)
    whole = json.loads(
        hpcprof("report", str(profiles), "--analysis", "step_times", "--format", "json").stdout
    )
    done = hpcprof("report", str(profiles), "--analysis", "last", "--format", "json")
    assert json.loads(done.stdout) == [{"steps": len(whole)}]
    assert "all of them" in hpcprof("report", str(profiles), "--analysis", "last").stdout
    done = hpcprof("report", str(profiles), "--analysis", "measured")
    assert "measured needs a profile of Nsight Compute, and no rank has one" in done.stdout
    across = json.loads(hpcprof("report", "--analysis", "across", "--format", "json").stdout)
    assert [row["steps"] for row in across] == [len(whole)]


@pytest.mark.usefixtures("_analyses")
def test_an_analysis_of_another_package_that_cannot_be_used_is_an_error(
    profiles: Path, hpcprof: Hpcprof
) -> None:
    assert hpcprof("collect", str(profiles)).returncode == 0
    for name, expected in {
        "wrong": "the plug-in 'wrong' is not an hpcprof.analysis.framework.declaration.Analysis",
        "gone": "'gone' comes from package extras, which cannot be loaded",
        "longes": "longest",  # among the close matches
    }.items():
        done = hpcprof("report", str(profiles), "--analysis", name)
        assert done.returncode == 2
        assert expected in done.stderr
