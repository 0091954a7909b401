#!/bin/sh
# Prints the evidence of a stall that this node allows: a key, a tab and a value on each line.
# A program of a job is no child of the process that looks at it.

say() { printf '%s\t%s\n' "$1" "$2"; }
say node "$(uname -n)"
sleep 60 & target=$!
sleep 0.2
for file in stat status wchan environ io maps; do
    [ -n "$(tr -d '\0' 2>/dev/null <"/proc/$target/$file" | head -c 1)" ] || say unreadable "$file"
done
look() {
    case $1 in
    eu-stack) eu-stack -p "$target" ;;
    gdb) gdb -nx -batch -iex 'set auto-load off' -iex 'set debuginfod enabled off' -p "$target" -ex bt ;;
    py-spy) # it looks into nothing but Python
        python3 -c 'import time; time.sleep(60)' & python=$!
        sleep 1
        py-spy dump --native --pid "$python"
        kill "$python" ;;
    esac
}
for tool in eu-stack gdb py-spy; do
    command -v "$tool" >/dev/null || continue
    case $(look "$tool" 2>/dev/null) in
    *'#0'* | *'#1'* | *'Thread '*) say traces "$tool" ;;
    *) say refused "$tool" ;;
    esac
done
for tool in python3 nvidia-smi; do command -v "$tool" >/dev/null && say tool "$tool"; done
say scope "$(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null)"
say paranoid "$(cat /proc/sys/kernel/perf_event_paranoid 2>/dev/null)"
while IFS=: read -r _ kind group; do
    case ",$kind," in
    ,,) file=/sys/fs/cgroup$group/memory.events ;;
    *,memory,*) file=/sys/fs/cgroup/memory$group/memory.oom_control ;;
    *) continue ;;
    esac
    if grep -qs oom_kill "$file"; then say memory "$file"; fi
done </proc/self/cgroup
kill "$target"
