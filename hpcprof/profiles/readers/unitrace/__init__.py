"""Traces of Intel's unitrace."""

from hpcprof.profiles.readers.declaration import ProfileContent, Reader, Scrubber

UNITRACE = Reader(
    "unitrace",
    suffixes=(".unitrace.json", "chrome_trace.json"),
    files="chrome_trace.json or *.unitrace.json of unitrace",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.unitrace.reader:read",
    other_files="hpcprof.profiles.readers.unitrace.reader:other_files",
    shared_suffixes=("chrome_trace.json",),
    recognize="hpcprof.profiles.readers.unitrace.reader:is_trace",
    identify_rank="hpcprof.profiles.readers.unitrace.reader:identify_rank",
    scrubber=Scrubber(
        "hpcprof.profiles.scrub.unitrace:scrub",
        suffixes=(".unitrace.json", "chrome_trace.json"),
        files="chrome_trace.json or *.unitrace.json of unitrace",
    ),
)
