#!/bin/sh
# Moves the files of a rank from a folder ($1) to its profile ($2), and those of its other processes to a folder ($3).
# The largest file is that of the program; the writers of the other files, such as a shell, ran no kernels.
# shellcheck disable=SC2012

main=$(ls -S "$1"/*_results.db "$1"/*_results.json "$1"/*_kernel_trace.csv "$1"/*_counter_collection.csv     2>/dev/null | head -n 1)
[ -n "$main" ] || { echo 'rocprofv3 wrote no profile: did the program use a GPU?'; exit 1; }
prefix=${main%_results.*} prefix=${prefix%_kernel_trace.csv} prefix=${prefix%_counter_collection.csv}
for file in "$prefix"_*; do
    mv -f "$file" "$2.part" && mv -f "$2.part" "$2${file#"$prefix"}" || exit 1
done
set -- "$1" "$3"
for file in "$1"/*; do
    [ ! -e "$file" ] || { mkdir -p "$2" && mv -f "$file" "$2"; } || exit 1
done
