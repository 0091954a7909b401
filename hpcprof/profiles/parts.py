"""The part of one rank in a timeline that holds several, such as of all ranks that one nsys recorded."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.possible_times import PROCESS_TABLES
from hpcprof.profiles.readers.declaration import ProfilePart
from hpcprof.profiles.timeline import Ints, Timeline


def take_part(timeline: Timeline, part: ProfilePart) -> Timeline:
    """Return the rows of the processes of one rank.

    Losses of the profile as a whole, and the rows of processes without a rank, count for its first rank.
    """
    if part.merged:
        merged = Loss(LossKind.MERGED, Subject.CAPTURE, len(part.of.processes))
        return timeline.with_losses([merged])
    tables = {}
    lost = list(timeline.origin.losses)
    for name, subject in PROCESS_TABLES.items():
        table = getattr(timeline, name)
        tables[name] = table.take(_mask_of_part(table.process, part.processes))
        unowned = len(table) - int(_mask_of_part(table.process, part.of.every_process).sum())
        lost += [Loss(LossKind.PROCESS, subject, unowned, len(table))] if unowned else []
    if not part.first:
        lost = [loss for loss in lost if loss.kind in (LossKind.DIAGNOSTIC, LossKind.NOTE)]
    if part.of.ranks is None:
        lost.append(Loss(LossKind.NUMBERED, Subject.CAPTURE, len(part.of.processes)))
    return replace(timeline, origin=replace(timeline.origin, losses=tuple(lost)), **tables)


def _mask_of_part(process: Ints, processes: Collection[int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(process, np.array([*processes], np.int64))
