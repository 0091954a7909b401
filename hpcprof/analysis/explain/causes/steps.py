"""Causes that need no replay: in the times of the steps, and incomplete profiles."""

from hpcprof.analysis.explain.cause import CauseDeclaration, Trait

STEP_SPIKES = CauseDeclaration(
    name="step_spikes",
    title="spikes",
    meaning="single steps take much longer than the others",
    remedy="Look at what happens in these steps only: checkpoints, evaluation, logging, garbage collection "
    "(gc.freeze(), gc.disable() and collecting between epochs).",
    remedies={
        "jax": "Look at what happens in these steps only: compilation for a new shape "
        "(jax.config.update('jax_log_compiles', True) names it), checkpoints, evaluation, garbage "
        "collection.",
        **dict.fromkeys(
            ("mpi", "cuda"),
            "Look at what happens in these steps only: output, checkpoints, more iterations of a solver, a "
            "new partition of the work; and at other processes on the cores.",
        ),
    },
    traits=frozenset({Trait.SINGLE_STEPS, Trait.MAY_BE_WAITING}),
    has_slice=False,
    meanwhile="spikes",
)

STEP_DRIFT = CauseDeclaration(
    name="step_drift",
    title="drift of the step time",
    meaning="the step time changes during the capture",
    about="the step time drifts during the capture, or its level changes at some step",
    remedy="Look for what grows: lists of tensors with a graph, longer inputs, the cache of the allocator; "
    "and check the clocks (hpcprof doctor), and what else runs there (--analysis neighbours).",
    remedies={
        "jax": "Look for what grows: lists of arrays that stay on the device, longer inputs, the number of "
        "compiled shapes; and check the clocks (hpcprof doctor), and what else runs there (--analysis "
        "neighbours).",
        **dict.fromkeys(
            ("mpi", "cuda"),
            "Look for what grows: particles or cells of a rank, iterations of a solver, lists that are never "
            "emptied; and at the clocks of the nodes.",
        ),
    },
    traits=frozenset({Trait.SINGLE_STEPS}),
    has_slice=False,
    meanwhile="drift",
)


CAPTURE_INCOMPLETE = CauseDeclaration(
    name="capture_incomplete",
    title="incomplete profile",
    meaning="the profile is incomplete",
    about="the profiler dropped events or warns that it did, ranks are missing, launched kernels are not in "
    "the profile, or times are impossible",
    remedy="Profile every rank, and all kinds of events.",
    has_slice=False,
)
