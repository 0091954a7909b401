"""Profiles of JAX and XLA: files of XPlanes, which ``jax.profiler`` writes."""

from hpcprof.profiles.readers.declaration import ProfileContent, Reader

XPLANE = Reader(
    "xplane",
    suffixes=(".xplane.pb",),
    files="*.xplane.pb of JAX",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.xplane.reader:read",
    other_forms=(".trace.json.gz",),
    named_by_host=True,
)
