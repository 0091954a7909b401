"""The results files of a workload: one JSON file per rank."""

import math
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.decode import from_json, read_file
from hpcprof.workloads.schema import SCHEMA_VERSION, ModeResult, RankResult

# In version 1 the first of several modes also filled these.
_FIRST_MODE_FIELDS: dict[str, Any] = {
    "step_ns": [],
    "phase_ns": {},
    "summary": {},
    "latency_ns": None,
    "correctness": None,
    "figures": None,
    "marked_ns": [],
}


class ResultFiles(msgspec.Struct, frozen=True):
    """The results in the order of their ranks, and a sentence for each damaged file."""

    ranks: list[RankResult]
    damaged: list[str]


def read_results(run_directory: Path) -> ResultFiles:
    """Read every results file of a run; a damaged one is named and left out."""
    ranks, damaged = [], []
    for path in sorted((run_directory / "results").glob("rank*.json")):
        try:
            ranks.append(parse_result(read_file(path)))
        except (OSError, ValueError) as error:
            damaged.append(f"{path}: {error}.")
    return ResultFiles(ranks, damaged)


def parse_result(text: bytes | str) -> RankResult:
    """Read what `hpcprof.workloads.schema.to_json` wrote, in this version or an earlier one.

    Keys that are not in the schema are ignored. Raises ValueError if the text is not JSON or of an unknown
    schema version, a key is missing, a type is wrong, or lists differ in length.
    """
    try:
        data = from_json(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"the text is not JSON: {error}") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version not in range(1, SCHEMA_VERSION + 1):
        raise ValueError(f"schema_version is {version!r}: this hpcprof reads versions up to {SCHEMA_VERSION}")
    points = data.get("points")
    for point in (data, *(points if isinstance(points, list) else ())):
        if not isinstance(point, dict):
            continue
        modes = point.get("modes")
        if version == 1:
            point["schema_version"] = SCHEMA_VERSION
            point.update(_FIRST_MODE_FIELDS if modes else {})
        for part in (point, *(modes.values() if isinstance(modes, dict) else ())):
            correctness = part.get("correctness") if isinstance(part, dict) else None
            if isinstance(correctness, dict) and correctness.get("relative_error", 0) is None:
                correctness["relative_error"] = math.nan
    try:
        result = msgspec.convert(data, RankResult)
    except msgspec.ValidationError as error:
        raise ValueError(f"{error}".replace("`", "")) from None
    for point in (result, *result.points):
        _check_lengths(point)
        for mode in point.modes.values():
            _check_lengths(mode)
    return result


def _check_lengths(result: RankResult | ModeResult) -> None:
    steps = len(result.step_ns)
    lists = {f"phase_ns.{name}": times for name, times in result.phase_ns.items()}
    if result.latency_ns is not None:
        lists["latency_ns"] = result.latency_ns
    if result.marked_ns:
        lists["marked_ns"] = result.marked_ns
    for key, times in lists.items():
        if len(times) != steps:
            raise ValueError(f"{key} has {len(times)} times, but step_ns has {steps}")
