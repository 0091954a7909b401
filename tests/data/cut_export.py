"""Cut a scrubbed nsys export down to what comparisons of kernels read.

``python cut_export.py FROM TO STEPS`` leaves of the first STEPS steps the kernels, copies and sets with
the calls that launched them, the ranges, and the tables that say what and where they are.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys

KEPT = (
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"),
    *("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES"),
    *("NVTX_PAYLOAD_ENUMS", "NVTX_PAYLOAD_ENUM_ENTRIES", "MPI_RANKS", "MPI_COMMUNICATORS", "StringIds"),
    *("ENUM_CUDA_MEMCPY_OPER", "TARGET_INFO_GPU", "TARGET_INFO_SESSION_START_TIME"),
    *("TARGET_INFO_SYSTEM_ENV", "META_DATA_EXPORT", "META_DATA_CAPTURE"),
)
OPERATIONS = KEPT[:3]
# Read by nothing, and different in every row.
UNREAD = {"CUPTI_ACTIVITY_KIND_KERNEL": ("gridId", "graphNodeId")}


def cut(path: str, steps: int) -> None:
    """Cut an export in place."""
    with sqlite3.connect(path) as export:
        names = [name for (name,) in export.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in set(names) - set(KEPT):
            export.execute(f'DROP TABLE "{name}"')
        texts = "LEFT JOIN StringIds s ON s.id = textId WHERE coalesce(text, value) = 'iteration'"
        ends = export.execute(f'SELECT "end" FROM NVTX_EVENTS {texts} ORDER BY start').fetchall()
        (end,) = ends[steps - 1]
        # Domains have no time of their own: they are made at the beginning.
        export.execute("DELETE FROM NVTX_EVENTS WHERE start > ? AND eventType <> 75", (end,))
        launched = " UNION ".join(f"SELECT correlationId FROM {table}" for table in OPERATIONS)
        export.execute(
            f"DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start > ? OR correlationId NOT IN ({launched})",
            (end,),
        )
        for table in OPERATIONS:
            export.execute(
                f"DELETE FROM {table} WHERE correlationId NOT IN "
                "(SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME)"
            )
        for table, columns in UNREAD.items():
            for column in columns:
                export.execute(f'UPDATE {table} SET "{column}" = NULL')
    with sqlite3.connect(path) as export:
        export.execute("VACUUM")


if __name__ == "__main__":
    source, target, count = sys.argv[1:]
    shutil.copyfile(source, target)
    cut(target, int(count))
