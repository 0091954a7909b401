"""The table of checks."""

from __future__ import annotations

from hpcprof.submit.doctor.node import counters, dcgm, perf_events, runs, tmpdir
from hpcprof.submit.doctor.running import Check
from hpcprof.submit.doctor.software import gpus, mpi, ncu, nsys, scheduler, torch

CHECKS: dict[str, Check] = {
    "scheduler": scheduler,
    "MPI": mpi,
    "GPUs": gpus,
    "nsys": nsys,
    "ncu": ncu,
    "hardware counters": counters,
    "CPU sampling": perf_events,
    "TMPDIR": tmpdir,
    "DCGM": dcgm,
    "PyTorch": torch,
    "runs folder": runs,
}
"""Every check by the name of its finding; to add one, write a function and put it here."""
