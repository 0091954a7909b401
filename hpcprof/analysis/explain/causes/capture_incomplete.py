"""Incomplete profiles: ranks, events or times are missing."""

from hpcprof.analysis.explain.cause import CauseDeclaration

CAPTURE_INCOMPLETE = CauseDeclaration(
    name="capture_incomplete",
    title="incomplete profile",
    meaning="the profile is incomplete",
    about="the profiler dropped events or warns that it did, ranks are missing, launched kernels are not in "
    "the profile, or times are impossible",
    remedy="Profile every rank, and all kinds of events.",
    has_slice=False,
)
