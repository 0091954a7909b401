#!/bin/sh
# Submit, collect, report. Requires hpcprof with two extras: pip install 'hpcprof[workloads,html]'.
set -eu
hpcprof submit --site local --workload sequence-parallel --ranks-per-node 2 --profiler torch --wait -- "$@"
hpcprof collect
hpcprof report --html runs/report.html
