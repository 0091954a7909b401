"""``python -m hpcprof.workloads.ddp`` runs the workload on one rank."""

import sys

from hpcprof.workloads.start import start

if __name__ == "__main__":
    sys.exit(start("hpcprof.workloads.ddp", "torch", sys.argv[1:]))
