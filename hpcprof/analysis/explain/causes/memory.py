"""Causes that cost memory, not time; `hpcprof.analysis.memory.findings` finds them and says what to do."""

from hpcprof.analysis.explain.cause import CauseDeclaration, Trait

OUT_OF_MEMORY = CauseDeclaration(
    name="out_of_memory",
    title="out of GPU memory",
    meaning="an allocation on a GPU failed",
    about="an allocation on a GPU failed in a run with `--memory-history`: what was asked, what held the "
    "rest, by kind and line, and what would have made room. It costs no time of a step, so `saving_ns` is "
    "null, as for the next two",
    remedy="Free what one rank alone keeps, checkpoint activations, use a smaller batch, or shard; "
    "expandable segments help against fragments.",
    traits=frozenset({Trait.MEMORY}),
)

MEMORY_IMBALANCE = CauseDeclaration(
    name="memory_imbalance",
    title="more GPU memory than on the other ranks",
    meaning="a rank needs more GPU memory than the others",
    about="a rank's peak of allocated GPU memory is more than 10 % and 256 MB above the median of the other "
    "ranks; with snapshots, in which line",
    remedy="Balance shards, stages and batches, and do not gather results on one rank.",
    traits=frozenset({Trait.MEMORY}),
)

HOST_MEMORY = CauseDeclaration(
    name="host_memory",
    title="growing host memory",
    meaning="the memory of ranks on the host grows with each step",
    about="the memory of ranks on the host grows with each step, [beyond "
    "chance](reference/analyses.md#memory), with the step at which the node is full",
    remedy="Do not keep losses with their graph, bound caches, and look for copies in data loaders.",
    traits=frozenset({Trait.MEMORY}),
)
