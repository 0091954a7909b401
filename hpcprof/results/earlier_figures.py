"""Figures that an earlier version of hpcprof computed."""

from __future__ import annotations

from collections.abc import Iterable

from hpcprof.results.analysis_table import ANALYSIS_VERSION
from hpcprof.results.store.tables import ProfileRow


def earlier_version(profiles: Iterable[ProfileRow]) -> str:
    """Return the hpcprof that computed the figures of a run; empty if this version would not change them."""
    earlier = [profile for profile in profiles if profile.analysis_version != ANALYSIS_VERSION]
    if not earlier:
        return ""
    versions = sorted({profile.made_by for profile in earlier if profile.made_by})
    return f"hpcprof {' and '.join(versions)}" if versions else "an earlier version of hpcprof"
