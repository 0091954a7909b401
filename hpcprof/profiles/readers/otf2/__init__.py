"""Archives of OTF2, with all ranks: traces of Score-P and EZTrace, and one format of rocprofv3."""

from hpcprof.profiles.readers.declaration import ProfileContent, Reader

OTF2 = Reader(
    "otf2",
    suffixes=(".otf2",),
    files="*.otf2 with its folder",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.otf2.reader:read",
    reads_parts=True,
    identify_rank="hpcprof.profiles.readers.otf2.archive:identify_rank",
    several_ranks="hpcprof.profiles.readers.otf2.archive:several_ranks",
    other_files="hpcprof.profiles.readers.otf2.archive:other_files",
    place_in_run="*/*.otf2",
)

EZTRACE_NAME = "EZTrace"
"""The profiler of an archive of EZTrace, which does not name itself."""
