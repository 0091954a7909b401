"""``python -m hpcprof.workloads.network`` runs the workload on one rank."""

import sys

from hpcprof.workloads.start import start

if __name__ == "__main__":
    sys.exit(start("hpcprof.workloads.network", "mpi4py (and torch, but for --library mpi)", sys.argv[1:]))
