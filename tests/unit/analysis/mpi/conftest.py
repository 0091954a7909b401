"""The programs here last some microseconds, and all that they do between calls counts."""

from __future__ import annotations

import pytest

from hpcprof.analysis.mpi import efficiencies


@pytest.fixture(autouse=True)
def short_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficiencies, "_MAX_OVERHEAD_NS", 0)
