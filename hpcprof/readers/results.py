"""The results files that a workload leaves: one JSON file a rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcprof.workloads.schema import RankResult, from_json


@dataclass(frozen=True)
class Results:
    """The ranks' results in the order of their ranks, and a sentence for each file that is damaged."""

    ranks: list[RankResult]
    damaged: list[str]


def read_results(run_directory: Path) -> Results:
    """Read every results file of a run; a damaged one is named and left out."""
    ranks, damaged = [], []
    for path in sorted((run_directory / "results").glob("rank*.json")):
        try:
            ranks.append(from_json(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            damaged.append(f"{path}: {error}.")
    return Results(ranks, damaged)
