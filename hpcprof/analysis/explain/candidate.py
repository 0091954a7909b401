"""Candidate causes: what could be taken out of a run; whether it costs anything, a replay tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from hpcprof.analysis.account.places import NONE
from hpcprof.analysis.explain.cause import CauseDeclaration, Trait

if TYPE_CHECKING:
    from hpcprof.analysis.explain.replay import Times

Remove: TypeAlias = "Callable[[Times, tuple[int, ...] | None], Times]"


@dataclass(frozen=True)
class Candidate:
    """A cause that may cost time.

    Attributes
    ----------
    cause : CauseDeclaration
    where : str
        The place; empty for the whole step.
    ranks : tuple of int
        Positions of ranks in the graph.
    remove : callable
        Takes the cause out of times, on some ranks; None for all of ``ranks``.
    own_ns : float
        The time per step that it takes by itself, on the rank where that is most.
    only : int
        The position of the only rank that has it, or `NONE`.
    advice : str
        The remedy of this candidate, where it differs from that of its cause; formatted alike.
    slower : float
        If no long pauses make a rank late but a host that is slower, by how many times; else 0.
    """

    cause: CauseDeclaration
    where: str
    ranks: tuple[int, ...]
    remove: Remove
    own_ns: float
    only: int = NONE
    slower: float = 0.0
    advice: str = ""

    def has(self, *traits: Trait) -> bool:
        """Return whether the cause has any of these traits."""
        return not self.cause.traits.isdisjoint(traits)
