"""Slurm's recorded outputs, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import pytest

from hpcprof.common.errors import SchedulerError
from hpcprof.common.processes import Completed
from hpcprof.submit.schedulers import slurm
from hpcprof.submit.schedulers.base import JobState, Record
from hpcprof.submit.schedulers.command import Refused, Unreachable
from hpcprof.submit.schedulers.slurm import (
    SlurmScheduler,
    meanings,
    parse_largest_array,
    parse_sacct,
    parse_sbatch,
    parse_scancel,
    parse_scontrol_nodes,
    parse_scripts,
    parse_sinfo,
    parse_squeue,
    pending_reason,
    records_of_members,
)
from hpcprof.submit.sites.model import Node, Queue, Vendor
from tests.unit.submit.schedulers.recorded import DATA, recorded, recorded_machine

NOW = datetime(2026, 11, 21, 6, 17, 25, tzinfo=timezone.utc).timestamp()
SQUEUE = (DATA / "slurm/squeue_format.txt").read_text()


@pytest.fixture(scope="module")
def queue() -> dict[str, Record]:
    return dict(parse_squeue(0, SQUEUE, "", NOW))


def line(state: str, reason: str = "None", status: int = 0) -> Record:
    text = f"{'7':40}{state:24}{status:<12}{'N/A':24}{reason:200}"
    return parse_squeue(0, text, "", NOW)["7"]


def test_squeue_shows_when_a_job_was_submitted_and_from_which_script() -> None:
    start = f"{'7':40}{'PENDING':24}{0:<12}{'N/A':24}{'(Nodes required for job are DOWN)':200}"
    text = f"{start}{'2026-11-21T06:17:20':24}{'/a b/runs/x/job.sh':1024}"
    record = parse_squeue(0, text, "", NOW)["7"]
    assert (record.script, record.submitted_seconds) == ("/a b/runs/x/job.sh", 5.0)
    assert "DOWN" in record.reason


def sacct(state: str, exit_code: str) -> Record:
    return parse_sacct(0, f"7|{state}|{exit_code}|2026-11-21T06:17:20\n", "", NOW)["7"]


def test_the_newest_job_or_array_of_a_script_is_found_whatever_its_path_contains() -> None:
    code, out, error = recorded("slurm/squeue_scripts.txt")
    assert parse_scripts(code, out, error) == {"/home/user/runs/a run x/job.sh": "4"}
    assert parse_scripts(0, "10 /x/job.sh\n9 /x/job.sh\n11 (null)\n", "")["/x/job.sh"] == "10"
    with pytest.raises(Unreachable):
        parse_scripts(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")


def test_sbatch_prints_the_id_and_with_federations_the_cluster() -> None:
    assert parse_sbatch(*recorded("slurm/ok_sbatch_parsable.txt")) == "117"
    assert parse_sbatch(0, "123;alps\n", "") == "123;alps"
    assert parse_sbatch(0, "a greeting of the site\n124\n", "sbatch: a note\n") == "124"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("err_bad_option", "unrecognized option '--no-such-option'."),
        ("err_bad_partition", "invalid partition specified: nosuch: Invalid partition name specified."),
        ("err_missing_script", "Unable to open file /home/user/absent.sh."),
        ("err_too_many_gpus", "Requested node configuration is not available."),
        ("enforced_err_time_limit", "Requested time limit is invalid (missing or exceeds some limit)."),
        ("err_no_shebang", "This does not look like a batch script."),
    ],
)
def test_a_refusal_of_sbatch_is_one_sentence_with_slurms_words(name: str, words: str) -> None:
    with pytest.raises(SchedulerError) as refused:
        parse_sbatch(*recorded(f"slurm/{name}.txt"))
    assert str(refused.value).startswith(f"sbatch did not accept the job: {words}")


def test_a_script_that_is_too_long_for_the_site_is_refused_with_its_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = "sbatch: error: Pathname of a file, directory or other parameter too long\n"
    monkeypatch.setattr(slurm, "run_submission", lambda words, _: Completed(tuple(words), 1, "", said, 0.0))
    (tmp_path / "job.sh").write_text("#" * 5000)
    with pytest.raises(Refused, match=r"too long\. job\.sh has 5,000 bytes; .* max_script_size"):
        SlurmScheduler().submit(tmp_path / "job.sh", tmp_path)


def test_sbatch_that_prints_no_id_did_not_take_the_job() -> None:
    with pytest.raises(SchedulerError, match="does not say whether it accepted the job"):
        parse_sbatch(0, "", "")


def test_a_job_that_sbatch_may_have_submitted_in_silence_is_not_called_refused() -> None:
    error = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
    with pytest.raises(
        SchedulerError, match="does not say whether it accepted the job: Socket timed out"
    ) as silent:
        parse_sbatch(1, "", error)
    assert not isinstance(silent.value, Refused)


@pytest.mark.parametrize(
    ("job", "state", "code", "reason"),
    [
        ("3", JobState.COMPLETED, 0, ""),
        ("1", JobState.FAILED, 3, ""),
        ("2", JobState.FAILED, 139, ""),  # a rank's segmentation fault, as the shell passes it on
        ("4", JobState.FAILED, -11, "ended by signal 11"),
        ("5", JobState.TIMEOUT, -15, ""),
        ("6", JobState.CANCELLED, -15, ""),
        ("7", JobState.FAILED, -15, "a node of the job failed"),
        ("16", JobState.CANCELLED, None, "a job that it depended on did not succeed"),
        ("9", JobState.RUNNING, None, ""),
    ],
)
def test_squeue_shows_how_jobs_ended_by_the_raw_wait_status(
    job: str, state: JobState, code: int | None, reason: str, queue: dict[str, Record]
) -> None:
    record = queue[job]
    assert (record.state, record.exit_code, record.reason) == (state, code, reason)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("10", "it can never run: its walltime exceeds the partition's limit (PartitionTimeLimit)"),
        ("11", "it can never run: it asks for more or fewer nodes than the partition permits"),
        ("15", "it can never run: a job that it depends on did not succeed"),
        ("12", "held by the user"),
        ("13", "its start time has not been reached (BeginTime)"),
        ("14", "waits for another job (Dependency)"),
        ("18", "waits for nodes to become free (Resources)"),
        ("20", "jobs of higher priority are ahead of it (Priority)"),
    ],
)
def test_a_job_in_the_queue_says_why_and_whether_it_can_ever_run(
    job: str, words: str, queue: dict[str, Record]
) -> None:
    assert queue[job].state is JobState.QUEUED
    assert queue[job].reason.startswith(words)


def test_a_job_requeued_after_its_node_failed_is_queued(queue: dict[str, Record]) -> None:
    assert (queue["8"].state, queue["8"].reason) == (
        JobState.QUEUED,
        "its start time has not been reached (BeginTime)",
    )


def test_the_age_of_an_end_is_counted_from_the_end_time(queue: dict[str, Record]) -> None:
    assert queue["5"].ended_seconds == 2
    assert queue["14"].ended_seconds is None


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("AssocGrpCPUMinutesLimit", "the account's jobs together use all of a limit"),
        ("QOSGrpNodeLimit", "the QOS's jobs together use all of a limit"),
        ("QOSMaxNodePerJobLimit", "it can never run: it exceeds a limit for one job"),
        ("AssocMaxWallDurationPerJobLimit", "it can never run: it exceeds a limit for one job"),
        ("QOSMaxJobsPerUserLimit", "the QOS's limit of jobs of one user is reached"),
        ("MaxJobsPerAccount", "a limit of the account, the QOS or the user is reached"),
        ("ReqNodeNotAvail, UnavailableNodes:n4", "nodes that it asks for are not available"),
        ("job requeued in held state", "held: scontrol release releases it"),
        ("launch failed requeued held", "Slurm could not start job.sh and holds it: scontrol release"),
        ("SomethingNew", "SomethingNew"),
        ("None", ""),
    ],
)
def test_reasons_are_said_in_plain_words(reason: str, words: str) -> None:
    assert pending_reason(reason).startswith(words)
    assert line("PENDING", reason).reason == pending_reason(reason)


@pytest.mark.parametrize("word", sorted(meanings().states))
def test_every_state_of_slurm_has_a_state_and_all_but_the_plain_ones_a_reason(word: str) -> None:
    record = line(word)
    plain = {"PENDING", "RUNNING", "COMPLETED", "CANCELLED", "TIMEOUT", "FAILED"}
    assert (record.state, bool(record.reason)) == (meanings().states[word][0], word not in plain)


def test_a_preempted_job_that_slurm_does_not_show_as_waiting_has_ended() -> None:
    for record in (line("PREEMPTED"), sacct("PREEMPTED", "0:0")):
        assert (record.state, record.reason) == (JobState.CANCELLED, "preempted by another job")
        assert not record.preempted


def test_a_state_of_a_newer_slurm_is_unknown_and_named() -> None:
    assert line("EXPEDITING") == Record(JobState.UNKNOWN, "Slurm calls its state EXPEDITING")


def test_an_unknown_id_alone_fails_in_squeue_and_is_no_error() -> None:
    assert parse_squeue(*recorded("slurm/err_squeue_unknown.txt"), NOW) == {}


def test_the_line_that_names_another_cluster_is_no_job() -> None:
    assert set(parse_squeue(0, f"CLUSTER: alps\n{SQUEUE.splitlines()[0]}\n", "", NOW)) == {"16"}


def test_a_controller_that_is_down_is_silent_and_not_a_failure() -> None:
    error = (DATA / "slurm/err_daemons_down.txt").read_text()
    for text in error.splitlines()[:2]:
        with pytest.raises(Unreachable):
            parse_squeue(1, "", text, NOW)
    with pytest.raises(Unreachable, match=r"Slurm did not answer: .*connect failure"):
        parse_sacct(1, "", "sacct: error: Connection refused (connect failure)", NOW)
    # Some versions exit with 0 all the same.
    with pytest.raises(Unreachable, match="Socket timed out"):
        parse_squeue(0, "", "slurm_load_jobs error: Socket timed out on send/recv operation\n", NOW)
    with pytest.raises(SchedulerError, match="squeue failed: Invalid job format"):
        parse_squeue(1, "", "squeue: error: Invalid job format", NOW)


def test_sacct_of_jobs_that_ended_and_leaves_out_those_that_wait() -> None:
    text = "".join(
        f"{row}|Unknown\n" for row in (DATA / "slurm/sacct_X_P.txt").read_text().split("\n") if row
    )
    records = parse_sacct(0, text, "", NOW)
    found = {job: (records[job].state, records[job].exit_code) for job in ("1", "122", "123", "124", "125")}
    assert found == {
        "1": (JobState.COMPLETED, 0),
        "122": (JobState.CANCELLED, None),  # "CANCELLED by 0"
        "123": (JobState.FAILED, 3),
        "124": (JobState.FAILED, 11),  # a segmentation fault: sacct subtracts 128
        "125": (JobState.TIMEOUT, None),  # 0:0, as if it had succeeded
    }
    assert records["122"].reason == "by root"
    assert not {"109", "111", "115"} & set(records)
    assert records["129_2"].state is JobState.FAILED


def test_sacct_tells_the_submission_by_which_a_job_with_a_runs_id_is_known() -> None:
    text = "7|COMPLETED|0:0|2026-11-21T06:17:20|2026-11-21T06:00:00|sbatch --parsable a|b /runs/r/job.sh\n"
    record = parse_sacct(0, text, "", NOW)["7"]
    since = NOW - datetime(2026, 11, 21, 6, tzinfo=timezone.utc).timestamp()
    assert (record.script, record.submitted_seconds) == ("sbatch --parsable a|b /runs/r/job.sh", since)


def test_a_sacct_before_21_08_is_asked_again_without_the_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str], *_: object) -> Completed:
        if "SubmitLine" in words[-1]:
            return Completed((*words,), 1, "", 'sacct: error: Invalid field requested: "SubmitLine"', 0.0)
        said = "7|FAILED|3:0|Unknown|2026-11-21T06:00:00\n" if words[0] == "sacct" else ""
        return Completed((*words,), 0, said, "", 0.0)

    monkeypatch.setattr(slurm, "run_scheduler_command", run)
    record = SlurmScheduler().states(["7"], datetime.now(timezone.utc))["7"]
    assert (record.exit_code, record.script, record.submitted_seconds is None) == (3, "", False)


def test_a_timeout_is_0_0_in_sacct_and_still_a_timeout() -> None:
    assert sacct("TIMEOUT", "0:0").state is JobState.TIMEOUT


def test_a_lost_node_is_0_0_in_sacct_and_still_a_failure() -> None:
    record = sacct("NODE_FAIL", "0:0")
    assert (record.state, record.exit_code, record.reason) == (
        JobState.FAILED,
        None,
        "a node of the job failed",
    )


def test_running_in_sacct_is_no_record_as_accounting_lags() -> None:
    assert parse_sacct(0, "7|RUNNING|0:0|Unknown\n", "", NOW) == {}


def test_an_unknown_id_is_only_a_header_in_sacct() -> None:
    assert parse_sacct(*recorded("slurm/err_sacct_unknown.txt"), NOW) == {}


def test_without_accounting_no_job_is_known() -> None:
    assert parse_sacct(*recorded("slurm/nodbd_sacct.txt"), NOW) == {}


def test_squeue_shows_each_member_of_an_array() -> None:
    records = parse_squeue(*recorded("slurm/squeue_array.txt"), NOW)
    assert {job: (record.state, record.exit_code) for job, record in records.items()} == {
        "33_0": (JobState.COMPLETED, 0),
        "33_1": (JobState.FAILED, 1),
        "33_2": (JobState.RUNNING, None),
        "33_3": (JobState.RUNNING, None),
        "33_4": (JobState.QUEUED, None),
        "33_5": (JobState.QUEUED, None),
        "33_6": (JobState.QUEUED, None),
        "33_7": (JobState.QUEUED, None),
        # 33_8 was cancelled while it waited, which leaves no trace; 33_9 was held before that.
        "33_9": (JobState.CANCELLED, None),
    }
    assert records["33_4"].reason == "the array's limit of tasks at once is reached (JobArrayTaskLimit)"


def test_members_that_wait_in_one_line_have_the_record_of_that_line() -> None:
    text = f"{'129_[2-3,7%2]':40}{'PENDING':24}{0:<12}{'N/A':24}{'JobArrayTaskLimit':200}"
    records = parse_squeue(0, text, "", NOW)
    assert {"129_2", "129_3", "129_7"} <= set(records)
    assert records["129_7"].state is JobState.QUEUED


def test_members_cancelled_while_they_waited_share_a_line_of_sacct() -> None:
    records = parse_sacct(*recorded("slurm/sacct_array_cancelled.txt"), NOW)
    states = {job: records[job].state for job in records if "[" not in job}
    assert states == {
        "33_0": JobState.COMPLETED,
        "33_1": JobState.FAILED,
        **{f"33_{index}": JobState.CANCELLED for index in (2, 3, 4, 6, 7, 9)},
    }


def test_a_members_own_line_comes_before_the_one_that_it_shared() -> None:
    text = "11_[0-5%2]|CANCELLED by 0|0:0|2026-11-21T06:17:20\n11_0|COMPLETED|0:0|2026-11-21T06:17:20\n"
    records = parse_sacct(0, text, "", NOW)
    assert (records["11_0"].state, records["11_5"].state) == (JobState.COMPLETED, JobState.CANCELLED)


@pytest.mark.parametrize(("pair", "code"), [("3:0", 3), ("0:9", -9), ("11:0", 11), ("x:y", None)])
def test_sacct_shows_an_exit_code_or_else_a_signal(pair: str, code: int | None) -> None:
    assert sacct("FAILED", pair).exit_code == code


def test_ended_members_are_in_sacct_after_they_left_the_queue() -> None:
    text = (DATA / "slurm/sacct_array.txt").read_text()
    rows = [row.split("|") for row in text.splitlines() if row.startswith("129_") and ".batch" not in row]
    records = parse_sacct(
        0, "".join(f"{row[0]}|{row[5]}|{row[6]}|2026-11-21T02:16:08\n" for row in rows), "", NOW
    )
    assert {job: (record.state, record.exit_code) for job, record in records.items()} == {
        "129_0": (JobState.COMPLETED, 0),
        "129_1": (JobState.COMPLETED, 0),
        "129_2": (JobState.FAILED, 1),
        "129_3": (JobState.COMPLETED, 0),
    }


def test_the_configuration_tells_how_large_an_array_may_be() -> None:
    code, text, error = recorded("slurm/scontrol_show_config.txt")
    assert parse_largest_array(code, text, error) == 1001
    limited = text.replace("bf_interval=1,", "bf_interval=1,max_array_tasks=500,")
    assert parse_largest_array(code, limited, error) == 500
    assert parse_largest_array(0, "", "") is None
    with pytest.raises(Unreachable):
        parse_largest_array(1, "", "slurm_load_ctl_conf error: Unable to contact slurm controller")


@pytest.mark.parametrize("name", ["err_scancel_unknown", "scancel_already_done"])
def test_scancel_succeeds_for_unknown_and_ended_jobs(name: str) -> None:
    parse_scancel(*recorded(f"slurm/{name}.txt"))


@pytest.mark.parametrize("words", ["Job/step already completing or completed", "Invalid job id specified"])
def test_what_scancel_says_of_ended_and_unknown_jobs_is_no_error(words: str) -> None:
    parse_scancel(1, "", f"scancel: error: Kill job error on job id 7: {words}\n")


def test_scancel_of_someone_elses_job_is_an_error() -> None:
    with pytest.raises(SchedulerError, match="Access/permission denied"):
        parse_scancel(1, "", "scancel: error: Kill job error on job id 7: Access/permission denied\n")


def test_partitions_have_their_limits_and_the_default_is_known() -> None:
    more = "small|up|infinite|2-3|8\nold|drain|infinite|1-infinite|8\n"
    found = parse_sinfo(recorded_machine("sinfo.txt") + more)
    assert found.default_queue == "debug"
    assert found.queues == {
        "debug": Queue(max_nodes=4, max_walltime="01:00:00"),
        "prod": Queue(max_nodes=4),
        "small": Queue(min_nodes=2, max_nodes=3),
    }


def test_nodes_of_slurm_have_cores_gpus_and_memory() -> None:
    found = parse_scontrol_nodes(recorded_machine("scontrol_show_nodes.txt"))
    assert found == Node(cores=8, gpus=4, memory="16000M")


def test_nodes_of_one_shape_count_together_whatever_memory_they_have() -> None:
    sizes = {"n1": (8, 1001), "n2": (8, 1003), "n3": (64, 500), "n4": (64, 500), "n5": (8, 1002)}
    text = "".join(
        f"NodeName={name} CPUTot={cpus} RealMemory={size}\n" for name, (cpus, size) in sizes.items()
    )
    assert parse_scontrol_nodes(text) == Node(cores=8, memory="1003M")


@pytest.mark.parametrize(
    ("gres", "gpus", "model", "vendor"),
    [
        ("gpu:a100:4(S:0-1)", 4, "a100", Vendor.NVIDIA),
        ("gpu:mi250:8", 8, "mi250", Vendor.AMD),
        ("gpu:a100:2,gpu:h100:2,nvme:1", 4, "a100", Vendor.NVIDIA),
        ("(null)", None, "", Vendor.NVIDIA),
    ],
)
def test_the_model_and_number_of_gpus_stand_in_gres(
    gres: str, gpus: int | None, model: str, vendor: Vendor
) -> None:
    text = f"NodeName=n1 CPUEfctv=112 CPUTot=128\n   Gres={gres}\n   ThreadsPerCore=2 TmpDisk=0\n"
    assert parse_scontrol_nodes(text) == Node(cores=56, threads=2, gpus=gpus, gpu=model, vendor=vendor)


def test_of_several_kinds_of_nodes_the_usual_one_with_gpus_counts() -> None:
    cpu, small, big = (
        f"NodeName=n CPUTot={cpus} ThreadsPerCore=1 Gres={gres}\n"
        for cpus, gres in ((48, "(null)"), (32, "gpu:2"), (64, "gpu:4"))
    )
    assert parse_scontrol_nodes("\n".join([cpu, cpu, cpu, small, big, big])) == Node(cores=64, gpus=4)


@pytest.mark.parametrize(
    ("limit", "walltime"),
    [
        ("1-12:00:00", "36:00:00"),
        ("30:00", "00:30:00"),
        ("90", "01:30:00"),
        ("infinite", ""),
    ],
)
def test_a_time_limit_of_slurm_becomes_a_walltime(limit: str, walltime: str) -> None:
    found = parse_sinfo(f"p|up|{limit}|1-infinite|3\n")
    assert found.queues["p"].max_walltime == walltime


@pytest.mark.parametrize("text", ["", "{", "[]", "PARTITION AVAIL\n", "NodeName", "\n\n"])
def test_another_output_finds_nothing_and_breaks_nothing(text: str) -> None:
    assert parse_sinfo(text).queues == {}
    assert parse_scontrol_nodes(text) == Node()


def test_a_heterogeneous_job_has_the_state_of_its_first_component_which_runs_the_script() -> None:
    # As Slurm 22.05 listed the job 34 of two components, whose batch script exited with 3.
    columns = f"{'FAILED':24}{768:<12}{'2026-11-28T13:40:35':24}{'NonZeroExitCode':200}"
    records = parse_squeue(0, "".join(f"{name:40}{columns}\n" for name in ("34+0", "34+1")), "", 0.0)
    found = records_of_members(records, ["34"])
    assert (found["34"].state, found["34"].exit_code) == (JobState.FAILED, 3)
    assert records_of_members(records, ["3"]) == {}


def test_accounting_tells_who_cancelled_a_job_that_squeue_still_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {
        "squeue": f"{'7':40}{'CANCELLED':24}{0:<12}{'N/A':24}None\n",
        "sacct": "7|CANCELLED by 0|0:0|Unknown\n",
    }
    codes = dict.fromkeys(answers, 0)

    def answer(arguments: Sequence[str], **_: object) -> Completed:
        return Completed(tuple(arguments), codes[arguments[0]], answers[arguments[0]], "sacct: error", 0.0)

    monkeypatch.setattr(slurm, "run_scheduler_command", answer)
    assert SlurmScheduler().states(["7"], datetime.now())["7"].reason == "by root"
    codes["sacct"] = 1
    assert SlurmScheduler().states(["7"], datetime.now())["7"] == Record(JobState.CANCELLED)


def test_jobs_that_squeue_lists_are_known_while_the_database_or_another_cluster_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = "sacct: error: Problem talking to the database: Connection refused\n"

    def answer(arguments: Sequence[str], **_: object) -> Completed:
        words = " ".join(arguments)
        if words.startswith("sacct") or "--clusters=away" in words:
            return Completed(tuple(arguments), 1, "", silent, 0.0)
        out = f"{'7':40}{'RUNNING':24}{0:<12}{'N/A':24}None\n" if "7" in words.split("--jobs=")[1] else ""
        return Completed(tuple(arguments), 0, out, "", 0.0)

    monkeypatch.setattr(slurm, "run_scheduler_command", answer)
    records = SlurmScheduler().states(["7", "3", "5;away"], datetime.now())
    assert records["7"] == Record(JobState.RUNNING)
    for absent in ("3", "5;away"):
        assert records[absent].state is JobState.UNKNOWN
        assert "Connection refused" in records[absent].reason
    with pytest.raises(Unreachable):
        SlurmScheduler().states(["3"], datetime.now())


def test_a_job_waits_for_one_of_another_cluster_only_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    monkeypatch.setattr(
        slurm, "run_submission", lambda words, _: Completed(tuple(words), 0, "6;away\n", "", 0.0)
    )
    script.write_text("#SBATCH --clusters=away2\n")
    with pytest.raises(Refused, match=r"job 5 runs on cluster away, and this one does not: --sch.*=away, or"):
        SlurmScheduler().submit(script, tmp_path, ["5;away"])
    for directive in ("-M away", "--clusters away", "--clusters=away"):
        script.write_text(f"#SBATCH {directive}\n")
        assert SlurmScheduler().submit(script, tmp_path, ["5;away"]) == "6;away"
    script.write_text("\n")
    monkeypatch.setenv("SLURM_CLUSTERS", "away")
    assert SlurmScheduler().submit(script, tmp_path, ["5;away"]) == "6;away"
