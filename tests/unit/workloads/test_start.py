"""The start of a workload on a rank."""

from __future__ import annotations

import pytest

from hpcprof.workloads.start import start


def test_the_start_on_a_rank_prints_help_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert start("hpcprof.workloads.sequence_parallel", "torch", ["--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: sequence-parallel") and not err
