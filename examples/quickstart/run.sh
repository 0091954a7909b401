#!/bin/sh
# Submit, collect, report. Requires an extra: pip install 'hpcprof[workloads]'.
set -eu
hpcprof submit --site local --workload sequence-parallel --ranks-per-node 2 --profiler torch --wait -- "$@"
hpcprof collect
hpcprof report --html runs/report.html
