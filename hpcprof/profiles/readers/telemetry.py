"""Reader of what the sampler of each node wrote (`hpcprof.node.telemetry`): ``telemetry/NODE.jsonl``."""

from __future__ import annotations

import json
import math
import os
import re
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hpcprof.common.decode import parse_count
from hpcprof.node.telemetry import FOLDER, METRICS

if TYPE_CHECKING:  # to look at the samples of a running job needs no numpy
    from hpcprof.profiles.timeline import Floats

_NAME = re.compile(r"(?P<device>\S{1,100}) (?P<metric>[a-z_]{1,40})")
_MAX_FILE_BYTES = 256 << 20
_MAX_READ_BYTES = 16 << 20
_MAX_LINE_BYTES = 4 << 20
_MAX_SERIES = 20_000
_MAX_DAMAGED_LINES = 100_000
"""Maximum number of damaged lines of a node, after which its file is read no further."""


_MAX_TIME = 1e11
"""Maximum time of a sample, in seconds since 1970: larger numbers are no times in seconds."""


class Series(msgspec.Struct, frozen=True, eq=False):
    """The samples of one metric of one device."""

    times: Floats
    """In seconds since 1970, rising; shape (n,)."""
    values: Floats
    """In the unit that `METRICS` has; none is missing; shape (n,)."""


class RankPlace(msgspec.Struct, frozen=True):
    """The cores that a rank may use, and the GPUs that it used, by their numbers on the node."""

    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()


class NodeTelemetry(msgspec.Struct, frozen=True, eq=False):
    """The samples of a node."""

    node: str
    series: Mapping[tuple[str, str], Series]
    """The samples by device (``rank0``, ``gpu1``, ``cpu3``, ``node``, ``nic:eth0``, ``lustre:scratch``) and
    metric.
    """
    ranks: Mapping[int, RankPlace]
    gpus: tuple[str, ...] = ()
    """The names of the GPUs, in order."""
    limits: Mapping[str, float] = msgspec.field(default_factory=dict)
    """``cores`` and ``memory_bytes`` that the job may use on the node."""
    missing: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The metrics that could not be sampled, and why."""
    damaged: int = 0
    """Lines that cannot be read."""

    def metrics_of(self, device: str) -> dict[str, Series]:
        """Return the samples of a device by metric."""
        return {metric: series for (name, metric), series in self.series.items() if name == device}

    @property
    def extent(self) -> tuple[float, float]:
        """The times of the first and the last sample."""
        return (
            min((series.times[0] for series in self.series.values()), default=0.0),
            max((series.times[-1] for series in self.series.values()), default=0.0),
        )

    def rank_of(self, device: str) -> int | None:
        """Return the rank that a device is, or that used it; None if it belongs to no rank, or to several."""
        for kind in ("rank", "gpu"):
            number = parse_count(device.removeprefix(kind))
            if device.startswith(kind) and number is not None:
                return number if kind == "rank" else self.rank_of_gpu(number)
        return None

    def rank_of_gpu(self, gpu: int) -> int | None:
        """Return the rank that used a GPU; None if no rank or several did.

        If the driver does not say, and ranks and GPUs are equally many, they are matched in order.
        """
        if len(self.ranks) == len(self.gpus) and not any(place.gpus for place in self.ranks.values()):
            return sorted(self.ranks)[gpu]
        users = [rank for rank, place in self.ranks.items() if gpu in place.gpus]
        return users[0] if len(users) == 1 else None


def has_telemetry(run_directory: Path) -> bool:
    """Return whether a run has samples of any node."""
    return next((run_directory / FOLDER).glob("*.jsonl"), None) is not None


def read_telemetry(run_directory: Path) -> list[NodeTelemetry]:
    """Return the samples of each node of a run, by the node's name; lines that cannot be read are counted."""
    return [reading.finished() for reading in _readings(run_directory)]


def resident_points(run_directory: Path) -> Iterator[tuple[int, list[tuple[float, float]]]]:
    """Yield the memory of each rank on the host, as pairs of time and bytes."""
    for reading in _readings(run_directory):
        yield from reading.resident()


def _readings(run_directory: Path) -> Iterator[_SampleFile]:
    for path in sorted((run_directory / FOLDER).glob("*.jsonl")):
        reading = _SampleFile(path.stem)
        with suppress(OSError), path.open("rb") as file:
            free_bytes = _MAX_FILE_BYTES
            while (
                free_bytes > 0
                and reading.damaged < _MAX_DAMAGED_LINES
                and (line := file.readline(_MAX_LINE_BYTES))
            ):
                free_bytes -= len(line)
                reading.take(line)
        yield reading


class EnergySoFar:
    """The energy of the GPUs of a running run; each call reads what was written since the last call.

    Only counters of energy count, as data-center GPUs have them.
    """

    def __init__(self, run_directory: Path) -> None:
        self._folder = run_directory / FOLDER
        self._readings: dict[Path, _EnergyFile] = {}

    def joules(self) -> float | None:
        """Return the energy in joules; None as long as no counter was read twice."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with suppress(OSError), path.open("rb") as file:
                reading = self._readings.get(path)
                # A job that starts again begins a new file.
                if reading is None or file.seek(0, os.SEEK_END) < reading.offset:
                    reading = self._readings[path] = _EnergyFile(path.stem)
                file.seek(reading.offset)
                whole, _, _ = file.read(_MAX_READ_BYTES).rpartition(b"\n")
                reading.offset += len(whole) + bool(whole)
                for line in whole.splitlines():
                    reading.take(line)
        grown = [count.joules for reading in self._readings.values() for count in reading.counters.values()]
        return sum(grown) or None


class _SampleFile:
    """A file of samples while it is read: the names of its next values, and the values so far."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._fast: list[tuple[str, str] | None] = []
        self._slow: list[tuple[str, str] | None] = []
        self._points: dict[tuple[str, str], tuple[array[float], array[float]]] = {}
        self._ranks: dict[int, RankPlace] = {}
        self._gpus: tuple[str, ...] = ()
        self._limits: dict[str, float] = {}
        self._missing: dict[str, str] = {}
        self._last = -math.inf
        self.damaged = 0

    def take(self, line: bytes) -> None:
        """Add a line; damaged lines are counted."""
        try:
            value = json.loads(line)
            if isinstance(value, dict):
                self._describe(value)
            else:
                self._sample(*value)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            self.damaged += 1

    def _describe(self, header: Mapping[str, Any]) -> None:
        self._fast = [_parse_metric(name) for name in header["fast"]]
        self._slow = [_parse_metric(name) for name in header["slow"]]
        self._gpus = tuple(str(name) for name in header["gpus"])
        self._missing |= {str(kind): str(reason) for kind, reason in header["missing"].items()}
        self._limits = {str(name): float(value) for name, value in header["limits"].items() if value}
        for number, place in header["ranks"].items():
            rank, before = int(number), self._ranks.get(int(number), RankPlace())
            cores, gpus = tuple(map(int, place["cores"])), tuple(map(int, place["gpus"]))
            gpus = gpus or _visible_gpus(place["devices"], len(self._gpus))
            self._ranks[rank] = RankPlace(cores or before.cores, gpus or before.gpus)

    def _sample(self, time: float, fast: list[float | None], slow: list[float | None] | None = None) -> None:
        if not self._last <= time < _MAX_TIME:
            raise ValueError
        for names, values in ((self._fast, fast), (self._slow, slow or ())):
            if values and len(values) != len(names):
                raise ValueError
            for name, value in zip(names, values, strict=False):
                if name is not None and value is not None and math.isfinite(value):
                    self._keep(name, float(time), float(value))
        self._last = time

    def _keep(self, name: tuple[str, str], time: float, value: float) -> None:
        if name not in self._points and len(self._points) >= _MAX_SERIES:
            raise ValueError
        if name not in self._points:
            self._points[name] = array("d"), array("d")
        times, values = self._points[name]
        times.append(time)
        values.append(value)

    def resident(self) -> Iterator[tuple[int, list[tuple[float, float]]]]:
        """Yield the points of each rank of which the memory was sampled."""
        for rank in self._ranks:
            if points := self._points.get((f"rank{rank}", "resident_bytes")):
                yield rank, [*zip(*points, strict=True)]

    def finished(self) -> NodeTelemetry:
        """Return the samples of the node."""
        import numpy as np

        series = {}
        for name, points in self._points.items():
            times, values = map(np.array, points)
            series[name] = Series(times, values)
        return NodeTelemetry(
            self._node, series, self._ranks, self._gpus, self._limits, self._missing, self.damaged
        )


def _parse_metric(name: str) -> tuple[str, str] | None:
    """Return device and metric; None for a metric of a later version."""
    match = _NAME.fullmatch(name)
    return (match["device"], match["metric"]) if match and match["metric"] in METRICS else None


def _visible_gpus(devices: str, count: int) -> tuple[int, ...]:
    """Return the GPUs that a variable of the program names by number, unless it names all."""
    words = devices.split(",")
    gpus = tuple(number for number in map(parse_count, words) if number is not None and number < count)
    is_part = len(words) < count or count == 1
    return gpus if len(gpus) == len(words) and is_part else ()


def growth(series: Series) -> tuple[Floats, Floats, Floats]:
    """Return the growth of a counter between its samples, as starts, ends and amounts.

    A counter that falls has begun anew: its growth until then is unknown, and left out.
    """
    import numpy as np

    amounts = np.diff(series.values)
    is_growth = (amounts >= 0) & (np.diff(series.times) > 0)
    return series.times[:-1][is_growth], series.times[1:][is_growth], amounts[is_growth]


class _Counter(msgspec.Struct):
    """A counter of energy: its last value, and its growth in J."""

    last: float
    joules: float = 0.0


class _EnergyFile(_SampleFile):
    """A file of which only counters of energy are kept; it has been read up to ``offset``."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.offset = 0
        self.counters: dict[str, _Counter] = {}

    def _keep(self, name: tuple[str, str], time: float, value: float) -> None:
        device, metric = name
        if metric == "energy_j" and device.startswith("gpu") and len(self.counters) < _MAX_SERIES:
            counter = self.counters.setdefault(device, _Counter(value))
            counter.joules += max(0.0, value - counter.last)
            counter.last = value
