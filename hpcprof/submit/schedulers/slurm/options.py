"""The options of sbatch, as far as hpcprof must know what they set."""

from __future__ import annotations

from hpcprof.submit.schedulers.scheduler import GPUS

_SHORT = {
    "-A": "--account",
    "-C": "--constraint",
    "-G": "--gpus",
    "-J": "--job-name",
    "-N": "--nodes",
    "-W": "--wait",
    "-a": "--array",
    "-c": "--cpus-per-task",
    "-d": "--dependency",
    "-e": "--error",
    "-n": "--ntasks",
    "-o": "--output",
    "-p": "--partition",
    "-q": "--qos",
    "-t": "--time",
    "-w": "--nodelist",
    "-x": "--exclude",
}
"""The short options, with their long names, that other directives may have by their long names."""

_OUTPUT = "the output goes to logs/ of the run"
_RANKS = "give --nodes and --ranks-per-node"
OWN_SETTINGS = {
    "--account": "give --account",
    "--array": "give --array to hpcprof sweep",
    "--dependency": "give --after",
    "--error": _OUTPUT,
    "--job-name": "give --job-name",
    "--nodes": "give --nodes",
    "--ntasks": _RANKS,
    "--ntasks-per-node": "give --ranks-per-node",
    "--output": _OUTPUT,
    "--test-only": "give --dry-run",
    "--time": "give --walltime",
    "--wait": "give --wait",
    "--wrap": "write the command after --",
}
"""Settings of the script or of other options of hpcprof, each with the end of a sentence of advice."""

_MEMORY = "the memory"
_CPUS = "the CPUs of a rank"
_COMMON = {
    "--mem": _MEMORY,
    "--mem-per-cpu": _MEMORY,
    "--mem-per-gpu": _MEMORY,
    "--cpus-per-task": _CPUS,
    "--cpus-per-gpu": _CPUS,
    "--gpus": GPUS,
    "--gpus-per-node": GPUS,
    "--gpus-per-socket": GPUS,
    "--gpus-per-task": GPUS,
}
"""Options that exclude each other, with what they set."""
_SHORTEST_PREFIX = len("--ti")


def slurm_settings(directive: str) -> frozenset[str]:
    """Return what a directive sets: the long name of its option, or what several options set in common.

    sbatch accepts the beginning of a long option; that of one in `OWN_SETTINGS` is taken for it.
    """
    name = directive.replace(" ", "=").partition("=")[0]
    if not name.startswith("--"):
        name = _SHORT.get(name[:2], name[:2])
    elif name not in _COMMON and len(name) >= _SHORTEST_PREFIX:
        name = next((own for own in OWN_SETTINGS if own.startswith(name)), name)
    if name == "--gres" and "gpu" in directive:
        name = GPUS
    return frozenset({_COMMON.get(name, name)})
