"""The costs of a profiler for calls of CUDA on a site, as ``hpcprof study call-costs`` measured them."""

from collections.abc import Iterable

import msgspec

from hpcprof.results.ask.site_measurements import kept_measurement

CALLS = "calls"


class CallTimes(msgspec.Struct, frozen=True):
    """A kind of calls in a loop, ``ns`` each: alone and recorded, both in each run in which it was timed."""

    call: str
    alone_ns: tuple[int, ...]
    recorded_ns: tuple[int, ...]

    @property
    def cost_ns(self) -> tuple[int, int, int]:
        """The cost of the profiler for a call, of the quickest runs, and its least and most of two runs."""
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
