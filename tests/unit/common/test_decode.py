"""Bytes become values, or an error that is expected."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

import hpcprof
from hpcprof.common.decode import from_json, last_lines, parse_count, read_file, read_text

PACKAGE = Path(hpcprof.__file__).parent
_OWN = (
    "common/decode.py",
    "profiles/",
    "workloads/",
    "node/",
    "analysis/explain/",
    "results/across/package.py",
)
"""Readers of profiles decode by themselves, and code on nodes has no msgspec."""


@pytest.mark.parametrize(
    "text", [b'{"a":"\xff"}', "\ud800", b"[" * 100_000, b"NaN", b"", b"1e999", b'"\\ud800"', b"\0"]
)
def test_damaged_json_is_one_kind_of_error(text: bytes | str) -> None:
    with pytest.raises(msgspec.DecodeError):
        from_json(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [("12\n", 12), ("-1", None), ("²", None), ("1e3", None), ("9" * 19, None), ("", None), ("0x1", None)],
)
def test_a_count_has_digits_alone(text: str, number: int | None) -> None:
    assert parse_count(text) == number


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xb2 bytes")
    assert read_text(tmp_path / "text") == "� bytes"
    with pytest.raises(OSError, match="larger than 4e-06 MB"):
        read_file(tmp_path / "text", 4)


def test_a_progress_bar_is_read_as_its_last_state(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"a\r\n\r 1 %\r99 %Traceback\n\nlast\r")
    assert last_lines(tmp_path / "log", 100) == (["a", "99 %Traceback", "", "last"], False)
    assert last_lines(tmp_path / "log", 12) == (["", "last"], True)
    (tmp_path / "log").write_bytes(b"")
    assert last_lines(tmp_path / "log", 100) == ([], False)
    (tmp_path / "log").write_bytes(b"token=secret\r 98 %\r 99 %\r")
    assert last_lines(tmp_path / "log", 19) == ([" 99 %"], True)


def test_json_is_decoded_in_one_place() -> None:
    calls = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        text = path.read_text()
        if name.startswith(_OWN) or "decode" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "msgspec.json.decode":
                calls.append(f"{name}:{node.lineno}")
    assert calls == []
