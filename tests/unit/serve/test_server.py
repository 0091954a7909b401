"""Serving without a network."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import uvicorn

from hpcprof.serve.server import Serving, serve


def test_a_server_collects_the_answers_of_clients_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: seen.append(gc.get_threshold()[0]))
    before = gc.get_threshold()
    gc.set_threshold(100_000)
    try:
        serve(Serving(), tmp_path, None, seen.append)  # type: ignore[arg-type]
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    assert seen[-1] <= 1000
