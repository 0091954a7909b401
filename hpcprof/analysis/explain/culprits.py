"""Leads from the findings of a run to what is to blame: figures in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from hpcprof.analysis.explain.evidence_words import in_words
from hpcprof.analysis.explain.explanation import Explanation, Finding


def with_culprits(explanation: Explanation, tables: Mapping[str, pd.DataFrame]) -> Explanation:
    """Return an explanation whose findings say in words what shows them.

    Parameters
    ----------
    explanation : Explanation
    tables : mapping of str to DataFrame
        The analyses over all ranks.
    """

    def led(finding: Finding) -> Finding:
        return replace(
            finding,
            evidence_text=tuple(in_words(tables, one) for one in finding.evidence),
            alternatives=tuple(map(led, finding.alternatives)),
        )

    return replace(
        explanation,
        findings=tuple(map(led, explanation.findings)),
        hidden=tuple(map(led, explanation.hidden)),
    )
