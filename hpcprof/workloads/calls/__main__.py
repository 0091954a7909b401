"""``python -m hpcprof.workloads.calls`` runs the workload on one rank."""

import sys

from hpcprof.workloads.start import start

if __name__ == "__main__":
    sys.exit(start("hpcprof.workloads.calls", "the standard library", sys.argv[1:]))
