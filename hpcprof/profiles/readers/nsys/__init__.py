"""Reports of Nsight Systems, and their exports to SQLite and to folders of Parquet files."""

from pathlib import Path

from hpcprof.profiles.readers.declaration import ProfileContent, ProfilePart, Reader, Scrubber

NSYS = Reader(
    "nsys",
    suffixes=(".sqlite", ".nsys-rep"),
    folder_suffix="_pqtdir",
    files="*.sqlite, *.nsys-rep or *_pqtdir",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.nsys.reader:read",
    threaded=True,
    identify_rank="hpcprof.profiles.readers.nsys.origin:identify_rank",
    several_ranks="hpcprof.profiles.readers.nsys.origin:several_ranks",
    other_files="hpcprof.profiles.readers.nsys:files_of_folder",
    reports={".nsys-rep": (".sqlite", "_pqtdir")},
    convert="hpcprof.profiles.readers.nsys.report_export:export_of_report",
    scrubber=Scrubber(
        "hpcprof.profiles.scrub.nsys:scrub",
        suffixes=(".sqlite",),
        files="*.sqlite of Nsight Systems",
        otherwise="export it with nsys export --type sqlite first",
    ),
)


def files_of_folder(path: Path, part: ProfilePart | None) -> list[Path]:
    """Return the files of a folder with a Parquet file per table; none for a file."""
    return sorted(path.glob("*.parquet")) if path.is_dir() else []
