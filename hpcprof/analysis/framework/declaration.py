"""Declarations of analyses by a package.

Each package of analyses has a module ``declarations`` with a tuple ``ANALYSES``. Declarations import neither
the functions nor numpy or pandas, so listing the analyses, making the store's tables and checking a name
stay quick.
"""

from dataclasses import InitVar, dataclass, field
from enum import Enum
from typing import Any

from hpcprof.analysis.steps.step_set import StepRule
from hpcprof.profiles.losses import Subject
from hpcprof.profiles.readers.declaration import ProfileContent

OPERATIONS = frozenset({Subject.KERNEL, Subject.MEMORY, Subject.COPY, Subject.SET, Subject.GRAPH})
COPIES = frozenset({Subject.MEMORY, Subject.COPY, Subject.SET, Subject.EVENT})
RANGES = frozenset({Subject.RANGE, Subject.EVENT})
CALLS = frozenset({Subject.CALL, Subject.EVENT})
KERNELS = frozenset({Subject.KERNEL, Subject.EVENT})
IN_RANGES = OPERATIONS | RANGES | CALLS
WORK = IN_RANGES | {Subject.OPERATOR}
"""The events that are work of a program: operators are its work on the CPU."""

SIZES = frozenset({"bytes"})
SHAPES = frozenset({"grid", "gridX", "gridY", "gridZ", "block", "blockX", "blockY", "blockZ"})
_LAUNCHES = frozenset({"correlation", "correlationId", "globalPid", "globalTid"})
_OPTIONAL = SIZES | SHAPES | _LAUNCHES | {"srcKind", "dstKind", "memKind"}
"""The fields of rows that not all analyses of these rows read."""


@dataclass(frozen=True)
class Events:
    """The events that an analysis reads itself."""

    subjects: frozenset[Subject]
    launches: bool = False
    """True if it joins operations with the calls that launched them."""
    steps: bool = False
    """True if a step that the capture cuts is missing in it."""
    fields: frozenset[str] = frozenset()
    """The optional fields that it reads: `SIZES`, `SHAPES`."""

    def read_field(self, name: str) -> bool:
        """Return whether the analysis reads a field of the rows that it reads."""
        return name not in _OPTIONAL or name in self.fields or (self.launches and name in _LAUNCHES)


class Kind(Enum):
    """The type of a column's values."""

    INT = "int"
    FLOAT = "float"
    TEXT = "text"


class Scope(Enum):
    """The input of an analysis: one rank's profile, all ranks of a run, two sides of runs, or many runs."""

    RANK = "rank"
    RUN = "run"
    PAIR = "pair"
    STORE = "store"


class Part(Enum):
    """One of the parts of a run that an analysis over the ranks is mapped over."""

    RANKS = "ranks"
    """Some ranks, each with its waits for others and its clock."""
    COMMUNICATORS = "communicators"
    """Matched operations and aligned clocks of the ranks of some communicators."""
    MPI = "mpi"
    """The MPI calls of all ranks at once, each with its clock and its node."""
    NODES = "nodes"
    """The samples of all nodes of the run, with the steps of its ranks."""
    MEMORY = "memory"
    """The memory of all ranks: step lines, snapshots and samples."""
    LOGS = "logs"
    """The logs of Darshan of the run, with the steps of its ranks."""

    @property
    def reads_profiles(self) -> bool:
        """True if it is computed from profiles."""
        return self not in (Part.NODES, Part.MEMORY, Part.LOGS)


class Activity(Enum):
    """An activity that only some programs have, or samples that only some runs have."""

    GPU = "gpu"
    MPI = "mpi"
    TELEMETRY = "telemetry"
    MEMORY = "memory"
    COINCIDENCE = "coincidence"
    FILES = "files"
    COPIES = "copies"


class Policy(Enum):
    """The time at which an analysis is computed, and the place that keeps its rows."""

    COLLECTED = "collected"
    """Computed by a collect and kept in the database."""
    WITH_EVENTS = "with events"
    """Computed by a collect, and kept in Parquet beside the events: many rows that others read as a whole."""
    LAZY = "lazy"
    """Computed when it is first asked for, and then kept in the database.

    In scope RANK, a collect leaves those of a large profile whose timeline it keeps: analyses that take long
    and that no other analysis of the run needs. In scope RUN, it leaves many rows: lists of what ``map``
    finds in communicators, without ``needs``. Once it was computed, ranks without rows have a reason.
    """
    EACH_TIME = "each time"
    """Computed each time it is asked for, and kept nowhere: the analysis of a plug-in."""


class SampleBasis(Enum):
    """The place of the number of samples behind the figures of an analysis."""

    COLUMNS = "columns"
    """Each row has a count, or is itself one sample."""
    OPERATIONS = "operations"
    """The GPU operations and steps of the ranks in the rows."""
    RANKS = "ranks"
    """The ranks that have step times."""


@dataclass(frozen=True)
class Column:
    """A column of an analysis. Its unit is the suffix of its name (``_ns``, ``_pct``)."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class Analysis:
    """The declaration of an analysis, known without importing it."""

    name: str
    """The name that users give; also the name of its table in the store."""
    title: str
    """The heading of its table in a report."""
    scope: Scope
    """The part of a run that it reads, which decides how its function is called."""
    columns: tuple[Column, ...]
    """The columns of its rows, in order."""
    function: str
    """``module:name``. It returns an `hpcprof.analysis.framework.outcome.Outcome` with these columns, as
    arrays or lists by name (quicker for each rank) or as a DataFrame; for the scope RANK without ``rank``,
    which the framework adds. The scope decides about its arguments:

    - RANK: ``f(profile)`` with a `Timeline` or a `KernelReport`, as ``reads`` says.
    - RUN: ``f(results)``, which maps the names in ``needs`` to DataFrames over all ranks. With ``map`` it is
      ``f(parts, results)``, where ``parts`` are the values that ``map`` returned. Empty if that returned
      outcomes by the names of analyses, one of which is its own.
    - PAIR: ``f(runs, against)`` with two sequences of `hpcprof.analysis.framework.run_data.RunData`.
    - STORE: ``f(runs)`` with one such sequence.
    """
    map: str = field(default="", kw_only=True)
    """For RUN, ``module:name`` of the function that analyzes one part of the run, so that the rows of all
    ranks are never in one process: ``g(communication)`` with a
    `hpcprof.analysis.collectives.communication.Communication`, or for `Part.RANKS` ``g(tables, waits,
    clocks)`` with the tables ``map_needs`` of some ranks, the waits of each
    (`hpcprof.analysis.collectives.matches.RankWaits`) and the clocks that communication aligned
    (`hpcprof.analysis.collectives.common_clock.RankClock`), or for `Part.MPI` ``g(lists, regions, clocks,
    nodes)`` with a `hpcprof.analysis.mpi.run_lists.RunLists`, the rows of ``mpi_regions``, and the clocks and
    nodes of all ranks, or for `Part.NODES` ``g(run)`` with a
    `hpcprof.analysis.telemetry.tables.RunTelemetry`, or for `Part.MEMORY` ``g(run)`` with a
    `hpcprof.analysis.memory.tables.RunMemory`, or for `Part.LOGS` ``g(run)`` with a
    `hpcprof.analysis.telemetry.darshan.RunLogs`. It returns a value that can be pickled.
    """
    absent: str = field(default="", kw_only=True)
    """The reason why there are no rows, where ``function`` is empty and ``map`` returned no such outcome."""
    map_over: Part = field(default=Part.COMMUNICATORS, kw_only=True)
    """The parts that ``map`` is called for."""
    map_needs: tuple[str, ...] = field(default=(), kw_only=True)
    """The analyses of scope RANK that ``map`` reads."""
    needs: tuple[str, ...] = field(default=(), kw_only=True)
    """For RUN, the analyses whose rows and reasons it takes over: of scope RANK, or of scope RUN and declared
    before it. For PAIR and STORE, the tables of each run that it reads.
    """
    reads: ProfileContent = field(default=ProfileContent.TIMELINE, kw_only=True)
    """The kind of profile that it is computed from."""
    events: Events | None = field(default=None, kw_only=True)
    """The events that it reads; their losses are named by its table. None stands for all. An analysis that is
    computed from others is affected by their losses.
    """
    sort_by: tuple[str, ...] = field(default=(), kw_only=True)
    """The columns by which its rows are sorted, the first one decides; ``-name`` sorts downwards. These hold
    numbers and no null. Rows that compare equal keep the order in which the function returns them.
    """
    main_columns: tuple[str, ...] = field(default=(), kw_only=True)
    """The columns that a report shows where not all have room, the most telling first; all if empty."""
    report_position: int | None = field(default=None, kw_only=True)
    """Its position in the full report, lowest first; None if a report shows it only by name."""
    only_with_several: str = field(default="", kw_only=True)
    """A column: the full report shows the analysis only if a rank has several values of it."""
    about: Activity | None = field(default=None, kw_only=True)
    """The full report leaves it out, and does not say why it has no rows, if no rank has such activity."""
    first_rank_only: bool = field(default=False, kw_only=True)
    """True if the full report shows the first rank alone: for long lists that are alike on every rank."""
    compared_by: str = field(default="", kw_only=True)
    """The column by which a report of many ranks compares them; by default the first main column of times."""
    sample_basis: SampleBasis = field(default=SampleBasis.COLUMNS, kw_only=True)
    memory_heavy: bool = field(default=False, kw_only=True)
    """True if it needs much memory: a collect runs such analyses one after another."""
    policy: Policy = field(default=Policy.COLLECTED, kw_only=True)
    """When it is computed, and where its rows are kept; `Policy.EACH_TIME` for any of a plug-in."""
    steps: frozenset[StepRule] | None = field(default=None, kw_only=True)
    """The rules that leave steps out of its figures; None if these are not of steps."""
    kept_with_events: InitVar[bool] = field(default=False, kw_only=True)
    when_asked: InitVar[bool] = field(default=False, kw_only=True)

    def __post_init__(self, kept_with_events: bool, when_asked: bool) -> None:
        """Accept two fields of declarations for 0.3, which had no effect in plug-ins."""

    @property
    def computed_from(self) -> tuple[str, ...]:
        """The other analyses that its rows are computed from; maps over ranks read matched collectives."""
        matched = self.map and self.map_over.reads_profiles
        return (*self.map_needs, *(("rank_collectives",) if matched else ()), *self.needs)

    @property
    def shown_columns(self) -> tuple[str, ...]:
        """The main columns, or all columns where none are named."""
        return self.main_columns or tuple(column.name for column in self.columns)


def columns(text: str) -> tuple[Column, ...]:
    """Parse columns, as in ``"rank name:text time_pct:float"``; the default type is int."""
    parts = (item.partition(":") for item in text.split())
    return tuple(Column(name, Kind(kind or "int")) for name, _, kind in parts)


def names(text: str) -> tuple[str, ...]:
    """Parse names of columns or analyses, as in ``"rank name -total_ns"``."""
    return tuple(text.split())


def declare(
    name: str,
    title: str,
    column_text: str,
    main_text: str = "",
    position: int | None = None,
    *,
    scope: Scope | None = None,
    module: str = "",
    function: str = "",
    **fields: Any,
) -> Analysis:
    """Declare an analysis by texts for `columns` and `names`.

    ``function`` is in ``hpcprof.analysis``, by default the one of its name in ``module``. The scope is by
    default RUN for an analysis with a map, else RANK.
    """
    function = function or (f"{module}:{name}" if module else "")
    return Analysis(
        name,
        title,
        scope or (Scope.RUN if "map" in fields else Scope.RANK),
        columns(column_text),
        f"hpcprof.analysis.{function}" if function else "",
        main_columns=names(main_text),
        report_position=position,
        **fields,
    )


def from_part(
    name: str, title: str, column_text: str, main_text: str, position: int | None = None, **fields: Any
) -> Analysis:
    """Declare an analysis of a run whose rows ``map`` returns."""
    fields = {"events": Events(frozenset()), **fields}
    return declare(name, title, column_text, main_text, position, **fields)
