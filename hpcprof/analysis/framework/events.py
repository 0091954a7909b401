"""The events that an analysis reads, which decide the losses of a profile that affect it."""

from __future__ import annotations

from dataclasses import dataclass

from hpcprof.profiles.losses import Subject

OPERATIONS = frozenset({Subject.KERNEL, Subject.MEMORY, Subject.COPY, Subject.SET, Subject.GRAPH})
COPIES = frozenset({Subject.MEMORY, Subject.COPY, Subject.SET, Subject.EVENT})
RANGES = frozenset({Subject.RANGE, Subject.EVENT})
CALLS = frozenset({Subject.CALL, Subject.EVENT})
KERNELS = frozenset({Subject.KERNEL, Subject.EVENT})
IN_RANGES = OPERATIONS | RANGES | CALLS
WORK = IN_RANGES | {Subject.OPERATOR}
"""Without a GPU, operators are the work."""

SIZES = frozenset({"bytes"})
SHAPES = frozenset({"grid", "gridX", "gridY", "gridZ", "block", "blockX", "blockY", "blockZ"})
_LAUNCHES = frozenset({"correlation", "correlationId", "globalPid", "globalTid"})
_OPTIONAL = SIZES | SHAPES | _LAUNCHES | {"srcKind", "dstKind", "memKind"}
"""The fields of rows that not all analyses of these rows read."""


@dataclass(frozen=True)
class Events:
    """The events that an analysis reads itself.

    Attributes
    ----------
    subjects : frozenset of Subject
    launches : bool
        Whether it joins operations with the calls that launched them.
    steps : bool
        Whether a step that the capture cuts is missing in it.
    fields : frozenset of str
        The optional fields that it reads: `SIZES`, `SHAPES`.
    """

    subjects: frozenset[Subject]
    launches: bool = False
    steps: bool = False
    fields: frozenset[str] = frozenset()

    def read_field(self, name: str) -> bool:
        """Return whether the analysis reads a field of the rows that it reads."""
        return name not in _OPTIONAL or name in self.fields or (self.launches and name in _LAUNCHES)
