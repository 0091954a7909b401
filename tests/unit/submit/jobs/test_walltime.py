"""Walltimes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.walltime import (
    capture_lead,
    default_stall_timeout,
    early_signal,
    format_walltime,
    parse_leftover_grace,
    parse_signal,
    parse_stall_timeout,
    parse_walltime,
    warning_of,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:05:00", 300),
        ("1:30:00", 5400),
        ("90m", 5400),
        ("1h30m", 5400),
        ("45s", 45),
        ("1-00:00:00", 86400),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1d", 86400),
        ("1d12h", 129600),
    ],
)
def test_a_walltime_is_read_as_its_seconds(text: str, seconds: int) -> None:
    assert parse_walltime(text) == seconds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("90", "is minutes to Slurm and LSF and seconds to PBS: write 90m or 90s."),
        (
            "30:00",
            "is minutes and seconds to Slurm and PBS and hours and minutes to LSF: write 30m00s or 30h00m.",
        ),
        *((text, "is not a time: write HH:MM:SS") for text in ("", "1:90:00", "1:00:61", "-1:00:00", "m")),
        *((text, "is not a time: write HH:MM:SS") for text in ("1-", "12h1d", "UNLIMITED")),
        *((text, "is zero") for text in ("0:00:00", "0")),
        pytest.param("9" * 5000 + "h", "is not a time", id="too long"),
    ],
)
def test_a_time_that_schedulers_read_differently_or_not_at_all_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_walltime(text)
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("seconds", "text"), [(90 * 60, "01:30:00"), (3600 + 120 + 3, "01:02:03"), (100 * 3600, "100:00:00")]
)
def test_a_walltime_is_written_in_hours_minutes_and_seconds_of_two_digits(seconds: int, text: str) -> None:
    assert format_walltime(seconds) == text


@given(st.integers(1, 10**7))
def test_a_written_walltime_reads_back_as_the_same_seconds(seconds: int) -> None:
    assert parse_walltime(format_walltime(seconds)) == seconds


@pytest.mark.parametrize(
    ("walltime", "lead"), [(59, None), (60, 30), (600, 30), (3600, 180), (6000, 300), (86400, 300)]
)
def test_profilers_stop_a_twentieth_ahead_of_the_limit_with_a_least_and_a_most(
    walltime: int, lead: int | None
) -> None:
    assert capture_lead(walltime) == lead


@pytest.mark.parametrize(("text", "seconds"), [("off", 0), ("auto", 600), ("600s", 600), ("1h", 3600)])
def test_a_stall_timeout_is_written_as_a_walltime_is(text: str, seconds: int) -> None:
    assert parse_stall_timeout(text) == seconds


@pytest.mark.parametrize(
    ("text", "says"), [("600", "write units such as 600s"), ("", "not a time"), ("9s", "shortest is 10s")]
)
def test_a_stall_timeout_without_a_unit_says_how_to_write_it(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_stall_timeout(text)


def test_the_time_of_leftover_processes_has_a_unit() -> None:
    assert [parse_leftover_grace(text) for text in ("0s", "30s", "5m")] == [0, 30, 300]
    with pytest.raises(UsageError, match=r"--leftover-grace '30' is not a time: write units such as 0s, 30s"):
        parse_leftover_grace("30")


def test_a_signal_ahead_of_the_limit_has_a_name_and_seconds() -> None:
    assert [parse_signal(text) for text in ("USR1@120", "SIGTERM@2m", "XCPU@1h30m")] == [
        *("USR1@120", "TERM@120", "XCPU@5400"),
    ]
    for text in ("USR1", "USR1@", "@120", "USR9@1", "KILL@10", "USR1@0", "usr1@5", "USR1@-5"):
        with pytest.raises(UsageError, match="write NAME@SECONDS"):
            parse_signal(text)


def test_a_job_that_runs_again_gets_a_signal_ahead_of_the_limit() -> None:
    assert warning_of("", "report") == ("", 0)
    assert warning_of("USR2@30", "report") == warning_of("USR2@30", "resubmit") == ("USR2", 30)
    assert warning_of("", "resubmit") == ("TERM", 60)


@pytest.mark.parametrize(
    ("signal", "directive", "name"),
    [
        ("USR2@60", "--signal=USR1@60", "USR2"),
        ("", "--signal=USR1@60", "USR1"),
        ("", "--signal SIGUSR1@60", "USR1"),
        ("", "--signal=B:USR1@60", "USR1"),
        ("", "--signal=RB:10@60", "USR1"),
        ("", "--sig=XCPU", "XCPU"),
        ("", "-wa 'USR2' -wt 2", "USR2"),
        ("", "--signalling=USR1", ""),
        ("", "--comment=--signal=USR1", ""),
    ],
)
def test_the_signal_before_the_limit_is_that_of_the_job_or_of_a_directive(
    signal: str, directive: str, name: str
) -> None:
    assert early_signal(signal, ["--exclusive", directive]) == name


@pytest.mark.parametrize(("walltime", "seconds"), [(3600, 600), (900, 450), (240, 120), (12, 10)])
def test_a_stall_comes_before_the_limit(walltime: int, seconds: int) -> None:
    assert default_stall_timeout(walltime) == seconds
