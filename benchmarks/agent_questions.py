"""Questions of an agent, by fixed tool calls: ``python benchmarks/agent_questions.py FOLDER``.

FOLDER has the profiles of planted causes, as for ``benchmarks/explain.py``, with ``costs.json``. To them
come the profiles of the tests, a trace with call stacks that is made here from one of FOLDER, and a job that
fails. A real server answers through the official client. Prints for each question the number of answers and
bytes that it took, and each fact (cause, place, ranks, saving; file and line with stacks) that the answers
lack. The exit code is 1 if one lacks, or if a question takes more than three answers or 20 kB.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

ROOT = Path(__file__).parents[1]
MAX_ANSWERS, MAX_BYTES = 3, 20_000

Call = tuple[str, dict[str, Any]]
Fact = tuple[str, Callable[[str], bool]]


@dataclass(frozen=True)
class Question:
    """A question, the calls that answer it, and the facts that have to be in the answers."""

    text: str
    calls: Sequence[Call]
    facts: Sequence[Fact]


def says(pattern: str) -> Fact:
    """Return a fact that a regular expression finds."""
    return pattern, lambda text: re.search(pattern, text, re.MULTILINE) is not None


def saves(cost_ms: float) -> Fact:
    """Return the saving of the first finding: its interval has the cost, or it is within a quarter of it."""
    pattern = r"^1\. .*: ([\d.]+) (ms|µs) of each step.*\(between ([\d.]+) (ms|µs) and ([\d.]+) (ms|µs)\)"

    def found(text: str) -> bool:
        match = re.search(pattern, text, re.MULTILINE)
        if match is None:
            return False
        said, low, high = (float(match[i]) / (1 if match[i + 1] == "ms" else 1000) for i in (1, 3, 5))
        return low <= cost_ms <= high or abs(said / cost_ms - 1) <= 0.25

    return f"a saving of {cost_ms:.1f} ms", found


def shorter_by(least_ms: float) -> Fact:
    """Return a prediction that is shorter than the measured step by some time."""
    pattern = r"^That is ([\d.]+) ms or [\d.]+ % less than"

    def found(text: str) -> bool:
        match = re.search(pattern, text, re.MULTILINE)
        return match is not None and float(match[1]) >= least_ms

    return f"a step that is {least_ms:.1f} ms shorter", found


PLANTED = {
    "layer_sync": ("host_sync", "forward", "ranks 0, 1"),
    "loader_sleep": ("host_work", "data", "ranks 0, 1"),
    "loop_optimizer": ("small_kernels|host_bound", "optimizer", "ranks 0, 1"),
    "no_overlap": ("exposed_communication", "backward", "ranks 0, 1"),
    "pageable_copy": ("blocking_copy", "data", "ranks 0, 1"),
    "slow_kernel": ("late_rank_gpu", "forward", "rank 1"),
}
"""The first finding of each cause: cause, place and ranks."""

CHANGES = {
    "loader_sleep": "range:data*0",
    "pageable_copy": "copy*0",
    "slow_kernel": "rank:1=median",
    "no_overlap": "comm*0",
}
IN_TESTS = {
    "planted_host_work": ("host_work", "data", "ranks 0, 1"),
    "planted_late_rank_gpu": ("late_rank_gpu", "forward", "rank 1"),
    "mpi_stencil_slow": ("late_rank_host", "MPI_Waitall", "rank 2"),
}


def first(finding: tuple[str, str, str]) -> list[Fact]:
    """Return the facts of a first finding."""
    cause, place, ranks = finding
    return [says(rf"^1\. ({cause}) in «[^»]*{place}[^»]*» on {ranks}:")]


def questions(costs: dict[str, float]) -> Iterator[Question]:
    """Yield the questions; costs are in ms of a step without a profiler."""
    for run, finding in PLANTED.items():
        explained = ("explain", {"run": run})
        yield Question(f"Why are steps of {run} slow?", [explained], [*first(finding), saves(costs[run])])
        compared = ("compare", {"run": run, "baselines": ["none"]})
        slower = [says("at least two runs per side"), says(r"^\+[\d.]+ (ms|µs) a step: ")]
        yield Question(
            f"Is {run} slower than none, and why?", [compared, explained], [*slower, *first(finding)]
        )
    for run, change in CHANGES.items():
        calls: list[Call] = [("explain", {"run": run}), ("whatif", {"run": run, "changes": [change]})]
        yield Question(f"What would {run} gain?", calls, [*first(PLANTED[run]), shorter_by(0.5 * costs[run])])
    for run in ("none", "gc", "none_torch"):
        nothing = [says(": a step takes .*; 0 findings"), says("Nothing was found|No cause")]
        yield Question(f"What is wrong with {run}?", [("explain", {"run": run})], nothing)
    for run in ("loader_sleep", "slow_kernel"):
        traced = [*first(PLANTED[run]), saves(costs[run])]
        yield Question(f"Why is {run} slow, by its trace?", [("explain", {"run": f"{run}_torch"})], traced)
    source = [*first(PLANTED["loader_sleep"]), says(r"source +load_batch \(loader\.py:12\), \d+ %")]
    yield Question("Which line does it?", [("explain", {"run": "with_stacks"})], source)
    for run, finding in IN_TESTS.items():
        yield Question(
            f"Which rank holds {run} up?", [("explain", {"run": run})], [*first(finding), says("ms of each")]
        )
    around = ("events_around", {"run": "loader_sleep", "rank": 0, "range_name": "data"})
    yield Question(
        "What happens during data?",
        [around],
        [says(r"the longest «data»: (39|4\d)\."), says(r"^range \| data")],
    )
    around = ("events_around", {"run": "pageable_copy", "rank": 1})
    yield Question("What is copied in a step?", [around], [says(r"^memory \| ")])
    sql = "SELECT count(*) / (SELECT count(*) FROM steps WHERE rank = 1) AS n FROM kernels WHERE rank = 1"
    asked = ("query", {"run": "loop_optimizer", "sql": sql, "events": True})
    yield Question("How many kernels has a step?", [asked], [says(r"^n\n[1-9]\d+")])
    failed = [("find_runs", {"state": "failed"}), ("log_excerpt", {"run": "last", "search": "Error"})]
    yield Question(
        "Why did it fail?", failed, [says(r"\| failed \|"), says("ZeroDivisionError"), says(r"fails\.py")]
    )
    guides = [("how_to", {"topic": "straggler"}), ("how_to", {"topic": "find-a-straggler"})]
    yield Question("How do I find a straggler?", guides, [says("^# Find a straggler"), says("hpcprof ")])


def gather(folder: Path, work: Path) -> None:
    """Put the profiles into folders with the names of the runs."""
    for cause in [*PLANTED, "none", "gc"]:
        link(folder / cause, work / cause, "rank*.sqlite.xz", "rank")
        if any((folder / cause).glob("rank*.trace.json.xz")):
            link(folder / cause, work / f"{cause}_torch", "rank*.trace.json.xz", "rank")
    for run in IN_TESTS:
        link(ROOT / "tests/data", work / run, f"{run}_rank*.sqlite.xz", f"{run}_rank")
    (work / "with_stacks").mkdir()
    for path in (folder / "loader_sleep").glob("rank*.trace.json.xz"):
        trace = json.loads(lzma.decompress(path.read_bytes()))
        trace["traceEvents"] += list(with_stacks(trace["traceEvents"]))
        packed = gzip.compress(json.dumps(trace).encode(), 1)
        (work / "with_stacks" / f"{path.name.partition('.')[0]}.trace.json.gz").write_bytes(packed)


def link(folder: Path, target: Path, pattern: str, prefix: str) -> None:
    """Link the profiles of a folder under the names of their ranks."""
    target.mkdir()
    for path in folder.glob(pattern):
        (target / f"rank{path.name.removeprefix(prefix)}").symlink_to(path.absolute())


def with_stacks(events: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a call of the user's code during each range ``data``, as PyTorch's profiler records it."""
    ranges = [one for one in events if one.get("name") == "data" and one.get("cat") == "user_annotation"]
    for number, one in enumerate(ranges):
        yield {
            **{key: one[key] for key in ("ph", "pid", "tid", "ts", "dur")},
            "cat": "python_function",
            "name": "loader.py(12): load_batch",
            "args": {"Python id": number + 1, "Python parent id": None},
        }


def hpcprof(work: Path, *arguments: str) -> None:
    """Run a command in the folder of the profiles; a job that fails is one of them."""
    subprocess.run(
        [sys.executable, "-m", "hpcprof", *arguments], cwd=work, env=environment(), capture_output=True
    )


def environment() -> dict[str, str]:
    """Return the environment of commands."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


async def ask(work: Path, asked: Sequence[Question]) -> int:
    """Ask all questions, print what the answers lack, and return how many are not answered."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "hpcprof", "mcp"], env=environment(), cwd=work
    )
    bad = 0
    async with Client(stdio_client(server)) as client:
        for number, question in enumerate(asked, 1):
            texts = []
            for tool, values in question.calls:
                result = await client.call_tool(tool, values)
                texts += [content.text for content in result.content if content.type == "text"]
            size = sum(len(text.encode()) for text in texts)
            lacking = [what for what, holds in question.facts if not holds("\n".join(texts))]
            good = not lacking and len(texts) <= MAX_ANSWERS and size <= MAX_BYTES
            bad += not good
            print(
                f"{number:2} {'ok ' if good else 'BAD'} {len(texts)} {size:6,} B  {question.text}", flush=True
            )
            for what in lacking:
                print(f"       lacks {what}\n" + "".join(f"       > {text[:600]}\n" for text in texts))
    return bad


def main() -> None:
    """Collect the profiles, and ask."""
    folder = Path(sys.argv[1]).absolute()
    costs = json.loads((folder / "costs.json").read_text())["causes"]
    asked = [*questions({name: one["cost_ms"] for name, one in costs.items()})]
    with tempfile.TemporaryDirectory(prefix="agent-questions-") as made:
        work = Path(made)
        gather(folder, work)
        runs = sorted(path.name for path in work.iterdir())
        trained = [run for run in runs if run in {*PLANTED, "none", "gc"}]
        for run in trained:
            hpcprof(work, "collect", run, "--program", "train")
        hpcprof(work, "collect", *(run for run in runs if run not in trained))
        (work / "fails.py").write_text("print(1 / 0)\n")
        hpcprof(work, "submit", "--wait", "--", sys.executable, "fails.py")
        bad = asyncio.run(ask(work, asked))
    print(f"{len(asked) - bad} of {len(asked)} questions are answered in {MAX_ANSWERS} answers and 20 kB")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
