"""Compressed profiles, unpacked into a private folder."""

from __future__ import annotations

import gzip
import lzma
import stat
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from hpcprof.profiles import input_bounds
from hpcprof.profiles.compressed import reader_of_compressed, unpacking

CONTENT = bytes(range(256)) * 8000


def zst(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


PACK: dict[str, Callable[[bytes], bytes]] = {"xz": lzma.compress, "gz": gzip.compress, "zst": zst}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, in which nothing may be left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.mark.parametrize("kind", PACK)
def test_a_file_is_unpacked_privately_and_removed(kind: str, tmp_path: Path, temporary: Path) -> None:
    file = tmp_path / f"rank0.sqlite.{kind}"
    # In several frames or members, as parallel programs write them.
    file.write_bytes(PACK[kind](CONTENT[:1000]) + PACK[kind](CONTENT[1000:]))
    with unpacking([file]) as found:
        target = found.files[file]
        assert target.name == "rank0.sqlite"
        assert target.read_bytes() == CONTENT
        (private,) = temporary.iterdir()
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert "unpacked 1 file (2.048 MB) into a private temporary folder" in found.sentence
        assert found.named(f"{target} is damaged.") == f"{file} is damaged."
    assert not [*temporary.iterdir()]
    assert file.exists()


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("damage", ["cut", "junk", "empty"])
def test_a_damaged_file_is_left_out_with_a_sentence(
    kind: str, damage: str, tmp_path: Path, temporary: Path
) -> None:
    file, whole = tmp_path / f"rank0.sqlite.{kind}", tmp_path / f"rank1.sqlite.{kind}"
    packed = PACK[kind](CONTENT)
    file.write_bytes({"cut": packed[: len(packed) // 2], "junk": b"not packed " * 9, "empty": b""}[damage])
    whole.write_bytes(packed)
    with unpacking([file, whole]) as found:
        if damage == "empty" and kind != "xz":  # an empty file is one of no members or frames
            return
        assert [*found.files] == [whole]
        (sentence,) = found.skipped
        assert sentence.startswith(f"{file} is damaged or truncated: ")
    assert not [*temporary.iterdir()]


@pytest.mark.parametrize("kind", PACK)
def test_a_bomb_is_left_out_with_a_sentence_and_leaves_nothing(
    kind: str, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_bounds, "ALWAYS_ALLOWED_BYTES", 1_000_000)
    file = tmp_path / f"rank0.sqlite.{kind}"
    file.write_bytes(PACK[kind](bytes(20_000_000)))
    with unpacking([file]) as found:
        assert not found.files
        (sentence,) = found.skipped
        assert "was not unpacked: it becomes larger than" in sentence
        assert not [path for path in temporary.rglob("*") if path.is_file()]
    assert not [*temporary.iterdir()]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rank0.sqlite.xz", "nsys"),
        ("rank0.trace.json.zst", "torch"),
        ("a.pt.trace.json.XZ", "torch"),
        ("rank0.trace.json.gz", None),  # the reader takes it as it is
        ("rank0_trace.json.gz", None),
        ("chrome_trace.json.gz", "unitrace"),
        (".rank0.sqlite.xz", None),
        ("notes.txt.xz", None),
        ("rank0.sqlite", None),
    ],
)
def test_compressed_profiles_are_known_by_their_names(name: str, kind: str | None) -> None:
    reader = reader_of_compressed(Path(name))
    assert (reader.name if reader else None) == kind
