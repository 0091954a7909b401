"""Explanations against known costs: ``python benchmarks/explain.py FOLDER [--speed | --torch]``.

With ``--speed``, FOLDER has the exports of one run: it is collected and then explained, and the output has
the wall-clock and CPU times and the largest memory of both, and their ratio to the unit of
``benchmarks/collect.py`` for the largest export.

Otherwise FOLDER has a folder for each planted cause with the profile of every rank (``rank*.sqlite``,
``rank*.sqlite.xz`` or ``rank*.trace.json*``, only these with ``--torch``), and one called ``none`` without a
cause. The difference of their elapsed times per step is what the cause costs under the profiler. Prints, for
each, the median wall step, this cost, what the first finding says with its interval, the error of the
unchanged replay of the median step and of the worst single step, the seconds that the explanation took, and
the first finding. Then comes the reverse test: ``range:data+40ms`` in ``none``, which is a sleep of 40 ms in
``data`` on all ranks; and the generated programs of ``benchmarks/programs.py``.

A FOLDER with ``truth.json`` has programs that are not variants of one. It holds, for each, ``alone_ms``, the
step without a profiler, and ``cost_ms``, what its planted cause costs without one. Prints, for each, that
step, the step that is explained, this cost, the first finding, and what was not judged.
"""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.collect import FETCH, HPCPROF, cost  # noqa: E402
from benchmarks.programs import explain_programs  # noqa: E402
from hpcprof.analysis.explain.changes import parse_changes  # noqa: E402
from hpcprof.analysis.explain.explain import explain_run  # noqa: E402
from hpcprof.analysis.explain.explanation import Finding  # noqa: E402
from hpcprof.analysis.explain.inputs import ExplainInputs  # noqa: E402
from hpcprof.analysis.explain.replay import Replay  # noqa: E402
from hpcprof.analysis.explain.replayable import Replayable, replayable  # noqa: E402
from hpcprof.analysis.explain.whatif import predict  # noqa: E402
from hpcprof.results.ask.explanation import explain_inputs  # noqa: E402
from hpcprof.results.collect.run_names import find_known_run  # noqa: E402
from hpcprof.results.store.store import open_store  # noqa: E402

REVERSE = "range:data+40ms"
HEAD = "planted          step ms cost ms says median% worst%  took s  first finding"
PATTERNS = ("rank*.sqlite", "rank*.sqlite.xz", "rank*.trace.json*")


def collected(cause: Path, work: Path) -> ExplainInputs:
    """Collect the profiles of a cause into a database, and return what explains them."""
    folder = work / cause.name
    folder.mkdir()
    patterns = PATTERNS[-1:] if "--torch" in sys.argv[2:] else PATTERNS
    pattern = next(one for one in patterns if any(cause.glob(one)))
    for path in cause.glob(pattern):
        target = folder / path.name.removesuffix(".xz")
        if path.suffix == ".xz":
            with lzma.open(path) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file)
        else:
            shutil.copy(path, target)
    command = [sys.executable, "-m", "hpcprof", "collect", str(folder)]
    subprocess.run(command, cwd=work, check=True, capture_output=True, env={"PYTHONPATH": str(ROOT)})
    runs = work / "runs"
    store = open_store(None, runs)
    return explain_inputs(find_known_run(str(folder), runs, store), store)


def step_ms(inputs: ExplainInputs) -> tuple[float, float, float, float]:
    """Return the median wall step and the elapsed time of a step in ms, and the errors of the replay in %.

    The errors are those of the median and of the worst single step.
    """
    built = replayable(inputs)
    assert isinstance(built, Replayable)
    replay = Replay(built.graph)
    measured = replay.walls(replay.graph.observed)
    replayed = replay.walls(replay.unchanged)
    median = float(np.median(measured))
    error = 100 * (float(np.median(replayed)) / median - 1)
    elapsed = float(np.mean(replay.elapsed(replay.graph.observed)))
    return median / 1e6, elapsed / 1e6, error, 100 * float(np.abs(replayed / measured - 1).max())


def speed(source: Path) -> None:
    """Print what it costs to collect and to explain a run."""
    largest = max(source.glob("*.sqlite"), key=lambda path: path.stat().st_size)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / source.name).symlink_to(source.resolve())
        unit = cost([sys.executable, "-c", FETCH, str(largest.resolve())], work)
        print(f"{'command':10}{'wall s':>9}{'units':>7}{'CPU s':>9}{'units':>7}{'MiB':>7}")
        print(f"{'unit':10}{unit.wall:9.2f}{1:7.2f}{unit.cpu:9.2f}{1:7.2f}{unit.memory:7.0f}")
        for command in ("collect", "explain"):
            spent = cost([*HPCPROF, command, str(work / source.name)], work)
            units = (spent.wall / unit.wall, spent.cpu / unit.cpu)
            figures = f"{spent.wall:9.2f}{units[0]:7.2f}{spent.cpu:9.2f}{units[1]:7.2f}"
            print(f"{command:10}{figures}{spent.memory:7.0f}")


def said(finding: Finding) -> str:
    """Return what a finding saves with its interval, in ms."""
    saving, low, high = (
        (one or 0) / 1e6 for one in (finding.saving_ns, finding.saving_low_ns, finding.saving_high_ns)
    )
    return f"{saving:6.2f} {low:6.2f}..{high:6.2f} "


def against_truth(source: Path, work: Path) -> None:
    """Print the explanation of each program beside what was measured of it without a profiler."""
    print(f"{'program':16}  alone   step   cost says                   first finding")
    for name, truth in json.loads((source / "truth.json").read_text()).items():
        if not (source / name).is_dir():
            continue
        explanation = explain_run(collected(source / name, work))[0]
        first = next(iter(explanation.shown()), None)
        alone, cost_ms = truth["alone_ms"], truth.get("cost_ms", 0.0)
        step = (explanation.step.elapsed_ns or 0) / 1e6
        says = f"{said(first)} {first.cause}, {first.where}, {first.confidence}" if first else "-"
        print(f"{name:16}{alone:7.2f}{step:7.2f}{cost_ms:7.2f} {says}")
        for doubt in explanation.not_judged:
            print(f"{'':16}not judged: {doubt.what}: {doubt.reason}")


def main() -> None:
    """Explain every cause of a folder, or measure how long one run takes."""
    source = Path(sys.argv[1])
    if "--speed" in sys.argv[2:]:
        speed(source)
        return
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if (source / "truth.json").exists():
            against_truth(source, work)
            return
        causes = sorted(path for path in source.iterdir() if path.is_dir() and path.name != "none")
        if "--torch" in sys.argv[2:]:
            causes = [path for path in causes if any(path.glob(PATTERNS[-1]))]
        clean = collected(source / "none", work)
        base = step_ms(clean)[1]
        print(HEAD)
        for cause in (source / "none", *causes):
            inputs = clean if cause.name == "none" else collected(cause, work)
            step, elapsed, median, worst = step_ms(inputs)
            begun = time.perf_counter()
            found = explain_run(inputs)[0].shown()
            took = time.perf_counter() - begun
            first = found[0] if found else None
            says = said(first) if first else f"{'-':>6}{'':16}"
            named = f"{first.cause}, {first.where}, ranks {list(first.ranks)}" if first else "none"
            figures = f"{step:7.2f} {elapsed - base:6.2f} {says} {median:7.2f} {worst:6.2f} {took:6.1f}"
            print(f"{cause.name:16} {figures}  {named}")
        predicted = predict(clean, parse_changes([REVERSE])).wall_p50_ns / 1e6
        print(f"{REVERSE} in none: {predicted:.2f} ms")
        explain_programs()


if __name__ == "__main__":
    main()
