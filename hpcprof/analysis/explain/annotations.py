"""Types in annotations of causes; unlike their modules they need no pandas."""

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hpcprof.analysis.explain import replay, scene

Scene: TypeAlias = "scene.Scene"
Times: TypeAlias = "replay.Times"
