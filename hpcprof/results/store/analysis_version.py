"""The version of the analyses, and of those that computed the figures of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hpcprof.common import __version__

if TYPE_CHECKING:  # a job is followed without what reads a database
    from hpcprof.results.store.tables import ProfileRow

ANALYSIS_VERSION = 64
"""Increased whenever an analysis gives other figures, so that collected profiles are read again."""


def earlier_version(profiles: Iterable[ProfileRow]) -> str:
    """Return the version of hpcprof whose figures of a run are outdated; empty if they are up to date."""
    earlier = [profile for profile in profiles if profile.analysis_version != ANALYSIS_VERSION]
    if not earlier:
        return ""
    versions = sorted({profile.made_by or "" for profile in earlier} - {"", __version__})
    return f"hpcprof {' and '.join(versions)}" if versions else "an earlier version of hpcprof"
