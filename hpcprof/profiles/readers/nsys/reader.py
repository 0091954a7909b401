"""Reader of exports of nsys 2021 to 2026, to SQLite and to folders of Parquet files."""

from pathlib import Path

import numpy as np

from hpcprof.profiles import kernel_classification
from hpcprof.profiles.columns.unique import distinct
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.nsys import mpi, operations, synchronizations
from hpcprof.profiles.readers.nsys.device_samples import read_device_samples
from hpcprof.profiles.readers.nsys.export import NO_ID, PROCESS_SHIFT, NsysExport, open_export
from hpcprof.profiles.readers.nsys.functions import read_functions
from hpcprof.profiles.readers.nsys.mpi import read_mpi
from hpcprof.profiles.readers.nsys.nccl_calls import read_collectives
from hpcprof.profiles.readers.nsys.nvtx_ranges import ranges, read_events
from hpcprof.profiles.readers.nsys.operations import (
    api_calls,
    failed_calls,
    kernels,
    read_calls,
    read_graphs,
    read_kernels,
    read_memory,
    read_os_calls,
)
from hpcprof.profiles.readers.nsys.origin import check_tables, origin
from hpcprof.profiles.readers.nsys.synchronizations import read_synchronizations
from hpcprof.profiles.readers.string_table import StringTable, translate
from hpcprof.profiles.timeline import NO_NAME, Collectives, Ints, Operators, Ranges, Timeline


def read(path: Path, threads: int = 2) -> Timeline:
    """Read an export, its large tables in several threads.

    Rows without a start or an end are left out and counted in ``Origin.losses``. Ranges that PyTorch marked
    for its operators are operators.
    """
    with open_export(path, threads) as export:
        check_tables(export)
        return _timeline(export)


def _timeline(export: NsysExport) -> Timeline:
    for tables in (operations.BULK, synchronizations.BULK, mpi.BULK):
        export.begin_bulk(tables)
    events = read_events(export)
    calls, lost_calls = read_calls(export)
    process = _only_process(calls["globalTid"])
    gpu, lost_kernels = read_kernels(export, process)
    lost_calls += failed_calls(export, calls, len(gpu["start"]))
    used = (gpu["demangledName"], calls["nameId"], *([events.columns["textId"]] if events else []))
    ids = np.concatenate([distinct(column) for column in used])
    strings = StringTable()
    # In the order of their ids, in which ``nsys stats`` lists rows that are otherwise equal.
    numbers = {i: strings.add(text) for i, text in sorted(export.strings(ids).items())}
    if events:
        table, operators, lost_ranges = ranges(events, strings, numbers)
    else:
        table, operators, lost_ranges = Ranges.empty(), Operators.empty(), []
    memory, lost_memory = read_memory(export, strings, process)
    graphs, lost_graphs = read_graphs(export, strings, process)
    names = translate(gpu["demangledName"], numbers)
    called = translate(calls["nameId"], numbers)
    collectives = read_collectives(export, events, strings) if events else Collectives.empty()
    functions = read_functions(export, events, strings)
    mpi_calls, mpi_operations, lost_mpi = read_mpi(export, strings)
    os_calls, lost_system = read_os_calls(export, strings)
    samples, lost_samples = read_device_samples(export, strings)
    texts, all_calls = strings.array(), api_calls(calls, called)
    waits, lost_waits = read_synchronizations(export, all_calls, texts, process)
    unnamed = [*_name_losses(names, Subject.KERNEL), *_name_losses(called, Subject.CALL)]
    lost = [*lost_kernels, *lost_memory, *lost_graphs, *lost_calls, *lost_ranges, *lost_waits, *lost_mpi]
    lost += [*lost_system, *lost_samples, *unnamed]
    unread = export.unread()
    lost += losses(LossKind.TABLE, Subject.CAPTURE, {", ".join(unread): len(unread)})
    # Without kernels, the processes that called the GPU's API are those of the rank.
    users = distinct(gpu["process"] if len(gpu["process"]) else all_calls.process).tolist()
    return Timeline(
        origin=origin(export, lost, set(users)),
        strings=texts,
        kernels=kernels(gpu, names, kernel_classification.classes_of(names, texts)),
        memops=memory,
        calls=all_calls,
        ranges=table,
        operators=operators,
        graphs=graphs,
        collectives=collectives,
        synchronizations=waits,
        functions=functions,
        mpi_calls=mpi_calls,
        mpi_operations=mpi_operations,
        os_calls=os_calls,
        device_samples=samples,
    )


def _name_losses(names: Ints, subject: Subject) -> list[Loss]:
    """Count the rows without a name: theirs is missing in the export."""
    return losses(LossKind.FIELD, subject, {"name": np.count_nonzero(names == NO_NAME)}, len(names))


def _only_process(thread: Ints) -> int:
    """Return the one process that made calls, 0 if there are several or none."""
    threads = thread if thread.min(initial=0) > NO_ID else thread[thread != NO_ID]
    if not len(threads):
        return 0
    low, high = int(threads.min()) >> PROCESS_SHIFT, int(threads.max()) >> PROCESS_SHIFT
    return low if low == high else 0
