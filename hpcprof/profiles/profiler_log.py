"""Warnings that rocprofv3 and unitrace print into the log of a rank, and keep in no profile."""

import re
from pathlib import Path

from hpcprof.common.decode import open_regular
from hpcprof.common.masking import masked
from hpcprof.common.units import visible
from hpcprof.profiles.losses import Loss, LossKind, Subject

_MAX_BYTES = 4 << 20
"""Maximum bytes of a log that are searched, from its beginning."""


# glog's prefix with the year, which PyTorch's and XLA's loggers leave out.
_ROCPROFV3 = (
    re.compile(r"^[WEF]\d{8} [\d:.]+ +\d+ \w+\.[ch]pp:\d+\] (.+)", re.MULTILINE),
    # All of ROCm/rocprofiler-sdk, source/lib.
    re.compile(
        r"^Opened result file"  # says so of each file, as an error: output/output_stream.cpp
        r"|^Hostname unknown|matched with zero domain groups"  # name and summary of the output
        r"|^percentage calculation > 100%|^zero record count for kernel_id"  # its own statistics
        r"|^duplicate kernel symbol data"  # a kernel that is loaded again keeps its number
    ),
)
_UNITRACE = (
    # Programs print such words too, so only the texts of intel/pti-gpu, tools/unitrace/src count.
    re.compile(
        r"^\[(?:WARNING|ERROR)\] ((?:Unable to|Failed to|Not able to calculate|Invalid timestamp|"
        r"Kernel starting timestamp|Timed out waiting for child|Intermediate metrics|"
        r"Metric (?:samples|group)|No metrics found|ze\w+ failed|Timestamp event|Command list|"
        r"Nest tracing|Event (?:pool )?in event cache).*)",
        re.MULTILINE,
    ),
    # Memory that it frees when the recording is over.
    re.compile(r"^Failed to (?:free|destroy|deactivate)|is not destroyed$"),
)
_WARNINGS = {"rocpd": _ROCPROFV3, "rocprofv3": _ROCPROFV3, "unitrace": _UNITRACE}
"""The lines of the warnings of each reader's profiler, with their text, and the texts that are harmless."""
_NUMBER = re.compile(r"\b(?:0x[0-9a-fA-F]+|\d+)\b")


def logged_warnings(profile: Path, kind: str, rank: int) -> list[Loss]:
    """Return the warnings in the log of a rank, counted by text without its numbers.

    ``profile`` is a file of the reader ``kind`` in the folder ``profiles`` of a run; the logs are in ``logs``
    beside it.
    """
    log = profile.parent.parent / "logs" / f"rank{rank:05d}.err"
    if kind not in _WARNINGS or profile.parent.name != "profiles":
        return []
    line, harmless = _WARNINGS[kind]
    try:
        with open_regular(log) as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    warnings_by_pattern: dict[str, list[str]] = {}
    for match in line.finditer(text):
        if not harmless.search(match[1]):
            warnings_by_pattern.setdefault(_NUMBER.sub("#", match[1]), []).append(match[1])
    return [
        Loss(LossKind.DIAGNOSTIC, Subject.CAPTURE, len(texts), None, visible(masked(texts[0].strip())))
        for texts in warnings_by_pattern.values()
    ]
