"""Traces of the PyTorch profiler (Kineto)."""

from hpcprof.profiles.readers.declaration import ProfileContent, Reader, Scrubber

# ``.pt.trace.json`` ends with ``trace.json``; frameworks name their traces as they like.
_SUFFIXES = tuple(f"{name}.json{packed}" for name in ("trace", "kineto") for packed in ("", ".gz"))

TORCH = Reader(
    "torch",
    suffixes=_SUFFIXES,
    files="*trace.json[.gz] or *kineto.json[.gz]",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.kineto.reader:read",
    identify_rank="hpcprof.profiles.readers.kineto.rank_identity:identify_rank",
    shared_suffixes=_SUFFIXES,
    own_suffixes=(".trace.json", ".trace.json.gz"),
    recognize="hpcprof.profiles.readers.kineto.rank_identity:is_trace",
    scrubber=Scrubber(
        "hpcprof.profiles.scrub.torch:scrub", suffixes=_SUFFIXES, files="*trace.json[.gz] of PyTorch"
    ),
)
