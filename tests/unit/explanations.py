"""Explanations of a step of 100 ms, for tests of what is made of them."""

from __future__ import annotations

from dataclasses import replace

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explanation import (
    Evidence,
    Explanation,
    Finding,
    NotJudged,
    StepSummary,
)

MS = 1_000_000
STEP = StepSummary(100 * MS, 6, 2, 6, 0.4)


def finding(saving: float | None, low: float | None = None, cause: Cause = Cause.HOST_WORK) -> Finding:
    """Return a finding that saves ``saving`` ms of a step of 100 ms, at least ``low``."""
    estimate = None if saving is None else round(saving * MS)
    least = estimate if low is None else round(low * MS)
    evidence = (Evidence("idle_causes", 0, "idle_ns_per_step", 13 * MS),)
    text = ("rank 0: the GPU is idle for 13.00 ms of a step while the host is in data",)
    return Finding(
        cause,
        (0, 1),
        "data",
        estimate,
        least,
        estimate,
        saving,
        evidence,
        "Prefetch.",
        "high",
        evidence_text=text,
    )


def explained(*findings: Finding, step: StepSummary = STEP) -> Explanation:
    """Return an explanation with these findings."""
    hidden = (replace(finding(0), cost_ns=20 * MS),)
    return Explanation(findings, hidden, (NotJudged("contention", "one rank was profiled"),), step)
