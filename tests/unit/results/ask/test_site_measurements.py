"""Costs of a profiler for calls, kept with a site."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.results.ask.site_measurements import (
    CALLS,
    CallTimes,
    SiteCallCosts,
    call_weights,
    keep_measurement,
)
from hpcprof.study.site_measurements import read_calls

KINDS = {
    "launch": CallTimes("cuLaunchKernel", (2000, 2200), (4000, 4400)),
    "record": CallTimes("cuEventRecord", (100, 100), (500, 544)),
    "wait": CallTimes("cuStreamSynchronize", (300, 300), (290, 290)),
}


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_weights_are_costs_over_that_of_a_launch() -> None:
    assert KINDS["launch"].cost_ns == (2000, 1800, 2400)
    weights = SiteCallCosts("here", (), "nsys 1", KINDS).weights
    assert weights == {"launch": 1.0, "record": pytest.approx(0.2, abs=0.002), "wait": 0.0}
    assert not SiteCallCosts("here", (), "nsys 1", {"launch": KINDS["wait"]}).weights


def test_kept_costs_count_for_profiles_of_the_same_version_alone() -> None:
    assert not call_weights("here", ["nsys 1"])
    path = keep_measurement("here", CALLS, SiteCallCosts("here", ("a", "b"), "nsys 1", KINDS))
    assert path.name == "here.calls.json"
    assert call_weights("here", ["nsys 1", "nsys 1"])["record"] > 0
    for versions in (["nsys 2"], ["nsys 1", "nsys 2"], [None]):
        assert not call_weights("here", versions)
    path.write_text("{}")
    with pytest.raises(HpcprofError, match=r"here\.calls\.json cannot be read"):
        call_weights("here", ["nsys 1"])


@pytest.mark.parametrize("damaged", ["launch,cuLaunchKernel,soon", "launch,cuLau"])
def test_a_damaged_table_of_calls_is_one_sentence(damaged: str, tmp_path: Path) -> None:
    (tmp_path / "calls.csv").write_text(f"kind,call,ns\n{damaged}\n")
    with pytest.raises(HpcprofError, match=r"calls\.csv cannot be read"):
        read_calls(tmp_path / "calls.csv")
