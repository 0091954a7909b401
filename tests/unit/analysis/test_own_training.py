"""A real training by the workload ddp: what it measured itself against what its profile says."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from hpcprof.analysis.collectives.per_rank import rank_collectives
from hpcprof.analysis.steps.phases import phases, step_times
from hpcprof.analysis.summaries.nvtx_gpu_projection import ranges
from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.readers.results import parse_result
from hpcprof.profiles.timeline import Timeline
from hpcprof.workloads.schema import RankResult

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(params=[0, 1])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Timeline, RankResult]:
    export = tmp_path / "rank0.sqlite"
    export.write_bytes(lzma.decompress((DATA / f"ddp_mlp_rank{request.param}.sqlite.xz").read_bytes()))
    return read(export), parse_result((DATA / f"ddp_mlp_rank{request.param}.json").read_bytes())


def test_the_profile_holds_the_captured_steps_and_their_phases(run: tuple[Timeline, RankResult]) -> None:
    timeline, result = run
    assert result.training is not None
    assert result.training.captured == [[2, 3]]
    found = phases(timeline).rows.set_index("phase")["steps"].to_dict()
    assert found == {"forward": 2, "backward": 2, "optimizer": 2, "(rest)": 2}


def test_a_steps_own_time_lies_between_its_gpu_work_and_its_range(run: tuple[Timeline, RankResult]) -> None:
    timeline, result = run
    on_gpu = step_times(timeline).rows["gpu_span_ns"]
    found = ranges(timeline).rows.set_index("range").loc["iteration"]
    own = result.step_ns[2:4]
    assert all(gpu < step for gpu, step in zip(on_gpu, own, strict=True))
    assert found["total_ns"] == pytest.approx(sum(own), rel=0.03)


def test_the_all_reduces_are_the_buckets_that_ddp_rebuilt(run: tuple[Timeline, RankResult]) -> None:
    timeline, result = run
    assert result.training is not None
    collectives = rank_collectives(timeline).rows
    assert collectives["bytes"].tolist() == [*result.training.bucket_bytes] * 2
    counts = ranges(timeline).rows.set_index("range")["instances"]
    assert [counts[f"allreduce {bucket}"] for bucket in (0, 1)] == [2, 2]
