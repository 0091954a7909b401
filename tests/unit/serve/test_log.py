"""Lines of the server's terminal for a cause that repeats."""

from __future__ import annotations

import logging

from hpcprof.serve.log import CauseLimit


def test_a_cause_is_told_once_a_second_in_a_line_with_its_count() -> None:
    now = 0.0
    limit, lines = CauseLimit(lambda: now), list[str]()
    for milliseconds in range(0, 3000, 10):
        now = milliseconds / 1000
        record = logging.LogRecord(
            "asyncio",
            logging.ERROR,
            "",
            0,
            f"no more files: %s\nsocket: 0x{milliseconds:x}",
            (milliseconds,),
            None,
        )
        if limit.filter(record):
            lines.append(record.getMessage())
    assert lines == [
        "no more files: 0\nsocket: 0x0",
        "no more files: 1000 socket: 0x3e8 (100 times more)",
        "no more files: 2000 socket: 0x7d0 (100 times more)",
    ]


def test_a_traceback_is_shown_the_first_time() -> None:
    now = 0.0
    limit, shown = CauseLimit(lambda: now), list[bool]()
    for second in range(3):
        now = float(second)
        try:
            raise ValueError(second)
        except ValueError as error:
            info = (ValueError, error, error.__traceback__)
        record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "failed\n", (), info)
        assert limit.filter(record)
        shown.append(record.exc_info is not None)
        assert second == 0 or record.getMessage() == "failed: ValueError (1 times more)"
    assert shown == [True, False, False]
