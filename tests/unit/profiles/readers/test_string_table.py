"""The texts of a timeline while it is built."""

from __future__ import annotations

from hpcprof.profiles.readers.string_table import StringTable


def test_an_endless_text_is_cut_and_others_stay_as_they_are() -> None:
    strings = StringTable()
    assert strings.add_all(["gemm<4>", "k" * 10_000, "k" * 1_000_000, "gemm<4>"]).tolist() == [0, 1, 2, 0]
    short, long, cut = strings.array().tolist()
    assert (short, len(long), len(cut), cut[-1]) == ("gemm<4>", 10_000, 65_537, "…")
