"""Steps of simulated programs are predicted on more ranks, and what is ambiguous is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest
from msgspec import structs

from hpcprof.analysis.explain.changes import parse_changes
from hpcprof.analysis.predict.network import (
    RING,
    Sample,
    Segment,
    fit_run_network,
    hops,
    operation_of,
    volume,
)
from hpcprof.analysis.predict.noise import noise_of
from hpcprof.analysis.predict.operation_graph import MESSAGES, operation_graphs
from hpcprof.analysis.predict.scale import Predictor, curve_notes
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.profiles.timeline import Floats
from hpcprof.results.across.predictions import KeptPrediction, calibrated
from hpcprof.results.ask.site_measurements import NETWORK, fit_network, keep_measurement, network_of_site

STEPS = 40
LATENCY, PER_BYTE = 5_000.0, 0.1


def transfer(size: float, ranks: int) -> float:
    """Return what an all-reduce takes on a tree, in ns."""
    return LATENCY * 2 * math.ceil(math.log2(ranks)) + size * PER_BYTE * 2 * (ranks - 1) / ranks


def program(
    ranks: int,
    noise: float | Floats = 0.02,
    slow: float = 0.0,
    groups: int = 1,
    seed: int = 1,
    common: float = 0.0,
) -> tuple[pd.DataFrame, float]:
    """Simulate steps that compute and reduce; return the operations and the mean step in ns.

    ``slow`` is the standard deviation of ranks that are always slower, and ``common`` that of steps that are
    slower on all ranks; the ranks reduce in ``groups``.
    """
    generator = np.random.default_rng(seed)
    own = 1 + slow * generator.standard_normal(ranks)
    now = np.zeros(ranks)
    rows: list[tuple[object, ...]] = []
    for step in range(STEPS):
        together = 1 + common * generator.standard_normal() if common else 1.0
        for layer, size in enumerate((1e6, 4e6, 1e7)):
            work = 1e7 * own * together * (1 + noise * generator.standard_normal(ranks))
            start = now + work
            blocks = start.reshape(groups, -1).max(axis=1)
            end = np.repeat(blocks + transfer(size, ranks // groups), ranks // groups)
            for rank in range(ranks):
                group = f"g{rank * groups // ranks}"
                rows.append((rank, step, f"layer-{layer}", "compute", now[rank], work[rank], "", -1))
                length = end[rank] - start[rank]
                rows.append((rank, step, "all-reduce", "collective", start[rank], length, group, size))
            now = end
    columns = ["rank", "step", "name", "kind", "start_ns", "duration_ns", "group", "bytes"]
    table = pd.DataFrame(rows, columns=columns).assign(stage=-1, microbatch=-1, chunk=-1, replica=-1, peer=-1)
    table = table.astype(dict.fromkeys(("start_ns", "duration_ns", "bytes"), np.int64))
    return table, float(now.max() / STEPS)


def test_a_step_on_more_ranks_waits_for_the_slowest_and_the_network() -> None:
    predictor = Predictor(program(4)[0])
    for ranks in (16, 128):
        truth = program(ranks, seed=2)[1]
        found = predictor.predict(ranks)
        assert found.step.value == pytest.approx(truth, rel=0.01)
        assert found.step.low <= truth <= found.step.high
        assert sum(found.account.values()) == found.step.value
        off = abs(found.step.value - truth)
        assert all(off < abs(line - truth) for line in found.baselines.values())
        assert (found.mesh, found.network) == ({"data": ranks}, "run")
    assert predictor.predict(4).step.value == pytest.approx(program(4)[1], rel=0.005)


def test_ranks_that_are_always_slower_make_the_slowest_of_many_slower_still() -> None:
    predictor = Predictor(program(4, noise=0.005, slow=0.03)[0])
    found = predictor.predict(128)
    truths = [program(128, noise=0.005, slow=0.03, seed=seed)[1] for seed in range(3)]
    assert found.step.low <= np.mean(truths) <= found.step.high
    assert found.limits == "wait_for_peer"
    assert found.step.high - found.step.low > 0.03 * found.step.value


def test_the_interval_allows_for_few_steps_and_few_ranks() -> None:
    steady, varying, uneven = (
        Predictor(program(2, noise=0.005, **kind)[0], ranks_per_node=32).predict(32)  # type: ignore[arg-type]
        for kind in ({}, {"common": 0.1}, {"slow": 0.03})
    )
    widths = [(one.step.high - one.step.low) / one.step.value for one in (steady, varying, uneven)]
    assert widths[0] < 0.04
    # The mean of 40 steps has a standard error of 0.1 / sqrt(40).
    assert widths[1] > 2 * 1.645 * 0.1 / STEPS**0.5 * 0.7
    assert widths[2] > 1.2 * widths[0]


def test_lasting_differences_are_believed_where_the_rest_does_not_explain_them() -> None:
    generator = np.random.default_rng(3)
    passing = 1e6 * (1 + 0.02 * generator.standard_normal((1, 4, 40)))
    assert noise_of(passing, np.zeros(1, np.int64), generator).between() == 0
    lasting = passing * np.array([0.97, 0.99, 1.01, 1.03])[None, :, None]
    noise = noise_of(lasting, np.zeros(1, np.int64), generator)
    assert noise.between() == pytest.approx(0.026, rel=0.25)
    drawn = [noise.between(generator) for _ in range(200)]
    assert np.quantile(drawn, 0.05) < 0.02 < 0.04 < np.quantile(drawn, 0.95)
    # One unit does not show whether others differ: some draws believe that they do, as steps do.
    alone = noise_of(passing[:, :1], np.zeros(1, np.int64), generator)
    assert (alone.between(), max(alone.between(generator) for _ in range(20)) > 0.01) == (0, True)


def test_rare_pauses_are_no_tail_of_the_ordinary_noise() -> None:
    generator = np.random.default_rng(2)
    work = 1e6 * (1 + 0.01 * generator.standard_normal((1, 4, 100)))
    work.reshape(-1)[[7, 133, 260, 381]] += 5e6
    noise = noise_of(work, np.zeros(1, np.int64), generator)
    long = noise.pauses[noise.pauses > 0]
    assert (noise.pauses > 0).mean() == pytest.approx(0.01, rel=0.5)
    assert long.mean() == pytest.approx(5e6, rel=0.2)
    assert noise.rest.max() < 1e5
    # On half as much work a pause is as long.
    assert noise.times(0.5)[noise.pauses > 0].mean() == pytest.approx(0.5e6 + long.mean(), rel=0.02)


def test_pauses_of_two_units_in_one_step_have_one_cause_if_they_are_alike() -> None:
    generator = np.random.default_rng(2)
    quiet = 1e6 * (1 + 0.01 * generator.standard_normal((8, 2, 20)))
    for lengths, common in (((5e6, 1e6), False), ((5e6, 4e6), True)):
        work = quiet.copy()
        work[0, :, 7] += lengths
        pauses = noise_of(work, np.arange(8), generator).pauses
        assert pauses.any() is np.bool_(not common)


@pytest.mark.parametrize("where", [(slice(None), slice(None), 50), (0, slice(1, 2), slice(None))])
def test_what_all_units_or_one_always_take_is_no_rare_pause(where: tuple[int | slice, ...]) -> None:
    generator = np.random.default_rng(2)
    work = 1e6 * (1 + 0.01 * generator.standard_normal((1, 16, 100)))
    work[where] += 5e6
    assert not noise_of(work, np.zeros(1, np.int64), generator).pauses.any()


def test_strong_scaling_divides_the_work_and_not_the_communication() -> None:
    found = Predictor(program(4, noise=0.0)[0]).predict(16, "strong")
    sizes = (1e6, 4e6, 1e7)
    assert found.step.value == pytest.approx(3 * 1e7 / 4 + sum(transfer(one, 16) for one in sizes), rel=0.01)
    assert found.limits == "communication"
    assert 0 < found.efficiency_pct < 100


def test_strong_scaling_keeps_what_the_host_takes() -> None:
    table = program(4, noise=0.0)[0]
    follows, limited = (
        Predictor(table, ranks_per_node=16, computing=computing).predict(16, "strong")
        for computing in (float, lambda size: max(size, 0.6))
    )
    assert limited.step.value - follows.step.value == pytest.approx(3 * 1e7 * (0.6 - 1 / 4), rel=0.01)
    # Kernels whose time does not follow the size make the step longer, and never shorter.
    above, below = limited.step.high - limited.step.value, limited.step.value - limited.step.low
    assert above < 0.1 * limited.step.value
    uneven = Predictor(table, ranks_per_node=16, computing=lambda size: 0.2 + 0.8 * size)
    wider = uneven.predict(16, "strong").step
    assert wider.high - wider.value > 3 * (wider.value - wider.low) > 0
    assert below > 0
    assert any("does not follow the size" in one for one in limited.not_modelled)


def test_checks_correct_predictions_of_the_same_scaling() -> None:
    weak = Predictor(program(4, noise=0.0)[0]).predict(16)
    check = KeptPrediction(
        "run", 4, 16, "weak", 100, 90, 110, unchanged=100, log2=100, made_utc="", actual=120
    )
    assert calibrated(weak, [check]).step.value == pytest.approx(weak.step.value * 1.2**0.5)
    assert calibrated(weak, [structs.replace(check, scaling="strong")]) == weak


def test_two_of_39_draws_are_beyond_each_end_of_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter(np.linspace(0.62, 1.38, 39))
    monkeypatch.setattr(Predictor, "_draw", lambda *arguments: next(draws))
    step = Predictor(program(2)[0]).predict(2).step
    assert (step.low / step.value, step.high / step.value) == pytest.approx((0.64, 1.36), abs=2e-3)


def test_one_rank_alone_does_not_communicate() -> None:
    table = program(4, noise=0.0)[0]
    found = Predictor(table[table["step"] < 2]).predict(1)
    assert found.step.value == pytest.approx(3e7, rel=1e-3)
    assert found.account["communication_ns"] == 0
    assert any("fewer than three" in one for one in found.not_modelled)


def test_the_network_follows_from_sizes_and_several_runs() -> None:
    rows = [Sample("AllReduce", size, 4, transfer(size, 4)) for size in (8.0, 1e5, 1e7)]
    network = fit_run_network(rows)
    assert network.time("AllReduce", 1e6, 64) == pytest.approx(transfer(1e6, 64), rel=0.01)
    one_size = fit_run_network(rows[-1:])
    assert (one_size.source, network.source) == ("literature", "run")
    assert one_size.time("AllReduce", 1e7, 4) == pytest.approx(transfer(1e7, 4))
    unknown = fit_run_network([Sample("AlltoAll", 0.0, 4, 1e6)])
    assert unknown.time("AlltoAll", 0.0, 64) < 2e6
    for latency in (0.1, 0.9):
        few = fit_run_network([Sample("AllReduce", 8.0, 4, 1e4)], latency=latency)
        # Eight bytes take no time beyond the latency, and the latency of a hop is no large share of 10 MB.
        assert few.time("AllReduce", 8.0, 16) == pytest.approx(2e4, rel=1e-3)
        large = fit_run_network(rows[-1:], latency=latency)
        assert large.time("AllReduce", 1e7, 64) == pytest.approx(transfer(1e7, 64), rel=0.1)
    assert [hops("AllReduce", 8, RING), hops("AllReduce", 8, "tree")] == [14, 6]
    assert volume("AllGather", 4) == 0.75


@pytest.mark.parametrize("latency", [5e3, 3e6])
def test_a_slow_network_does_not_tell_a_ring(latency: float) -> None:
    # Hops of milliseconds are far from the usual ones by a tree and by a ring.
    rows = [Sample("Send", 4096, 2, 4 * latency), Sample("AllReduce", 8, 4, 4 * latency)]
    assert fit_run_network(rows).time("AllReduce", 8, 32) == pytest.approx(10 * latency, rel=1e-3)
    # An all-to-all that takes as long does not tell one either: its latency is the usual one, by assumption.
    rows = [Sample("AlltoAll", 1.6e6, 4, 1.5e7), Sample("AllReduce", 8, 4, 4 * latency)]
    assert fit_run_network(rows).segments["AllReduce"][0].algorithm == "tree"


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("a2a-row", "AlltoAll"),
        ("Transpose_2", "AlltoAll"),
        ("ag.layer0", "AllGather"),
        ("grad-rs", "ReduceScatter"),
        ("all-to-all", "AlltoAll"),
        ("params-sync", "AllReduce"),
    ],
)
def test_names_of_collectives_tell_their_operation(name: str, operation: str) -> None:
    assert operation_of(name, "collective") == operation


def test_two_numbers_of_ranks_tell_a_ring_from_a_tree() -> None:
    ring = Segment(0, LATENCY, PER_BYTE, RING)
    rows = [
        Sample("AllReduce", size, n, ring.time("AllReduce", size, n)) for size in (1e4, 1e7) for n in (2, 4)
    ]
    for chance in (0.1, 0.5, 0.9):
        network = fit_run_network(rows, chance)
        assert network.time("AllReduce", 1e4, 64) == pytest.approx(ring.time("AllReduce", 1e4, 64), rel=0.01)
    # One number of ranks does not tell: a quarter of the networks that are drawn have rings.
    alone = [fit_run_network(rows[1::2], chance).segments["AllReduce"][0].algorithm for chance in (0.2, 0.5)]
    assert alone == [RING, "tree"]


@pytest.mark.parametrize(
    ("size", "growth", "algorithm"), [(8.0, 4, RING), (8.0, 64, "tree"), (1e9, 64, RING)]
)
def test_a_ring_that_is_far_slower_than_a_tree_is_not_drawn(size: float, growth: int, algorithm: str) -> None:
    rows = [Sample("AllReduce", size, 4, Segment(0, LATENCY, PER_BYTE).time("AllReduce", size, 4))]
    assert fit_run_network(rows, 0.05, growth=growth).segments["AllReduce"][0].algorithm == algorithm


def test_the_interval_allows_for_slower_links_between_more_nodes() -> None:
    # Without noise, and with a bandwidth that large messages leave no doubt about.
    step = [("compute", 0.0, 10.0, -1), ("AllReduce", 10.0, 20.0, -1)]
    table = timeline(dict.fromkeys(range(4), step)).assign(bytes=1 << 30)
    inside, across = (Predictor(table, ranks_per_node=node).predict(8).step for node in (8, 4))
    assert inside.value == across.value
    assert inside.high < 1.1 * inside.value < 1.3 * across.value < across.high < 1.7 * across.value


def test_break_points_of_a_measured_network_are_found_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(4)

    def time(size: int, ranks: int) -> float:
        latency, per_byte = (2_000, 0.4) if size <= 65_536 else (12_000, 0.02)
        slower = 3 if ranks > 4 else 1
        return slower * Segment(0, latency, per_byte).time("AllReduce", size, ranks)

    samples = [
        Sample("AllReduce", size, ranks, time(size, ranks) * (1 + 0.02 * generator.standard_normal()))
        for size in (8 << power for power in range(24))
        for ranks in (2, 4, 8, 16)
    ]
    samples[5] = Sample("AllReduce", samples[5].bytes, samples[5].ranks, 50 * samples[5].own_ns)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert network_of_site("a") is None
    path = keep_measurement("a", NETWORK, fit_network("a", "run", 4, samples))
    network = network_of_site("a")
    assert network is not None
    assert next(one.bytes for one in network.segments["AllReduce"]) == 65_536
    for size, ranks in ((8, 4), (65_536, 2), (1 << 20, 4), (1 << 20, 16), (1 << 26, 64)):
        assert network.time("AllReduce", size, ranks) == pytest.approx(time(size, ranks), rel=0.05)
    table = program(2, noise=0.0)[0]
    slow, run = (Predictor(table, site=one).predict(8) for one in (network, None))
    assert (slow.network, run.network) == ("site", "run")
    assert slow.account["communication_ns"] > 2 * run.account["communication_ns"]
    path.write_text("{")
    with pytest.raises(HpcprofError, match="cannot be read"):
        network_of_site("a")


def test_groups_of_some_ranks_are_ambiguous_until_one_is_said_to_stay() -> None:
    table = program(4, groups=2)[0]
    with pytest.raises(UsageError, match=r"groups of 2 ranks may grow .* --keep SIZE"):
        Predictor(table)
    predictor = Predictor(table, keep=2)
    assert predictor.predict(16).mesh == {"data": 8, "kept": 2}
    with pytest.raises(UsageError, match="7 ranks are no multiple of the 2 ranks"):
        predictor.predict(7)
    with pytest.raises(UsageError, match="no group of the run has 3 neighbouring ranks"):
        Predictor(table, keep=3)


def test_one_replica_does_not_show_what_replicas_share() -> None:
    alone = Predictor(program(1)[0]).predict(8)
    assert alone.not_modelled[-1].startswith("communication and differences between replicas")


def test_changes_scale_what_was_measured() -> None:
    table = program(4, noise=0.0)[0]
    half = Predictor(table, changes=parse_changes(["kernel:layer-0*0.5"])).predict(8)
    assert Predictor(table).predict(8).step.value - half.step.value == pytest.approx(5e6, rel=0.05)
    with pytest.raises(UsageError, match="no operation of the run"):
        Predictor(table, changes=parse_changes(["kernel:gemm*0"]))
    with pytest.raises(UsageError, match="not range"):
        Predictor(table, changes=parse_changes(["range:data*0"]))


def timeline(events: dict[int, list[tuple[str, float, float, int]]]) -> pd.DataFrame:
    """Return the operations of ranks: name, begin and end in ms, and peer, in the first of 10 equal steps."""
    kinds = {"Send": "send", "Recv": "recv", "AllReduce": "collective", "ReduceScatter": "collective"}
    rows = [
        (rank, step, name, kinds.get(name, "compute"), begin, end - begin, peer)
        for step in range(10)
        for rank, operations in events.items()
        for name, begin, end, peer in operations
    ]
    columns = ["rank", "step", "name", "kind", "start_ns", "duration_ns", "peer"]
    table: pd.DataFrame = pd.DataFrame(rows, columns=columns)
    period = max(end for operations in events.values() for _, _, end, _ in operations)
    table["start_ns"] = (1e6 * (table["start_ns"] + period * table["step"])).astype(np.int64)
    table["duration_ns"] = (1e6 * table["duration_ns"]).astype(np.int64)
    table = table.assign(group="", bytes=1000, stage=-1, microbatch=-1, chunk=-1, replica=-1)
    return table


def two_stages(first: int) -> dict[int, list[tuple[str, float, float, int]]]:
    """Return a step of a pipeline on two ranks: two forward passes of 5 ms, two backward ones of 10 ms."""
    return {
        first: [
            *(("compute", 0, 5, -1), ("Send", 5, 5.5, first + 1), ("compute", 5.5, 10.5, -1)),
            *(("Send", 10.5, 11, first + 1), ("Recv", 11, 26.5, first + 1), ("compute", 26.5, 36.5, -1)),
            *(("Recv", 36.5, 37, first + 1), ("compute", 37, 47, -1)),
        ],
        first + 1: [
            *(("Recv", -5, 5.5, first), ("compute", 5.5, 10.5, -1), ("Recv", 10.5, 11, first)),
            *(("compute", 11, 26, -1), ("Send", 26, 26.5, first), ("compute", 26.5, 36.5, -1)),
            *(("Send", 36.5, 37, first), ("compute", 37, 42, -1)),
        ],
    }


@pytest.mark.parametrize("cold", [False, True])
def test_ranks_that_compute_between_messages_are_stages_of_a_pipeline(cold: bool) -> None:
    table = timeline(two_stages(0) | two_stages(2))
    if cold:
        # Rank 1 begins the first step with rank 0, and each later one 5 ms before it.
        table["duration_ns"] += table["start_ns"].clip(upper=0)
        table["start_ns"] = table["start_ns"].clip(lower=0)
    predictor = Predictor(table)
    found = predictor.predict(8)
    assert found.mesh == {"data": 4, "pipeline": 2, "tensor": 1}
    # The last step, which rank 1 begins before rank 0, is as long as the others.
    assert (found.measured_ns, found.step.value) == (47_000_000, 47_000_000)
    assert found.replay_error_pct == 0
    # Several pipelines were recorded; one alone may be a chain through all ranks.
    assert not any("a chain of messages" in one for one in found.not_modelled)
    chain = Predictor(timeline(two_stages(0))).predict(4)
    assert "taken for a pipeline of 2 stages" in chain.not_modelled[0]
    with pytest.raises(UsageError, match="5 ranks are no multiple of the 2 ranks"):
        predictor.predict(5)


def test_a_rank_that_serves_all_others_is_no_pipeline() -> None:
    served: dict[int, list[tuple[str, float, float, int]]] = {
        rank: [("Recv", 0, rank, 0), ("compute", rank, 20 + rank, -1), ("Send", 20 + rank, 21 + rank, 0)]
        for rank in range(1, 4)
    }
    gives = [("Send", rank - 1, rank, rank) for rank in range(1, 4)]
    takes = [("Recv", 20 if rank == 1 else 20 + rank, 21 + rank, rank) for rank in range(1, 4)]
    prediction = Predictor(timeline(served | {0: [*gives, *takes, ("compute", 24, 30, -1)]})).predict(8)
    assert prediction.mesh == {"data": 2, "served group": 4, "tensor": 1}
    assert prediction.not_modelled[0].endswith("more groups of 4, each with a server of its own")


def test_neighbours_that_exchange_between_computing_are_no_stages() -> None:
    ring = {}
    for rank in range(4):
        right, left = (rank + 1) % 4, (rank - 1) % 4
        # Ranks send and receive in turns, and pack in between.
        order = [("Send", right), ("Recv", left)][:: 1 if rank % 2 else -1]
        (one, to), (other, from_) = order
        ring[rank] = [
            *(("compute", 0, 20, -1), (one, 20, 20.5, to), ("compute", 20.5, 21, -1)),
            *((other, 21, 21.5, from_), ("compute", 21.5, 30, -1)),
        ]
    assert Predictor(timeline(ring)).predict(8).mesh == {"data": 8}


def exchanges(neighbours: dict[int, list[int]], phases: int = 1) -> pd.DataFrame:
    """Return steps in which ranks compute for 20 ms, then exchange messages of 4 ms, in several phases."""
    return timeline(
        {
            rank: [
                operation
                for phase in range(phases)
                for operation in [
                    ("compute", 24.0 * phase, 24.0 * phase + 20, -1),
                    *(
                        (way, 24.0 * phase + 20, 24.0 * phase + 24, at)
                        for way in ("Send", "Recv")
                        for at in peers
                    ),
                ]
            ]
            for rank, peers in neighbours.items()
        }
    )


def test_a_ring_of_four_has_one_dimension_and_its_messages_keep_their_size() -> None:
    table = exchanges({rank: [(rank + 1) % 4, (rank - 1) % 4] for rank in range(4)})
    found = Predictor(table).predict(16, "strong")
    assert found.step.value == pytest.approx((20 / 4 + 4) * 1e6, rel=1e-3)


def test_ranks_at_an_edge_have_fewer_messages_and_no_delays() -> None:
    table = exchanges({0: [1], 1: [0, 2], 2: [1, 3], 3: [2]}, phases=2)
    found = Predictor(table).predict(4)
    assert (found.replay_error_pct, found.account["other_ns"]) == (0, 0)
    # The last receives are posted after the computing before them.
    half = Predictor(table, changes=parse_changes(["kernel:compute*0.5"])).predict(4)
    assert half.step.value == pytest.approx(28e6, rel=1e-3)


def stencil(named: bool) -> pd.DataFrame:
    """Return two phases of a step on four ranks: a sweep of its own length, messages, borders, an all-reduce.

    The names of messages tell the neighbour. If not ``named``, receives do not record who sent.
    """
    noise = 5e6 * np.random.default_rng(1).random((10, 2, 4))
    now, rows = 0.0, []
    for step, phase in np.ndindex(10, 2):
        ready = now + 2e7 + noise[step, phase]
        for rank in range(4):
            rows.append((rank, step, "sweep", "compute", now, ready[rank] - now, -1))
            ends = [ready[rank]]
            for side, at in (("left", rank - 1), ("right", rank + 1)):
                if 0 <= at < 4:
                    ends.append(max(ready[rank], ready[at]) + 4e6)
                    for way, peer in (("recv", at if named else -1), ("send", at)):
                        rows.append(
                            (rank, step, f"{way}-{side}", way, ready[rank], ends[-1] - ready[rank], peer)
                        )
            rows.append((rank, step, "border", "compute", max(ends), 3e6, -1))
        borders = [row[4] + 3e6 for row in rows if row[1] == step and row[2] == "border"][-4:]
        last = max(borders) + 1e6
        rows += [
            (rank, step, "all-reduce", "collective", end, last - end, -1) for rank, end in enumerate(borders)
        ]
        now = last
    columns = ["rank", "step", "name", "kind", "start_ns", "duration_ns", "peer"]
    table: pd.DataFrame = pd.DataFrame(rows, columns=columns)
    table = table.assign(stage=-1, microbatch=-1, chunk=-1, replica=-1)
    table["group"] = np.where(table["kind"] == "collective", "world", "")
    table = table.assign(bytes=1000).astype(dict.fromkeys(("start_ns", "duration_ns"), np.int64))
    return table


@pytest.mark.parametrize("named", [True, False])
def test_messages_wait_for_what_they_follow_whatever_their_names_are(named: bool) -> None:
    unit = Predictor(stencil(named)).unit
    # No delay holds the time of something else: of a sweep, of an all-reduce, or of a neighbour's sweep.
    assert np.nanmax(unit.lag) < 10
    messages = unit.keys["kind"].isin(["send", "recv"]).to_numpy()
    assert np.nanmax(unit.own[messages]) < 4e6 + 10
    assert {joint.offset for joint in unit.joints} == {-1, 0, 1}


def test_messages_are_matched_where_only_receives_name_their_peers() -> None:
    table = timeline(two_stages(0))
    table.loc[table["kind"] == "send", "peer"] = -1
    (graph,) = operation_graphs(table)
    ranks = [sorted(graph.rows["rank"].to_numpy()[rows].tolist()) for rows in graph.members]
    assert ranks == [[0, 1]] * 4


def test_an_exchange_waits_for_the_one_before_it() -> None:
    noise = 5e6 * np.random.default_rng(1).random((10, 2))
    now, rows = 0.0, []
    for step in range(10):
        ready = now + 2e7 + noise[step]
        first, second = ready.max() + 4e6, ready.max() + 8e6
        for rank in range(2):
            rows.append((rank, step, "sweep", "compute", now, ready[rank] - now, -1))
            for side, begin, end in (("right", ready[rank], first), ("left", first, second)):
                rows += [(rank, step, f"{side}-{way}", way, begin, end - begin, 1 - rank) for way in MESSAGES]
            rows.append((rank, step, "border", "compute", second, 3e6, -1))
        now = second + 3e6
    table: pd.DataFrame = pd.DataFrame(
        rows, columns=["rank", "step", "name", "kind", "start_ns", "duration_ns", "peer"]
    )
    table = table.assign(group="", bytes=1000, stage=-1, microbatch=-1, chunk=-1, replica=-1)
    table = table.astype(dict.fromkeys(("start_ns", "duration_ns"), np.int64))
    assert np.nanmax(Predictor(table).unit.lag) < 10


def test_computing_waits_for_a_collective_that_it_usually_hides() -> None:
    # The second half of a step needs an all-reduce that ends during the first one, except in step 3.
    hidden = [("first", 0.0, 10.0, -1), ("AllReduce", 0.0, 2.0, -1), ("second", 10.0, 20.0, -1)]
    table = timeline({0: hidden, 1: hidden})
    late = table["step"] == 3
    table.loc[late & (table["name"] == "AllReduce"), "duration_ns"] = 15_000_000
    table.loc[late & (table["name"] == "second"), "start_ns"] += 5_000_000
    table.loc[late & (table["name"] == "second"), "duration_ns"] = 5_000_000
    unit = Predictor(table).unit
    names = unit.keys["name"].tolist()
    assert names.index("AllReduce") in unit.before[names.index("second")]


def test_two_ranks_are_neighbours_on_both_sides() -> None:
    predictor = Predictor(exchanges({0: [1], 1: [0]}))
    late = np.zeros((8, 1))
    late[3] = 7
    (joint,) = predictor.unit.joints
    arrivals = predictor._arrivals(joint, dict.fromkeys(joint.keys, late), 1)
    assert [np.flatnonzero(moments).tolist() for moments in arrivals.values()] == [[2, 3, 4]] * 2


def test_the_recorded_ranks_are_replayed_with_their_own_times() -> None:
    # Clones of a noisy rank and of a steady one wait for each other more than these two do.
    found = Predictor(program(2, noise=np.array([0.2, 0.0]))[0]).predict(2)
    assert abs(found.replay_error_pct) < 0.2
    assert found.step.value == pytest.approx(found.measured_ns, rel=1e-6)


def test_predictions_and_scores_are_of_the_step_without_the_profiler() -> None:
    table = program(4)[0]
    profiled, alone = Predictor(table).predict(16), Predictor(table, steps_ns=[3e7]).predict(16)
    assert alone.measured_ns == 30_000_000
    ratio = alone.measured_ns / profiled.measured_ns
    assert alone.step.value == pytest.approx(ratio * profiled.step.value, rel=1e-6)
    assert alone.baselines["log2"] == pytest.approx(ratio * profiled.baselines["log2"], rel=1e-6)
    assert alone.replay_error_pct == profiled.replay_error_pct


def test_delays_count_from_what_the_replay_waits_for() -> None:
    # On rank 0 the last operation does not wait for the collective, on rank 1 it does.
    reduced = [("compute", 0.0, 10.0, -1), ("AllReduce", 10.0, 20.0, -1)]
    table = timeline(
        {rank: [*reduced, ("compute", *last, -1)] for rank, last in enumerate(((12, 30), (25, 36)))}
    )
    assert Predictor(table).predict(2).replay_error_pct == 0


@pytest.mark.parametrize(
    ("collective", "scaling", "size", "update"),
    [
        ("AllReduce", "strong", 1 << 20, 1.0),
        ("AllReduce", "strong", 1000, 1 / 8),
        ("ReduceScatter", "strong", 1 << 20, 1 / 8),
        ("ReduceScatter", "weak", 1 << 20, 1.0),
    ],
)
def test_an_update_follows_its_gradients(
    collective: str, scaling: Literal["weak", "strong"], size: int, update: float
) -> None:
    step = [("backward", 0.0, 16.0, -1), (collective, 16.0, 16.1, -1), ("adam", 16.1, 24.1, -1)]
    found = Predictor(timeline(dict.fromkeys((0, 1), step)).assign(bytes=size)).predict(16, scaling)
    backward = 16 / 8 if scaling == "strong" else 16
    assert found.account["compute_ns"] == pytest.approx(1e6 * (backward + 8 * update), rel=1e-3)
    # What the operation works on is a guess: the interval has the other factor, too.
    for factor in (update, 1 / 8):
        assert found.step.low <= found.step.value + 8e6 * 0.8 * (factor - update) <= found.step.high


def test_two_neighbours_leave_the_number_of_neighbours_open() -> None:
    two, ring = (
        Predictor(
            exchanges({rank: [(rank + side) % ranks for side in sides] for rank in range(ranks)}),
            ranks_per_node=64,
        )
        for ranks, sides in ((2, (1,)), (4, (1, -1)))
    )
    assert two.predict(64).step.high > 32e6 > 26e6 > ring.predict(64).step.high


def test_a_curve_tells_what_dominates_it() -> None:
    predictor = Predictor(program(4, noise=0.0)[0])
    notes = curve_notes([predictor.predict(ranks, "strong") for ranks in (4, 16, 64, 256)])
    assert notes[-1].endswith(" ranks on, more than half of the step is communication.")
