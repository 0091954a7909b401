"""Names of types for the annotations of causes, without an import of pandas."""

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hpcprof.analysis.explain import replay, scene

Scene: TypeAlias = "scene.Scene"
Times: TypeAlias = "replay.Times"
