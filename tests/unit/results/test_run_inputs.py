"""What analyses over several runs read of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.profiles.readers.results import parse_result
from hpcprof.results.run_inputs import run_data
from hpcprof.results.store.store import open_store
from hpcprof.submit.runs.directory import Run
from hpcprof.workloads.schema import write

DATA = Path(__file__).parents[3] / "docs" / "data"


@pytest.mark.parametrize("of_version_1", [True, False])
def test_the_own_clock_of_several_modes_is_that_of_the_first(of_version_1: bool, tmp_path: Path) -> None:
    text = (DATA / "h200x4-4608-9216-9216.json").read_text()
    result = parse_result(text)
    path = write(result, tmp_path / "results")
    if of_version_1:
        path.write_text(text)
    data = run_data(Run("run", tmp_path), open_store(None, tmp_path), ())
    assert list(data.own_step_ns) == result.modes["serial"].latency_ns
    assert data.parameters["mode"] == "serial"
