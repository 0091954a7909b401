"""A GOAL schedule has the replay's order: on a network that takes no time, it takes what computing takes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.predict.operation_graph import COMMUNICATION, operation_graphs
from hpcprof.profiles.readers.operations.table import read_tables
from hpcprof.report.goal import export_goal
from tests.unit.analysis.predict.test_scale import program

DATA = Path(__file__).parents[2] / "data"
LINE = re.compile(r"l(\d+): (?:calc (\d+)|(send|recv) (\d+)b (?:to|from) (\d+) tag (\d+))")


def simulate(text: str) -> float:
    """Return when the last operation ends, if messages take no time."""
    ranks = re.findall(r"rank (\d+) \{\n(.*?)\}", text, re.DOTALL)
    assert text.startswith(f"num_ranks {len(ranks)}\n")
    work: dict[tuple[int, int], float] = {}
    waits: dict[tuple[int, int], list[tuple[int, int]]] = {}
    sends: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    receives: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for name, body in ranks:
        for line in body.splitlines():
            if requires := re.fullmatch(r"l(\d+) requires l(\d+)", line):
                waits[int(name), int(requires[1])].append((int(name), int(requires[2])))
                continue
            found = LINE.fullmatch(line)
            assert found, line
            node = (int(name), int(found[1]))
            work[node], waits[node] = float(found[2] or 0), []
            if found[3] == "send":
                sends.setdefault((name, found[5], found[6], found[4]), []).append(node)
            elif found[3]:
                receives.setdefault((found[5], name, found[6], found[4]), []).append(node)
    assert {key: len(nodes) for key, nodes in sends.items()} == {
        key: len(nodes) for key, nodes in receives.items()
    }
    for key, nodes in receives.items():
        for node, send in zip(nodes, sends[key], strict=True):
            waits[node].append(send)
    end: dict[tuple[int, int], float] = {}
    while len(end) < len(work):
        ready = [node for node in work if node not in end and all(other in end for other in waits[node])]
        assert ready
        for node in ready:
            end[node] = work[node] + max((end[other] for other in waits[node]), default=0.0)
    return max(end.values())


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_collectives_make_all_ranks_wait_for_all(tmp_path: Path, ranks: int) -> None:
    table = program(ranks)[0]
    table = table[table["step"] < 2]
    (path,) = export_goal(table, tmp_path, lambda path: None).written
    (graph,) = operation_graphs(table)
    talks = graph.rows["kind"].isin(COMMUNICATION).to_numpy()
    computing = graph.walls(np.where(talks[:, None], 0.0, graph.own)).sum()
    assert simulate(path.read_text()) == pytest.approx(computing, rel=1e-6)


def test_messages_of_a_pipeline_find_each_other(tmp_path: Path) -> None:
    table: pd.DataFrame = read_tables([DATA / "pipeline_job.parquet"])
    table = table[table["step"] == table["step"].min()]
    (path,) = export_goal(table, tmp_path, lambda path: None).written
    (graph,) = operation_graphs(table)
    talks = graph.rows["kind"].isin(COMMUNICATION).to_numpy()
    computing = graph.walls(np.where(talks[:, None], 0.0, graph.own)).sum()
    text = path.read_text()
    assert simulate(text) == pytest.approx(computing, rel=1e-3)
    assert "-compute" not in text
