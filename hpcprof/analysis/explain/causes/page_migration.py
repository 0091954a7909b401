"""Pages of unified memory that the host and the GPU take from each other in each step.

The host work that waits for them is found by a replay, and named by the moves in the profile
(`hpcprof.analysis.explain.whole_run.with_page_waits`): CUDA calls nothing when the host touches a page.
"""

from hpcprof.analysis.explain.cause import CauseDeclaration, Trait

PAGE_MIGRATION = CauseDeclaration(
    name="page_migration",
    title="moves of pages",
    meaning="the host waits for pages of unified memory that the driver moves from the GPU",
    about="host work during which pages of unified (managed) memory move from the GPU to the host, one fault "
    "after another, for half of the idle time of the GPU or more, at 10 µs for a fault. The saving is at "
    "least the time of the moves, and at most the idle time with that of the moves back. Tracing slows each "
    "move too, so the confidence is low",
    remedy="Keep in device memory what {where} computes, and copy to pinned memory what the host reads of "
    "it. Or prefetch all pages together, ahead of their use.",
    traits=frozenset({Trait.ON_GPU, Trait.HIDES, Trait.MAY_BE_WAITING}),
    column="idle_ns",
)
