"""PBS's recorded outputs, and what they mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcprof.common.errors import SchedulerError
from hpcprof.submit.schedulers.base import JobState, Record
from hpcprof.submit.schedulers.command import Refused, Unreachable
from hpcprof.submit.schedulers.pbs import (
    PbsScheduler,
    array_of,
    has_no_history,
    member_of,
    parse_down_nodes,
    parse_job_history,
    parse_job_name,
    parse_largest_array,
    parse_pbsnodes,
    parse_qdel,
    parse_qselect,
    parse_qstat,
    parse_qstat_queues,
    parse_qsub,
    record_from_attributes,
    same_job,
    was_submitted_from,
)
from hpcprof.submit.sites.model import Node, Queue
from tests.unit.submit.schedulers.recorded import recorded, recorded_json, recorded_machine


def job(name: str, job_id: str | None = None) -> Record:
    records = parse_qstat(*recorded_json(f"pbs/{name}.json"))
    return records[f"{job_id}.pbshost"] if job_id else next(iter(records.values()))


def history(job_id: str) -> Record:
    return job("qstat_x_f_json_history", job_id)


def test_the_script_of_a_job_is_the_last_argument_of_its_qsub() -> None:
    _, out, _ = recorded_json("pbs/qstat_f_json_later_early.json")
    assert was_submitted_from(Path("/home/user/ok.pbs"), out)
    assert not was_submitted_from(Path("/home/other/ok.pbs"), out)
    assert not was_submitted_from(Path("/home/user/other.pbs"), out)
    invalid = '"Submit_arguments":\t"-o /a /runs/é \\"x\\"/job.sh",\n"BASH_FUNC_f%%":\t"() { echo "a"; }"'
    assert was_submitted_from(Path('/runs/é "x"/job.sh'), invalid)


def test_a_job_of_pbs_shows_its_script_and_when_it_was_submitted() -> None:
    record = next(iter(parse_qstat(*recorded_json("pbs/qstat_f_json_later_early.json")).values()))
    assert record.script.endswith("/home/user/ok.pbs")
    assert record.submitted_seconds == 9.0  # at 03:08:42 of 03:08:51


def test_a_jobs_name_is_that_of_its_directives() -> None:
    assert parse_job_name("#!/bin/bash\n#PBS -N train\n#PBS -l select=1 -N  other\n# -N no\n") == "other"
    assert parse_job_name("#!/bin/bash\n#PBS -l select=1\n") == ""


def test_a_running_job_has_nodes_of_which_those_that_are_down_are_known() -> None:
    assert job("qstat_f_json_mixed", "203").nodes == {"pn1", "pn2"}
    attributes = {"job_state": "R", "exec_vnode": "(a[0]:ncpus=1+a[1]:ncpus=1)+(b:ncpus=1:mem=4gb)"}
    assert record_from_attributes(attributes, None).nodes == {"a[0]", "a[1]", "b"}
    assert parse_down_nodes(recorded_machine("../schedulers/pbs/pbsnodes_l.txt")) == {"pn4"}
    assert parse_down_nodes("n1 offline\nn2 state-unknown,down lost\n") == {"n2"}


def test_qselect_prints_ids_of_jobs_and_arrays_or_none() -> None:
    assert parse_qselect(0, "11.pbshost\n12[].pbshost\n", "") == ["12[].pbshost", "11.pbshost"]
    assert parse_qselect(0, "", "") == []
    with pytest.raises(Unreachable, match="cannot connect to server"):
        parse_qselect(*recorded("pbs/down_qselect.txt"))


def test_qsub_prints_the_id() -> None:
    assert parse_qsub(*recorded("pbs/ok_qsub.txt")) == "188.pbshost"
    assert parse_qsub(0, "Job will be charged to project x\n12[].polaris-pbs-01.hsn.cm\n", "") == (
        "12[].polaris-pbs-01.hsn.cm"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bad_queue", "the queue does not exist: Unknown queue."),
        ("bad_select", "a value that it asks for is not valid: Illegal attribute or resource value "),
        ("queue_disabled", "the queue does not accept jobs at present: Queue is not enabled."),
        (
            "route_only_queue",
            "the queue does not accept jobs from you; is it behind a routing queue?: ",
        ),
        ("unknown_resource", "it asks for a resource that the site does not have: Unknown resource "),
        ("walltime_too_long", "it exceeds a limit of the queue or the server, in nodes or in walltime: "),
        (
            "too_many_nodes_for_queue",
            "it exceeds a limit of the queue or the server, in nodes or in walltime: ",
        ),
        ("hook_no_account", "a rule of the site refuses it: Account_Name is required to be set."),
        (
            "hook_no_filesystems",
            "a rule of the site refuses it: Resource: filesystems is required to be set.",
        ),
        ("bad_array_range", "an option or directive is wrong: illegal -J value."),
        ("bad_option", "an option or directive is wrong: invalid option -- '-'"),
        ("missing_script", "script file:: No such file or directory."),
        ("qsub_other_server", "the PBS server cannot be reached: Unknown Host."),
    ],
)
def test_qsubs_exit_code_is_said_with_pbs_own_message(name: str, words: str) -> None:
    with pytest.raises(SchedulerError) as refused:
        parse_qsub(*recorded(f"pbs/err_{name}.txt"))
    assert str(refused.value).startswith(f"qsub did not accept the job: {words}")
    assert "usage" not in str(refused.value)


@pytest.mark.parametrize(
    ("job_id", "state", "code", "reason"),
    [
        ("9", JobState.COMPLETED, 0, ""),
        ("8", JobState.CANCELLED, None, "removed by PBS: a job that it depended on did not succeed"),
        (
            "10",
            JobState.CANCELLED,
            None,
            "deleted from the queue; it could never run: Not enough total nodes",
        ),
        ("21", JobState.CANCELLED, None, "deleted while it waited in the queue"),
        ("30", JobState.CANCELLED, None, "by root@pbshost"),  # 271
        ("13", JobState.CANCELLED, None, "by root@pbshost"),  # deleted while running, with Exit_status 0
        ("20[]", JobState.FAILED, None, "a job of the array failed"),
        ("152", JobState.FAILED, None, "the node that ran it was lost"),
        ("203", JobState.FAILED, -10, "ended by SIGUSR1"),
        ("163", JobState.COMPLETED, 0, "PBS could not write its output files"),
    ],
)
def test_finished_jobs(job_id: str, state: JobState, code: int | None, reason: str) -> None:
    record = history(job_id)
    assert (record.state, record.exit_code) == (state, code)
    assert record.reason.startswith(reason)
    assert bool(record.reason) == bool(reason)


def test_a_failure_is_substate_93_with_the_code() -> None:
    assert job("qstat_x_f_json_fail_final").exit_code == 3
    segfault = job("qstat_x_f_json_segv_final")
    assert (segfault.state, segfault.exit_code, segfault.reason) == (
        JobState.FAILED,
        139,
        "exit code 139 (SIGSEGV)",
    )


def test_exit_status_minus_29_is_the_walltime() -> None:
    assert job("qstat_x_f_json_wall_final").state is JobState.TIMEOUT


def test_an_array_whose_subjob_failed_has_exit_status_0_and_failed() -> None:
    assert job("qstat_x_f_json_array_final", "199[]").state is JobState.FAILED


def test_each_member_of_an_array_that_runs_has_a_record_of_its_own() -> None:
    records = parse_qstat(*recorded_json("pbs/qstat_f_json_mixed_t.json"))
    assert [records[f"199[{index}].pbshost"].state for index in range(4)] == [JobState.RUNNING] * 4
    assert records["199[].pbshost"].reason == "the array has begun"
    assert records["192.pbshost"].state is JobState.RUNNING


def test_each_member_of_a_finished_array_has_its_own_end() -> None:
    records = parse_qstat(*recorded_json("pbs/qstat_x_f_json_array_final.json"))
    ends = [(records[f"199[{i}].pbshost"].state, records[f"199[{i}].pbshost"].exit_code) for i in range(4)]
    completed = (JobState.COMPLETED, 0)
    assert ends == [completed, completed, (JobState.FAILED, 1), completed]


def members(state: str, remaining: object, **changes: object) -> dict[str, Record]:
    """Return the records of the recorded array 199[], of whose members only 0 and 1 have run."""
    _, text, _ = recorded_json("pbs/qstat_x_f_json_array_final.json")
    jobs = json.loads(text)["Jobs"]
    array = jobs["199[].pbshost"]
    array |= {"job_state": state, "array_indices_remaining": remaining, **changes}
    for index in (0, 1):
        jobs[f"199[{index}].pbshost"]["job_state"] = "X"
    own = ("array", "array_state_count", "array_indices_submitted", "array_indices_remaining")
    for index in (2, 3):  # its array's face, as of a member that is no job of its own
        jobs[f"199[{index}].pbshost"] = {k: v for k, v in array.items() if k not in own} | {"job_state": "X"}
    return dict(parse_qstat(0, json.dumps({"timestamp": 1795230549, "Jobs": jobs}), ""))


def test_members_that_wait_are_those_that_remain_of_their_array() -> None:
    records = members("B", "2-3", substate=70)
    assert records["199[0].pbshost"].state is JobState.COMPLETED
    waits = Record(JobState.QUEUED, "waits for its turn in the array")
    assert [records[f"199[{index}].pbshost"] for index in (2, 3)] == [waits, waits]
    assert members("B", 3, substate=70)["199[3].pbshost"] == waits  # a single one looks like a number


@pytest.mark.parametrize("state", ["B", "F"])
def test_a_member_deleted_while_it_waited_has_no_record_though_it_shows_its_arrays_exit_status(
    state: str,
) -> None:
    records = members(state, "-", Exit_status=0)
    assert "199[0].pbshost" in records
    assert "199[2].pbshost" not in records


def test_the_members_of_an_array_that_waits_or_was_removed_have_its_record() -> None:
    records = members("H", "0-3", substate=22, Hold_Types="s", depend="afterok:7.pbshost@pbshost")
    assert records["199[3].pbshost"].reason == "waits for another job (afterok:7.pbshost@pbshost)"
    _, text, _ = recorded_json("pbs/qstat_x_f_json_array_final.json")
    array = json.loads(text)["Jobs"]["199[].pbshost"]
    del array["Exit_status"]
    array |= {"substate": 92, "depend": "afterok:7.pbshost@pbshost"}
    removed = parse_qstat(0, json.dumps({"Jobs": {"199[].pbshost": array}}), "")["199[3].pbshost"]
    assert (removed.state, removed.reason) == (
        JobState.CANCELLED,
        "removed by PBS: a job that it depended on did not succeed",
    )


def test_the_server_tells_how_large_an_array_may_be() -> None:
    assert parse_largest_array(*recorded_json("pbs/qstat_B_json.json")) == 10000
    assert parse_largest_array(0, "{}", "") is None
    with pytest.raises(Unreachable):
        parse_largest_array(*recorded("pbs/down_qstat.txt"))


def test_an_id_tells_a_member_from_its_array() -> None:
    assert array_of("7[12].polaris-pbs-01") == "7[].polaris-pbs-01"
    assert array_of("7.polaris-pbs-01") == "7.polaris-pbs-01"
    assert member_of("7[].polaris-pbs-01", 3) == "7[3].polaris-pbs-01"


def test_after_qdel_a_job_still_shows_as_running() -> None:
    record = job("qstat_x_f_json_run_deleted_final")
    assert (record.state, record.reason) == (JobState.RUNNING, "being deleted")


def test_a_job_whose_first_node_died_is_queued_again_though_it_has_an_exit_status() -> None:
    record = job("nodefail_primary")
    assert (record.state, record.reason) == (JobState.QUEUED, "Insufficient amount of resource: host")


@pytest.mark.parametrize(
    ("job_id", "state", "reason"),
    [
        ("189", JobState.QUEUED, "it can never run: Not enough total nodes available"),
        (
            "190",
            JobState.QUEUED,
            "it can never run: Insufficient amount of resource: ngpus (R: 99 A: 16 T: 16)",
        ),
        ("191", JobState.RUNNING, "ending: its output is being copied"),
        ("192", JobState.RUNNING, ""),
        ("197", JobState.QUEUED, "waits for another job (afterok:192.pbshost@pbshost)"),
        ("199[]", JobState.RUNNING, "the array has begun"),
        ("200", JobState.QUEUED, "held by the user: qrls releases it"),
        ("201", JobState.QUEUED, "Insufficient amount of resource: ncpus (R: 32 A: 16 T: 32)"),
        ("202", JobState.QUEUED, "its start time has not been reached"),
    ],
)
def test_jobs_that_wait_or_run(job_id: str, state: JobState, reason: str) -> None:
    record = job("qstat_f_json_mixed", job_id)
    assert (record.state, record.reason) == (state, reason)


@pytest.mark.parametrize(
    ("state", "expected"),
    [("S", JobState.RUNNING), ("U", JobState.RUNNING), ("T", JobState.QUEUED), ("M", JobState.UNKNOWN)],
)
def test_rare_states_have_a_reason(state: str, expected: JobState) -> None:
    record = record_from_attributes({"job_state": state}, None)
    assert record.state is expected
    assert record.reason


def test_a_finished_subjob_is_x_and_judged_as_a_job() -> None:
    assert (
        record_from_attributes({"job_state": "X", "substate": "92", "Exit_status": "0"}, None).state
        is JobState.COMPLETED
    )


def test_an_exit_code_of_255_is_no_signal() -> None:
    record = record_from_attributes({"job_state": "F", "substate": "93", "Exit_status": "255"}, None)
    assert (record.reason, record.exit_code) == ("", 255)


def test_a_job_over_its_memory_says_so() -> None:
    record = record_from_attributes({"job_state": "F", "substate": "93", "Exit_status": "-27"}, None)
    assert (record.state, record.reason) == (JobState.FAILED, "it used more memory than it asked for")


def test_a_job_that_pbs_could_not_start_has_a_reason_with_and_without_a_comment() -> None:
    def reason(**attributes: str) -> str:
        return record_from_attributes({"job_state": "F", "substate": "93", **attributes}, None).reason

    assert reason(Exit_status="-17") == "a hook of the site refused it"
    assert reason(Exit_status="-32") == "PBS could not run it (Exit_status -32)"
    assert reason(Exit_status="-1", comment="no disk") == "PBS could not run it (Exit_status -1): no disk"


def test_the_age_of_an_end_is_counted_on_the_servers_clock() -> None:
    assert job("qstat_x_f_json_envj_final").ended_seconds == pytest.approx(25, abs=10)


def test_an_unknown_id_prints_json_without_jobs_and_exits_153() -> None:
    for name in ("qstat_f_json_unknown", "qstat_x_unknown"):
        code, out, error = recorded(f"pbs/err_{name}.txt")
        assert code == 153
        assert "Jobs" not in json.loads(out)
        assert parse_qstat(code, out, error) == {}


def test_a_finished_id_without_x_exits_35_and_is_neither_success_nor_failure() -> None:
    answer = recorded_json("pbs/qstat_f_json_depbad_early.json")
    assert answer[0] == 35
    assert parse_qstat(*answer) == {}


def test_of_several_ids_the_json_has_the_first_alone() -> None:
    assert list(parse_qstat(*recorded_json("pbs/qstat_x_f_json_three_ids.json"))) == ["27.pbshost"]


def test_values_that_look_like_numbers_are_coerced_and_change_nothing() -> None:
    assert job("qstat_f_json_numeric_looking").reason == "held by the user: qrls releases it"
    answer = {"Jobs": {"7.s": {"job_state": "F", "substate": "92", "Exit_status": "0", "comment": True}}}
    assert parse_qstat(0, json.dumps(answer), "")["7.s"].state is JobState.COMPLETED


@pytest.mark.parametrize(
    "function",
    [
        '"BASH_FUNC_module%%":\t"() {  eval "$(modulecmd bash "$@")"\n}",',
        '"BASH_FUNC_ml%%":\t"() {  echo \\q\n "job_state":\t"F",\n "Exit_status": 0\n}",',
    ],
)
def test_json_that_an_exported_function_made_invalid_is_still_read(function: str) -> None:
    _, text, _ = recorded_json("pbs/qstat_x_f_json_fail_final.json")
    broken = text.replace('"Variable_List":\t{', f'"Variable_List":\t{{\n{function}')
    assert broken != text
    with pytest.raises(ValueError, match=r".+"):
        json.loads(broken, strict=False)
    record = parse_qstat(0, broken, "")["194.pbshost"]
    assert (record.state, record.exit_code) == (JobState.FAILED, 3)


def test_invalid_json_of_many_jobs_is_an_error_and_not_a_guess() -> None:
    _, text, _ = recorded_json("pbs/qstat_f_json_mixed.json")
    with pytest.raises(SchedulerError, match="not valid"):
        parse_qstat(0, text.replace('"Variable_List":\t{', '"Variable_List":\t{"'), "")


def test_a_server_that_does_not_answer_is_silent_and_not_a_failure() -> None:
    with pytest.raises(Unreachable, match=r"answer: Connection refused; cannot connect to server pbshost"):
        parse_qstat(*recorded("pbs/down_qstat.txt"))
    with pytest.raises(SchedulerError, match="exit code 2: conflicting options"):
        parse_qstat(2, "", "qstat: conflicting options.\nusage: \nqstat [-f]\n")


def test_no_job_is_left_where_no_server_took_it_and_none_was_deleted() -> None:
    with pytest.raises(Refused, match=r"qsub did not accept the job: Connection refused; cannot connect"):
        parse_qsub(*recorded("pbs/down_qsub.txt"))
    with pytest.raises(SchedulerError, match="Couldn't connect to cluster: pbshost"):
        parse_qdel(*recorded("pbs/down_qdel.txt"))


def test_qdel_of_finished_and_unknown_jobs_changes_nothing() -> None:
    for name in ("qdel_finished", "err_qdel_unknown", "qdel_running"):
        parse_qdel(*recorded(f"pbs/{name}.txt"))
    parse_qdel(55, "", "qdel: Request invalid for finished array subjob 7[1].pbshost\n")
    with pytest.raises(SchedulerError, match="qdel did not delete the job: illegally formed job identifier"):
        parse_qdel(*recorded("pbs/err_qdel_badid.txt"))


def test_ids_with_a_longer_or_no_server_name_are_the_same_job() -> None:
    assert same_job("7.polaris-pbs-01.hsn.cm", "7.polaris-pbs-01")
    assert same_job("7.polaris-pbs-01", "7")
    assert not same_job("7.one", "7.two")
    assert not same_job("7[].one", "7.one")


def test_a_server_without_history_denies_it_and_shows_not_even_a_job_that_runs() -> None:
    code, out, error = recorded("pbs/qstat_x_f_json_nohistory.txt")
    assert has_no_history(error)
    assert parse_qstat(code, out, error) == {}
    assert parse_qstat(*recorded("pbs/qsub_finished_then_qstat_no_x.txt")) == {}


def test_the_history_of_a_server_is_on_only_where_its_attribute_is_true() -> None:
    _, out, _ = recorded_json("pbs/qstat_B_json.json")
    assert parse_job_history(out)
    assert not parse_job_history(
        out.replace('"job_history_enable":\t"True"', '"job_history_enable":\t"False"')
    )
    assert not parse_job_history("{}")


def test_a_job_that_was_queued_again_has_lost_its_node() -> None:
    (record,) = parse_qstat(*recorded_json("pbs/nodefail_primary.json")).values()
    assert (record.state, record.node_lost) == (JobState.QUEUED, True)


def test_queues_of_pbs_have_limits_and_routes_and_a_disabled_one_is_left_out() -> None:
    assert parse_qstat_queues(recorded_machine("qstat_Q_json.json")).queues == {
        "workq": Queue(),
        "debug": Queue(max_nodes=2, max_walltime="01:00:00"),
        "small": Queue(max_walltime="24:00:00", route_only=True),
        "prod": Queue(routes=["small"]),
    }


def test_nodes_of_pbs_have_cores_gpus_and_memory() -> None:
    assert parse_pbsnodes(recorded_machine("pbsnodes_json.json")) == Node(cores=8, gpus=4, memory="24103M")


def probed(command: list[str]) -> str:
    if "-B" in command:
        return recorded_json("pbs/qstat_B_json.json")[1]
    return recorded_machine({"qstat": "qstat_Q_json.json", "pbsnodes": "pbsnodes_json.json"}[command[0]])


def test_a_new_site_has_the_default_queue_of_the_server() -> None:
    assert PbsScheduler().probe(probed).default_queue == "workq"
    disabled = PbsScheduler().probe(
        lambda command: probed(command).replace('"default_queue":\t"workq"', '"default_queue": "gone"')
    )
    assert disabled.default_queue == ""


def test_no_queue_of_pbs_has_more_nodes_than_there_are() -> None:
    found = PbsScheduler().probe(probed)
    assert {name: queue.max_nodes for name, queue in found.queues.items()} == {
        "workq": 4,
        "debug": 2,
        "small": 4,
        "prod": 4,
    }


@pytest.mark.parametrize("text", ["", "{", "[]", '{"Queue": []}', "\n\n"])
def test_another_output_finds_nothing_and_breaks_nothing(text: str) -> None:
    assert parse_qstat_queues(text).queues == {}
    assert parse_pbsnodes(text) == Node()
