"""Tables of operations, written by timers of the program itself, and execution traces of Chakra."""

from hpcprof.profiles.readers.declaration import ProfileContent, Reader

TABLE_STEP = "table step"
"""The name of the range of a step of a table, before its number."""

REQUIRED = ("rank", "step", "name", "kind", "start_ns", "duration_ns")
"""The columns that a table of operations must have."""

_OWN_SUFFIXES = (".operations.parquet", ".operations.csv")
_SHARED_SUFFIXES = (".parquet", ".csv")

OPERATIONS = Reader(
    "operations",
    suffixes=(*_OWN_SUFFIXES, *_SHARED_SUFFIXES, ".et"),
    files="tables of operations (*.parquet or *.csv), *.et of Chakra",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.operations.reader:read",
    reads_parts=True,
    identify_rank="hpcprof.profiles.readers.operations.reader:identify_rank",
    several_ranks="hpcprof.profiles.readers.operations.reader:several_ranks",
    shared_suffixes=_SHARED_SUFFIXES,
    own_suffixes=_OWN_SUFFIXES,
    recognize="hpcprof.profiles.readers.operations.table:is_table",
)
