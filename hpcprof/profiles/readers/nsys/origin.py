"""Origin of an nsys export: rank, host, GPUs, versions, options of the capture and start time."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from hpcprof.common.errors import DamagedInput
from hpcprof.common.masking import masked
from hpcprof.common.units import visible
from hpcprof.profiles.columns.unique import distinct
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.readers import environment_allowlist
from hpcprof.profiles.readers.declaration import SeveralRanks, rank_from_name
from hpcprof.profiles.readers.foreign_files import foreign_kind
from hpcprof.profiles.readers.nsys import NSYS
from hpcprof.profiles.readers.nsys.export import NO_ID, PROCESS_SHIFT, REQUIRED, NsysExport, open_export
from hpcprof.profiles.timeline import Fact, Gpu, Origin

# The rows that describe how the capture was made. Nothing else of META_DATA_CAPTURE is read here (command,
# arguments, user, folder, environment).
_OPTION = re.compile(
    r"(?:PROCESS_\d+:)?(COLLECT_\w+|CUDA_\w+(?::\w+)?|MPI_TRACE_OPTIONS:\w+|CAPTURE_EVENT_TYPE|RATE_HZ"
    r"|START_TRIGGER|STOP_TRIGGER|START_DELAY_MS|RUN_DURATION_MS|SAMPLE_ALL_TASKS|USE_LINUX_PERF)",
    re.ASCII,
)
# Every export has at least one of these tables.
_KNOWN_TABLES = ("StringIds", "META_DATA_", "TARGET_INFO_", "CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "ENUM_")

_OPTION_VALUE = re.compile(r"\w{1,40}", re.ASCII)
_OFF_VALUES = ("false", "0")

_INFORMATION, _WARNING, _ERROR = 1, 2, 3
"""Values of ENUM_DIAGNOSTIC_SEVERITY_LEVEL; 4 is more detail."""
_LOSS = re.compile(
    r"missing|lost|dropp|discard|not (?:all|be|collect|support)|unable|unsupported|fail|incomplete|overflow"
    r"|trunc|exceed|skipp|error|cannot|could not|ran out|too (?:many|large|small)",
    re.IGNORECASE,
)
"""Words by which a message of level information reports a loss, such as of CUPTI events."""
_SELF_STARTED = re.compile(r"(?:started|stopped) due to \w+ API|(?<!flushed on )[Cc]udaProfilerSt(?:art|op)")
"""Sentences about a capture that the program starts or stops itself; nsys always tells when it flushes."""
_HARMLESS = (
    (re.compile(r"Not all (?:CUDA|NVTX) events might have been collected"), True),
    # Processes that record nothing, such as those of a data loader.
    (re.compile(r"^No (?:NVTX|OS runtime libraries) events collected"), False),
    # nsys then traces by software.
    (re.compile("CUDA hardware tracing is not supported"), False),
    # hpcprof reads neither graphics, nor states of threads, nor samples inside the operating system.
    # Samples of the program are beside its events.
    (re.compile(r"OpenGL|Vulkan|Direct3D|Scheduling information is absent|CPU (?:kernel )?IP"), False),
)
"""Warnings that mean no loss, and whether only where the program starts the capture: nsys writes the first
whenever events come from before the start."""
_AT_END = re.compile(r"CUPTI buffers: \d+ of \d+|incomplete CUPTI events dropped")
"""Warnings about the last events of a session, which come after the steps if the start-up hook ended it."""
_NO_PAGES = re.compile("Unified Memory cannot be traced")
"""The warning about moves of pages; a program without unified memory has none."""
_NO_RANGES = re.compile("Not all NVTX events might have been collected")
"""The warning about ranges; a program that marks none has none to lose."""
_WINDOW = "hpcprof.window"
"""The mark of the hook where the steps begin after which it ends the session."""
_NO_EVENTS = re.compile(r"^No \w+ events collected|might have not been started")
"""Warnings about a process that had nothing to record."""
_PID_MASK = 0xFFFFFF
_FOLDERS = re.compile(r"(?<![\w.])/(?:[^\s/:;,'\"]+/)+")

# Rows of META_DATA_EXPORT and TARGET_INFO_SYSTEM_ENV, with the kind and name of the fact.
_FACTS = {
    "EXPORT_SCHEMA_VERSION": ("version", "nsys export schema"),
    "NvDriverVersion": ("version", "driver"),
    "CudaDriverVersion": ("version", "CUDA driver"),
    "OsDescription": ("machine", "operating system"),
    "CpuDescription": ("machine", "CPU"),
    "CpuCores": ("machine", "CPU cores"),
}


def origin(export: NsysExport, left_out: Iterable[Loss], processes: Collection[int]) -> Origin:
    """Describe the export, with the variables that `environment_allowlist.allowed` accepts.

    ``left_out`` is what its tables lack, and ``processes`` are those that used the GPU.
    """
    variables = _environment(export)
    gpus = _gpus(export)
    return Origin(
        path=export.path,
        kind=NSYS.name,
        rank=_rank(export, mpi_processes(export), variables),
        world_size=environment_allowlist.first_number(variables, environment_allowlist.SIZES),
        host=_text(export, "TARGET_INFO_SYSTEM_ENV", "Hostname"),
        profiler_version=_text(export, "META_DATA_EXPORT", "EXPORT_PRODUCT_VERSION"),
        start_utc_ns=_start(export),
        gpus=gpus,
        facts=(
            *(Fact("environment", name, value) for name, value in sorted(variables.items())),
            *(Fact("option", name, value) for name, value in _options(export) if value not in _OFF_VALUES),
            *_software_and_machine(export),
        ),
        losses=(*left_out, *_diagnostics(export, processes)),
        ordered_streams=True,
    )


def check_tables(export: NsysExport) -> None:
    """Raise `DamagedInput` for the database of another program, such as nvprof or DLProf."""
    if "StringTable" in export.tables and "StringIds" not in export.tables:
        raise DamagedInput(f"{export.path} is {foreign_kind(export.path.with_suffix('.nvprof'))}.")
    if not any(table.startswith(_KNOWN_TABLES) for table in export.tables):
        raise DamagedInput(f"{export.path} is not an export of nsys: it has none of its tables.")


def identify_rank(path: Path) -> int | None:
    """Return the rank in an export, else in its name; None if neither has one."""
    with open_export(path) as export:
        check_tables(export)
        ranks = mpi_processes(export)
        return _rank(export, ranks, {} if ranks else _environment(export))


def _rank(export: NsysExport, ranks: Collection[int], variables: Mapping[str, str]) -> int | None:
    rank = next(iter(ranks)) if len(ranks) == 1 else None
    if not ranks:
        rank = environment_allowlist.first_number(variables, environment_allowlist.RANKS)
    return rank_from_name(export.path) if rank is None else rank


def _environment(export: NsysExport) -> dict[str, str]:
    """Return the variables that may be kept; of two variables of one name, the processes' variable counts."""
    environment: dict[str, str] = {}
    for item in _environment_items(export):
        name, value = environment_allowlist.split(item)
        if environment_allowlist.allowed(name, value):
            environment.setdefault(name, value)
    return environment


def _environment_items(export: NsysExport) -> Iterator[str]:
    """Yield ``NAME=value`` of the processes' environment, then of the device's."""
    source = export.table("META_DATA_CAPTURE")
    if source and {"name", "value"} <= source.columns:
        # Filtered in the query: the rest of the environment is never read.
        begins = [*(f"{name}=" for name in environment_allowlist.EXACT), *environment_allowlist.PREFIXES]
        names = " OR ".join(["value LIKE ? ESCAPE '/'"] * len(begins))
        patterns = [re.sub("[/%_]", r"/\g<0>", begin) + "%" for begin in begins]
        where = f"WHERE name LIKE '%ENVIRONMENT_VARIABLE' AND ({names})"
        yield from (str(value) for (value,) in source.rows(["value"], where, patterns))
    yield from (_text(export, "TARGET_INFO_SYSTEM_ENV", "DeviceEnvironment") or "").split(";")


def _options(export: NsysExport) -> list[tuple[str, str]]:
    source = export.table("META_DATA_CAPTURE")
    if source is None or not {"name", "value"} <= source.columns:
        return []
    pairs = source.rows(("name", "value"))
    options: dict[str, str] = {}
    for name, value in pairs:
        option = _OPTION.fullmatch(str(name))
        if option and is_option(str(name), str(value)):
            options[option[1]] = f"{options[option[1]]},{value}" if option[1] in options else str(value)
    return list(options.items())


def is_option(name: str, value: str) -> bool:
    """Return whether a row of META_DATA_CAPTURE is an option whose value is a word or a number."""
    return _OPTION.fullmatch(name) is not None and _OPTION_VALUE.fullmatch(value) is not None


def _software_and_machine(export: NsysExport) -> Iterator[Fact]:
    for row, (kind, name) in _FACTS.items():
        table = "META_DATA_EXPORT" if row.startswith("EXPORT_") else "TARGET_INFO_SYSTEM_ENV"
        value = _text(export, table, row)
        if value:
            yield Fact(kind, name, value)


def _diagnostics(export: NsysExport, processes: Collection[int]) -> list[Loss]:
    """Return the warnings and errors of nsys itself, such as that events may be missing.

    nsys also warns about each process that had nothing to record, such as a shell: that does not count beside
    processes that used the GPU.
    """
    source = export.table("DIAGNOSTIC_EVENT")
    if source is None or not {"severity", "text"} <= source.columns:
        return []
    column = "globalPid" if "globalPid" in source.columns else "NULL"
    messages = [row for row in source.rows(("severity", "text", column)) if isinstance(row[1], str)]
    started = any(_SELF_STARTED.search(text) for _, text, _ in messages)
    ended = any(_AT_END.search(text) for _, text, _ in messages) and _has_window(export)
    counts: Counter[tuple[LossKind, str]] = Counter()
    for severity, text, process in messages:
        is_loss = severity in (_WARNING, _ERROR) or (severity == _INFORMATION and _LOSS.search(text))
        # A global id without a pid is of no process.
        owner = process >> PROCESS_SHIFT if isinstance(process, int) else 0
        is_other_process = processes and owner & _PID_MASK and owner not in processes
        if not is_loss or (is_other_process and _NO_EVENTS.search(text)):
            continue
        harmless = (
            (ended and _AT_END.search(text))
            or (_NO_PAGES.search(text) and not _uses_managed_memory(export))
            or (_NO_RANGES.search(text) and "NVTX_EVENTS" not in export.tables)
            or any(pattern.search(text) and (started or not needs) for pattern, needs in _HARMLESS)
        )
        # One line, without secrets, and of the paths only the names of the files.
        sentence = _FOLDERS.sub("", visible(masked(" ".join(text.split()))))
        counts[LossKind.NOTE if harmless else LossKind.DIAGNOSTIC, sentence] += 1
    return [Loss(kind, Subject.CAPTURE, count, None, text) for (kind, text), count in counts.items()]


def _uses_managed_memory(export: NsysExport) -> bool:
    names = export.table("StringIds")
    return names is not None and any(
        True for _ in names.rows(["value"], "WHERE value LIKE 'cu%AllocManaged%' LIMIT 1")
    )


def _has_window(export: NsysExport) -> bool:
    nvtx = export.table("NVTX_EVENTS")
    if nvtx is None or "text" not in nvtx.columns:
        return False
    return next(nvtx.rows(["text"], "WHERE text = ?", [_WINDOW]), None) is not None


def _text(export: NsysExport, table: str, name: str) -> str | None:
    source = export.table(table)
    if source is None or not {"name", "value"} <= source.columns:
        return None
    value = next(source.rows(["value"], "WHERE name = ?", [name]), (None,))[0]
    return str(value) if value else None


_GPU_COLUMNS = {
    "uuid": "uuid",
    "smCount": "sm_count",
    "clockRate": "clock_hz",
    "totalMemory": "memory_bytes",
    "memoryBandwidth": "memory_bytes_per_s",
}


_FORMER_COLUMNS = {
    "deviceId": "id",
    "computeCapabilityMajor": "computeMajor",
    "computeCapabilityMinor": "computeMinor",
    "numMultiprocessors": "smCount",
}
"""The names of columns of GPUs in exports before 2021."""


def _gpus(export: NsysExport) -> tuple[Gpu, ...]:
    source = export.table("TARGET_INFO_GPU") or export.table("TARGET_INFO_CUDA_GPU")
    if source is None or "name" not in source.columns:
        return ()
    columns = {"id", "name", "computeMajor", "computeMinor", *_GPU_COLUMNS}
    wanted = [name for name in source.columns if _FORMER_COLUMNS.get(name, name) in columns]
    names = [_FORMER_COLUMNS.get(name, name) for name in wanted]
    rows = [dict(zip(names, row, strict=True)) for row in source.rows(wanted)]
    if "id" in names:
        rows.sort(key=lambda row: row["id"] if isinstance(row["id"], int) else 0)
    return tuple(_gpu(i, row) for i, row in enumerate(rows))


def _gpu(position: int, row: Mapping[str, object]) -> Gpu:
    def number(column: str) -> int | None:
        value = row.get(column)
        return value if isinstance(value, int) and value > 0 else None

    major, minor = number("computeMajor"), row.get("computeMinor")
    device, uuid = row.get("id"), row.get("uuid")
    return Gpu(
        device=device if isinstance(device, int) else position,
        name=str(row["name"]),
        uuid=str(uuid) if uuid else None,
        compute_capability=f"{major}.{minor}" if major is not None and isinstance(minor, int) else None,
        **{name: number(column) for column, name in _GPU_COLUMNS.items() if name != "uuid"},
    )


def _start(export: NsysExport) -> int | None:
    source = export.table("TARGET_INFO_SESSION_START_TIME")
    if source is None or "utcEpochNs" not in source.columns:
        return None
    stamp = next(source.rows(["utcEpochNs"]), (None,))[0]
    return stamp if isinstance(stamp, int) and stamp > 0 else None


def several_ranks(path: Path) -> SeveralRanks | None:
    """Return the processes of each rank in an export, or None if it holds one rank.

    Without MPI_RANKS, each process that ran kernels is a rank.
    """
    with open_export(path) as export:
        by_rank = mpi_processes(export)
        if len(by_rank) > 1:
            ranks = sorted(by_rank)
            return SeveralRanks(tuple(tuple(sorted(by_rank[rank])) for rank in ranks), tuple(ranks))
        return None if by_rank else SeveralRanks.of_processes(dict.fromkeys(_gpu_users(export)))


def mpi_processes(export: NsysExport) -> dict[int, set[int]]:
    """Return the processes of each MPI rank in an export; none where MPI was not traced."""
    table = export.table("MPI_RANKS")
    if table is None:
        return {}
    columns = table.integers({"globalTid": REQUIRED, "rank": REQUIRED})
    sets: dict[int, set[int]] = defaultdict(set)
    for thread, rank in zip(columns["globalTid"].tolist(), columns["rank"].tolist(), strict=True):
        sets[rank].add(thread >> PROCESS_SHIFT)
    return dict(sets)


def _gpu_users(export: NsysExport) -> list[int]:
    """Return the processes that ran kernels, by their ids; exports before 2021 do not tell them."""
    table = export.table("CUPTI_ACTIVITY_KIND_KERNEL")
    if table is None or "globalPid" not in table.columns:
        return []
    owners = distinct(table.read_bulk({"globalPid": NO_ID}).integers["globalPid"])
    return sorted({owner >> PROCESS_SHIFT for owner in owners.tolist() if owner != NO_ID})
