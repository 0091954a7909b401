#!/bin/sh
# Measure a working copy: submit its job several times, collect it, and leave the names of the runs in runs.txt.
set -eu
: "${SITE:=local}" "${RANKS:=2}" "${REPEATS:=5}" "${PROGRAM:=train.py}"
: >runs.txt
repeat=0
while [ "$repeat" -lt "$REPEATS" ]; do
    hpcprof submit --site "$SITE" --ranks-per-node "$RANKS" --profiler nsys --wait -- python "$PROGRAM" >submit.log
    run=$(sed -n 's/^submitted //p' submit.log)
    hpcprof collect "$run"
    echo "$run" >>runs.txt
    repeat=$((repeat + 1))
done
