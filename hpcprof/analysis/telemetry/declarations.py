"""Analyses of the nodes of a run, from their samplers, joined to the steps of its ranks."""

from functools import partial

from hpcprof.analysis.framework.declaration import (
    RANGES,
    Activity,
    Analysis,
    Events,
    Part,
    Policy,
    Scope,
    columns,
    from_part,
)
from hpcprof.profiles.losses import Subject

NO_SAMPLES = "no node of the run was sampled"
"""The reason why the tables about nodes have no rows."""

NO_LOGS = "there is no log of Darshan"
"""The reason why the tables about files have no rows."""

DEVICE_METRICS = "device_metrics"
"""The analysis of the metrics in the profile of a rank, whose rows `telemetry` takes over."""

_METRICS = (
    "device:text first_step last_step phase:text metric:text unit:text samples mean:float min:float max:float"
)
_SAMPLES = frozenset({Subject.SAMPLE})

_node_analysis = partial(
    from_part,
    absent=NO_SAMPLES,
    map="hpcprof.analysis.telemetry.tables:telemetry_tables",
    map_over=Part.NODES,
    about=Activity.TELEMETRY,
)
_file_analysis = partial(
    from_part,
    absent=NO_LOGS,
    map="hpcprof.analysis.telemetry.darshan:darshan_tables",
    map_over=Part.LOGS,
    about=Activity.FILES,
)

_FILE_COLUMNS = "opens reads writes read_bytes written_bytes read_s:float write_s:float meta_s:float " + (
    "unaligned independent"
)

ANALYSES = (
    Analysis(
        DEVICE_METRICS,
        "Metrics of GPUs and NICs in profiles",
        Scope.RANK,
        columns(f"rank {_METRICS}"),
        "hpcprof.analysis.telemetry.device_metrics:device_metrics",
        main_columns=("rank", "device", "first_step", "last_step", "metric", "unit", "mean", "min", "max"),
        events=Events(RANGES | _SAMPLES, steps=True),
        steps=frozenset(),
        policy=Policy.WITH_EVENTS,
        about=Activity.TELEMETRY,
    ),
    _node_analysis(
        "job_resources",
        "Resources of the job",
        "resource:text requested:float used_mean:float used_max:float idle_pct:float advice:text",
        "resource requested used_mean used_max idle_pct advice",
        position=140,
    ),
    _node_analysis(
        "energy",
        "Energy of the GPUs",
        "rank node:text gpu steps duration_s:float energy_j:float mean_power_w:float joule_per_step:float "
        "item:text joule_per_item:float",
        "rank node gpu steps energy_j mean_power_w joule_per_step item joule_per_item",
        position=150,
        about=Activity.GPU,
        compared_by="energy_j",
    ),
    _node_analysis(
        "clocks",
        "Clocks of the GPUs and what lowers them",
        "rank node:text gpu first_step last_step samples sm_mhz_mean:float sm_mhz_min:float "
        "sm_mhz_max:float reason:text throttled_pct:float",
        "rank node gpu first_step last_step sm_mhz_mean sm_mhz_max reason throttled_pct",
    ),
    _node_analysis(
        "neighbours",
        "Others on the cores and GPUs of the run",
        "node:text device:text samples own_mean:float others_mean:float others_max:float",
        "node device samples own_mean others_mean others_max",
        sort_by=("-others_mean",),
    ),
    _node_analysis(
        "io",
        "Data read and written by step",
        "rank node:text first_step last_step duration_s:float read_bytes written_bytes calls wait_s:float "
        "checkpoint",
        "rank first_step last_step read_bytes written_bytes calls wait_s checkpoint",
    ),
    _node_analysis(
        "coincidences",
        "Metrics in long steps and on single ranks, against the usual",
        "subject:text rank node:text device:text first_step last_step metric:text unit:text usual:float "
        "then:float p_value:float beyond_chance",
        "subject device metric usual then unit p_value beyond_chance",
        position=155,
        about=Activity.COINCIDENCE,
        compared_by="then",
    ),
    _node_analysis(
        "telemetry",
        "Samples of the nodes by step",
        f"rank node:text {_METRICS}",
        "rank device first_step last_step metric unit samples mean min max",
        events=Events(_SAMPLES),
    ),
    _file_analysis(
        "darshan_files",
        "Files that Darshan recorded",
        f"log:text file:text file_system:text module:text ranks {_FILE_COLUMNS} share_pct:float slowest_rank "
        "slowest_s:float late_rank wait_s:float",
        "file module ranks read_bytes written_bytes read_s write_s meta_s wait_s share_pct",
        position=156,
    ),
    _file_analysis(
        "darshan_ranks",
        "Files by rank, recorded by Darshan",
        f"rank module:text files {_FILE_COLUMNS} share_pct:float",
        "rank module files reads writes read_bytes written_bytes read_s write_s meta_s share_pct",
    ),
    _file_analysis(
        "darshan_steps",
        "Reads and writes by step, traced by Darshan",
        "rank first_step last_step phase:text module:text reads writes read_bytes written_bytes wait_s:float "
        "share_pct:float",
        "rank first_step last_step module read_bytes written_bytes wait_s share_pct",
    ),
)
