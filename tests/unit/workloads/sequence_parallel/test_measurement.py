"""The order in which modes are measured, on one rank without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch

from hpcprof.workloads.distributed import World
from hpcprof.workloads.rankenv import RankEnvironment, RankProfiler
from hpcprof.workloads.sequence_parallel.measurement import Measurement, Steps
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.timing import PhaseTimer

COMM = SimpleNamespace(allgather=lambda value: [value], bcast=lambda value: value, Barrier=lambda: None)


def test_a_profile_has_the_steps_of_modes_only() -> None:
    probe = SimpleNamespace(phases=())
    environment = RankEnvironment(profiler=RankProfiler.NCU)
    measurement = Measurement(
        PointParameters(warmup=0, burn_in=0, steps=2),
        environment,
        world(),
        {},
        cast(Any, {"probe": probe}),
    )
    assert measurement.run().probes == {}


def world() -> World:
    return World(
        comm=COMM,
        rank=0,
        size=1,
        local_rank=0,
        nodes=1,
        host="node0",
        device=torch.device("cpu"),
        backend="gloo",
        reduce_scatter=cast(Any, None),
        notes=(),
    )


def test_modes_are_measured_in_turns_and_every_second_round_in_reverse() -> None:
    done: list[str] = []

    class Noting:
        def __init__(self, name: str, phases: tuple[str, ...]) -> None:
            self.name, self.phases = name, phases

        def __call__(self, index: int, timer: PhaseTimer) -> None:
            done.append(self.name)
            for phase in self.phases:
                with timer.phase(phase):
                    pass

    steps = cast(Steps, {"serial": Noting("serial", ("allgather",)), "chunked": Noting("chunked", ())})
    parameters = PointParameters(warmup=0, burn_in=0, steps=3)
    probes = cast(Any, {"probe": Noting("probe", ()), "links": Noting("links", ("ready", "links"))})
    measured = Measurement(parameters, RankEnvironment(), world(), steps, probes).run()
    # The serial mode has a step for its time and one for its phases in each round, and the probes take turns.
    assert "".join(name[0] for name in done[:15]) == "sscpl" + "lpcss" + "sscpl"
    assert {name: len(times) for name, times in measured.probes.items()} == {"probe": 3, "links": 3}
    assert measured.times.keys() == {"serial", "chunked"}
    assert [len(measured.times[name].step_ns) for name in ("serial", "chunked")] == [3, 3]
    assert len(measured.marked_ns["serial"]) == 3
