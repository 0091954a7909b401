"""Leads from the findings of a run to what is to blame: figures in words, functions, and slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from hpcprof.analysis.explain.evidence_words import in_words
from hpcprof.analysis.explain.explanation import Cause, Evidence, Explanation, Finding
from hpcprof.analysis.explain.slices import culprit_of
from hpcprof.analysis.explain.sources import MOST_RANKS, sources_of
from hpcprof.profiles.timeline import Timeline


def with_culprits(
    explanation: Explanation,
    tables: Mapping[str, pd.DataFrame],
    timelines: Mapping[int, Timeline],
) -> Explanation:
    """Return an explanation whose findings lead to what shows them: in words, in source and timeline."""

    def led(finding: Finding) -> Finding:
        # Each timeline of a large run is read when it is looked at.
        ranks = finding.ranks[:MOST_RANKS]
        where = "" if finding.where in _whole_step(timelines, ranks) else finding.where
        return replace(
            finding,
            evidence_text=tuple(_said(finding, one, tables) for one in finding.evidence),
            source=sources_of(finding.cause, where, ranks, timelines),
            culprit=culprit_of(finding.cause, where, ranks, timelines),
        )

    return explanation.changed(led)


def _said(finding: Finding, evidence: Evidence, tables: Mapping[str, pd.DataFrame]) -> str:
    """Return a figure in words; those of an incomplete profile are the counts that suffer."""
    said = in_words(tables, evidence)
    suffers = finding.cause is Cause.CAPTURE_INCOMPLETE and evidence.analysis != "rank_collectives"
    return f"{said}, which may be too few" if suffers else said


def _whole_step(timelines: Mapping[int, Timeline], ranks: tuple[int, ...]) -> set[str]:
    """Return what the whole step is called where a finding says where it is."""
    chosen = (timelines[rank].step_range for rank in ranks if rank in timelines)
    return {"step", *(one.name for one in chosen if one is not None)}
