"""Metrics of runs, read by Prometheus' own parser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from hpcprof.results.across.listing import ListedRun
from hpcprof.serve import metrics
from hpcprof.serve.catalogue import Catalogue, KnownRun, Listing

HOSTILE = 'a"b\\c\nd'
DASHBOARD = Path(__file__).parents[3] / "examples/grafana/hpcprof.json"


def run(name: str, program: str | None, state: str, step_ns: float | None = None) -> KnownRun:
    return KnownRun(ListedRun(run=name, state=state, site="polaris", ranks=4, step_ns=step_ns), program)


@pytest.fixture
def exposed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The samples as Prometheus reads them."""
    runs = [
        run("r5", "train", "queued"),
        run("r4", "train", "running", 25e6),
        run("r3", "train", "completed", 50e6),
        run("r2", HOSTILE, "failed"),
        run("r1", None, "imported", 1e6),
        run("r0", "forged", "completed", 5e-324),
    ]
    findings = [SimpleNamespace(cause="slow_input", saving_ns=ns) for ns in (1e6, 2e6)]
    explained = {"r3": SimpleNamespace(findings=findings)}
    monkeypatch.setattr(metrics, "kept_explanation", lambda run, store: explained.get(run))
    energy = {"r3": [100.0, None, 20.5]}
    store = SimpleNamespace(
        exists=lambda: True,
        table=lambda name, table: SimpleNamespace(columns={"energy_j": energy.get(name, [])}),
    )
    catalogue = SimpleNamespace(store=store, find=lambda name: name, listing=lambda: Listing(runs, []))
    text = generate_latest(metrics._Families(cast(Catalogue, catalogue), metrics.RunningEnergy())).decode()  # type: ignore[no-untyped-call]
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return [sample for family in families for sample in family.samples]


@pytest.fixture
def samples(exposed: list[Any]) -> dict[tuple[str, ...], float]:
    """The samples by the name of the metric, its program and what else tells them apart."""
    found: dict[tuple[str, ...], float] = {}
    for sample in exposed:
        labels: dict[str, Any] = sample.labels
        others = [labels[name] for name in sorted(labels) if name not in ("program", "site")]
        key = (sample.name, labels["program"], *others)
        found[key] = sample.value
    return found


def test_the_newest_running_run_is_shown_and_else_the_newest(samples: dict[tuple[str, ...], float]) -> None:
    assert samples["hpcprof_run_info", "train", "", "r4"] == 1
    assert samples["hpcprof_run_state", "train", "running"] == 1
    assert samples["hpcprof_run_state", "train", "completed"] == 0
    assert samples["hpcprof_step_seconds", "train"] == pytest.approx(0.025)
    assert samples["hpcprof_steps_per_second", "train"] == pytest.approx(40)
    assert sum(name == "hpcprof_run_info" for name, *_ in samples) == 3
    assert ("hpcprof_step_seconds", "forged") not in samples


def test_findings_and_energy_are_those_of_the_newest_run_that_has_them(
    samples: dict[tuple[str, ...], float],
) -> None:
    assert samples["hpcprof_finding_saving_seconds", "train", "slow_input"] == pytest.approx(0.002)
    assert samples["hpcprof_run_energy_joules", "train"] == 120.5
    assert not [key for key in samples if key[0] == "hpcprof_step_seconds" and key[1] != "train"]


def test_a_hostile_name_is_a_label_and_no_line(samples: dict[tuple[str, ...], float]) -> None:
    (program,) = {key[1] for key in samples} - {"train", "forged"}
    assert "\n" not in program and program.startswith('a"b\\c')


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are(exposed: list[Any]) -> None:
    labels = {sample.name: set(sample.labels) for sample in exposed}
    board = json.loads(DASHBOARD.read_text())
    asked = [target for panel in board["panels"] for target in panel["targets"]]
    variables = [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    assert len(asked) == 5 and len(variables) == 2
    for target in asked:
        name, chosen = re.match(r"(\w+)\{(.*)\}", target["expr"]).groups()
        named = re.findall(r"(\w+)[=~!]", chosen) + re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
        assert len(named) >= 4 and set(named) <= labels[name]
    for query in variables:
        name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()
        assert label in labels[name]


def test_the_energy_of_a_running_run_is_read_on(tmp_path: Path) -> None:
    file = tmp_path / "telemetry/node1.jsonl"
    file.parent.mkdir()
    slow = ["gpu0 energy_j", "gpu1 energy_j"]
    about: dict[str, Any] = {"gpus": ["A", "B"], "missing": {}, "limits": {}, "ranks": {}}
    header, turned = ({**about, "fast": ["gpu0 power_w"], "slow": names} for names in (slow, slow[::-1]))
    lines = [header, [1.0, [90.0], [1000.0, 500.0]], [1.1, [90.0]], [2.0, [90.0], [1100.0, None]]]
    first = ListedRun(run="r1", state="running", path=str(tmp_path))
    running = [KnownRun(first, "train"), run("r0", "train", "completed")]
    energy = metrics.RunningEnergy()
    assert energy.joules(running) == {"r1": None}
    half = json.dumps([3.0, [90.0], [1150.0, 600.0]])
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + half[:9])
    assert energy.joules(running) == {"r1": 100.0}
    with file.open("a") as more:
        more.write(half[9:] + "\nno line\n" + json.dumps(turned) + "\n[4.0, [90.0], [700.0, 20.0]]\n")
    assert energy.joules(running) == {"r1": 350.0}  # a counter that begins anew adds nothing
    file.write_text("".join(json.dumps(line) + "\n" for line in [lines[0], lines[1], lines[3]]))
    assert energy.joules(running) == {"r1": 100.0}  # the job has begun again
    assert energy.joules(running[1:]) == {}
