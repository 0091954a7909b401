"""Traces of the PyTorch profiler: Kineto's, and those of torch_npu for Ascend's NPUs."""

from hpcprof.profiles.readers.declaration import ProfileContent, Reader, Scrubber

_OWN_SUFFIXES = (".trace.json", ".trace.json.gz")
# Programs name their traces as they like; the first bytes of a file decide.
_SUFFIXES = (*_OWN_SUFFIXES, ".json", ".json.gz")

MERGED = "all_ranks.json.gz"
"""The trace of all ranks that an export writes beside theirs, for viewers; it is no profile."""

TORCH = Reader(
    "torch",
    suffixes=_SUFFIXES,
    files="*.json[.gz] of PyTorch",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.kineto.reader:read",
    identify_rank="hpcprof.profiles.readers.kineto.rank_identity:identify_rank",
    several_ranks="hpcprof.profiles.readers.kineto.rank_identity:several_ranks",
    shared_suffixes=_SUFFIXES,
    own_suffixes=_OWN_SUFFIXES,
    recognize="hpcprof.profiles.readers.kineto.rank_identity:is_trace",
    scrubber=Scrubber(
        "hpcprof.profiles.scrub.torch:scrub", suffixes=_SUFFIXES, files="*.json[.gz] of PyTorch"
    ),
)

ASCEND_TRACE = "trace_view.json"
"""The trace in a folder of torch_npu."""

ASCEND = Reader(
    "ascend",
    suffixes=(ASCEND_TRACE,),
    folder_suffix="_ascend_pt",
    files=f"*_ascend_pt or {ASCEND_TRACE} of torch_npu",
    content=ProfileContent.TIMELINE,
    read="hpcprof.profiles.readers.kineto.ascend:read",
    identify_rank="hpcprof.profiles.readers.kineto.ascend:identify_rank",
    other_files="hpcprof.profiles.readers.kineto.ascend:files_of_folder",
)
