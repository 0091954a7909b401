"""The evidence of a stall or a death that a node allows, tried there by a script of the shell."""

from dataclasses import replace

from hpcprof.common.errors import HpcprofError
from hpcprof.common.grouping import grouped
from hpcprof.common.paths import script_beside
from hpcprof.submit.doctor.machine import CheckResult, Inspected, absent, broken, ok, trial_job, warning

_LOCAL_COMMAND = ("/bin/sh", "-c", script_beside(__file__))


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


def native_stacks(machine: Inspected) -> CheckResult:
    """Check that native stacks, beside those of Python, can be kept as evidence of a stall here."""
    answer = machine.run(_LOCAL_COMMAND)
    if not answer.stdout:
        return warning(f"No native stacks were tried: {answer.why}.", "Try it with --node.")
    return _stacks(*_facts(answer.stdout))


def judge_node(output: str) -> list[CheckResult]:
    """Return the findings from what the script printed: a key, a tab and a value on each line."""
    node, facts = _facts(output)
    return [replace(judge(node, facts), name=name) for name, judge in _KINDS.items()]


def _facts(output: str) -> tuple[str, dict[str, list[str]]]:
    parts = (line.partition("\t") for line in output.splitlines())
    facts = grouped((key, value) for key, tab, value in parts if tab)
    return facts.get("node", ["the node"])[0], facts


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
        return ok(f"{traces[0]} reads native stacks on {node}{alone}.")
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
