"""Causes: the declaration of a cause, its candidates in a run, and the registry of all causes.

A cause is declared once, in a module of `hpcprof.analysis.explain.causes` or in a package that names it as an
entry point of the group ``hpcprof.causes``. The explanation, the report, the documentation, ``--fail-on`` and
completion read what they need from the declaration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hpcprof.analysis.account.places import NONE, in_words, without_numbers
from hpcprof.analysis.explain import causes
from hpcprof.analysis.explain.causes import BUILT_IN
from hpcprof.common.errors import UsageError, unknown
from hpcprof.common.plugins import CAUSES as PLUGIN_GROUP
from hpcprof.common.plugins import has_plugins, load_plugin, plugin_names
from hpcprof.common.units import shortened
from hpcprof.profiles.losses import for_profiler

if TYPE_CHECKING:
    import pandas as pd

    from hpcprof.analysis.explain.replay import Times


class _Constants(type):
    """Gives `Cause` a constant for each built-in cause."""

    def __getattr__(cls, name: str) -> Cause:
        if name.isupper() and name.lower() in BUILT_IN:
            return Cause(name.lower())
        raise AttributeError(f"hpcprof has no cause {name}.")

    def __iter__(cls) -> Iterator[Cause]:
        return map(Cause, BUILT_IN)


class Cause(str, metaclass=_Constants):
    """The name of a cause, which is text: ``Cause.HOST_WORK == "host_work"``.

    The built-in causes are attributes, and an iteration over the class yields them. Equal names are one
    object.
    """

    __slots__ = ()

    def __new__(cls, name: str) -> Cause:
        """Return the name."""
        return _intern_cause(str(name))

    @property
    def value(self) -> str:
        """The name as plain text."""
        return str(self)


@cache
def _intern_cause(name: str) -> Cause:
    return str.__new__(Cause, name)


_NVIDIA_WORDS = ((r" \([^)]*enable_cuda_sync_events\)", ""), ("flash or cuDNN backend", "flash backend"))
"""Replacements for words that fit NVIDIA alone, on any other device."""
_DEVICE_WORDS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "AMD|gfx|rocp",
        (
            (r"\bCUDA (?=graph)", "HIP "),
            ("cudaHostAlloc", "hipHostMalloc"),
            (r"\bcuda(?=[A-Z])", "hip"),
            ("PYTORCH_CUDA_ALLOC", "PYTORCH_HIP_ALLOC"),
            (r"fewer SMs \(NCCL_MAX_CTAS, NCCL_NTHREADS\)", "fewer CUs (NCCL_MAX_NCHANNELS)"),
            ("tensor cores", "matrix cores"),
        ),
    ),
    (
        "ascend|NPU",
        (
            (r"\ba CUDA (?=graph)", "an NPU "),
            (r"\bCUDA (?=graph)", "NPU "),
            (r" \((?:cuda[A-Z]|NCCL_)[^)]*\)", ""),
            ("cudaMemcpyAsync", "aclrtMemcpyAsync"),
            ("cudaDeviceSynchronize", "aclrtSynchronizeDevice"),
            ("cudaMallocAsync with ", ""),
            ("torch.cuda", "torch.npu"),
            ("'cuda'", "'npu'"),
            ("PYTORCH_CUDA_ALLOC", "PYTORCH_NPU_ALLOC"),
            ("tensor cores", "cube units"),
            ("fewer SMs", "fewer cores"),
        ),
    ),
    (
        "Intel|unitrace",
        (
            (r"\bCUDA (?=graph)", "SYCL "),
            (r" \((?:cuda[A-Z]|NCCL_|torch\.cuda)[^)]*\)", ""),
            ("cudaMemcpyAsync", "sycl::queue::memcpy"),
            ("cudaMemPrefetchAsync", "sycl::queue::prefetch"),
            ("cudaDeviceSynchronize", "sycl::queue::wait"),
            ("cudaMallocAsync with ", ""),
            ("torch.cuda", "torch.xpu"),
            ("'cuda'", "'xpu'"),
            ("PYTORCH_CUDA_ALLOC", "PYTORCH_ALLOC"),
            ("tensor cores", "XMX engines"),
            ("fewer SMs", "fewer cores"),
        ),
    ),
    ("TPU", ()),
)
"""Replacements for CUDA's words in advice, by a pattern of the names of profilers and devices."""


def for_device(advice: str, device: str) -> str:
    """Return advice in the words of the profiler and of the device's programming interface.

    ``device`` is the name of the profile's reader, followed by the names of its GPUs.
    """
    advice = for_profiler(advice, device.partition(" ")[0])
    words = next((words for expression, words in _DEVICE_WORDS if re.search(expression, device)), None)
    for pattern, word in () if words is None else (*words, *_NVIDIA_WORDS):
        advice = re.sub(pattern, word, advice)
    return advice


Stack = Literal["", "jax", "mpi", "cuda", "graph"]
"""The stack of a program: JAX, MPI without a GPU, CUDA without PyTorch, or, empty, PyTorch; ``graph`` if it
launches CUDA graphs and is not in JAX."""


class Trait(Enum):
    """A property of a cause that decides how it is judged and reported."""

    ALL_RANKS = "it is about all of its ranks at once, and never narrowed to one of them"
    LATE_RANK = "the other ranks wait for one or few that are late"
    DELAYS_OTHERS = "ranks wait for those that have it"
    LIKE_WAITING = "waiting for ranks without a profile, or with another clock, resembles it"
    HIDES = "the work of the GPU may hide it, as it is work of the host"
    SYNCHRONIZES = "another cause that saves as much is narrower"
    BROAD = "it is about everything that the host does, so any other cause is narrower"
    TELLING = "it explains another cause, and is narrower than that one"
    MAY_BE_WAITING = "it may be a wait for memory, or for reads and writes"
    MEMORY = "it costs memory, not the time of a step"
    ON_GPU = "it is looked for only in programs with work on GPUs"
    SINGLE_STEPS = "other causes may explain the same steps"
    UNCERTAIN = "no profile records whether it can be removed, so that its confidence is low"


@dataclass(frozen=True)
class Figures:
    """The rows of an analysis that show a cause: the largest values of the column ``key``.

    ``rows`` filters the table by the innermost range of the finding's place. ``sentence`` puts a row into
    words; the default is the sentence of `evidence` for this column of the analysis.
    """

    analysis: str
    key: str
    rows: Callable[[pd.DataFrame, str], Any] = lambda table, place: slice(None)
    sentence: Callable[[Mapping[str, Any]], str] | None = None


def idle(*causes: str) -> Callable[[pd.DataFrame, str], Any]:
    """Return a filter of idle time by its causes, and by the places of a finding if any lies there."""

    def rows(table: pd.DataFrame, place: str) -> Any:
        has_cause, ranges, places = table["cause"].isin(causes), table["range"], [place, *place.split(", ")]
        in_place = ranges.isin(places) | ranges.map(without_numbers, na_action="ignore").isin(places)
        return has_cause & in_place if place and in_place.any() else has_cause

    return rows


def named(pattern: str) -> Callable[[pd.DataFrame, str], Any]:
    """Return a filter of rows whose name contains a match of a pattern."""
    return lambda table, _: table["name"].str.contains(pattern, regex=True, na=False)


def call_rows(table: pd.DataFrame, place: str) -> Any:
    """Choose the rows of a finding's call, or all but the start of MPI for a finding about no call."""
    is_call = table["call"] == place
    return is_call if is_call.any() else ~table["call"].str.startswith("MPI_Init")


def delays(table: pd.DataFrame, place: str) -> Any:
    """Choose the waits for what a rank did in the places of a finding, or all if none is for that."""
    in_place = table["delaying_range"].isin([place, *place.split(", ")])
    return in_place if in_place.any() else slice(None)


_COMPOUNDS = re.compile(
    r"data_?parallel|batch_?norm|meta_?data|(?:down|off|pay|up|work)_?load|data_?dist"
    r"|(?:all_?(?:2|to)_?all|all_?reduce|all_?gather|reduce_?scatter|broadcast)\w*"
)
"""Words that contain one of `PlaceRemedy.words` and mean something else."""


@dataclass(frozen=True)
class PlaceRemedy:
    """The remedy in places whose name contains a word, for programs of a stack."""

    words: tuple[str, ...]
    text: str
    jax: bool = False
    without_stacks: bool = False
    """True for advice that asks for call stacks."""


@dataclass(frozen=True)
class MachineWait:
    """The rows of ``coincidences`` that say that a rank waits for a part of its machine.

    Rows of ``subject`` have the shares that ranks wait, rows of ``metrics`` show waits in long steps, and
    rows of ``beside`` are further evidence.
    """

    subject: str
    metrics: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class CauseDeclaration:
    """A cause: its name, its words, its candidates in a graph, and what shows it."""

    name: str
    """Lower case with underscores, as in JSON and ``--fail-on``."""
    title: str
    """The name in a sentence."""
    meaning: str
    """One clause."""
    remedy: str
    """One or two sentences; ``{where}`` and ``{ranks}`` stand for the place and the ranks."""
    about: str = ""
    """The meaning in the table of ``docs/explain.md``, in Markdown."""
    remedies: Mapping[str, str] = field(default_factory=dict)
    """The remedies for other stacks, where they differ."""
    place_remedies: tuple[PlaceRemedy, ...] = ()
    """The first one that fits takes the place of the others."""
    remedy_in_turn: str = ""
    """The remedy where all ranks have the cause in turn."""
    candidates: Callable[[Any], Iterable[Any]] | None = None
    """Yields each `Candidate` of a `scene.Scene`; None for causes that need no replay."""
    figures: tuple[Figures, ...] = ()
    """The evidence, the most telling first."""
    traits: frozenset[Trait] = frozenset()
    column: str = "wall_ns"
    """The part of ``step_account`` in which it costs."""
    calls: str = ""
    """Pattern of the API calls in which it happens; empty if it happens in any code of the host."""
    operations: Literal["", "compute", "communication"] = ""
    """``compute`` or ``communication`` if operations of the GPU show it, not code of the host."""
    kernels: Callable[[str], bool] | None = None
    """Chooses among the names of these operations."""
    has_slice: bool = True
    """False if no single slice of the timeline shows it."""
    without: str = ""
    """The run without the cause in words, where ``without TITLE`` would be wrong."""
    spread: float = 0.1
    """Half width of the interval of 90 % of the logarithm of a saving over the cost that the cause has alone,
    beside what hosts differ; see "Intervals" in ``docs/explain.md``."""
    wait: MachineWait | None = None
    """For causes that are waits for a part of the machine."""
    meanwhile: str = ""
    """The subject of ``coincidences`` that may explain the cause."""

    def advise(
        self,
        where: str,
        ranks: Sequence[int],
        *,
        stack: Stack = "",
        in_turn: bool = False,
        advice: str = "",
        has_stacks: bool = False,
    ) -> str:
        """Return what to do about the cause in a place, in one or two sentences.

        ``advice`` is a candidate's, and comes before all others.
        """
        place = _COMPOUNDS.sub("", where.lower())
        usable = (
            option
            for option in self.place_remedies
            if option.jax == (stack == "jax") and not (has_stacks and option.without_stacks)
        )
        chosen = next(
            (option.text for option in usable if any(word in place for word in option.words)),
            self.remedies.get(stack, self.remedy),
        )
        chosen = advice or (self.remedy_in_turn if in_turn else "") or chosen
        subject = f"rank {ranks[0]}" if len(ranks) == 1 else "these ranks"
        advice_text = chosen.format(where=shortened(in_words(where)), ranks=subject)
        # The name of such a place begins with its own preposition.
        return re.sub(r"\b(?:of|in) (between|before|after) MPI_", r"\1 MPI_", advice_text)

    @property
    def is_of_host(self) -> bool:
        """True if code of the host at some place is the cause."""
        return not self.operations and self.has_slice


Remove: TypeAlias = "Callable[[Times], Times]"


@dataclass(frozen=True)
class Candidate:
    """A cause that may cost time; a replay decides."""

    cause: CauseDeclaration
    where: str
    """The place; empty for the whole step."""
    ranks: tuple[int, ...]
    """Positions of ranks in the graph."""
    remove: Remove
    """Returns the times without the cause. For a cause of one rank, the times of the other ranks stay."""
    own_ns: float
    """The cause's own time per step in ns, on the rank with most of it."""
    only: int = NONE
    """The position of the only rank that has it, or `NONE`."""
    slower: float = 0.0
    """The factor by which a slower host, not long pauses, makes a rank late; else 0."""
    advice: str = ""
    """The remedy of this candidate, where it differs from that of its cause; formatted alike."""

    def has(self, *traits: Trait) -> bool:
        """Return whether the cause has any of these traits."""
        return not self.cause.traits.isdisjoint(traits)


@cache
def find_cause(name: str) -> CauseDeclaration:
    """Return the declaration of a cause.

    Raises UsageError if there is none of that name, or a package adds something else under it.
    """
    declared = _find_declaration(name)
    if declared is None:
        raise unknown("cause", name, cause_names())
    return declared


@cache
def cause_of(name: str) -> CauseDeclaration:
    """Return the declaration of a stored finding's cause: a placeholder if its package is not installed."""
    meaning = "a cause of a package that is not installed"
    return _find_declaration(name) or CauseDeclaration(
        name=name, title=name.replace("_", " "), meaning=meaning, remedy=""
    )


def _find_declaration(name: str) -> CauseDeclaration | None:
    if name in BUILT_IN:
        module = import_module(f"{causes.__name__}.{BUILT_IN[name]}")
        built_in: CauseDeclaration = getattr(module, name.upper())
        return built_in
    declared = load_plugin(PLUGIN_GROUP, name)
    if declared is not None and (not isinstance(declared, CauseDeclaration) or declared.name != name):
        wanted = "an hpcprof.plugins.causes.CauseDeclaration of that name"
        raise UsageError(f"the plug-in {name!r} is not {wanted}.")
    return declared


def cause_names() -> list[str]:
    """Return the names of all causes: the built-in ones in their order, then those of other packages."""
    return [*BUILT_IN, *(plugin_names(PLUGIN_GROUP) if has_plugins(PLUGIN_GROUP) else ())]


def has_trait(name: str, *traits: Trait) -> bool:
    """Return whether a cause, by its name, has any of these traits."""
    return not cause_of(name).traits.isdisjoint(traits)
