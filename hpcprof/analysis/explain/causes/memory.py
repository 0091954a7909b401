"""Causes that cost memory, not time; `hpcprof.analysis.memory.findings` finds them and says what to do."""

from hpcprof.analysis.explain.cause import CauseDeclaration, Trait

OUT_OF_MEMORY = CauseDeclaration(
    name="out_of_memory",
    title="out of GPU memory",
    meaning="an allocation on a GPU failed",
    about="an allocation on a GPU failed in a run with `--memory-history`: what was asked, what held the "
    "rest, by kind and line, and what would have made room. It costs no time of a step, so `saving_ns` is "
    "null, as for the next two",
    advice="of what is listed: not to keep what one rank alone keeps, checkpointing, a smaller batch, "
    "sharding, expandable segments",
    remedy="",
    traits=frozenset({Trait.MEMORY}),
)

MEMORY_IMBALANCE = CauseDeclaration(
    name="memory_imbalance",
    title="more GPU memory than on the other ranks",
    meaning="a rank needs more GPU memory than the others",
    about="a rank's peak of allocated GPU memory is more than 10 % and 256 MB above the median of the other "
    "ranks; with snapshots, in which line",
    advice="equal shards, stages and batches; results gathered on one rank",
    remedy="",
    traits=frozenset({Trait.MEMORY}),
)

HOST_MEMORY = CauseDeclaration(
    name="host_memory",
    title="growing host memory",
    meaning="the memory of ranks on the host grows with each step",
    about="the memory of ranks on the host grows with each step, [beyond "
    "chance](reference/analyses.md#memory), with the step at which the node is full",
    advice="losses kept with their graph, caches without a limit, copies in data loaders",
    remedy="",
    traits=frozenset({Trait.MEMORY}),
)
