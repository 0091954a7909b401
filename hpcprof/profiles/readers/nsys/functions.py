"""Functions of the user's code in an nsys export, from its stacks.

Functions of Python are samples (``--python-sampling=true``), which nsys writes as marks of an NVTX domain
with the stack as their payload; an export has them if it was made with ``--include-blobs=true``. Compiled
code has samples of the CPU (``--sample=process-tree``) and the stacks of API calls (``--cudabacktrace``).
"""

import html
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from hpcprof.profiles.columns.unique import distinct, rows_by_key
from hpcprof.profiles.frames import Frame, innermost_own, is_own
from hpcprof.profiles.readers.nsys.export import NO_ID, PROCESS_SHIFT, THREAD_BITS, ExportTable, NsysExport
from hpcprof.profiles.readers.nsys.nvtx_ranges import (
    DOMAIN_CREATE,
    MARK,
    PAYLOAD_HEADER,
    NvtxEvents,
    PayloadLayout,
    SchemaId,
    layouts,
)
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import Functions, Ints, concatenate, has_plausible_times

_DOMAINS = ("Python Backtrace", "Python Periodic Sampling")
"""The second is that of nsys 2025.3, whose samples have a schema and belong to the thread that is sampled."""

_COUNT = struct.Struct("<I")
_COUNT_OFFSET = 8
"""The place of the number of frames in a payload without a schema: behind the thread's state and a number."""

_FRAME = np.dtype([("function", "<u8"), ("file", "<u8"), ("line", "<u4"), ("padding", "<u4")])
"""A frame, innermost first: two ids in StringIds, and the line that runs; the padding may hold anything."""

_MAIN = 1
"""The category of the samples of the main thread. Those of others do not name their threads."""

_MAX_SAMPLE_RATIO = 2
"""Maximum length of a sample, in median distances between the samples of its thread."""


def read_functions(export: NsysExport, events: NvtxEvents | None, strings: StringTable) -> Functions:
    """Return the places of each thread in the user's code: in Python, or without any in compiled code.

    ``events`` are the NVTX events of the export; ``strings`` receives the names of functions and files.
    """
    in_python = _python_samples(export, events, strings) if events else Functions.empty()
    if len(in_python):
        return in_python
    return concatenate(Functions, (_cpu_samples(export, strings), _stacks_of_calls(export, strings)))


def _python_samples(export: NsysExport, events: NvtxEvents, strings: StringTable) -> Functions:
    columns = events.columns
    created = np.flatnonzero(columns["eventType"] == DOMAIN_CREATE)
    names = events.text.take(created).texts()
    domains = [columns["domainId"][row] for row, name in zip(created, names, strict=True) if name in _DOMAINS]
    chosen = (columns["eventType"] == MARK) & np.isin(columns["domainId"], domains)
    rows = np.flatnonzero(chosen & has_plausible_times(columns["start"], columns["start"]))
    if not len(rows):
        return Functions.empty()
    payload, payload_layouts = events.payload.take(rows), layouts(export)
    stacks = [
        _frames(payload.content[begin:end].tobytes(), domain, payload_layouts)
        for domain, begin, end in zip(
            columns["domainId"][rows].tolist(), payload.begin.tolist(), payload.end.tolist(), strict=True
        )
    ]
    ids = [np.concatenate((stack["function"], stack["file"])) for stack in stacks if stack is not None]
    used = distinct(np.concatenate([np.empty(0, np.int64), *ids]).astype(np.int64))
    texts = {number: html.unescape(text) for number, text in export.strings(used).items()}
    frames = [None if stack is None else _innermost(stack, texts) for stack in stacks]
    process = columns["globalTid"][rows] >> PROCESS_SHIFT
    category = columns["category"][rows]
    # Marks with a category come from a thread of nsys. Linux gives the main thread the number of its process.
    sampled = np.where(category == _MAIN, process & THREAD_BITS, -category)
    thread = np.where(category == NO_ID, columns["globalTid"][rows] & THREAD_BITS, sampled)
    start = columns["start"][rows]
    return _functions(start, _ends_of_samples(start, process, thread), process, thread, frames, strings)


def _frames(
    blob: bytes, domain: int, payload_layouts: Mapping[SchemaId, PayloadLayout]
) -> np.ndarray[tuple[int], np.dtype[np.void]] | None:
    if len(blob) < PAYLOAD_HEADER.itemsize:
        return None
    _, schema, _, offset = np.frombuffer(blob, PAYLOAD_HEADER, 1)[0].tolist()
    count = payload_layouts.get((domain, schema), {}).get("Frames count")
    at = offset + (count.offset if count else _COUNT_OFFSET)
    # Frames begin at a multiple of 8 bytes.
    begin = offset + -(-(at + _COUNT.size - offset) // 8) * 8
    if begin > len(blob):
        return None
    (frames,) = _COUNT.unpack_from(blob, at)
    if begin + frames * _FRAME.itemsize > len(blob):
        return None
    return np.frombuffer(blob, _FRAME, frames, begin)


def _innermost(frames: np.ndarray[tuple[int], np.dtype[np.void]], texts: dict[int, str]) -> Frame | None:
    stack = zip(frames["function"].tolist(), frames["file"].tolist(), frames["line"].tolist(), strict=True)
    return innermost_own(
        Frame(texts.get(function, ""), texts.get(file, ""), line) for function, file, line in stack
    )


def _ends_of_samples(start: Ints, process: Ints, thread: Ints) -> Ints:
    """Return until when each sample counts."""
    end: Ints = start.copy()
    for _, rows in rows_by_key(process, thread):
        rows = rows[np.argsort(start[rows], kind="stable")]
        apart = np.diff(start[rows])
        longest = _MAX_SAMPLE_RATIO * int(np.median(apart)) if len(apart) else 0
        end[rows] += np.append(np.minimum(apart, longest), longest // _MAX_SAMPLE_RATIO)
    return end


def _cpu_samples(export: NsysExport, strings: StringTable) -> Functions:
    samples, chains = export.table("COMPOSITE_EVENTS"), export.table("SAMPLING_CALLCHAINS")
    if samples is None or chains is None or not {"id", "start", "globalTid"} <= samples.columns:
        return Functions.empty()
    columns = samples.read_bulk({"id": NO_ID, "start": NO_ID, "globalTid": NO_ID}).integers
    ids, start, thread = (columns[name] for name in ("id", "start", "globalTid"))
    end = _ends_of_samples(start, thread >> PROCESS_SHIFT, thread)
    return _samples_of_chains(chains, ids, (start, end, thread), strings)


def _stacks_of_calls(export: NsysExport, strings: StringTable) -> Functions:
    calls, chains = export.table("CUPTI_ACTIVITY_KIND_RUNTIME"), export.table("CUDA_CALLCHAINS")
    if calls is None or chains is None or not {"callchainId", "start", "end", "globalTid"} <= calls.columns:
        return Functions.empty()
    columns = calls.read_bulk({"callchainId": 0, "start": NO_ID, "end": NO_ID, "globalTid": NO_ID}).integers
    rows = np.flatnonzero(
        (columns["callchainId"] > 0) & has_plausible_times(columns["start"], columns["end"])
    )
    ids, *placed = (columns[name][rows] for name in ("callchainId", "start", "end", "globalTid"))
    return _samples_of_chains(chains, ids, placed, strings)


def _samples_of_chains(
    chains: ExportTable, ids: Ints, placed: Sequence[Ints], strings: StringTable
) -> Functions:
    """Return the innermost own function of stacks, given their ids, starts, ends and global threads."""
    wanted = ("id", "symbol", "module", "stackDepth")
    if not chains.columns >= {*wanted}:
        return Functions.empty()
    columns = chains.read_bulk(dict.fromkeys(wanted, NO_ID)).integers
    texts = chains.export.strings(distinct(np.concatenate((columns["symbol"], columns["module"]))))
    modules = [
        number for number in distinct(columns["module"]).tolist() if is_own(Frame("", texts.get(number, "")))
    ]
    rows = np.flatnonzero(np.isin(columns["module"], modules))
    rows = rows[np.lexsort((columns["stackDepth"][rows], columns["id"][rows]))]
    known_ids, first = np.unique(columns["id"][rows], return_index=True)
    place = np.searchsorted(known_ids, ids)
    has = np.append(known_ids, NO_ID)[place] == ids
    rows = rows[first][place[has]]
    frames = [
        Frame(texts.get(symbol, ""), texts.get(module, ""))
        for symbol, module in zip(
            columns["symbol"][rows].tolist(), columns["module"][rows].tolist(), strict=True
        )
    ]
    start, end, thread = (column[has] for column in placed)
    return _functions(start, end, thread >> PROCESS_SHIFT, thread & THREAD_BITS, frames, strings)


def _functions(
    start: Ints, end: Ints, process: Ints, thread: Ints, frames: Sequence[Frame | None], strings: StringTable
) -> Functions:
    has_frame = np.array([frame is not None for frame in frames], bool)
    innermost = [frame for frame in frames if frame is not None]
    return Functions(
        start=start[has_frame],
        end=end[has_frame],
        process=process[has_frame],
        thread=thread[has_frame],
        function=strings.add_all(frame.function for frame in innermost),
        file=strings.add_all(frame.file for frame in innermost),
        line=np.array([frame.line for frame in innermost], np.int64),
    )
