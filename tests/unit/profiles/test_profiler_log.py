"""Warnings of profilers in the logs of ranks."""

from pathlib import Path

import pytest

from hpcprof.profiles.losses import LossKind
from hpcprof.profiles.profiler_log import logged_warnings

ROCPROFV3 = """
E20260301 12:00:01.123456 4711 output_stream.cpp:104] Opened result file: out/host/4711_results.db
W20260301 12:00:02.123456 47 output.hpp:93] rocprofv3 is dropping record from domain KERNELS. No space: 17
W20260301 12:00:03.123456 47 output.hpp:93] rocprofv3 is dropping record from domain KERNELS. No space: 21
W0301 12:00:02.123000 4711 torch/distributed/run.py:792] Setting OMP_NUM_THREADS
[W301 12:00:02.123456789 ProcessGroupNCCL.cpp:1250] Warning: destroy_process_group() was not called
W20260301 12:00:02.123456 4711 tool.cpp:501] duplicate kernel symbol data for kernel_id=3
"""
UNITRACE = """
[WARNING] Metric samples dropped.
[WARNING] learning rate is 0
[ERROR] Failed to get kernel timestamps (status = 0x78000001)
[ERROR] Failed to get kernel timestamps (status = 0x70000001)
[WARNING] Failed to destroy tracer (status = 0x1)
"""
DROPPED = "rocprofv3 is dropping record from domain KERNELS. No space: 17"


@pytest.mark.parametrize(
    ("kind", "log", "warnings"),
    [
        ("rocpd", ROCPROFV3, {DROPPED: 2}),
        ("rocprofv3", ROCPROFV3, {DROPPED: 2}),
        (
            "unitrace",
            UNITRACE,
            {"Metric samples dropped.": 1, "Failed to get kernel timestamps (status = 0x78000001)": 2},
        ),
        ("torch", ROCPROFV3 + UNITRACE, {}),
    ],
)
def test_warnings_of_the_profiler_in_the_log_of_its_rank_are_losses(
    tmp_path: Path, kind: str, log: str, warnings: dict[str, int]
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank00003.err").write_text(log)
    profile = tmp_path / "profiles" / "rank00003_results.db"
    found = logged_warnings(profile, kind, 3)
    assert {loss.detail: loss.count for loss in found} == warnings
    assert {loss.kind for loss in found} <= {LossKind.DIAGNOSTIC}
    assert not logged_warnings(profile, kind, 4)
    assert not logged_warnings(tmp_path / "logs" / "rank00003.db", kind, 3)
