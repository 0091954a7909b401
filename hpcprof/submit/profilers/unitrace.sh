#!/bin/sh
# Moves the traces of a rank from a folder ($1) to its profile ($2), and those of its other processes to a folder ($3).
# The largest trace is that of the program; the writers of the other files, such as a shell, used no GPU.
# shellcheck disable=SC2012

main=$(ls -S "$1"/*.json "$1"/unitrace/*/chrome_trace.json 2>/dev/null | head -n 1)
[ -n "$main" ] || { echo 'unitrace wrote no trace: did the program use a GPU?'; exit 1; }
mv -f "$main" "$2.part" && mv -f "$2.part" "$2.unitrace.json" || exit 1
for file in "${main%/*}"/metrics_*.csv "${main%/*}"/metrics/metrics_*.csv; do
    [ ! -e "$file" ] || mv -f "$file" "$2.${file##*/}" || exit 1
done
for file in "$1"/*.json "$1"/unitrace/*/chrome_trace.json; do
    [ -e "$file" ] || continue
    case $file in */chrome_trace.json) file=${file%/*} ;; esac
    mkdir -p "$3" && mv -f "$file" "$3" || exit 1
done
