"""Declarations of causes, for the entry points of the group ``hpcprof.causes``."""

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.explain.cause import (
    Candidate,
    CauseDeclaration,
    Figures,
    MachineWait,
    PlaceRemedy,
    Trait,
    idle,
    named,
)
from hpcprof.analysis.explain.scene import Scene

__all__ = [
    "CallKind",
    "Candidate",
    "CauseDeclaration",
    "Figures",
    "MachineWait",
    "PlaceRemedy",
    "Scene",
    "Trait",
    "idle",
    "named",
]
