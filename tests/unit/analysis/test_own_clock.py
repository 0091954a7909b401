"""The phases of a profile against the times that the benchmark itself measured in the same run."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from hpcprof.analysis.steps.phases import phases
from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.readers.results import parse_result

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_profile_gives_the_phase_times_that_the_benchmark_measured(rank: int, tmp_path: Path) -> None:
    result = parse_result((DATA / f"sp_serial_rank{rank}.json").read_bytes())
    export = tmp_path / "rank0.sqlite"
    export.write_bytes(lzma.decompress((DATA / f"sp_serial_rank{rank}.sqlite.xz").read_bytes()))
    found = phases(read(export)).rows.set_index("phase")["gpu_span_p50_ns"].to_dict()
    del found["(rest)"]
    assert found.keys() == result.phase_ns.keys()
    for name, profiled in found.items():
        own = result.summary[name].p50_ns
        # An event lies before the launch that it times: the benchmark's time is the longer one.
        assert 0 < own - profiled < max(10_000, 0.02 * own), name
    assert sum(found.values()) < result.summary["step"].p50_ns
