"""Listing the analyses costs little: it imports no numerical library."""

from __future__ import annotations

import subprocess
import sys

from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES

_LISTING = """
import sys
for module in ("numpy", "pandas", "scipy"):
    sys.modules[module] = None  # An import of it fails.
from hpcprof.analysis.framework.registry import find_analysis
from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
print(len(ANALYSES), len(ACROSS_RUNS), find_analysis("kernels").title)
"""


def test_the_declarations_import_neither_numpy_nor_pandas() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LISTING], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    of_one_run, of_several = map(int, done.stdout.split()[:2])
    assert (of_one_run, of_several) == (len(ANALYSES), len(ACROSS_RUNS))


_WITHOUT_PANDAS = """
import sys
sys.modules["pandas"] = sys.modules["scipy"] = None
import hpcprof.results.ask.event_query
from hpcprof.analysis.explain.cause import Cause, find_cause
print(*(find_cause(name).title for name in Cause), sep="\\n")
"""


def test_kept_findings_and_queries_of_events_need_no_pandas() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PANDAS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "host work" in done.stdout.splitlines()
