"""Reports and tables of Nsight Compute."""

from hpcprof.profiles.readers.declaration import ProfileContent, Reader, Scrubber

TABLES = (".csv", ".csv.gz")
"""The suffixes of the tables that ncu prints."""

NCU = Reader(
    "ncu",
    suffixes=(".ncu-rep", ".ncu-repz", *TABLES),
    files="*.ncu-rep[z] or ncu's *.csv[.gz]",
    content=ProfileContent.KERNEL_REPORT,
    read="hpcprof.profiles.readers.ncu.reader:read",
    shared_suffixes=TABLES,
    recognize="hpcprof.profiles.readers.ncu.csv_table:is_table",
    reports={".ncu-rep": TABLES, ".ncu-repz": TABLES},
    convert="hpcprof.profiles.readers.ncu.reader:report_or_table",
    scrubber=Scrubber(
        "hpcprof.profiles.scrub.ncu:scrub",
        TABLES,
        "ncu's *.csv[.gz]",
        otherwise="print its table with ncu --import FILE --csv --page raw > FILE.csv, and scrub that",
    ),
)
