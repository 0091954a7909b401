"""The results files that a workload leaves: one JSON file a rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hpcprof.workloads.schema import SCHEMA_VERSION, RankResult


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
            ranks.append(parse_result(path.read_bytes()))
        except (OSError, ValueError) as error:
            damaged.append(f"{path}: {error}.")
    return Results(ranks, damaged)


def parse_result(text: bytes | str) -> RankResult:
    """Read what `hpcprof.workloads.schema.to_json` wrote; keys that the schema does not know are ignored.

    Raises
    ------
    ValueError
        With one sentence: not JSON, another schema version, a missing key, a wrong type, or lists of
        different lengths.
    """
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"the text is not JSON: {error}") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema_version is {version!r}: this hpcprof reads version {SCHEMA_VERSION}")
    points = data.get("points")
    for point in (data, *(points if isinstance(points, list) else ())):
        modes = point.get("modes") if isinstance(point, dict) else None
        for part in (point, *(modes.values() if isinstance(modes, dict) else ())):
            correctness = part.get("correctness") if isinstance(part, dict) else None
            if isinstance(correctness, dict) and correctness.get("relative_error", 0) is None:
                correctness["relative_error"] = math.nan
    try:
        result = msgspec.convert(data, RankResult)
    except msgspec.ValidationError as error:
        raise ValueError(f"{error}".replace("`", "")) from None
    for one in (result, *result.points):
        _check_lengths(one)
    return result


def _check_lengths(result: RankResult) -> None:
    steps = len(result.step_ns)
    lists = {f"phase_ns.{name}": times for name, times in result.phase_ns.items()}
    if result.latency_ns is not None:
        lists["latency_ns"] = result.latency_ns
    if result.marked_ns:
        lists["marked_ns"] = result.marked_ns
    for key, times in lists.items():
        if len(times) != steps:
            raise ValueError(f"{key} has {len(times)} times, but step_ns has {steps}")
