"""The measured networks of sites: ``sites/NAME.network.json`` in the user's configuration."""

from collections.abc import Sequence

import msgspec

from hpcprof.analysis.predict.network import Network, Sample, Segment, fit_segments
from hpcprof.results.ask.site_measurements import kept_measurement

NETWORK = "network"


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
