"""Bytes from many places of a buffer at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def windows(content: NDArray[np.uint8], size: int) -> NDArray[np.void]:
    """Return ``size`` bytes from every place in the content, as elements of one type that overlap.

    Taking elements copies them: ``windows(content, 8)[places].view(np.uint8).reshape(-1, 8)``.
    """
    found: NDArray[np.void] = np.ndarray(
        (max(0, len(content) - size + 1),), f"V{size}", content, strides=(1,)
    )
    return found
