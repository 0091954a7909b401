"""The modes that the benchmark offers."""

from __future__ import annotations

from hpcprof.workloads.sequence_parallel.modes import MODES
from hpcprof.workloads.sequence_parallel.parameters import MODES as NAMES


def test_the_options_name_every_mode_and_no_other() -> None:
    # The submit side checks the names without loading torch.
    assert tuple(MODES) == NAMES
