"""Declarations of analyses, for the entry points of the group ``hpcprof.analyses``."""

from hpcprof.analysis.framework.declaration import (
    SHAPES,
    SIZES,
    Analysis,
    Column,
    Events,
    Kind,
    Part,
    Policy,
    SampleBasis,
    Scope,
    columns,
)
from hpcprof.profiles.losses import Subject
from hpcprof.profiles.readers.declaration import ProfileContent

__all__ = [
    "SHAPES",
    "SIZES",
    "Analysis",
    "Column",
    "Events",
    "Kind",
    "Part",
    "Policy",
    "ProfileContent",
    "SampleBasis",
    "Scope",
    "Subject",
    "columns",
]
