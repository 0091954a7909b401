"""Fixtures of the analyses' tests."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from hpcprof.profiles.kernel_report import KernelReport
from hpcprof.profiles.readers.kineto import reader as torch_trace
from hpcprof.profiles.readers.ncu import reader as ncu
from hpcprof.profiles.readers.nsys import reader as nsys
from hpcprof.profiles.timeline import Timeline

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="session")
def sequence_parallel(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """A real timeline of 43 steps."""
    path = tmp_path_factory.mktemp("profiles") / "rank00000.sqlite"
    path.write_bytes(lzma.decompress((DATA / "sp_bf16_rank0.sqlite.xz").read_bytes()))
    return nsys.read(path)


@pytest.fixture(scope="session")
def torch_step() -> Timeline:
    """One step of a real PyTorch trace."""
    return torch_trace.read(DATA / "ddp_step_rank0.pt.trace.json.gz")


@pytest.fixture(scope="session")
def kernel_report() -> KernelReport:
    """Six kernels, measured with all that a roofline needs."""
    return ncu.read(DATA / "ncu/roofline.raw.csv.gz")


@pytest.fixture(scope="session")
def allocator() -> Timeline:
    """Three steps of a real PyTorch trace on one GPU that records memory and waits for streams."""
    return torch_trace.read(DATA / "allocator_rank0.pt.trace.json.gz")
