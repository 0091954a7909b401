"""Fixtures of the readers' tests: the stored profiles, unpacked once."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

DATA = Path(__file__).parents[3] / "data"


@pytest.fixture(scope="session")
def nsys_bytes() -> bytes:
    """A real export."""
    return lzma.decompress((DATA / "sp_bf16_rank0.sqlite.xz").read_bytes())


@pytest.fixture
def export(tmp_path: Path, nsys_bytes: bytes) -> Path:
    """A real export that a test may change."""
    path = tmp_path / "profile.sqlite"
    path.write_bytes(nsys_bytes)
    return path


@pytest.fixture(scope="session")
def torch_trace() -> Path:
    """A real PyTorch trace."""
    return DATA / "ddp_step_rank0.pt.trace.json.gz"
