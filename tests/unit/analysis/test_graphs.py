"""CUDA graphs that nsys traced as a whole count as GPU time."""

from __future__ import annotations

import lzma
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcprof.analysis.gpu_time.breakdown import breakdown, kernel_classes, overlap
from hpcprof.analysis.steps.phases import phases, step_times
from hpcprof.analysis.summaries.kernels import kernels
from hpcprof.analysis.summaries.nvtx_gpu_projection import range_gpu
from hpcprof.profiles.possible_times import with_possible_times
from hpcprof.profiles.readers.nsys.reader import read

DATA = Path(__file__).parents[2] / "data"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"


@pytest.fixture
def change(tmp_path: Path) -> Callable[..., Path]:
    """An export in which five steps launch kernels and replay graphs 1 and 4, changed by statements."""

    def changed(*statements: str) -> Path:
        path = tmp_path / "rank0.sqlite"
        path.write_bytes(lzma.decompress((DATA / "cuda_graphs.sqlite.xz").read_bytes()))
        with sqlite3.connect(path) as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()
        return path

    return changed


def test_graphs_are_operations_of_their_own_and_no_kernels(change: Callable[..., Path]) -> None:
    timeline = read(change())
    assert (len(timeline.kernels), len(timeline.graphs), len(timeline.operations())) == (80, 10, 90)
    assert timeline.names(timeline.graphs.name)[:2] == ["CUDA graph 1", "CUDA graph 4"]
    assert timeline.graphs.start.tolist()[:2] == [9_711_261, 10_252_252]
    assert timeline.graphs.end.tolist()[:2] == [10_248_316, 10_790_619]
    assert kernels(timeline).rows["instances"].tolist() == [40, 40]
    (loss,) = timeline.origin.losses
    assert loss.sentence.startswith(
        "10 launches of CUDA graphs were traced as a whole: they count as compute"
    )


def test_the_time_of_graphs_is_compute(change: Callable[..., Path]) -> None:
    with_graphs = breakdown(read(change())).rows.iloc[0]
    path = change()
    with sqlite3.connect(path) as connection:
        (graphs,) = connection.execute(f"SELECT sum(end - start) FROM {GRAPHS}").fetchone()
        (alone,) = connection.execute("SELECT sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    connection.close()
    # On one stream nothing overlaps.
    assert with_graphs["compute_ns"] == graphs + alone
    assert kernel_classes(read(path)).rows["ns"].tolist() == [graphs + alone]
    without = breakdown(read(change(f"DROP TABLE {GRAPHS}"))).rows.iloc[0]
    assert without["compute_ns"] == alone


def test_steps_and_phases_last_until_their_graphs_end(change: Callable[..., Path]) -> None:
    timeline = read(change())
    replays = phases(timeline).rows.iloc[0]
    assert (replays["phase"], replays["steps"]) == ("replay", 5)
    # The first step's two replays, from the start of graph 1 to the end of graph 4.
    latency = step_times(timeline).rows["gpu_span_ns"].tolist()
    assert latency[0] == 10_790_619 - 9_070_462
    # The same program traced node by node took 1.65 ms a step and 1.08 ms for the replays.
    assert replays["gpu_span_p50_ns"] == pytest.approx(1_083_966, rel=0.02)
    assert sorted(latency)[2] == pytest.approx(1_649_020, rel=0.02)
    assert phases(read(change(f"DELETE FROM {GRAPHS}"))).rows["gpu_span_p50_ns"].tolist()[0] == 0


def test_graphs_hide_communication_like_kernels(change: Callable[..., Path]) -> None:
    communication = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 99, shortName = 99"
    name = "INSERT INTO StringIds VALUES (99, 'ncclDevKernel_AllReduce_Sum_f32_RING_LL')"
    beside = f"UPDATE {GRAPHS} SET start = start - 600000"
    row = overlap(read(change(name, communication, beside))).rows.iloc[0]
    assert row["overlapped_ns"] > 0.9 * row["comm_ns"]


def test_the_projection_of_nsys_leaves_graphs_out_and_so_do_we(change: Callable[..., Path]) -> None:
    # What nsys stats 2023.4 prints of this export: iteration alone, 80 operations.
    row = range_gpu(read(change())).rows.iloc[0]
    assert (row["range"], row["proj_total_ns"], row["gpu_ops"]) == ("iteration", 2_871_131, 80)
    assert len(range_gpu(read(change())).rows) == 1


def test_graphs_that_cannot_be_placed_are_counted(change: Callable[..., Path]) -> None:
    path = change(
        f"CREATE TABLE {GRAPHS}_V2 AS SELECT start, end, deviceId, streamId, graphId FROM {GRAPHS}",
        f"DROP TABLE {GRAPHS}",
        f"UPDATE {GRAPHS}_V2 SET start = NULL WHERE rowid <= 3",
    )
    timeline = with_possible_times(read(path))
    assert len(timeline.graphs) == 7
    sentences = [loss.sentence for loss in timeline.origin.losses]
    assert "3 of 10 CUDA graphs have no valid start and are left out" in sentences
    # Old exports do not tell the process; it is the only one that made calls.
    assert set(timeline.graphs.process.tolist()) == set(timeline.calls.process.tolist())
