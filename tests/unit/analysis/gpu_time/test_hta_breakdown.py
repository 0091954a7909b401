"""The figures of HolisticTraceAnalysis 0.5.0, kept from a run of it on the traces in ``tests/data``."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from hpcprof.profiles.readers.kineto.reader import read
from tests.peers import parity

DATA = Path(__file__).parents[3] / "data"
EXPECTED: dict[str, Any] = json.loads(lzma.decompress((DATA / "hta_expected.json.xz").read_bytes()))
TRACES = sorted(EXPECTED)
VARIANTS = ["as recorded", "without GPU annotations"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("trace", TRACES)
def test_in_its_microseconds_breakdown_and_idle_are_its_figures(
    tmp_path: Path, trace: str, variant: str
) -> None:
    folder = parity.variants(DATA / trace, tmp_path)[variant]
    parity.check_rounded(read(folder / trace), EXPECTED[trace][variant]["rounded"], rank=0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("trace", TRACES)
def test_without_its_rounding_every_figure_is_its_figure(tmp_path: Path, trace: str, variant: str) -> None:
    folder = parity.variants(DATA / trace, tmp_path)[variant]
    timeline = read(folder / trace)
    parity.check_exact(timeline, EXPECTED[trace][variant]["exact"], rank=0)
    parity.check_classes([timeline], EXPECTED[trace][variant]["exact"])
