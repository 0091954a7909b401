"""Tests of records of numbers that are read as columns."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from hpcprof.profiles.readers.rocprof.equal_records import equal_records

RECORDS: list[dict[str, Any]] = [
    {"size": 8, "at": {"start": 10**18 + row, "end": 7 * row}, "sizes": {"x": {"y": row % 3}}, "last": 0}
    for row in range(10_000)
]
"""More than a block of them."""


def text(record: Any) -> str:
    return json.dumps(record, separators=(",", ":"))


TEXTS = [*map(text, RECORDS)]


def written(texts: Iterable[str]) -> msgspec.Raw:
    return msgspec.Raw(f"[{','.join(texts)}]".encode())


def test_records_with_equal_fields_are_the_columns_that_a_parser_finds() -> None:
    found = equal_records(written(TEXTS))
    assert found is not None
    first, columns = found
    assert json.loads(first) == RECORDS[0]
    assert {name: values.tolist() for name, values in columns.items()} == {
        "size": [8] * 10_000,
        "at.start": [one["at"]["start"] for one in RECORDS],
        "at.end": [one["at"]["end"] for one in RECORDS],
        "sizes.x.y": [one["sizes"]["x"]["y"] for one in RECORDS],
        "last": [0] * 10_000,
    }


@pytest.mark.parametrize("row", [0, 50, 9_999])
@pytest.mark.parametrize(
    "record",
    [
        {**RECORDS[0], "size": -8},
        {**RECORDS[0], "size": 8.5},
        {**RECORDS[0], "size": "8"},
        {**RECORDS[0], "size": None},
        {**RECORDS[0], "size": True},
        {**RECORDS[0], "size": 1 << 63},
        {**RECORDS[0], "size": []},
        {**RECORDS[0], "more": 1},
        {key: RECORDS[0][key] for key in ("at", "size", "sizes", "last")},
        {key.replace("size", "si7ze"): value for key, value in RECORDS[0].items()},
        {key.replace("size", "size7"): value for key, value in RECORDS[0].items()},
        {"7": 1},
        {},
        [],
        7,
    ],
)
def test_a_record_that_differs_is_left_to_a_parser(row: int, record: Any) -> None:
    assert equal_records(written([*TEXTS[:row], text(record), *TEXTS[row + 1 :]])) is None


@pytest.mark.parametrize(
    "records", [[], [7, 8], [{}, {}], [{"size": -1}] * 2, [{"s,1": 1}] * 2, [{"s,": 1}] * 2]
)
def test_lists_of_other_records_are_left_to_a_parser(records: list[Any]) -> None:
    assert equal_records(written(map(text, records))) is None
