"""An hpcprof that is killed before its n-th statement or commit, or else says how many there were."""

from __future__ import annotations

import os
import signal
import sys

from sqlalchemy import event
from sqlalchemy.engine import Engine

from hpcprof.cli.main import main


class Steps:
    """Counts the statements and commits of this process, which does not live beyond ``last``."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.count = 0

    def __call__(self, *_: object) -> None:
        """Count one more."""
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    steps = Steps(int(sys.argv.pop(1)))
    for moment in ("before_cursor_execute", "commit"):
        event.listen(Engine, moment, steps)
    try:
        main()
    finally:
        print(steps.count, file=sys.stderr)
