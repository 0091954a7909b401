"""A step is predicted on more ranks, kept, and scored by a run on them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import hpcprof as hpcprof_package
from tests.conftest import Hpcprof
from tests.unit.analysis.predict.test_scale import program

JOB = str(Path(__file__).parents[1] / "data" / "pipeline_job.parquet")


def test_a_prediction_is_kept_and_scored(hpcprof: Hpcprof, tmp_path: Path) -> None:
    predict = partial(hpcprof, "predict", "--runs-dir", str(tmp_path / "runs"))
    for ranks in (2, 4):
        (tmp_path / f"on{ranks}").mkdir()
        program(ranks)[0].to_csv(tmp_path / f"on{ranks}" / "timers.csv", index=False)
    small, large = (str(tmp_path / name / "timers.csv") for name in ("on2", "on4"))
    found = predict(small, "--ranks", "4", "--format", "json")
    assert found.returncode == 0, found.stderr
    prediction = json.loads(found.stdout)
    assert prediction["step"]["low"] < prediction["step"]["value"] < prediction["step"]["high"]
    text = predict(small, "--ranks", "4,16").stdout
    assert "On 2 ranks a step takes" in text
    assert "has been checked yet" in " ".join(text.split())
    assert "no prediction is for" in predict("--check", large, "--scaling", "strong").stderr
    checked = predict("--check", large, "--format", "json")
    assert checked.returncode == 0, checked.stderr
    scores = json.loads(checked.stdout)
    assert [one["ranks"] for one in scores] == [4, 4]
    assert abs(scores[0]["actual"] / program(4)[1] - 1) < 0.01
    assert len(json.loads(predict("--list", "--format", "json").stdout)) == 3
    assert "checked predictions of this run" in " ".join(predict(small, "--ranks", "16").stdout.split())
    opened = hpcprof_package.open(tmp_path / "on2", runs_dir=tmp_path / "runs")
    assert opened.predict(ranks=4).ranks == 4


def test_a_pipeline_is_rebuilt_with_another_schedule(hpcprof: Hpcprof, tmp_path: Path) -> None:
    predict = partial(hpcprof, "predict", "--runs-dir", str(tmp_path / "runs"), JOB, "--pipeline", "4")
    values = json.loads(predict("--schedule", "zero-bubble", "--format", "json").stdout)
    assert (values["microbatches"], values["ranks"]) == (4, 8)
    assert values["value"] < values["measured_ns"]
    text = predict("--microbatches", "16").stdout
    assert "1f1b on 4 stages, 16 microbatches (8 ranks)" in text
    opened = hpcprof_package.open(JOB, runs_dir=tmp_path / "runs")
    assert opened.predict_pipeline(4, schedule="zero-bubble").value == values["value"]


def test_mistakes_are_one_sentence(hpcprof: Hpcprof, tmp_path: Path) -> None:
    program(2)[0].to_csv(tmp_path / "timers.csv", index=False)
    path = str(tmp_path / "timers.csv")
    predict = partial(hpcprof, "predict", "--runs-dir", str(tmp_path / "runs"))
    for arguments, said in (
        ((path,), "--ranks needs numbers of ranks"),
        ((path, "--ranks", "many"), "--ranks needs numbers of ranks"),
        (("--check", path), "no prediction is for the 2 ranks of"),
        ((path, "--chunks", "2"), "need --pipeline STAGES"),
        ((path, "--ranks", "2000000"), "numbers of ranks up to 1,048,576"),
        ((path, "--pipeline", "4", "--ranks", "8"), "--pipeline cannot be combined with --ranks."),
        (("--list", "--ranks", "8", "--keep", "2"), "--list cannot be combined with --ranks, --keep."),
        (("--check", path, "--pipeline", "4"), "--check cannot be combined with --pipeline."),
        ((JOB, "--pipeline", "9999", "--microbatches", "9999"), "are too many blocks to replay"),
        ((path, "--pipeline", "4"), "forward and backward operations on several stages"),
    ):
        found = predict(*arguments)
        assert found.returncode == 2, found.stderr
        assert said in found.stderr


def test_one_rank_of_several_is_reported_and_not_predicted(hpcprof: Hpcprof, tmp_path: Path) -> None:
    rows = program(2)[0]
    (tmp_path / "alone").mkdir()
    path = str(tmp_path / "alone" / "timers.csv")
    rows[rows["rank"] == 1].to_csv(path, index=False)
    opened = hpcprof_package.open(path, runs_dir=tmp_path / "runs")
    opened.collect()
    assert opened.explain().findings
    assert opened.skew()["verdict"].tolist() == ["unknown"]
    refused = hpcprof("predict", "--runs-dir", str(tmp_path / "runs"), path, "--ranks", "4")
    assert refused.returncode == 1
    assert "a prediction needs all ranks that communicate" in refused.stderr
