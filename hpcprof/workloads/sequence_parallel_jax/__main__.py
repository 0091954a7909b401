"""``python -m hpcprof.workloads.sequence_parallel_jax`` runs the workload on one rank."""

import sys

from hpcprof.workloads.start import start

if __name__ == "__main__":
    sys.exit(start("hpcprof.workloads.sequence_parallel_jax", "jax", sys.argv[1:]))
