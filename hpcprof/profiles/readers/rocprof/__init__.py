"""Profiles of AMD's rocprofv3: rocpd databases, JSON results and sets of CSV tables."""

from hpcprof.profiles.readers.declaration import ProfileContent, Reader, Scrubber

KERNEL_TABLE = "kernel_trace.csv"
COUNTER_TABLE = "counter_collection.csv"

ROCPD = Reader(
    "rocpd",
    suffixes=(".db",),
    files="*.db of rocprofv3",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.rocprof.database:read",
    threaded=True,
    identify_rank="hpcprof.profiles.readers.rocprof.database:identify_rank",
    several_ranks="hpcprof.profiles.readers.rocprof.database:several_ranks",
    shared_suffixes=(".db",),
    recognize="hpcprof.profiles.readers.rocprof.database:is_rocpd",
    scrubber=Scrubber("hpcprof.profiles.scrub.rocpd:scrub", suffixes=(".db",), files="*.db of rocprofv3"),
)

ROCPROFV3 = Reader(
    "rocprofv3",
    suffixes=("_results.json", "_results.json.gz", KERNEL_TABLE, COUNTER_TABLE),
    files="*_results.json[.gz], *kernel_trace.csv or *counter_collection.csv of rocprofv3",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.rocprof.csv_tables:read",
    shared_suffixes=("_results.json", "_results.json.gz", COUNTER_TABLE),
    recognize="hpcprof.profiles.readers.rocprof.csv_tables:is_profile",
    scrubber=Scrubber(
        "hpcprof.profiles.scrub.rocprofv3:scrub",
        suffixes=("_results.json", "_results.json.gz"),
        files="*_results.json[.gz] of rocprofv3",
        otherwise="record it with --output-format rocpd or json, and scrub that",
    ),
)
