"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """How something is. ``ABSENT`` is no fault by itself: not every machine has GPUs."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"
    ABSENT = "absent"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    name : str
        What was looked at.
    status : Status
        How it is.
    says : str
        What was seen, in one sentence.
    remedy : str
        What to do about it, in one sentence; empty where nothing is to be done.
    """

    name: str
    status: Status
    says: str
    remedy: str = ""
