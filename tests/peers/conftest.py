"""These tests install other tools: they run only where ``-m peers`` asks for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave this folder's tests out unless they are asked for."""
    if "peers" in (config.option.markexpr or ""):
        return
    here = f"{Path(__file__).parent}{os.sep}"
    ours = [item for item in items if str(item.path).startswith(here)]
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if not str(item.path).startswith(here)]
