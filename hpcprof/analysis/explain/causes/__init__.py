"""The causes that hpcprof finds, each declared in the module of its name, or in one with its like."""

BUILT_IN: dict[str, str] = {
    "host_work": "host_work",
    "host_bound": "host_bound",
    "host_sync": "host_sync",
    "device_allocation": "device_allocation",
    "blocking_copy": "blocking_copy",
    "small_kernels": "small_kernels",
    "late_rank_host": "late_rank",
    "late_rank_gpu": "late_rank",
    "serial_section": "serial_section",
    "late_receiver": "messages",
    "wrong_order": "messages",
    "small_messages": "messages",
    "exposed_communication": "exposed_communication",
    "pipeline_bubble": "pipeline_bubble",
    "slow_math": "slow_math",
    "contention": "contention",
    # A rank that is short of memory reads pages from files again.
    "memory_pressure": "machine",
    "slow_io": "machine",
    "busy_cores": "machine",
    "step_spikes": "steps",
    "step_drift": "steps",
    "out_of_memory": "memory",
    "memory_imbalance": "memory",
    "host_memory": "memory",
    "capture_incomplete": "capture_incomplete",
}
"""The module of each cause; there, the declaration has the name of the cause in capitals."""
