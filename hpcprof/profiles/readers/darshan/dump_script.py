"""Prints a log of Darshan as JSON, by the package ``darshan``.

It runs in a process of its own (``python dump_script.py LOG``): the package is a C library, and a damaged log
may crash it. The library complains on standard error about modules that it cannot read.
"""

import json
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

MODULES = {"POSIX": "POSIX", "MPI-IO": "MPIIO", "STDIO": "STDIO", "DFS": "DFS", "DAOS": "DAOS"}
"""The modules whose counters are printed, with the beginning of the names of these."""

_CALLS: dict[str, dict[str, tuple[str, ...]]] = {
    "MPI-IO": {
        access: tuple(f"{kind}_{access}" for kind in ("INDEP", "COLL", "SPLIT", "NB"))
        for access in ("OPENS", "READS", "WRITES")
    },
    "DFS": {
        "OPENS": ("OPENS", "GLOBAL_OPENS", "LOOKUPS"),
        "READS": ("READS", "READXS", "NB_READS"),
        "WRITES": ("WRITES", "WRITEXS", "NB_WRITES"),
    },
    "DAOS": {
        "OPENS": ("OBJ_OPENS", "ARRAY_OPENS", "KV_OPENS"),
        "READS": ("OBJ_FETCHES", "NB_OBJ_FETCHES", "ARRAY_READS", "NB_ARRAY_READS", "KV_GETS", "NB_KV_GETS"),
        "WRITES": (
            "OBJ_UPDATES",
            "NB_OBJ_UPDATES",
            "ARRAY_WRITES",
            "NB_ARRAY_WRITES",
            "KV_PUTS",
            "NB_KV_PUTS",
        ),
    },
}
"""The counters of calls of modules that count several kinds of them."""

_COUNTS = ("OPENS", "READS", "WRITES", "BYTES_READ", "BYTES_WRITTEN")
_TIMES = ("F_READ_TIME", "F_WRITE_TIME", "F_META_TIME")
_TRACES = {"DXT_POSIX": "POSIX", "DXT_MPIIO": "MPI-IO"}
_LUSTRE = "LUSTRE"
_MAX_RECORDS, _MAX_SEGMENTS = 500_000, 1_000_000
_MIN_MEMORY, _MAX_MEMORY, _MEMORY_RATIO = 5 << 28, 8 << 30, 200
"""Address space in bytes: of small logs, of all, and as a multiple of a log's packed size."""
NO_LOG = 3
"""The exit code for a file that the library does not open."""


def main(path: str) -> None:
    """Print job, files, counters and, of DXT, the single reads and writes."""
    size = Path(path).stat().st_size if Path(path).is_file() else 0
    resource.setrlimit(resource.RLIMIT_AS, 2 * (memory_bound(size),))
    import darshan.backend.cffi_backend as library

    log = library.log_open(path)
    if log["handle"] == library.ffi.NULL:
        sys.exit(NO_LOG)
    job = library.log_get_job(log)
    mounts = library.log_get_mounts(log)
    names = library.log_get_name_records(log)
    modules = library.log_get_modules(log)
    dump: dict[str, Any] = {
        "job_id": job["jobid"],
        "ranks": job["nprocs"],
        "begin": job["start_time_sec"] + job["start_time_nsec"] / 1e9,
        "whole_seconds": not job["start_time_nsec"],
        "run_time_s": job["run_time"],
        "mounts": mounts,
        "partial": sorted(name for name, entry in modules.items() if entry["partial_flag"]),
        "records": [],
        "segments": [],
        "left_out": 0,
        "not_read": sorted(set(modules) - set(MODULES) - set(_TRACES) - {_LUSTRE}),
    }
    numbers: dict[int, int] = {}
    impossible: set[str] = set()
    targets: dict[int, list[int]] = {}
    # The library reads a log from its begin to its end: the records of a module must be read before the next
    # module.
    for module in sorted(modules, key=lambda name: modules[name]["idx"]):
        if module in MODULES:
            read = _records(lambda: library.log_get_generic_record(log, module, "dict"))  # noqa: B023
            for record in read:
                impossible |= _impossible_counters(module, record)
                if len(dump["records"]) < _MAX_RECORDS:
                    file = numbers.setdefault(record["id"], len(numbers))
                    dump["records"].append(_counters(module, file, record))
                else:
                    dump["left_out"] += 1
        elif module in _TRACES:
            for record in _records(lambda: library.log_get_dxt_record(log, module)):  # noqa: B023
                file = numbers.setdefault(record["id"], len(numbers))
                for segment in _segments(_TRACES[module], file, record):
                    if len(dump["segments"]) < _MAX_SEGMENTS:
                        dump["segments"].append(segment)
                    else:
                        dump["left_out"] += 1
        elif module == _LUSTRE:
            for record in _records(lambda: library.log_get_record(log, _LUSTRE, "dict")):
                file = numbers.setdefault(record["id"], len(numbers))
                parts = (record, *record.get("components", ()))
                targets[file] = sorted({int(number) for part in parts for number in part.get("ost_ids", ())})
    dump["targets"] = targets
    dump["impossible"] = sorted(impossible)
    dump["files"] = [str(names.get(number, "")) for number in numbers]
    print(json.dumps(dump))


def memory_bound(size: int) -> int:
    """Return the address space in bytes that reading a log of ``size`` bytes may take."""
    return min(_MAX_MEMORY, max(_MIN_MEMORY, _MEMORY_RATIO * size))


def _records(read: Callable[[], Any]) -> Iterator[Any]:
    while (record := read()) is not None:
        yield record


def _impossible_counters(module: str, record: Mapping[str, Any]) -> set[str]:
    """Return the counters that are printed and below -1, which means not monitored; others may be ids."""
    names = {name for kind in _CALLS.get(module, {}).values() for name in kind} | {*_COUNTS, *_TIMES}
    prefix = MODULES[module]
    values = {**record["counters"], **record["fcounters"]}
    return {key for name in names if values.get(key := f"{prefix}_{name}", 0) < -1}


def _counters(module: str, file: int, record: Mapping[str, Any]) -> dict[str, Any]:
    prefix = MODULES[module]
    whole = {name: max(0, int(value)) for name, value in record["counters"].items()}
    times = {name: max(0.0, float(value)) for name, value in record["fcounters"].items()}

    def total(*names: str) -> int:
        return sum(whole.get(f"{prefix}_{name}", 0) for name in names)

    calls = {kind: total(*_CALLS.get(module, {}).get(kind, (kind,))) for kind in ("OPENS", "READS", "WRITES")}
    alone = total(*(f"{kind}_{call}" for kind in ("INDEP", "NB") for call in ("OPENS", "READS", "WRITES")))
    is_balanced = total("FASTEST_RANK_BYTES") == total("SLOWEST_RANK_BYTES")
    is_collective = total("COLL_OPENS") > 0 and not alone and is_balanced
    return {
        "module": module,
        "file": file,
        "rank": int(record["rank"]),
        "opens": calls["OPENS"],
        "reads": calls["READS"],
        "writes": calls["WRITES"],
        "unaligned": total("FILE_NOT_ALIGNED"),
        "independent": total("INDEP_READS", "INDEP_WRITES", "NB_READS", "NB_WRITES"),
        "read_bytes": total("BYTES_READ"),
        "written_bytes": total("BYTES_WRITTEN"),
        **{
            field: times.get(f"{prefix}_{name}", 0.0)
            for field, name in zip(("read_s", "write_s", "meta_s"), _TIMES, strict=True)
        },
        "slowest_rank": int(record["counters"].get(f"{prefix}_SLOWEST_RANK", -1)),
        "slowest_s": times.get(f"{prefix}_F_SLOWEST_RANK_TIME", 0.0),
        # A rank waits in collective calls until the last one comes, which spends least time in them.
        "late_rank": whole.get(f"{prefix}_FASTEST_RANK", -1) if is_collective else -1,
        "late_s": times.get(f"{prefix}_F_FASTEST_RANK_TIME", 0.0),
    }


def _segments(module: str, file: int, record: Mapping[str, Any]) -> Iterator[list[Any]]:
    for kind in ("read", "write"):
        for segment in record[f"{kind}_segments"]:
            times = float(segment["start_time"]), float(segment["end_time"])
            yield [module, file, int(record["rank"]), kind == "write", int(segment["length"]), *times]


if __name__ == "__main__":
    main(*sys.argv[1:])
