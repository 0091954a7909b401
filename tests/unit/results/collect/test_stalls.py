"""The verdict on a run, from the files that its job has kept."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcprof.analysis.stalls.evidence import StallKind, describe
from hpcprof.results.ask.explanation import explain
from hpcprof.results.collect.collection import collect
from hpcprof.results.collect.run_names import find_known_runs, find_runs_to_collect
from hpcprof.results.collect.stalls import describe_end, find_stall, judge_folder, stall_sentence
from hpcprof.results.store.store import open_store
from hpcprof.runs.directory import Run
from hpcprof.submit.schedulers.base import JobState, JobStatus
from tests.submitted_run import MakeRun, make_run

__all__ = ["make_run"]

RANKS = 3
SLEEPING, STOPPED = "State:\tS (sleeping)\n", "State:\tT (stopped)\n"
STUCK = """Timeout (0:00:22)!
Thread 0x00007f48ba1796c0 (most recent call first):
  File "/runs/r/hook/hpcprof_pulse.py", line 124 in _watch
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007f48d987ab80 (most recent call first):
  File "/home/me/train.py", line 16 in load_batch
  File "/home/me/train.py", line 36 in <module>
"""


def reduction(number: int, *, ended: bool) -> dict[str, Any]:
    return {
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "collective_seq_id": number,
        "record_id": number,
        "input_sizes": [[8, 8]],
        "retired": ended,
    }


def record(*, entered: bool) -> dict[str, Any]:
    entries = [reduction(60, ended=True), *([reduction(61, ended=False)] if entered else [])]
    return {"version": "2.10", "pg_config": {"0": {"name": "0", "ranks": [0, 1, 2]}}, "entries": entries}


@pytest.fixture
def stalled(make_run: MakeRun) -> Run:
    """A run of three ranks of which rank 2 does not come to a collective."""
    run = make_run(started="2026-11-24T20:00:00Z", stalled="1795552645")
    assert run.manifest is not None
    job = msgspec.structs.replace(run.manifest.job, ranks_per_node=RANKS)
    (run.path / "stall").mkdir()
    for rank in range(RANKS):
        keep(run, rank, "process", SLEEPING)
        keep(run, rank, "flight.json", json.dumps(record(entered=rank != 2)))
        frames = [
            {"name": "load_batch" if rank == 2 else "wait", "filename": "/home/me/train.py", "line": 13}
        ]
        told = {"last_step": 19, "steps": 20, "threads": [{"main": True, "frames": frames}]}
        keep(run, rank, "json", json.dumps(told))
    return Run(run.id, run.path, msgspec.structs.replace(run.manifest, job=job))


def keep(run: Run, rank: int, kind: str, text: str) -> None:
    (run.path / "stall" / f"rank{rank:05d}.{kind}").write_text(text)


def test_the_verdict_names_the_rank_its_function_and_what_the_others_wait_in(stalled: Run) -> None:
    found = find_stall(stalled)
    assert found is not None
    assert (found.kind, found.ranks, found.waiting) == (StallKind.NEVER_CAME, (2,), (0, 1))
    assert [(one.function, one.line) for one in found.where] == [("load_batch", 13)]
    assert (found.since, found.last_step) == ("2026-11-24T20:37:25+00:00", 19)
    assert found.evidence == tuple(f"stall/rank{rank:05d}.flight.json" for rank in range(RANKS))
    assert stall_sentence(stalled) == (
        "stalled: Rank 2 holds the others up in load_batch (train.py:13). Ranks 0, 1 wait in all_reduce "
        "of 8x8, number 61 of group default_pg."
    )


def test_a_run_that_was_cancelled_while_it_hung_keeps_its_verdict_in_its_state(stalled: Run) -> None:
    cancelled = JobStatus(JobState.CANCELLED, "by me, with hpcprof cancel")
    assert describe_end(stalled, cancelled).startswith("by me, with hpcprof cancel; stalled: Rank 2 holds")
    assert describe_end(stalled, JobStatus(JobState.RUNNING)).startswith("stalled: Rank 2 holds")


def test_the_verdict_is_kept_with_the_run(stalled: Run) -> None:
    found = find_stall(stalled)
    for path in (stalled.path / "stall").iterdir():
        path.unlink()
    assert find_stall(stalled) == found


def test_a_run_that_went_on_before_all_of_its_evidence_was_kept_has_no_verdict(stalled: Run) -> None:
    for rank in range(RANKS):
        (stalled.path / "stall" / f"rank{rank:05d}.process").unlink()
    (stalled.path / "state/stalled").rename(stalled.path / "state/went_on")
    assert find_stall(stalled) is None


def test_a_stuck_interpreter_tells_by_the_stack_that_it_wrote_at_last(stalled: Run) -> None:
    for kind in ("json", "flight.json"):
        (stalled.path / "stall" / f"rank00002.{kind}").unlink()
    keep(stalled, 2, "stack", STUCK)
    found = find_stall(stalled)
    assert found is not None
    assert (found.kind, found.ranks) == (StallKind.NEVER_CAME, (2,))
    assert [(one.function, one.line) for one in found.where] == [("load_batch", 16)]


def test_a_stopped_process_and_one_that_is_gone_are_told_apart(stalled: Run) -> None:
    keep(stalled, 2, "process", STOPPED)
    found = find_stall(stalled)
    assert found is not None
    assert found.kind is StallKind.STOPPED
    (stalled.path / "state" / "stall.json").unlink()
    (stalled.path / "stall" / "rank00002.process").unlink()
    found = find_stall(stalled)
    assert found is not None
    assert (found.kind, found.ranks) == (StallKind.DEAD, (2,))


def test_the_exit_codes_of_a_job_that_was_ended_since_do_not_count(stalled: Run) -> None:
    for rank in range(RANKS):
        (stalled.path / "state" / f"rank{rank:05d}.exit").write_text("143\n")
    found = find_stall(stalled)
    assert found is not None
    assert (found.kind, found.ranks) == (StallKind.NEVER_CAME, (2,))


def test_ranks_that_torchrun_started_are_judged_too(stalled: Run) -> None:
    assert stalled.manifest is not None
    for rank in (1, 2):
        (stalled.path / "stall" / f"rank{rank:05d}.process").unlink()
    job = msgspec.structs.replace(stalled.manifest.job, ranks_per_node=1)
    manifest = msgspec.structs.replace(stalled.manifest, job=job)
    found = find_stall(Run(stalled.id, stalled.path, manifest))
    assert found is not None
    assert (found.kind, found.ranks, found.waiting) == (StallKind.NEVER_CAME, (2,), (0, 1))


def test_damaged_evidence_says_nothing_and_does_no_harm(stalled: Run) -> None:
    for path in (stalled.path / "stall").iterdir():
        path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2])
    assert find_stall(stalled) is None
    assert stall_sentence(stalled) == "stalled: no rank makes progress"


def test_a_run_that_never_stalled_has_no_verdict(make_run: MakeRun) -> None:
    run = make_run(started="2026-11-24T20:00:00Z")
    assert find_stall(run) is None
    assert stall_sentence(run) == ""


def test_a_run_that_went_on_keeps_its_verdict_and_is_stalled_no_more(stalled: Run) -> None:
    state = stalled.path / "state"
    (state / "stalled").rename(state / "went_on")
    found = find_stall(stalled)
    assert found is not None
    assert found.went_on
    assert describe(found).endswith(
        "number 61 of group default_pg. Later it went on: it was slow, and did not hang."
    )
    assert stall_sentence(stalled) == ""


def test_a_run_that_was_queued_again_after_a_stall_did_not_go_on(stalled: Run) -> None:
    state = stalled.path / "state"
    (state / "stalled").rename(state / "went_on")
    for moment, went_on in (("2026-11-25T20:37:00Z", False), ("2026-11-24T20:00:00Z", True)):
        (state / "resubmitted").write_text(f"{moment}\n")
        found = find_stall(stalled)
        assert found is not None
        assert found.went_on is went_on


def test_a_pause_of_all_ranks_is_no_stall_once_the_run_has_ended_well(stalled: Run) -> None:
    for rank in range(RANKS):
        keep(stalled, rank, "flight.json", json.dumps(record(entered=False)))
        frames = [{"name": "evaluate", "filename": "/home/me/train.py", "line": 70}]
        keep(stalled, rank, "json", json.dumps({"threads": [{"main": True, "frames": frames}]}))
    found = find_stall(stalled)
    assert found is not None
    assert (found.kind, found.ranks, found.waiting) == (StallKind.NEVER_CAME, (0, 1, 2), ())
    (stalled.path / "state" / "finished").write_text("0\n")
    assert (find_stall(stalled), stall_sentence(stalled)) == (None, "")


def test_dumps_of_a_collective_that_exceeded_its_time_limit_are_judged(stalled: Run) -> None:
    (stalled.path / "state" / "stalled").unlink()
    assert find_stall(stalled) is None
    for rank in range(RANKS):
        (stalled.path / "stall" / f"rank{rank:05d}.flight.json").unlink()
        dump = pickle.dumps(record(entered=rank != 2))
        (stalled.path / "stall" / f"rank{rank:05d}.flight.pickle").write_bytes(dump)
    (stalled.path / "stall" / "n1.ras").write_text("Job summary")
    found = find_stall(stalled)
    assert found is not None
    assert (found.kind, found.ranks, found.since, found.went_on) == (StallKind.NEVER_CAME, (2,), None, False)
    assert found.evidence[-2:] == ("stall/rank00002.flight.pickle", "stall/n1.ras")


def test_an_unprofiled_run_is_explained_by_its_stall_and_its_steps(stalled: Run, tmp_path: Path) -> None:
    steps = stalled.path / "state" / "steps"
    steps.mkdir()
    for rank in range(RANKS):
        line = {
            "time": 1795552640.0,
            "step": 19,
            "steps": 20,
            "wall_ns": 80_000_000 + rank,
            "max_ns": 90_000_000,
        }
        (steps / f"rank{rank:05d}.jsonl").write_text(json.dumps(line) + "\n")
    started = stalled.path / "state" / "started"
    started.write_text("2026-11-24T19:00:00Z\n")
    explained = explain(stalled, open_store(None, tmp_path)).as_json()
    assert explained["findings"] == []
    assert explained["stall"]["kind"] == "never_came"
    assert (explained["step"]["wall_p50_ns"], explained["step"]["steps"]) == (80_000_002, 20)


def test_dumps_of_a_job_that_hpcprof_did_not_start_are_judged(tmp_path: Path) -> None:
    for rank in range(RANKS):
        dump = pickle.dumps(record(entered=rank != 2))
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(dump if rank != 1 else dump[:-40])
    found = judge_folder(tmp_path)
    assert found is not None
    assert (found.kind, found.ranks, found.waiting) == (StallKind.NEVER_CAME, (2,), (0,))
    # Opened last, they are the last run.
    store = open_store(None, tmp_path / "runs")
    store.prepare()
    (opened,) = find_runs_to_collect([str(tmp_path)], tmp_path / "runs", store)
    collect(opened, store)
    (last,) = find_known_runs(["last"], tmp_path / "runs", store)
    assert last.path == tmp_path


def test_dumps_of_which_none_can_be_read_are_said(tmp_path: Path) -> None:
    for rank in range(RANKS):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(record(entered=True))[:-40])
    found = explain(Run("x", tmp_path, None), open_store(None, tmp_path))
    reason = found.not_judged[1].reason
    assert reason.startswith("nccl_trace_rank_0 is damaged; nccl_trace_rank_1 is damaged; ")


def test_a_rank_that_was_ended_with_a_stalled_job_has_not_failed(stalled: Run, tmp_path: Path) -> None:
    state, store = stalled.path / "state", open_store(None, tmp_path)
    for name, text in {"finished": "5", "stall_stop": "node1", "rank00002.exit": "143"}.items():
        (state / name).write_text(f"{text}\n")
    assert explain(stalled, store).as_json()["failure"] is None
    error = {"type": "ValueError", "message": "no batch", "where": None, "time": 1.0, "started_as": 2}
    (state / "rank00002.exception").write_text(json.dumps(error))
    assert explain(stalled, store).as_json()["failure"]["rank"] == 2
