"""MPI calls on each rank, what they wait for, and the efficiencies of the run."""

from functools import partial

from hpcprof.analysis.framework.declaration import (
    RANGES,
    Activity,
    Events,
    Part,
    Policy,
    SampleBasis,
    declare,
)
from hpcprof.profiles.losses import Subject

_MPI = Events(
    RANGES | {Subject.CALL, Subject.COLLECTIVE, Subject.MPI_CALL, Subject.MPI_OPERATION, Subject.EVENT}
)
BETWEEN, BEFORE = "between ", "before "
"""Prefixes of the name of a place outside of all ranges; the two calls around it or the first one follow."""

NO_CALLS = "no profile has MPI calls"
"""The reason why the tables about calls of MPI have no rows."""

_call_analysis = partial(declare, module="mpi.per_rank", events=_MPI, policy=Policy.WITH_EVENTS)
_run_analysis = partial(
    declare,
    map="hpcprof.analysis.mpi.tables:mpi_tables",
    map_over=Part.MPI,
    map_needs=("mpi_call_list", "mpi_operation_list", "mpi_regions"),
    about=Activity.MPI,
)
_run_call_analysis = partial(_run_analysis, absent=NO_CALLS)

ANALYSES = (
    _call_analysis(
        "mpi_call_list",
        "MPI calls by rank",
        "rank thread call:text range:text range_before:text start_ns end_ns",
    ),
    _call_analysis(
        "mpi_operation_list",
        "Messages and collectives of MPI by rank",
        "rank op:text comm_id:text comm_ranks peer comm_peer root tag bytes received_bytes begin_call "
        "end_call",
        "rank op comm_ranks peer root tag bytes begin_call",
    ),
    _call_analysis(
        "mpi_regions",
        "Steps and phases of programs with MPI",
        "rank scope:text name:text start_ns end_ns",
        events=Events(RANGES, steps=True),
        steps=frozenset(),
    ),
    declare(
        "offload",
        "Time of hosts and GPUs by step and phase",
        "rank scope:text name:text elapsed_ns useful_ns gpu_calls_ns devices gpu_useful_ns gpu_active_ns",
        function="mpi.efficiencies:offload",
        events=Events(RANGES | {Subject.CALL, Subject.KERNEL, Subject.MEMORY, Subject.EVENT}, steps=True),
        memory_heavy=True,
        steps=frozenset(),
    ),
    declare(
        "useful_counters",
        "Instructions and cycles outside MPI",
        "rank scope:text name:text useful_ns instructions cycles",
        function="mpi.counters:useful_counters",
        events=Events(RANGES | {Subject.CALL, Subject.EVENT}, steps=True),
        steps=frozenset(),
    ),
    _run_analysis(
        "pop",
        "Parallel efficiency",
        "scope:text name:text parallel_efficiency_pct:float load_balance_pct:float "
        "communication_efficiency_pct:float serialization_efficiency_pct:float "
        "transfer_efficiency_pct:float host_efficiency_pct:float offload_efficiency_pct:float "
        "device_efficiency_pct:float device_load_balance_pct:float "
        "device_communication_efficiency_pct:float device_orchestration_efficiency_pct:float",
        position=12,
        module="mpi.tables",
        needs=("offload", "breakdown"),
        sample_basis=SampleBasis.RANKS,
        steps=frozenset(),
    ),
    _run_call_analysis(
        "mpi_calls",
        "MPI calls",
        "rank call:text size_class:text calls bytes total_ns median_ns wait_ns transfer_ns share_pct:float",
        "rank call size_class calls bytes total_ns wait_ns transfer_ns share_pct",
        16,
        sort_by=("-total_ns",),
        compared_by="total_ns",
    ),
    _run_call_analysis(
        "mpi_waits",
        "Waits in MPI and the ranks that cause them",
        "rank call:text pattern:text range:text wait_ns delaying_rank delaying_range:text",
        position=14,
        sort_by=("-wait_ns",),
        sample_basis=SampleBasis.RANKS,
        compared_by="wait_ns",
    ),
    _run_call_analysis(
        "mpi_delays",
        "Delays that others wait for in MPI",
        "delaying_rank delaying_range:text ranks waits wait_ns share_pct:float",
        position=13,
        sort_by=("-wait_ns",),
    ),
    _run_call_analysis(
        "mpi_matrix",
        "MPI messages between ranks",
        "sender receiver sender_node:text receiver_node:text messages bytes transfer_ns",
        position=18,
        sort_by=("-bytes", "-messages"),
    ),
)
