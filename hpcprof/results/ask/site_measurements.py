"""Measurements of sites by studies, in ``sites/NAME.KIND.json`` of the user's configuration.

They are the network, and the costs of a profiler for calls of CUDA.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from hpcprof.analysis.predict.network import Network, Sample, Segment, fit_segments
from hpcprof.common.atomic import write_atomically
from hpcprof.common.decode import from_json
from hpcprof.common.errors import HpcprofError
from hpcprof.common.paths import user_config

NETWORK, CALLS = "network", "calls"
"""The kinds of measurements."""

Measurement = TypeVar("Measurement", bound=msgspec.Struct)


def keep_measurement(site: str, kind: str, measured: msgspec.Struct) -> Path:
    """Write a measurement of a site in place of an earlier one; return the file."""
    path = _file(site, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(measured)).decode() + "\n")
    return path


def kept_measurement(site: str, kind: str, type_: type[Measurement]) -> Measurement | None:
    """Return the kept measurement of a site; None if there is none.

    Raises HpcprofError if its file cannot be read.
    """
    path = _file(site, kind)
    try:
        return from_json(path.read_bytes(), type_)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise HpcprofError(f"{path} cannot be read: {error}.") from None


def _file(site: str, kind: str) -> Path:
    return user_config() / "sites" / f"{Path(site).name}.{kind}.json"


class SiteNetwork(msgspec.Struct, frozen=True):
    """The measured network of a site: ``segments`` of each operation within a node, and ``across`` nodes.

    ``error`` is the standard deviation of the logarithm of measured over fitted times.
    """

    site: str
    run: str
    ranks_per_node: int
    segments: dict[str, list[Segment]]
    across: dict[str, list[Segment]]
    error: float

    def model(self) -> Network:
        """Return the model that predictions use."""
        return Network(self.segments, "site", self.across, self.ranks_per_node, self.error)


def fit_network(site: str, run: str, ranks_per_node: int, samples: Sequence[Sample]) -> SiteNetwork:
    """Fit the segments of each operation, on one node (at most ``ranks_per_node`` ranks) and across nodes."""
    fits: dict[bool, dict[str, list[Segment]]] = {False: {}, True: {}}
    errors = []
    for across, op in sorted({(sample.ranks > ranks_per_node, sample.op) for sample in samples}):
        rows = [sample for sample in samples if sample.op == op and (sample.ranks > ranks_per_node) == across]
        fits[across][op], error = fit_segments(rows)
        errors.append(error)
    mean = sum(error**2 for error in errors) / max(len(errors), 1)
    return SiteNetwork(site, run, ranks_per_node, fits[False], fits[True], mean**0.5)


def network_of_site(site: str) -> Network | None:
    """Return the measured network of a site; None if it has not been measured.

    Raises HpcprofError if its file cannot be read.
    """
    measured = kept_measurement(site, NETWORK, SiteNetwork)
    return measured.model() if measured else None


class CallTimes(msgspec.Struct, frozen=True):
    """Times in ns of one kind of call in a loop, without and with the profiler, a value for each run."""

    call: str
    alone_ns: tuple[int, ...]
    recorded_ns: tuple[int, ...]

    @property
    def cost_ns(self) -> tuple[int, int, int]:
        """The profiler's cost of a call in ns: between the quickest runs, and its minimum and maximum."""
        alone, recorded = self.alone_ns, self.recorded_ns
        return min(recorded) - min(alone), min(recorded) - max(alone), max(recorded) - min(alone)


class SiteCallCosts(msgspec.Struct, frozen=True):
    """The times of calls by their kind, the ``runs`` that measured them, and the version of the profiler."""

    site: str
    runs: tuple[str, ...]
    profiler: str
    kinds: dict[str, CallTimes]

    @property
    def weights(self) -> dict[str, float]:
        """The cost of a call of each kind over that of a launch; empty if launches cost nothing."""
        costs = {kind: max(0, times.cost_ns[0]) for kind, times in self.kinds.items()}
        launch = costs.get("launch", 0)
        return {kind: cost / launch for kind, cost in costs.items()} if launch > 0 else {}


def call_weights(site: str, profilers: Iterable[str | None]) -> dict[str, float]:
    """Return the weights of calls on a site for profiles of these versions of the profiler.

    They are empty if nothing was measured there, or with another version. Raises HpcprofError if the file of
    the site cannot be read.
    """
    costs = kept_measurement(site, CALLS, SiteCallCosts)
    return costs.weights if costs is not None and {*profilers} == {costs.profiler} else {}
