"""The tracks of the node of a rank in a timeline: what its sampler read, on the clock of the ranks.

A slice is the time since the sample before, as high as its value is beside the highest one in sight.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from hpcprof.node.telemetry import METRICS
from hpcprof.profiles.readers.telemetry import NodeTelemetry, growth
from hpcprof.profiles.timeline import Floats

_MAX_SAMPLES = 2000
"""Maximum number of samples that a track shows; beyond it, samples are skipped evenly."""


class _Metric(msgspec.Struct, frozen=True):
    """A metric with a track; if it is `seldom` above 0, a track without such a value is left out."""

    name: str
    label: str
    unit: str
    factor: float = 1.0
    seldom: bool = False


_GPU_METRICS = (_Metric("sm_mhz", "GPU clock", "MHz"), _Metric("power_w", "GPU power", "W"))
_RANK_METRICS = (_Metric("cpu_s", "CPU", "cores"), _Metric("blocked_pct", "File waits", "%", seldom=True))
_NODE_METRICS = (
    _Metric("busy_s", "Node CPU", "cores"),
    _Metric("memory_pressure_s", "Memory waits", "%", 100.0, seldom=True),
)


class NodeTrack(msgspec.Struct, frozen=True):
    """The samples of a metric: the times that they cover, in seconds since 1970, and their values."""

    label: str
    unit: str
    begin: Floats
    end: Floats
    values: Floats

    def texts(self) -> list[str]:
        """Return each value with its unit, in three digits or more."""
        return [
            f"{value:,.0f} {self.unit}" if value >= 100 else f"{value:.3g} {self.unit}"
            for value in self.values.tolist()
        ]


def node_tracks(
    nodes: Sequence[NodeTelemetry], ranks: Sequence[int], begin: float, end: float
) -> dict[int, list[NodeTrack]]:
    """Return the tracks of each rank between two moments; the first rank of a node also has the node's."""
    tracks = {}
    for node in nodes:
        for place, rank in enumerate(number for number in ranks if number in node.ranks):
            gpus = [f"gpu{gpu}" for gpu in range(len(node.gpus)) if node.rank_of_gpu(gpu) == rank]
            devices = [*((gpu, _GPU_METRICS) for gpu in gpus), (f"rank{rank}", _RANK_METRICS)]
            devices += [("node", _NODE_METRICS)] if place == 0 else []
            tracks[rank] = [
                track
                for device, metrics in devices
                for metric in metrics
                for track in _tracks(node, device, metric, begin, end)
            ]
    return tracks


def _tracks(
    node: NodeTelemetry, device: str, metric: _Metric, begin: float, end: float
) -> Iterator[NodeTrack]:
    series = node.series.get((device, metric.name))
    if series is None or len(series.times) < 2:
        return
    if METRICS[metric.name][0] == "counter":
        starts, ends, amounts = growth(series)
        values = amounts / (ends - starts)
    else:
        starts, ends, values = series.times[:-1], series.times[1:], series.values[1:]
    inside = np.flatnonzero((ends > begin) & (starts < end))
    inside = inside[:: -(-len(inside) // _MAX_SAMPLES) or 1]
    samples = metric.factor * values[inside]
    if len(inside) and not (metric.seldom and not samples.any()):
        yield NodeTrack(metric.label, metric.unit, starts[inside], ends[inside], samples)
