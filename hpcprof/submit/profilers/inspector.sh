#!/bin/sh
# Moves the logs of a rank from a folder ($1) to its profile ($2).
# The program may have several processes with GPUs, as those of torchrun are.

folder=$1 output=$2
set --
for file in "$folder"/*.log; do [ ! -s "$file" ] || set -- "$@" "$file"; done
if [ $# -eq 0 ]; then
    echo 'the Inspector wrote no log: NCCL found no libnccl-profiler-inspector.so (profiler option plugin), or was not used'
    exit 1
fi
if [ $# -eq 1 ]; then mv -f "$1" "$output.inspector.log"; exit; fi
for file in "$@"; do mv -f "$file" "${output%/*}" || exit 1; done
