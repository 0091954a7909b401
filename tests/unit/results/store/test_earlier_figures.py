"""Figures of an earlier version of hpcprof."""

from __future__ import annotations

from hpcprof.common import __version__
from hpcprof.results.store.analysis_version import ANALYSIS_VERSION, earlier_version
from hpcprof.results.store.tables import ProfileRow


def profile(version: int, made_by: str | None) -> ProfileRow:
    return ProfileRow("run", 0, "f", "0" * 64, 1, "nsys", None, "", None, None, version, made_by)


def test_the_versions_that_computed_other_figures_are_named() -> None:
    current = profile(ANALYSIS_VERSION, "9.9")
    assert earlier_version([]) == earlier_version([current]) == ""
    assert earlier_version([current, profile(0, "0.2.0"), profile(3, "0.1.1")]) == "hpcprof 0.1.1 and 0.2.0"
    for unknown in (None, __version__):  # the same number, between two releases
        assert earlier_version([current, profile(0, unknown)]) == "an earlier version of hpcprof"
