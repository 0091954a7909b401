"""Predicts the step of a pipeline with another schedule, other stages or microbatches, from measured blocks.

1. Forward and backward blocks, the delays before them and the messages between stages are those measured, by
   replica, stage, microbatch and step. Operations before the first and after the last block stay.
2. More or fewer stages divide the same layers evenly: a new stage takes its share of the measured ones.
3. Orders: 1F1B (Narayanan et al., 2019); interleaved, as in Megatron-LM (Narayanan et al., 2021); zero
   bubble, where the gradients of weights fill gaps within the memory of 1F1B (ZB-H1, Qi et al., 2023): a list
   schedule on mean times.
4. A block starts when its stage is free and its message has come. The slowest replica ends the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from hpcprof.analysis.predict.operation_graph import OperationGraph, most_frequent_graph
from hpcprof.analysis.predict.units import measured_step
from hpcprof.analysis.statistics.confidence_intervals import NORMAL_90
from hpcprof.common.errors import UsageError
from hpcprof.common.notebook import InNotebooks
from hpcprof.profiles.timeline import Floats

Schedule = Literal["1f1b", "interleaved", "zero-bubble"]
FORWARD, BACKWARD, WEIGHTS = "F", "B", "W"
Block = tuple[str, int, int]
"""Kind, microbatch and virtual stage: the n-th chunk of stage s is n * stages + s."""

_WEIGHT_SHARE = 0.5
"""Share of the gradients of weights in a backward block: both of its products have equal sizes."""
_NUMBER_OF_DRAWS = 200
_MAX_TIMES = 1 << 24
"""Maximum number of blocks times replicas and measured steps."""
_MODEL_ERROR = 0.01
"""Minimum standard deviation of the error of the replay, as a share of the step."""


@dataclass(frozen=True)
class PipelinePrediction(InNotebooks):
    """The step of a pipeline; times in ns."""

    schedule: Schedule
    stages: int
    microbatches: int
    chunks: int
    ranks: int
    """``chunks`` is the number of chunks of each stage."""
    value: int
    low: int
    high: int
    """The mean step with its interval of 90 %."""
    bubble_pct: float
    """Mean share of the time between the first and the last block in which a stage computes nothing."""
    measured_ns: int
    rebuilt_error_pct: float
    """The measured schedule rebuilt from its blocks, against the measured step."""
    not_modelled: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class PipelineBlocks:
    """The measured blocks of a pipeline."""

    times: dict[str, Floats]
    delays: dict[str, Floats]
    """Times in ns of forward and backward blocks, and their delays after what they wait for; shape (virtual
    stages, microbatches, replicas, steps).
    """
    message: float
    """Time in ns of a message after both ends have begun."""
    rest: Floats
    """Time in ns of a step before its first and after its last block; shape (steps,)."""
    stages: int
    ranks: int
    measured: Floats
    """Shape (steps,)."""

    @property
    def chunks(self) -> int:
        """The number of chunks of a stage."""
        return len(self.times[FORWARD]) // self.stages

    @property
    def microbatches(self) -> int:
        """The number of microbatches of a replica in a step."""
        return int(self.times[FORWARD].shape[1])

    def divided(
        self, values: dict[str, Floats], virtual: int, microbatches: int, *, add: bool
    ) -> dict[str, Floats]:
        """Return values of other virtual stages of the same layers, and microbatches; times ``add`` up."""
        virtual_stages = len(values[FORWARD])
        edges, new_edges = np.linspace(0, 1, virtual_stages + 1), np.linspace(0, 1, virtual + 1)
        shared = np.minimum(edges[1:], new_edges[1:, None]) - np.maximum(edges[:-1], new_edges[:-1, None])
        shares = np.maximum(shared, 0.0) * (virtual_stages if add else virtual)
        chosen = np.arange(microbatches) % self.microbatches
        return {kind: np.tensordot(shares, value[:, chosen], 1) for kind, value in values.items()}


def blocks_of(table: pd.DataFrame) -> PipelineBlocks:
    """Return the blocks of a table of operations with stages and messages.

    Raises UsageError if it has no forward and backward operations on several stages.
    """
    graph = most_frequent_graph(table)
    rows = graph.rows if graph is not None else table
    kinds = np.array([_kind(name, kind) for name, kind in zip(rows["name"], rows["kind"], strict=True)])
    computes = np.isin(kinds, (FORWARD, BACKWARD))
    in_stages = computes.any() and (rows["stage"][computes] >= 0).all() and rows["stage"].nunique() > 1
    if graph is None or not in_stages:
        raise UsageError(
            "--pipeline needs a table of operations with forward and backward operations on several stages."
        )
    chunk = np.maximum(rows["chunk"].to_numpy(), 0)
    stages = int(rows["stage"].max()) + 1
    chunks = len(np.unique(chunk[computes] // stages)) if chunk.max() >= stages else 1
    virtual = rows["stage"].to_numpy() + stages * (chunk // stages if chunks > 1 else 0)
    replica = pd.factorize(rows["replica"], sort=True)[0]
    times, delays = {}, {}
    for kind in (FORWARD, BACKWARD):
        indices = np.flatnonzero(kinds == kind)
        number = pd.Series(indices).groupby([virtual[indices], rows["rank"].to_numpy()[indices]]).cumcount()
        place = (virtual[indices], number.to_numpy(), replica[indices])
        shape = (stages * chunks, int(number.max()) + 1, int(replica.max()) + 1, len(graph.steps))
        times[kind], delays[kind] = np.full(shape, np.nan), np.full(shape, np.nan)
        times[kind][place] = graph.end[indices] - graph.start[indices]
        delays[kind][place] = _delays(graph, indices)
        if np.isnan(times[kind]).any() or times[kind].shape != times[FORWARD].shape:
            raise UsageError(
                "--pipeline needs one forward and one backward operation per microbatch on each stage."
            )
    span = graph.end[computes].max(axis=0) - graph.start[computes].min(axis=0)
    messages = graph.own[(rows["kind"] == "recv").to_numpy() & (graph.group >= 0)]
    return PipelineBlocks(
        times,
        delays,
        float(np.median(messages)) if messages.size else 0.0,
        graph.measured - span,
        stages,
        measured_step(table)[1],
        graph.measured,
    )


def _kind(name: str, kind: str) -> str:
    """Return the kind of a block; empty for any other operation."""
    if kind != "compute":
        return ""
    return {"f": FORWARD, "b": BACKWARD}.get(name.lower()[:1], "")


def _delays(graph: OperationGraph, rows: Sequence[int] | Any) -> Floats:
    delays = [
        graph.start[row] - graph.end[graph.before[row]].max(axis=0)
        if len(graph.before[row])
        else np.zeros(len(graph.steps))
        for row in rows
    ]
    return np.maximum(delays, 0.0)


def predict_pipeline(
    table: pd.DataFrame,
    stages: int,
    microbatches: int | None = None,
    schedule: Schedule = "1f1b",
    chunks: int | None = None,
) -> PipelinePrediction:
    """Predict the step of a pipeline from the blocks of another one.

    Microbatches and chunks of a stage are by default the measured ones; ``interleaved`` has at least two
    chunks. Raises UsageError if the table has no pipeline, or the schedule does not allow the number of
    microbatches.
    """
    blocks = blocks_of(table)
    microbatches = microbatches or blocks.microbatches
    chunks = chunks or (max(blocks.chunks, 2) if schedule == "interleaved" else 1)
    if schedule != "interleaved" and chunks > 1:
        raise UsageError(f"--chunks is for --schedule interleaved, not {schedule}.")
    if schedule == "interleaved" and microbatches % stages:
        raise UsageError(f"interleaved: {microbatches} microbatches are no multiple of {stages} stages.")
    if stages * chunks * microbatches * blocks.times[FORWARD][0, 0].size > _MAX_TIMES:
        raise UsageError(
            f"{stages:,} stages with {microbatches:,} microbatches are too many blocks to replay."
        )
    recorded: Schedule = "interleaved" if blocks.chunks > 1 else "1f1b"
    again = pipeline_step(blocks, blocks.stages, blocks.microbatches, recorded, blocks.chunks)[0]
    wall, bubble = pipeline_step(blocks, stages, microbatches, schedule, chunks)
    value = float(wall.mean())
    generator = np.random.default_rng(0)
    drawn = wall[generator.integers(len(wall), size=(_NUMBER_OF_DRAWS, len(wall)))].mean(axis=1)
    rebuilt = float(again.mean() / blocks.measured.mean() - 1)
    half = NORMAL_90 * float(np.hypot(drawn.std(), max(_MODEL_ERROR, abs(rebuilt)) * value))
    unknown = ["memory, and communication of replicas by the size of a stage"]
    if (stages, chunks) != (blocks.stages, blocks.chunks):
        unknown.append("layers that cannot be divided evenly")
    if schedule == "zero-bubble":
        unknown.append("the share of weight gradients in backward, taken as one half")
    return PipelinePrediction(
        schedule,
        stages,
        microbatches,
        chunks,
        blocks.ranks * stages // blocks.stages,
        round(value),
        round(value - half),
        round(value + half),
        round(100 * bubble, 2),
        round(float(blocks.measured.mean())),
        round(100 * rebuilt, 2),
        tuple(unknown),
    )


def pipeline_step(
    blocks: PipelineBlocks, stages: int, microbatches: int, schedule: Schedule, chunks: int
) -> tuple[Floats, float]:
    """Return the time of each step in ns, shape (steps,), and the share of bubbles."""
    virtual = stages * chunks
    times = blocks.divided(blocks.times, virtual, microbatches, add=True)
    delays = blocks.divided(blocks.delays, virtual, microbatches, add=False)
    if schedule == "zero-bubble":
        times[WEIGHTS] = _WEIGHT_SHARE * times[BACKWARD]
        times[BACKWARD] = times[BACKWARD] - times[WEIGHTS]
        delays[WEIGHTS] = np.zeros_like(times[WEIGHTS])
        orders = _zero_bubble(times, stages, microbatches, blocks.message)
    else:
        behind = [stages - stage - 1 for stage in range(stages)]
        ahead = behind if schedule == "1f1b" else [2 * later + (chunks - 1) * stages for later in behind]
        orders = [
            _one_forward_one_backward(stage, stages, microbatches, chunks, ahead[stage])
            for stage in range(stages)
        ]
    end: dict[Block, Floats] = {}
    free: list[Floats | float] = [0.0] * stages
    waiting = [iter(order) for order in orders]
    heads = [next(queue, None) for queue in waiting]
    while any(heads):
        before = len(end)
        for stage in range(stages):
            while (block := heads[stage]) and (
                arrival := _arrival(block, end, virtual, blocks.message)
            ) is not None:
                kind, number, place = block
                start = np.maximum(free[stage], arrival) + delays[kind][place, number]
                free[stage] = end[block] = start + times[kind][place, number]
                heads[stage] = next(waiting[stage], None)
        if len(end) == before:
            raise UsageError(f"{schedule}: {microbatches} microbatches on {stages} stages wait in a circle.")
    span = np.maximum.reduce([np.broadcast_to(time, blocks.times[FORWARD].shape[2:]) for time in free])
    busy = sum(float(time.sum(axis=(0, 1)).mean()) for time in times.values()) / stages
    return span.max(axis=0) + blocks.rest, 1 - busy / float(span.mean())


def _arrival(block: Block, end: dict[Block, Floats], virtual: int, message: float) -> Floats | float | None:
    """Return the moment at which a block can start; None while its predecessor has no end."""
    kind, number, place = block
    if kind == FORWARD:
        source = (FORWARD, number, place - 1) if place else None
    elif kind == WEIGHTS:
        source = (BACKWARD, number, place)
    else:
        source = (BACKWARD, number, place + 1) if place + 1 < virtual else (FORWARD, number, place)
    if source is None:
        return 0.0
    sent_at = end.get(source)
    return sent_at if sent_at is None or source[2] == place else sent_at + message


def _one_forward_one_backward(
    stage: int, stages: int, microbatches: int, chunks: int, ahead: int
) -> list[Block]:
    """Return the order of a stage: some forward blocks ahead, then forward and backward in turns."""
    count = microbatches * chunks

    def block(kind: str, at: int) -> "Block":
        group, within = divmod(at, stages * chunks)
        chunk = within // stages
        chunk = chunk if kind == FORWARD else chunks - 1 - chunk
        return kind, group * stages + within % stages, chunk * stages + stage

    ahead = min(ahead, count)
    order = [block(FORWARD, at) for at in range(ahead)]
    for at in range(count - ahead):
        order += [block(FORWARD, ahead + at), block(BACKWARD, at)]
    return order + [block(BACKWARD, at) for at in range(count - ahead, count)]


def _zero_bubble(
    times: dict[str, Floats], stages: int, microbatches: int, message: float
) -> list[list[Block]]:
    """Return the orders of a list schedule: backward, then forward while memory allows, then weights."""
    mean = {kind: time.mean(axis=(1, 2, 3)) for kind, time in times.items()}
    end: dict[Block, Any] = {}
    free = np.zeros(stages)
    orders: list[list[Block]] = [[] for _ in range(stages)]
    completed = [dict.fromkeys((FORWARD, BACKWARD, WEIGHTS), 0) for _ in range(stages)]
    for _ in range(3 * microbatches * stages):
        choices = []
        for stage, counts in enumerate(completed):
            in_flight = counts[FORWARD] - counts[BACKWARD]
            for priority, kind in enumerate((BACKWARD, FORWARD, WEIGHTS)):
                block = (kind, counts[kind], stage)
                arrival = _arrival(block, end, stages, message)
                if counts[kind] == microbatches or arrival is None:
                    continue
                if kind != FORWARD or in_flight < stages - stage:
                    start = max(float(free[stage]), float(arrival))
                    # Weights wait for gaps that are at least half as long as they take.
                    later = mean[kind][stage] / 2 if kind == WEIGHTS else 0.0
                    choices.append((start + later, priority, start, block))
        *_, start, block = min(choices)
        kind, _, stage = block
        free[stage] = end[block] = start + mean[kind][stage]
        completed[stage][kind] += 1
        orders[stage].append(block)
    return orders
