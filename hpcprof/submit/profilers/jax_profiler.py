"""JAX's own profiler, inside the program; `hpcprof.node.hooks.jax_hook` starts and stops it."""

from hpcprof.common.errors import UsageError
from hpcprof.node.hooks import jax_hook
from hpcprof.submit.profilers.base import Profiler, Settings, Target, no_trace
from hpcprof.submit.profilers.torch_profiler import start_up_modules
from hpcprof.workloads import catalogue


def _check(target: Target, settings: Settings) -> None:
    if target.workload is not None and not catalogue.find(target.workload).uses_jax:
        other = f"the workload {target.workload} uses PyTorch: use --profiler torch"
        raise UsageError(f"--profiler jax profiles programs of JAX, and {other}.", "profiler", "workload")
    if not target.in_python:
        raise UsageError("--profiler jax profiles programs in Python.")
    if target.captures > 1:
        sentence = "--profiler jax records one span of steps: give --capture-steps FIRST-LAST."
        raise UsageError(sentence, "profiler", "capture_steps")


JAX = Profiler(
    "jax",
    "the JAX profiler, CPU and GPU",
    foreign={
        "with_stack": "leaves out the functions of Python, since tracing them slows the program",
        "record_shapes": "records shapes always: the program's HLO has them",
        "with_flops": "records floating-point operations always, of matrix products and convolutions",
        "profile_memory": "records no allocations",
        "active": "records one span of steps: give --capture-steps FIRST-LAST",
    },
    check=_check,
    start_up=lambda target: start_up_modules("jax_hook.py"),
    complaint=no_trace,
    suffix=jax_hook.JaxRecorder.suffix,
)
