"""Traces of the PyTorch profiler (Kineto)."""

from hpcprof.profiles.readers.declaration import ProfileContent, Reader, Scrubber

# ``.pt.trace.json`` ends with ``.trace.json``.
_SUFFIXES = (".trace.json", ".trace.json.gz")

TORCH = Reader(
    "torch",
    suffixes=_SUFFIXES,
    files="*.trace.json[.gz]",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.kineto.reader:read",
    identify_rank="hpcprof.profiles.readers.kineto.rank_identity:identify_rank",
    scrubber=Scrubber(
        "hpcprof.profiles.scrub.torch:scrub", suffixes=_SUFFIXES, files="*.trace.json[.gz] of PyTorch"
    ),
)
