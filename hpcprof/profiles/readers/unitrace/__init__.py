"""Traces of Intel's unitrace."""

from hpcprof.profiles.readers.declaration import ProfileContent, Reader

UNITRACE = Reader(
    "unitrace",
    suffixes=(".unitrace.json", "chrome_trace.json"),
    files="chrome_trace.json or *.unitrace.json of unitrace",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.unitrace.reader:read",
    identify_rank="hpcprof.profiles.readers.unitrace.reader:identify_rank",
)
