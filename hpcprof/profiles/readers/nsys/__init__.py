"""Reports and SQLite exports of Nsight Systems."""

from hpcprof.profiles.readers.declaration import ProfileContent, Reader, Scrubber

NSYS = Reader(
    "nsys",
    suffixes=(".sqlite", ".nsys-rep"),
    files="*.sqlite or *.nsys-rep",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.nsys.reader:read",
    threaded=True,
    identify_rank="hpcprof.profiles.readers.nsys.origin:identify_rank",
    several_ranks="hpcprof.profiles.readers.nsys.origin:several_ranks",
    reports={".nsys-rep": (".sqlite",)},
    convert="hpcprof.profiles.readers.nsys.report_export:exported",
    scrubber=Scrubber(
        "hpcprof.profiles.scrub.nsys:scrub",
        suffixes=(".sqlite",),
        files="*.sqlite of Nsight Systems",
        otherwise="export it with nsys export --type sqlite first",
    ),
)
