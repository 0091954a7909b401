"""MPI calls on each rank, what they wait for, and the efficiencies of the run."""

from functools import partial

from hpcprof.analysis.framework.declaration import (
    RANGES,
    Activity,
    Analysis,
    Events,
    Part,
    Policy,
    SampleBasis,
    Scope,
    columns,
    declare,
    names,
)
from hpcprof.profiles.losses import Subject

_MPI = Events(
    RANGES | {Subject.CALL, Subject.COLLECTIVE, Subject.MPI_CALL, Subject.MPI_OPERATION, Subject.EVENT}
)
BETWEEN = "between "
"""Prefix of the name of a place outside of all ranges; the two calls around it follow."""

NO_CALLS = "no profile has MPI calls"
"""The reason why the tables about calls of MPI have no rows."""

_mpi_analysis = partial(
    Analysis,
    scope=Scope.RUN,
    map="hpcprof.analysis.mpi.tables:mpi_tables",
    map_over=Part.MPI,
    map_needs=("mpi_call_list", "mpi_operation_list", "mpi_regions"),
    about=Activity.MPI,
)
_call_analysis = partial(_mpi_analysis, function="", absent=NO_CALLS)

ANALYSES = (
    declare(
        "mpi_call_list",
        "MPI calls by rank",
        "rank thread call:text range:text range_before:text start_ns end_ns",
        function="mpi.per_rank:mpi_call_list",
        events=_MPI,
        policy=Policy.WITH_EVENTS,
    ),
    declare(
        "mpi_operation_list",
        "Messages and collectives of MPI by rank",
        "rank op:text comm_id:text comm_ranks peer comm_peer root tag bytes received_bytes begin_call "
        "end_call",
        "rank op comm_ranks peer root tag bytes begin_call",
        function="mpi.per_rank:mpi_operation_list",
        events=_MPI,
        policy=Policy.WITH_EVENTS,
    ),
    declare(
        "mpi_regions",
        "Steps and phases of programs with MPI",
        "rank scope:text name:text start_ns end_ns",
        function="mpi.per_rank:mpi_regions",
        events=Events(RANGES, steps=True),
        steps=frozenset(),
        policy=Policy.WITH_EVENTS,
    ),
    declare(
        "offload",
        "Time of hosts and GPUs by step and phase",
        "rank scope:text name:text elapsed_ns useful_ns gpu_calls_ns devices gpu_useful_ns gpu_active_ns",
        function="mpi.offload:offload",
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
    _mpi_analysis(
        "pop",
        "Parallel efficiency",
        columns=columns(
            "scope:text name:text parallel_efficiency_pct:float load_balance_pct:float "
            "communication_efficiency_pct:float serialization_efficiency_pct:float "
            "transfer_efficiency_pct:float host_efficiency_pct:float offload_efficiency_pct:float "
            "device_efficiency_pct:float device_load_balance_pct:float "
            "device_communication_efficiency_pct:float device_orchestration_efficiency_pct:float"
        ),
        function="hpcprof.analysis.mpi.tables:pop",
        needs=("offload", "breakdown"),
        report_position=12,
        sample_basis=SampleBasis.RANKS,
        steps=frozenset(),
    ),
    _call_analysis(
        "mpi_calls",
        "MPI calls",
        columns=columns(
            "rank call:text size_class:text calls bytes total_ns median_ns wait_ns transfer_ns "
            "share_pct:float"
        ),
        sort_by=("-total_ns",),
        main_columns=names("rank call size_class calls bytes total_ns wait_ns transfer_ns share_pct"),
        report_position=16,
        compared_by="total_ns",
    ),
    _call_analysis(
        "mpi_waits",
        "Waits in MPI and the ranks that cause them",
        columns=columns("rank call:text pattern:text range:text wait_ns delaying_rank delaying_range:text"),
        sort_by=("-wait_ns",),
        report_position=14,
        sample_basis=SampleBasis.RANKS,
        compared_by="wait_ns",
    ),
    _call_analysis(
        "mpi_delays",
        "Delays that others wait for in MPI",
        columns=columns("delaying_rank delaying_range:text ranks waits wait_ns share_pct:float"),
        sort_by=("-wait_ns",),
        report_position=13,
    ),
    _call_analysis(
        "mpi_matrix",
        "MPI messages between ranks",
        columns=columns("sender receiver sender_node:text receiver_node:text messages bytes transfer_ns"),
        sort_by=("-bytes", "-messages"),
        report_position=18,
    ),
)
