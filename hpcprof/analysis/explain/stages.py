"""Stages of a pipeline: the ranks to compare, and the work of a stage."""

import numpy as np

from hpcprof.profiles.timeline import Floats, Ints


def peers(rank: int, stage: Ints) -> Ints:
    """Return the ranks to compare a rank with: those of its stage of a pipeline, without any all others."""
    every = np.arange(len(stage))
    alike = (stage == stage[rank]) & (every != rank)
    others: Ints = every[alike] if alike.any() else np.delete(every, rank)
    return others


def stage_medians(total: Floats, stage: Ints) -> Floats:
    """Return the median over the ranks of each stage; ``total`` has the shape (…, ranks)."""
    numbers = range(int(stage.max(initial=0)) + 1)
    return np.stack([np.median(total[..., stage == one], axis=-1) for one in numbers], axis=-1)
