"""The table that rank 0 prints."""

from __future__ import annotations

from hpcprof.workloads.schema import SCHEMA_VERSION, Correctness, ModeResult, RankResult
from hpcprof.workloads.sequence_parallel.efficiency import Bound, mode_figures
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.sequence_parallel.result_table import result_table

RIGHT = Correctness(True, 1e-6, 1e-5, 8, "float64")


def result(serial_ns: int, other_ns: int, bound_ns: int) -> RankResult:
    modes = {
        name: ModeResult(
            [time] * 3,
            phases,
            [time] * 3,
            RIGHT,
            figures=mode_figures(
                [[time] * 3] * 4,
                PointParameters(),
                device="NVIDIA H200",
                backend="nccl",
                bound=Bound([bound_ns] * 3, {"matmuls forward": bound_ns}),
                serial_ns=[serial_ns] * 3,
                marks_pct=0.1,
                marked_ns=[time + 20_000] * 3 if phases else None,
            ),
        )
        for name, time, phases in (
            ("serial", serial_ns, {"allgather": [10] * 3, "matmul_1": [30] * 3}),
            ("copy-engine", other_ns, {}),
        )
    }
    return RankResult(
        schema_version=SCHEMA_VERSION,
        workload="sequence-parallel",
        mode="serial",
        rank=0,
        world_size=4,
        local_rank=0,
        host="h",
        device="NVIDIA H200",
        backend="nccl",
        parameters={},
        versions={},
        profiler="none",
        step_ns=[],
        phase_ns={},
        summary={},
        latency_ns=None,
        correctness=None,
        notes=[],
        modes=modes,
        bound_ns=bound_ns,
    )


def test_the_table_of_several_modes_says_how_near_each_is_to_perfect_overlap() -> None:
    lines = result_table(
        result(4_000_000, 3_400_000, 3_200_000), PointParameters(), 1, {"serial": 1e-6, "copy-engine": 2e-6}
    ).splitlines()
    (serial,) = [line.split() for line in lines if line.startswith("serial ")]
    (other,) = [line.split() for line in lines if line.startswith("copy-engine ")]
    # 3.2 / 4.0 and 3.2 / 3.4 of the bound; 0 and 0.6 of the 0.8 ms that can be hidden.
    assert serial[-2:] == ["80.0", "0.0"]
    assert other[-2:] == ["94.1", "75.0"]
    assert "fastest: copy-engine; n = 3 steps per mode, in turns" in lines
    assert "serial: p50 4.020 ms with marked phases, 4.000 without" in lines
    assert all(len(line) <= 80 for line in lines if line.startswith(("serial ", "copy-engine ", "ms,")))
