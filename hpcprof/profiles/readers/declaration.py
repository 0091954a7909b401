"""Declarations of readers by a package.

The package of a reader holds a `Reader` and imports neither numpy nor the reader itself, so that finding
profiles stays quick. Other packages add a `Reader` by an entry point of the group ``hpcprof.readers``.
"""

import codecs
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.gzip_file import content_of

# nsys writes local ranks too when asked to (%q{OMPI_COMM_WORLD_LOCAL_RANK}): they are no ranks.
_RANK = re.compile(r"(?<![A-Za-z])(?<!local[-_.])rank[-_.]?(\d{1,9})(?!\d)", re.IGNORECASE)
# At most seven digits: PyTorch's own names hold a time stamp there (host_pid.1700000000000.pt.trace.json).
_NUMBER = re.compile(r"\.(\d{1,7})$")
_SUFFIX = re.compile(
    r"(((\.pt)?\.trace)?\.json(\.gz)?|\.sqlite|_pqtdir|\.nsys-rep|\.ncu-repz?|(\.details|\.raw)?\.csv(\.gz)?|\.otf2)$",
    re.IGNORECASE,
)


class ProfileContent(Enum):
    """The content of a profile, which decides its analyses. The values are for messages."""

    TIMELINE = "a timeline of Nsight Systems, PyTorch, JAX, rocprofv3, unitrace or Score-P"
    KERNEL_REPORT = "a profile of Nsight Compute"


@dataclass(frozen=True)
class Scrubber:
    """Copies profiles of one kind with private data removed."""

    function: str
    """``module:name`` of ``f(path, target, names) -> list of str``. It writes the copy and returns what it
    left out; ``names`` is a `hpcprof.profiles.scrub.names.Names`. It raises
    `hpcprof.common.errors.DamagedInput` for a file that it cannot read.
    """
    suffixes: tuple[str, ...]
    """The files that it copies, as in `Reader`."""
    files: str
    """The same for people."""
    otherwise: str = ""
    """Advice on the other files of the reader; may be empty."""


@dataclass(frozen=True)
class SeveralRanks:
    """The ranks in one profile, each with its processes; ``ranks`` is None if the profile does not tell them.

    Processes are numbers as in the columns ``process`` of a `hpcprof.profiles.timeline.Timeline`.
    """

    processes: tuple[tuple[int, ...], ...]
    ranks: tuple[int, ...] | None = None

    @classmethod
    def of_processes(cls, ranks: Mapping[int, int | None]) -> "SeveralRanks | None":
        """Return a rank for each of several processes, given the rank that each one tells, or None."""
        by_rank = sorted((rank, process) for process, rank in ranks.items() if rank is not None)
        if len(ranks) < 2:
            return None
        if len({rank for rank, _ in by_rank}) < len(ranks):
            return cls(tuple((process,) for process in sorted(ranks)))
        return cls(tuple((process,) for _, process in by_rank), tuple(rank for rank, _ in by_rank))

    @property
    def every_process(self) -> frozenset[int]:
        """The processes of all ranks."""
        return frozenset(process for processes in self.processes for process in processes)


@dataclass(frozen=True)
class ProfilePart:
    """One rank in a profile of several, by its position; ``merged`` if it stands for all of them."""

    of: SeveralRanks
    position: int = 0
    merged: bool = False

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes of the rank."""
        return self.of.processes[self.position]

    @property
    def first(self) -> bool:
        """True if it is the first rank in the profile."""
        return self.position == 0


@dataclass(frozen=True)
class Reader:
    """The declaration of a reader, known without importing it.

    References have the form ``module:name``; each function takes the path of a file and raises
    `hpcprof.common.errors.DamagedInput` for one that it cannot read.
    """

    name: str
    """The kind of profile, as in `hpcprof.profiles.timeline.Origin` and the store."""
    suffixes: tuple[str, ...]
    """Endings of the files' names, in lower case."""
    files: str
    """The same for people, for example ``*.json[.gz] of PyTorch``."""
    content: ProfileContent
    """The result of ``read``: a `hpcprof.profiles.timeline.Timeline` or a
    `hpcprof.profiles.kernel_report.KernelReport`.
    """
    read: str
    """Reads a profile. It raises `UsageError` if the user's table of kernel classes is wrong."""
    threaded: bool = field(default=False, kw_only=True)
    """True if ``read`` also takes the number of threads to use."""
    identify_rank: str = "hpcprof.profiles.readers.declaration:rank_from_name"
    """Returns the rank of a profile or None, without reading all of it. By default it is that in the file's
    name.
    """
    folder_suffix: str = field(default="", kw_only=True)
    """Ending of folders that are profiles themselves; empty if there are none. ``other_files`` returns their
    files.
    """
    several_ranks: str = ""
    """Returns a `SeveralRanks` for a profile that holds several ranks, else None. By default a profile holds
    one.
    """
    reads_parts: bool = field(default=False, kw_only=True)
    """True if ``read`` also takes the `ProfilePart` to read of a profile of several ranks."""
    other_files: str = ""
    """Returns for a profile and a `ProfilePart`, or None for all of it, the files beside it that it consists
    of. By default a profile is one file.
    """
    place_in_run: str = ""
    """The pattern of the paths of a submitted run's profiles below their folder, if the profiler makes a
    folder for them there.
    """
    shared_suffixes: tuple[str, ...] = ()
    """The suffixes that files of other kinds have too; ``recognize`` finds the profiles among these."""
    own_suffixes: tuple[str, ...] = field(default=(), kw_only=True)
    """The suffixes of this kind alone, though they end like a shared suffix."""
    recognize: str = ""
    """Returns whether a file is a profile of this kind, by its first bytes."""
    reports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The suffixes of files that only the profiler's own tool can read, each with the endings of what is made
    from them. Such a file or folder beside its report is not a profile of its own.
    """
    other_forms: tuple[str, ...] = field(default=(), kw_only=True)
    """Endings, in place of a profile's suffix, of files that the profiler writes beside it about the same
    recording. They are no profiles of their own.
    """
    named_by_host: bool = field(default=False, kw_only=True)
    """True if the profiler names files by host and a folder is one recording: other names are other ranks."""
    convert: str = ""
    """Returns for a report the file to read, which it may have to make."""
    scrubber: Scrubber | None = None
    """Without one, profiles of this kind cannot be scrubbed."""

    def takes(self, path: Path) -> bool:
        """Return whether the name of a file or folder ends as those of this kind do."""
        endings = (*self.suffixes, self.folder_suffix) if self.folder_suffix else self.suffixes
        return path.name.lower().endswith(endings)

    def is_unclear(self, name: str) -> bool:
        """Return whether a file of this name may be of another kind."""
        name = name.lower()
        return name.endswith(self.shared_suffixes) and not name.endswith(self.own_suffixes)

    def made_from(self, path: Path) -> list[Path]:
        """Return the files and folders beside a profile that are made from it, or from the same recording."""
        endings = self.reports.get(path.suffix.lower(), ())
        paths = [path.with_name(f"{path.stem}{ending}") for ending in endings]
        suffix = next((ending for ending in self.suffixes if path.name.lower().endswith(ending)), "")
        return paths + [
            path.with_name(path.name.removesuffix(suffix) + ending) for ending in self.other_forms
        ]


REPLACED = "which rocprofv3 has replaced: record it with rocprofv3 --sys-trace"
"""The remedy for files of the first rocprof."""
_HPCTOOLKIT = "a database of HPCToolkit, which hpcprof does not read: hpcviewer shows it"
_RECORD_MPI = "record the program with hpcprof run --profiler eztrace, nsys or scorep"
_MPIP = f"a report of mpiP without times of events: {_RECORD_MPI}"
_TAU_OTF2 = "TAU_TRACE=1 and TAU_TRACE_FORMAT=otf2 have it record a trace"
_CPROFILE = "a profile of Python's cProfile, which hpcprof does not read: python -m pstats shows it"
_NVPROF = "a profile of nvprof, which Nsight Systems has replaced: record it again with nsys profile"
_FOREIGN = {
    **dict.fromkeys((".nvprof", ".nvvp", ".cuprof"), _NVPROF),
    **dict.fromkeys(
        (".qdrep", ".qdstrm"),
        "a report of Nsight Systems before 2021: write it again with nsys export --type sqlite",
    ),
    ".rpd": "a profile of ROCm's rocpd tracer (rpd): record it with rocprofv3 --sys-trace",
    ".cubex": "a summary of Score-P without events: record a trace with SCOREP_ENABLE_TRACING=true",
    ".prv": "a trace of Extrae: write it as OTF2 with prv2otf2",
    **dict.fromkeys(
        (".pftrace", ".proto"),
        "a trace for Perfetto: rocprofv3 --output-format rocpd writes one with all that is recorded",
    ),
    ".parquet": "no table of operations, which has columns rank, step, name, kind, start_ns and duration_ns",
    ".metric-db": _HPCTOOLKIT,
    ".pfw": "a trace of DFTracer or PerfFlowAspect, which hpcprof does not read: Perfetto shows it",
    ".pstats": _CPROFILE,
    ".pyisession": "a session of pyinstrument, which hpcprof does not read: pyinstrument --load shows it",
    ".sts": "the index of a log of Charm++, which hpcprof does not read: Projections shows it",
    ".cali": "a profile of Caliper, which hpcprof does not read: cali-query shows it",
    ".mpip": _MPIP,
    **dict.fromkeys((".clog2", ".slog2"), f"a log of MPE for Jumpshot: {_RECORD_MPI}"),
    **dict.fromkeys((".stf", ".prot"), f"a trace of Intel's Trace Collector: {_RECORD_MPI}"),
    **dict.fromkeys((".edf", ".trc"), f"a trace of TAU in its own format: {_TAU_OTF2}"),
}
_HEAD_BYTES = 1 << 18
_RECORD_ANEW = "record the program with nsys profile or rocprofv3"
_TRACES = {
    # A processor as TensorFlow 1 names it in the timeline of one run.
    rb'"name"\s*:\s*"/(?:job|device):[^"]* (?:Compute|Tensors)"': "a timeline of TensorFlow 1, which "
    f"hpcprof does not read: {_RECORD_ANEW}",
    # A processor as XLA's profiler names it in a trace for viewers.
    rb'"name"\s*:\s*"/(?:device:(?:GPU|TPU)|host:CPU)': "a trace of JAX or TensorFlow for viewers: open the "
    "*.xplane.pb that is written beside it",
    # A process, or a call, as the profilers of Ascend's NPUs name it.
    rb'"(?:Ascend Hardware|CANN)"|"AscendCL@': "a trace of Ascend's profiler: hpcprof reads it as "
    "trace_view.json, as torch_npu names it",
    rb'"(?:BeginNs|DurationNs)"\s*:': f"a trace of rocprof, {REPLACED}",
    rb'\A\s*\{\s*"data"\s*:\s*\[\s*\[': "a profile of Caliper without times of events, which hpcprof does "
    "not read: Hatchet shows it",
    rb'\A\s*\{\s*"graph"\s*:\s*\[\s*\{\s*"0"\s*:': "an ensemble of profiles without times of events, which "
    "hpcprof does not read: Thicket shows it",
    rb'\A\s*\[\s*\{\s*"(?:children|frame|metrics)"\s*:': "a profile without times of events, as "
    "Triton's Proton and Hatchet write it, which hpcprof does not read: proton-viewer shows it",
    rb'"name"\s*:\s*"(?:model_loading_\w+|session_initialization)"': "a profile of ONNX Runtime, "
    f"which hpcprof does not read: {_RECORD_ANEW}",
    rb'"name"\s*:\s*"NEGOTIATE_[A-Z]+"': "a timeline of Horovod without the ranks' times, which "
    f"hpcprof does not read: {_RECORD_ANEW}",
    rb'(?i)"cat"\s*:\s*"FEE"': "a trace of VizTracer, which hpcprof does not read: vizviewer shows it",
    # Phases of Clang, by -ftime-trace.
    rb'"name"\s*:\s*"(?:Source|Parse(?:Class|Template)|Instantiate(?:Class|Function)|Total Frontend)"': "a "
    "trace of Clang's compilation, which hpcprof does not read: Perfetto shows it",
    rb'"(?:averageMs|startEnqMs)"\s*:': "a profile of TensorRT's trtexec without the GPU's operations, which "
    f"hpcprof does not read: {_RECORD_ANEW}",
    rb'\A\s*\{\s*"\$schema"\s*:\s*"https://www\.speedscope\.app/': "a profile of py-spy or "
    "another tool, which hpcprof does not read: https://www.speedscope.app shows it",
    rb'"cat"\s*:\s*"py-spy"': "a profile of py-spy, which hpcprof does not read: Perfetto shows it",
    rb'"timestamps"\s*:\s*\[\s*\{\s*"name"\s*:\s*"[A-Z_]+"\s*,\s*"ns"': "a trace of the requests of Triton "
    "Inference Server, which hpcprof does not read: its trace_summary.py shows it",
    rb'"root_frame"\s*:\s*\{': "a profile of pyinstrument without times of events, which hpcprof does not "
    "read: pyinstrument shows it",
    rb'\A\s*\{\s*"timemory"\s*:': "a profile of timemory without times of events, which hpcprof does not "
    "read: Hatchet shows it",
    rb'\A\s*\{\s*"schema"\s*:.*"nodes"\s*:.*"rf_id"': "an execution trace of PyTorch, which has no "
    "times: open the profiler's trace of the same run",
}
"""Kinds of JSON files by what is in their beginning."""
_SUBSTITUTES = {
    rb"\Aversion https://git-lfs\.": "a pointer of Git LFS: git lfs pull brings the file itself",
    rb"(?i)\A\s*<(?:!doctype html|html)": "a web page: download the file itself (its raw address)",
}
"""Kinds of files that a download leaves in place of a profile, by how they begin."""
_COMPRESSED = re.compile(r"\.(?:gz|xz|zst)$", re.IGNORECASE)
_TEXT_SUFFIX = re.compile(r"(?:\.(?:csv|log|out|txt|db|data|trace|prof|\d+))?")
_OTHER_TRACE = "a Chrome trace, but none of PyTorch's profiler or unitrace: Perfetto shows it"
_CHROME_EVENTS = rb'\A\s*\[\s*\{[^{}]*"ph"\s*:'
_TEXTS = {
    _CHROME_EVENTS: _OTHER_TRACE,
    rb"\AHPCTOOLKIT": _HPCTOOLKIT,
    rb"\APERFILE2": "a profile of Linux perf, which hpcprof does not read: perf report shows it",
    # A marshalled dictionary by file, line and function.
    rb"\A[\xfb{][\xa9)]\x03": _CPROFILE,
    rb"\A *\S.* \d+ +(?:\[\d+\] +)?\d+\.\d{6,9}: +(?:\d+ )?[\w:/-]+: ": "a profile of Linux perf as "
    "text, which hpcprof does not read: https://www.speedscope.app shows it",
    rb"\Agmon\x01|\A(?:Flat profile:|\s*Call graph \(explanation follows\))": "a profile of gprof, "
    "which hpcprof does not read: gprof shows it",
    rb"\A(?:# callgrind format|version: \d+\ncreator: callgrind|events: Ir)": "a profile of Callgrind, "
    "which hpcprof does not read: KCachegrind shows it",
    rb"^@ mpiP": _MPIP,
    rb"^##IPMv": f"a report of IPM without times of events: {_RECORD_MPI}",
    rb'\A"?Index"?,"?KernelName"?,': f"a table of rocprof, {REPLACED}",
    rb'\A"?Name"?,"?Calls"?,"?TotalDurationNs"?,': "a summary of rocprof without times of events: record a "
    "trace with rocprofv3 --sys-trace",
    rb'\A"?Time \(%\)"?,"?Total Time \(ns\)"?,': "a summary of nsys stats without times of events: "
    "give the report or its *.sqlite",
    rb"\A\d+ templated_functions": f"a profile of TAU without times of events: {_TAU_OTF2}",
    rb"\ATimestamp \(n?s\), ?Event Type,": "a table of Pipit, which hpcprof does not read: open the trace "
    "that it was made from",
    rb"\ADispatch_ID,GPU_ID,Grid_Size,": "a table of rocprofiler-compute, which rocprof-compute analyze "
    "shows; hpcprof reads traces and counters that rocprofv3 records itself",
    rb"^ *Name +Self CPU %": "a table of PyTorch's key_averages without times of events: open the trace that "
    "export_chrome_trace writes",
    rb"^==\d+== (?:NVPROF is profiling|Profiling (?:application|result))": _NVPROF,
}
"""Kinds of other files by how they begin, or by a line that a tool prints between those of the program."""


def foreign_kind(path: Path) -> str:
    """Return the kind of a file that no reader takes, and what to do instead; empty if unknown."""
    suffix = Path(_COMPRESSED.sub("", path.name)).suffix.lower()
    if suffix != ".json" or not path.is_file():
        has_text = _TEXT_SUFFIX.fullmatch(suffix) and path.is_file()
        by_text = _kind_of_head(path, _TEXTS, re.MULTILINE) if has_text else ""
        return by_text or _FOREIGN.get(suffix) or (foreign_trace(path) if path.is_file() else "")
    if path.stat().st_size == 0:
        return "empty: its writer was cut off, or the disk was full"
    return foreign_trace(path, _OTHER_TRACE)


def substitute_kind(path: Path) -> str:
    """Return the kind of a file that a download left for a profile, and what to do; empty for others."""
    return _kind_of_head(path, _SUBSTITUTES) if path.is_file() else ""


def foreign_trace(path: Path, other: str = "") -> str:
    """Return the program whose trace a JSON file is, by its beginning; ``other`` for an unknown program."""
    return _kind_of_head(path, {**_TRACES, _CHROME_EVENTS: other, rb'"traceEvents"': other})


def _kind_of_head(path: Path, kinds: Mapping[bytes, str], flags: re.RegexFlag = re.DOTALL) -> str:
    with suppress(DamagedInput):
        head = content_of(path, _HEAD_BYTES).removeprefix(codecs.BOM_UTF8)
        return next((kind for pattern, kind in kinds.items() if re.search(pattern, head, flags)), "")
    return ""


def load(reference: str) -> Any:
    """Return the object that ``module:name`` refers to."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def rank_from_name(path: Path) -> int | None:
    """Return the rank in ``rank00003.sqlite``, ``rank3.sqlite``, ``name.3.sqlite`` or ``a_rank-3_b.sqlite``.

    A folder ``rank_3`` gives the rank of a file in it whose own name has none. None if neither does.
    """
    stem = _SUFFIX.sub("", path.name)
    match = _RANK.search(stem) or _NUMBER.search(stem) or _RANK.fullmatch(path.parent.name)
    return int(match[1]) if match else None
