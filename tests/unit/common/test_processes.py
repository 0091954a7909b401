"""The one module that starts processes, and its errors."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

import hpcprof
from hpcprof.common.processes import CommandNotStarted, CommandTimedOut

PACKAGE = Path(hpcprof.__file__).parent
ALLOWED = {"common/processes.py", "submit/schedulers/local/supervisor.py"}


def imports_subprocess(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text))) if "subprocess" in text else []
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return "subprocess" in names | {node.module for node in nodes if isinstance(node, ast.ImportFrom)}


def test_only_one_module_and_the_supervisor_start_processes() -> None:
    paths = [
        path
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in ("node", "workloads")
    ]
    assert {str(path.relative_to(PACKAGE)) for path in paths if imports_subprocess(path)} == ALLOWED


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (CommandTimedOut("ncu", 3600.0), "ncu did not finish within 3600 s and was killed."),
        (CommandNotStarted("ncu", "Permission denied"), "cannot start ncu: Permission denied."),
    ],
)
def test_an_error_is_one_sentence_also_after_it_was_pickled(error: Exception, sentence: str) -> None:
    assert str(error) == sentence
    assert str(pickle.loads(pickle.dumps(error))) == sentence
