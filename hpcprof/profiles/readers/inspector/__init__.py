"""Logs of NCCL's Inspector."""

from hpcprof.profiles.readers.declaration import ProfileContent, Reader

INSPECTOR = Reader(
    "inspector",
    suffixes=(".log",),
    files="*.log of NCCL's Inspector",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.inspector.reader:read",
    identify_rank="hpcprof.profiles.readers.inspector.reader:identify_rank",
    shared_suffixes=(".log",),
    recognize="hpcprof.profiles.readers.inspector.reader:is_log",
)
