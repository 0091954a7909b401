"""``python -m hpcprof.workloads.sequence_parallel`` runs the workload on one rank."""

import sys

from hpcprof.workloads.start import start

if __name__ == "__main__":
    sys.exit(start("hpcprof.workloads.sequence_parallel", "torch and mpi4py", sys.argv[1:]))
