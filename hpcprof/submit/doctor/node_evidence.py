"""The evidence of a stall or a death that a node allows, tried there by a script of the shell."""

from dataclasses import replace

from hpcprof.common.errors import HpcprofError
from hpcprof.submit.doctor.machine import CheckResult, Inspected, absent, broken, ok, trial_job, warning

# A program of a job is no child of the process that looks at it.
_SCRIPT = r"""
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
"""
_LOCAL_COMMAND = ("/bin/sh", "-c", _SCRIPT)


def node_evidence(machine: Inspected) -> list[CheckResult]:
    """Return one finding for each kind of evidence that can be kept on a node."""
    if machine.scheduler.runs_here:
        output = machine.run(_LOCAL_COMMAND).stdout
    else:
        try:
            with trial_job(machine, _LOCAL_COMMAND, 1, "--node") as (_, status, output):
                if not output:
                    raise HpcprofError(f"the job ended without an answer: {status}.")
        except HpcprofError as error:
            output = f"Nothing was tried: {error}"
            return [warning(output, "Try it with hpcprof submit.", "evidence on a node")]
    return judge_node(output)


def judge_node(output: str) -> list[CheckResult]:
    """Return the findings from what the script printed: a key, a tab and a value on each line."""
    facts: dict[str, list[str]] = {}
    for line in output.splitlines():
        key, tab, value = line.partition("\t")
        if tab:
            facts.setdefault(key, []).append(value)
    node = (facts.get("node") or ["the node"])[0]
    return [replace(judge(node, facts), name=name) for name, judge in _KINDS.items()]


def _processes(node: str, facts: dict[str, list[str]]) -> CheckResult:
    tools = {*facts.get("tool", ())}
    if "python3" not in tools:
        remedy = "Install Python 3.6 or later on the nodes."
        return broken(f"{node} has no python3, so that no run is seen to stall there.", remedy)
    if missing := facts.get("unreadable"):
        observation = f"{node} lets nobody read {', '.join(missing)} of a process in /proc."
        return warning(observation, "Ask the operators to mount /proc for users.")
    return ok(f"{node} shows progress and the state of processes in /proc.")


def _stacks(node: str, facts: dict[str, list[str]]) -> CheckResult:
    if traces := facts.get("traces"):
        alone = ", of programs in Python alone" if traces[0] == "py-spy" else ""
        return ok(f"{traces[0]} reads them on {node}{alone}.")
    lost = "MPI programs that hang while they poll are not found"
    if refused := facts.get("refused"):
        scope = (facts.get("scope") or [""])[0]
        reason = f" (ptrace_scope is {scope})" if scope else ""
        observation = f"{' and '.join(refused)} may not look into processes on {node}{reason}: {lost}."
        remedy = "Ask the operators for sysctl kernel.yama.ptrace_scope=0 on the nodes."
        return warning(observation, remedy)
    observation = f"{node} has none of eu-stack, gdb and py-spy: {lost}."
    return warning(observation, "Install eu-stack (elfutils), gdb or py-spy on the nodes.")


def _memory(node: str, facts: dict[str, list[str]]) -> CheckResult:
    if counter := facts.get("memory"):
        return ok(f"{node} counts kills for lack of memory in {counter[0]}.")
    return absent(
        f"{node} has no counter of a control group: a rank that is out of memory is told by SIGKILL alone."
    )


def _monitors(node: str, facts: dict[str, list[str]]) -> CheckResult:
    tools = {*facts.get("tool", ())}
    sources = {"nvidia-smi": "the state of NVIDIA's GPUs", "python3": "NCCL's monitor (RAS)"}
    present = [source for tool, source in sources.items() if tool in tools]
    paranoid = (facts.get("paranoid") or [""])[0]
    events = f"; perf_event_paranoid is {paranoid}" if paranoid else ""
    if not present:
        return absent(f"{node} has neither nvidia-smi nor python3{events}.")
    return ok(f"{node} can be asked for {' and '.join(present)}{events}.")


_KINDS = {
    "processes on a node": _processes,
    "native stacks on a node": _stacks,
    "out of memory on a node": _memory,
    "monitors on a node": _monitors,
}
"""The judge of each kind of evidence, by the name of its finding."""
