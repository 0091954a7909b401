"""Predicts the step of a program on another number of ranks from the operations of a run.

1. `hpcprof.analysis.predict.units.unit_of` finds the unit: the ranks that a larger run repeats.
2. Times of operations follow their measured distribution (`noise_of`), times of communication the network
   (`hpcprof.analysis.predict.network`), fitted to the run's own communication.
3. Clones of the unit are replayed over several steps, with times drawn for each. A collective starts when the
   last of its ranks arrives, so that the replay waits for the slowest of N ranks.
4. The prediction is the measured step, times the replay on N ranks over the replay on the measured ranks.
5. The interval of 90 % comes from replays with resampled steps, with other shares of latency, with hops of
   rings instead of trees, and with other differences between ranks; the error of the model adds to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from hpcprof.analysis.explain.changes import Change
from hpcprof.analysis.predict.network import Network, Sample, fit_run_network, operation_of
from hpcprof.analysis.predict.noise import Noise, noise_of
from hpcprof.analysis.predict.operation_graph import COMMUNICATION, MESSAGES, topological_order
from hpcprof.analysis.predict.units import Joint, Span, Unit, ancestors, unit_of
from hpcprof.analysis.statistics.confidence_intervals import NORMAL_90
from hpcprof.common.errors import UsageError
from hpcprof.common.notebook import InNotebooks
from hpcprof.common.patterns import matches
from hpcprof.common.units import counted
from hpcprof.profiles.timeline import Floats

Scaling = Literal["weak", "strong"]

_MAX_CELLS = 1 << 15
"""Number of units times parallel chains of steps in a replay."""
_MAX_CHAINS = 64
"""Maximum number of parallel chains: independent replays whose mean counts."""
_REPLAYED_STEPS, _WARM_UP_STEPS = 10, 3
"""Number of steps in a chain that count, and number of steps before them."""
_NUMBER_OF_DRAWS = 39
"""Number of replays for the interval."""
_MODEL_ERROR = 0.006
"""Standard deviation of the replay's error beside everything that is drawn, as a share of the step."""
_MIN_KNEE_PCT = 2.0
"""Minimum height of the knee over the chord of the curve of efficiency, in percentage points."""
_LOST_PARTS = {
    "communication_ns": "communication",
    "wait_for_peer_ns": "waiting for peers",
    "other_ns": "delays between operations",
}
"""Parts of a step other than compute, in words."""
_MAX_SMALL_BYTES = 64
"""Maximum bytes of a message whose size stays the same with strong scaling."""
_MIN_GRADIENT_BYTES = 1 << 16
"""Minimum bytes of a collective that is taken for one of gradients."""
_MAX_DIMENSIONS = 3
_SLOW_LINKS_SHARE, _MAX_SLOW_LINKS = 0.25, 2.0
"""Share of the interval's draws in which more nodes communicate more slowly, and the maximum factor."""

NOT_MODELLED = (
    "contention between kernels and communication on more ranks",
    "topology beyond the profiled nodes: links shared across nodes, tapered networks",
    "ranks that have more neighbours than any profiled one",
    "collectives on a ring of all ranks where a tree takes a small part of its time",
    "input, output, memory and work that change with the number of ranks, and a load that gets less even",
)
_MAX_FIXED_SHARE = 0.5
"""Maximum share of kernel time that stays the same where a rank gets less work, for the interval."""
_CHAIN_NOTE = (
    "a chain of messages that becomes longer with more ranks, as that of a sweep: it is taken for a pipeline "
    "of {} stages, and more ranks for more pipelines"
)
_SERVER_NOTE = (
    "a rank that serves more others than in the profile: more ranks are taken for more groups of {}, each "
    "with a server of its own"
)
_ONE_REPLICA_NOTE = "communication and differences between replicas, of which the run has one"
_FEW_STEPS_NOTE = "variation between steps, of which the run has fewer than three"
_SHORT_KERNELS_NOTE = (
    "kernels whose time does not follow the size of a rank: of optimizers, or of a few microseconds"
)


@dataclass(frozen=True)
class Interval:
    """A time in ns with its interval of 90 %."""

    value: int
    low: int
    high: int


@dataclass(frozen=True)
class ScalePrediction(InNotebooks):
    """The step of a program on other ranks."""

    ranks: int
    nodes: int
    scaling: Scaling
    """``weak`` (the size per rank stays) or ``strong`` (the whole size stays)."""
    step: Interval
    account: dict[str, int]
    """Parts of the step in ns that add up to it: ``compute_ns``, ``communication_ns``, ``wait_for_peer_ns``
    and ``other_ns`` (delays between operations).
    """
    limits: str
    """The part that grows most from the measured ranks to these; ``compute`` if none grows."""
    efficiency_pct: float
    """The speedup over the measured step, divided by the ratio of ranks."""
    node_hours_per_1000_steps: float
    baselines: dict[str, int]
    """``unchanged`` is the measured step, ``log2`` the line a + b log2 p through two measured rank counts, or
    through the step without communication (one rank) and the measured one.
    """
    mesh: dict[str, int]
    network: str
    """Source of the model of the network."""
    measured_ranks: int
    measured_ns: int
    replay_error_pct: float
    """The replay of the measured ranks, with their own times in each step, against the measured step."""
    not_modelled: tuple[str, ...] = NOT_MODELLED

    def as_json(self) -> dict[str, Any]:
        """Return the prediction in the types of JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class _Model:
    """The distributions from which a replay draws."""

    unit: Unit
    work: Noise
    own: Floats
    """Mean time of the operations themselves over the units, in ns; shape (operations, steps)."""
    network: Network
    compute: Floats | float = 1.0
    """Factor of the work of a rank; shape (operations, 1)."""
    dimensions: int = 0
    """Dimensions of the grid whose neighbours exchange messages."""
    crowding: float = 1.0
    """Factor of the time of these messages, where ranks have more neighbours than measured."""
    links: float = 1.0
    """Factor of the time of communication of all ranks, on more nodes than measured."""
    between: float | None = None
    """Standard deviation of the differences between units, as a share; None for the measured one."""

    @cached_property
    def order(self) -> list[tuple[Joint | None, list[int]]]:
        """The joints and other operations in topological order."""
        joint = {key: shared for shared in self.unit.joints for key in shared.keys}
        first = {key: (joint[key].keys[0] if key in joint else key) for key in range(len(self.unit.keys))}
        waits: dict[int, set[int]] = {key: set() for key in first.values()}
        for key, rows in enumerate(self.unit.before):
            waits[first[key]] |= {first[other] for other in rows.tolist()} - {first[key]}
        return [
            (joint.get(key), list(joint[key].keys) if key in joint else [key])
            for key in topological_order(waits)
        ]


class Predictor:
    """Predicts steps of a program from the operations of one or more runs on few ranks.

    ``table`` has the operations of the run (`hpcprof.profiles.readers.operations.table`). ``other_tables``
    have those of its runs on other numbers of ranks: more samples of the network. Groups of ``keep`` ranks do
    not grow; ``ranks_per_node`` is by default the measured number. ``changes`` are changes of the measured
    times: ``kernel:REGEX*0.5`` by name, ``comm*0`` and ``bandwidth*2``. ``site`` is the measured network of
    the site, in place of the network fitted to the run's communication. ``computing`` maps the size of a rank
    to its computing time, both as shares of the measured ones: where the host limits a GPU, half the size
    takes more than half the time. ``steps_ns`` are the steps of these runs without the profiler, by default
    those of the tables.
    """

    def __init__(
        self,
        table: pd.DataFrame,
        other_tables: Sequence[pd.DataFrame] = (),
        keep: int = 1,
        ranks_per_node: int | None = None,
        changes: Sequence[Change] = (),
        site: Network | None = None,
        computing: Callable[[float], float] = float,
        steps_ns: Sequence[float] = (),
    ) -> None:
        self.unit, *self._others = (
            _changed_unit(unit_of(run, keep), changes) for run in (table, *other_tables)
        )
        self._site = site
        self._computing = computing
        self._fixed = 0.0 if computing is float else _MAX_FIXED_SHARE
        self._per_node = ranks_per_node or self.unit.ranks * self.unit.units
        self.ranks = self.unit.ranks * self.unit.units
        units = (self.unit, *self._others)
        self._steps_ns = steps_ns or [float(unit.step_ns.mean()) for unit in units]
        self.measured = self._steps_ns[0]
        self._communicates = self.unit.keys["kind"].isin(COMMUNICATION).to_numpy()
        self._ops = [operation_of(*row) for row in self.unit.keys[["name", "kind"]].itertuples(index=False)]
        self._names = pd.factorize(self.unit.keys["name"])[0]
        self._replicated, self._sharded = self._optimizer_updates()
        self._base = self._recorded = self._model(np.random.default_rng(0), self.unit)
        if changes:
            self._recorded = self._model(np.random.default_rng(0), unit_of(table, keep))

    def _model(
        self, generator: np.random.Generator, unit: Unit, growth: float = 1.0, *, doubt: bool = False
    ) -> _Model:
        ring, latency = generator.random(2).tolist() if doubt else (0.5, 0.5)
        # An operation that all ranks wait for takes the same time on all of them, whatever its kind.
        return _Model(
            unit,
            noise_of(self._work(unit), self._names, generator, doubt),
            np.nanmean(unit.own, axis=1),
            self._network(unit, ring, latency, growth),
            dimensions=len(self._distances),
        )

    def _optimizer_updates(self) -> tuple[list[int], list[int]]:
        """Return the updates of all-reduced and of scattered gradients: computing after all communication.

        The first take the same time on any number of ranks; the second may shrink with the shard.
        """
        unit = self.unit
        needed = ancestors(unit.before, np.flatnonzero(self._communicates).tolist())
        reduced = {
            key
            for joint in unit.joints
            for key in joint.keys
            if joint.span is Span.ALL
            and self._communicates[key]
            and unit.keys["bytes"].iloc[key] >= _MIN_GRADIENT_BYTES
        }
        replicated, sharded = [], []
        for key in set(range(len(unit.keys))) - needed - {*np.flatnonzero(self._communicates).tolist()}:
            ops = {self._ops[row] for row in ancestors(unit.before, [key]) & reduced}
            if "ReduceScatter" in ops:
                sharded.append(key)
            elif "AllReduce" in ops:
                replicated.append(key)
        return replicated, sharded

    def _work(self, unit: Unit) -> Floats:
        """Return delay plus computing of each operation in ns, shape (operations, units, steps)."""
        computing: Floats = unit.lag + np.where(self._communicates[:, None, None], 0.0, unit.own)
        return computing

    def _network(self, unit: Unit, ring: float, latency: float, growth: float) -> Network:
        samples = []
        for measured in (unit, *self._others):
            sizes = {key: joint.ranks for joint in measured.joints for key in joint.keys}
            own_ns = np.nanmedian(measured.own, axis=(1, 2))
            columns = (measured.keys[name].tolist() for name in ("name", "kind", "bytes"))
            for key, (name, kind, size) in enumerate(zip(*columns, strict=True)):
                if key in sizes and kind in COMMUNICATION:
                    op = operation_of(str(name), str(kind))
                    samples.append(Sample(op, max(float(size), 0.0), sizes[key], float(own_ns[key])))
        timed = [sample for sample in samples if sample.own_ns > 0]
        network = fit_run_network(timed or samples, ring, latency, growth)
        return network if self._site is None else self._site.over(network)

    def predict(self, ranks: int, scaling: Scaling = "weak", nodes: int | None = None) -> ScalePrediction:
        """Predict the step on ``ranks`` ranks.

        Raises UsageError if the mesh does not allow that number of ranks.
        """
        self._check(ranks)
        generator = np.random.default_rng(1)
        base, model = self._base, replace(self._base, compute=self._factors(ranks, scaling))
        parts = self._parts(model, ranks, scaling)
        replayed, total_ns = self._replay(self._recorded, self.ranks, scaling), sum(parts.values())
        as_recorded = self._replay(self._recorded, self.ranks, scaling, recorded=True)
        scale = self.measured / replayed
        value = total_ns * scale
        reference = self._replay(model, ranks, scaling, quick=True)
        draws = [value * self._draw(generator, ranks, scaling, reference) for _ in range(_NUMBER_OF_DRAWS)]
        # The k-th of n draws holds k / (n + 1) of their distribution below it.
        low, high = np.quantile(draws, (0.05, 0.95), method="weibull")
        before = {name: part * scale for name, part in self._parts(base, self.ranks, scaling).items()}
        margin = NORMAL_90 * _MODEL_ERROR
        # Times that do not follow the size make the step longer, and never shorter.
        middle = value if self._fixed and scaling == "strong" else float(np.median(draws))
        below, above = 1 - low / max(value, middle), high / min(value, middle) - 1
        step = Interval(
            round(value),
            round(value * max(1 - np.hypot(below, margin), 0.0)),
            round(value * (1 + np.hypot(above, margin))),
        )
        account = _round_parts({name: part * scale for name, part in parts.items()}, step.value)
        grown = {name: account[name] - before[name] for name in account}
        largest = max(grown, key=lambda name: grown[name])
        count, mesh = nodes or -(-ranks // self._per_node), self._mesh(ranks)
        chain = self.unit.units == 1 and self.unit.has_inferred_stages
        notes = {"pipeline": _CHAIN_NOTE, "served group": _SERVER_NOTE} if chain else {}
        ideal = self.measured if scaling == "weak" else self.measured * self.ranks / ranks
        return ScalePrediction(
            ranks=ranks,
            nodes=count,
            scaling=scaling,
            step=step,
            account=account,
            limits=largest.removesuffix("_ns") if grown[largest] > 0.01 * value else "compute",
            efficiency_pct=round(100 * ideal / value, 2),
            node_hours_per_1000_steps=round(count * value * 1000 / 3.6e12, 6),
            baselines=self._baselines(ranks, scaling, before),
            mesh=mesh,
            network=base.network.source,
            measured_ranks=self.ranks,
            measured_ns=round(self.measured),
            replay_error_pct=round(100 * (as_recorded / float(self.unit.step_ns.mean()) - 1), 2),
            not_modelled=(
                *(note.format(mesh[name]) for name, note in notes.items() if name in mesh),
                *NOT_MODELLED,
                f"pauses rarer than one in {counted(self.unit.own[0].size, 'step')} of a rank",
                *([_ONE_REPLICA_NOTE] if self.unit.units == 1 else []),
                *([_FEW_STEPS_NOTE] if self.unit.own.shape[2] < 3 else []),
                *([_SHORT_KERNELS_NOTE] if scaling == "strong" else []),
            ),
        )

    def _check(self, ranks: int) -> None:
        unit_ranks = self.unit.ranks * self.unit.mesh.get("kept", 1)
        if ranks < unit_ranks or ranks % unit_ranks:
            raise UsageError(f"{ranks} ranks are no multiple of the {unit_ranks} ranks that keep together.")

    def _mesh(self, ranks: int) -> dict[str, int]:
        mesh = dict(self.unit.mesh)
        if "rows" in mesh:
            columns = self._columns(ranks)
            return {"rows": ranks // columns, "columns": columns}
        mesh["data"] = ranks // (self.ranks // mesh["data"])
        return mesh

    def _columns(self, ranks: int) -> int:
        """Return the columns of a grid of processes, as near to its measured aspect as its divisors allow."""
        mesh = self.unit.mesh
        ideal = np.sqrt(ranks * mesh["columns"] / mesh["rows"])
        return min((n for n in range(1, ranks + 1) if ranks % n == 0), key=lambda n: abs(np.log(n / ideal)))

    def _factors(self, ranks: int, scaling: Scaling, fixed: float = 0.0, doubt: float = 0.0) -> Floats:
        """Return the factors of computing, of which a share ``fixed`` does not follow the size of a rank.

        With ``doubt`` 0, replicated updates keep their time and sharded ones follow the size; with 1,
        replicated ones follow the size and sharded ones the shard.
        """
        size = 1.0 if scaling == "weak" else self._computing(fixed + (1 - fixed) * self.ranks / ranks)
        factor = np.full((len(self._ops), 1), size)
        factor[self._replicated] = 1 + doubt * (factor[self._replicated] - 1)
        factor[self._sharded] += doubt * (self.ranks / ranks - factor[self._sharded])
        return factor

    def _baselines(self, ranks: int, scaling: Scaling, before: dict[str, float]) -> dict[str, int]:
        units = (self.unit, *self._others)
        points = {unit.ranks * unit.units: step for unit, step in zip(units, self._steps_ns, strict=True)}
        points.setdefault(1, before["compute_ns"] + before["other_ns"])
        two_largest = sorted(points.items())[-2:]
        (first, low), (second, high) = two_largest[0], two_largest[-1]
        slope = (high - low) / np.log2(second / first) if second != first else 0.0
        line = low + slope * np.log2(ranks / first)
        return {"unchanged": round(self.measured), "log2": round(max(float(line), 0.0))}

    def _draw(self, generator: np.random.Generator, ranks: int, scaling: Scaling, reference: float) -> float:
        """Return a replay with drawn parameters divided by ``reference``, the replay without them.

        The mean over more units is drawn with the standard error of the mean over the measured units.
        """
        unit, steps = self.unit, self.unit.own.shape[2]
        drawn_steps = generator.integers(steps, size=steps)
        resampled = replace(unit, own=unit.own[:, :, drawn_steps], lag=unit.lag[:, :, drawn_steps])
        model = self._model(generator, resampled, ranks / self.ranks, doubt=True)
        between = model.work.between(generator)
        fixed = float(generator.uniform(0, self._fixed)) if self._fixed and scaling == "strong" else 0.0
        mean = max(1 + between * float(generator.standard_normal()) / np.sqrt(unit.units), 0.0)
        dimensions, crowding = self._drawn_grid(generator, ranks)
        other = replace(
            model,
            between=between,
            compute=mean * self._factors(ranks, scaling, fixed, float(generator.random())),
            dimensions=dimensions,
            crowding=crowding,
            network=model.network.drawn(generator),
            links=self._drawn_links(generator, ranks),
        )
        seed = int(generator.integers(1 << 30))
        replayed = self._replay(other, ranks, scaling, seed=seed, quick=True, single=True)
        return replayed / reference

    def _drawn_links(self, generator: np.random.Generator, ranks: int) -> float:
        """Return the factor of communication across more nodes than the profile's, which may be tapered."""
        more_nodes = ranks > self.ranks and ranks > self._per_node and self._site is None
        slow = more_nodes and generator.random() < _SLOW_LINKS_SHARE
        return float(generator.uniform(1, _MAX_SLOW_LINKS)) if slow else 1.0

    def _drawn_grid(self, generator: np.random.Generator, ranks: int) -> tuple[int, float]:
        """Return dimensions of the grid of neighbours, and the factor of their messages.

        Two ranks in each measured direction show neither further dimensions nor neighbours on both sides,
        whose messages may take turns.
        """
        least = dimensions = len(self._distances)
        if least and ranks > self.ranks:
            if self.unit.units == 2**least < 2**_MAX_DIMENSIONS:
                dimensions = int(generator.integers(least, _MAX_DIMENSIONS + 1))
            places = [
                tuple(self.unit.before[joint.keys[0]].tolist())
                for joint in self.unit.joints
                if joint.span is Span.NEIGHBOUR
            ]
            measured = max(places.count(place) for place in places)
            return dimensions, float(generator.uniform(1, max(2 * dimensions / measured, 1)))
        return dimensions, 1.0

    def _parts(self, model: _Model, ranks: int, scaling: Scaling) -> dict[str, float]:
        """Return the parts of the step in ns, by replays without noise, communication and delays."""
        step_ns = self._replay(model, ranks, scaling)
        none = np.zeros((len(model.work.mean), 1))
        without_noise = replace(model, work=replace(model.work, rest=none, pauses=none), between=0.0)
        noiseless_ns = self._replay(without_noise, ranks, scaling, quick=True)
        without_communication_ns = self._replay(without_noise, ranks, scaling, quick=True, silent=True)
        lag = np.nanmean(self.unit.lag, axis=(1, 2))
        without_lag = replace(
            without_noise,
            work=replace(without_noise.work, mean=np.maximum(without_noise.work.mean - lag, 0.0)),
        )
        compute = self._replay(without_lag, ranks, scaling, quick=True, silent=True)
        return {
            "compute_ns": compute,
            "communication_ns": max(noiseless_ns - without_communication_ns, 0.0),
            "wait_for_peer_ns": step_ns - max(noiseless_ns, without_communication_ns),
            "other_ns": without_communication_ns - compute,
        }

    def _transfer_factors(self, model: _Model, ranks: int, scaling: Scaling) -> Floats:
        """Return the ratio of each operation's time of communication on these ranks to the measured one."""
        factor = np.ones(len(self.unit.keys))
        dimensions = max(model.dimensions, 1)
        # Neighbours exchange a surface of the volume, which strong scaling divides.
        surface = (self.ranks / ranks) ** (1 - 1 / dimensions) if scaling == "strong" else 1.0
        for joint in self.unit.joints:
            for key in joint.keys:
                if not self._communicates[key]:
                    continue
                size = max(float(self.unit.keys["bytes"].iloc[key]), 0.0)
                op, members = self._ops[key], self._members(joint, ranks)
                after = size
                if self.unit.keys["kind"].iloc[key] in MESSAGES and size > _MAX_SMALL_BYTES:
                    after = size * surface
                elif op in ("AlltoAll", "AlltoAllV") and scaling == "strong":
                    after = size * self.ranks / ranks
                before = model.network.time(op, size, joint.ranks)
                factor[key] = model.network.time(op, after, members) / before if before > 0 else 1.0
                factor[key] *= model.crowding if joint.span is Span.NEIGHBOUR else 1.0
                factor[key] *= model.links if joint.span not in (Span.UNIT, Span.KEPT) else 1.0
        return factor

    @cached_property
    def _distances(self) -> list[int]:
        """The distances of neighbours among the measured units, ascending."""
        return sorted({abs(joint.offset) for joint in self.unit.joints if joint.span is Span.NEIGHBOUR})

    def _members(self, joint: Joint, ranks: int) -> int:
        if joint.span is Span.ALL:
            return round(joint.ranks * ranks / self.ranks)
        if joint.span is Span.NEAR:
            return self._columns(ranks)
        return ranks // self._columns(ranks) if joint.span is Span.FAR else joint.ranks

    def _replay(
        self,
        model: _Model,
        ranks: int,
        scaling: Scaling,
        *,
        seed: int = 0,
        quick: bool = False,
        silent: bool = False,
        single: bool = False,
        recorded: bool = False,
    ) -> float:
        """Return the mean step of clones of the unit in ns; with ``single``, of one set of clones alone.

        With ``recorded``, the measured units take their own times in each of the measured steps.
        """
        generator = np.random.default_rng(seed)
        units = ranks // model.unit.ranks
        chains = int(np.clip(_MAX_CELLS // units // (4 if quick else 1), 2, _MAX_CHAINS))
        steps = 2 * _REPLAYED_STEPS if self._distances else _REPLAYED_STEPS
        factor = np.zeros(len(model.unit.keys)) if silent else self._transfer_factors(model, ranks, scaling)
        transfers = model.own * factor[:, None]
        times = model.work.times(model.compute)
        between = model.work.between() if model.between is None else model.between
        warm_up = _WARM_UP_STEPS
        if recorded:
            # The draws are the measured steps of the first unit, then those of the next one.
            times = np.nan_to_num(self._work(model.unit).reshape(len(transfers), -1))
            chains, steps, warm_up, between = 1, transfers.shape[1], 0, 0.0
            first_draws = np.arange(units)[:, None] * steps
        spread = np.maximum(1 + between * generator.standard_normal((units, chains)), 0.0)
        ready = np.zeros((units, chains))
        columns = self._columns(ranks) if "rows" in model.unit.mesh else 1
        begin = np.zeros(chains)
        for step in range(steps + warm_up):
            if step == warm_up:
                begin = ready.max(axis=0)
            drawn = generator.integers(times.shape[1], size=(units, chains))
            measured = generator.integers(transfers.shape[1], size=chains)
            if recorded:
                drawn, measured = first_draws + step, np.array([step])
            end: list[Floats | None] = [None] * len(transfers)
            last = ready
            for joint, keys in model.order:
                start = {}
                for key in keys:
                    ends = (end[row] for row in model.unit.before[key].tolist())
                    before = [ended for ended in ends if ended is not None]
                    arrival = before[0] if before else ready
                    for ended in before[1:]:
                        arrival = np.maximum(arrival, ended)
                    start[key] = arrival + times[key][drawn] * spread
                for key, moment in self._arrivals(joint, start, columns).items():
                    transfer_ns = transfers[key][measured] if self._communicates[key] else 0.0
                    end[key] = moment + transfer_ns
                    last = np.maximum(last, moment + transfer_ns)
            ready = last if model.unit.consecutive else np.broadcast_to(last.max(axis=0), last.shape)
        length = (ready.max(axis=0) - begin) / steps
        return float(length[0] if single and between else length.mean())

    def _arrivals(self, joint: Joint | None, start: dict[int, Floats], columns: int) -> dict[int, Floats]:
        """Return the arrival of the last peer of each operation, in ns, shape (units, chains)."""
        if joint is None:
            return start
        if joint.span is Span.NEIGHBOUR:
            receive, send = joint.keys
            received, sent = start[receive], start[send]
            for offset in self._sides(joint.offset):
                distance = self._distance(offset, len(received))
                received = np.maximum(received, np.roll(start[send], -distance, axis=0))
                sent = np.maximum(sent, np.roll(start[receive], distance, axis=0))
            return {receive: received, send: sent}
        arrival: Floats = np.maximum.reduce([*start.values()])
        if joint.span is Span.ALL:
            arrival = np.broadcast_to(arrival.max(axis=0), arrival.shape)
        elif joint.span in (Span.NEAR, Span.FAR, Span.KEPT):
            inner = joint.ranks // self.unit.ranks if joint.span is Span.KEPT else columns
            blocks = arrival.reshape(-1, inner, arrival.shape[1])
            latest = blocks.max(axis=0 if joint.span is Span.FAR else 1, keepdims=True)
            arrival = np.broadcast_to(latest, blocks.shape).reshape(arrival.shape)
        return dict.fromkeys(start, arrival)

    def _sides(self, offset: int) -> list[int]:
        """Return the offsets of a neighbour: both sides where a dimension has only two units."""
        extents = [*self._distances, self.unit.units]
        at = extents.index(abs(offset))
        return [offset, -offset] if extents[at + 1] == 2 * extents[at] else [offset]

    def _distance(self, offset: int, units: int) -> int:
        """Return the distance of a neighbour among ``units``: each measured distance is a dimension."""
        dimension = self._distances.index(abs(offset))
        side: int = max(round(float(units) ** (dimension / len(self._distances))), 1)
        return side if offset > 0 else -side


def _changed_unit(unit: Unit, changes: Sequence[Change]) -> Unit:
    """Return a unit with changed times; the measured step stays what it was."""
    times = unit.own.copy()
    for change in changes:
        if change.kind not in ("kernel", "comm", "bandwidth") or change.rank is not None:
            raise UsageError(f"predict changes kernel:REGEX, comm and bandwidth, not {change.kind}.")
        rows = unit.keys["kind"].isin(COMMUNICATION).to_numpy()
        if change.kind == "kernel":
            rows = np.array(matches(change.pattern, unit.keys["name"].tolist()), bool)
        if not rows.any():
            raise UsageError(f"no operation of the run has a name that matches {change.pattern!r}.")
        times[rows] *= 1 / change.factor if change.kind == "bandwidth" else change.factor
    return replace(unit, own=times)


def curve_notes(curve: Sequence[ScalePrediction]) -> list[str]:
    """Return sentences about the knee of efficiency, and the ranks from where a part dominates the step."""
    notes = []
    if len(curve) > 2:
        ranks = np.log2([point.ranks for point in curve])
        efficiency = np.array([point.efficiency_pct for point in curve])
        chord = np.interp(ranks, ranks[[0, -1]], efficiency[[0, -1]])
        above = efficiency - chord
        if above.max() > _MIN_KNEE_PCT:
            notes.append(f"The knee is at {curve[int(above.argmax())].ranks:,} ranks.")
    for part, words in _LOST_PARTS.items():
        first = next((point for point in curve if 2 * point.account[part] > point.step.value), None)
        if first is not None:
            notes.append(f"From {first.ranks:,} ranks on, more than half of the step is {words}.")
    return notes


def _round_parts(parts: dict[str, float], value: int) -> dict[str, int]:
    """Round parts so that they add up to a value."""
    rounded = {name: round(part) for name, part in parts.items()}
    rounded["wait_for_peer_ns"] += value - sum(rounded.values())
    return rounded
