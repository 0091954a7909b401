"""Groups of calls of NCCL and RCCL, whose work the end of the group launches."""

from collections.abc import Sequence

import numpy as np

from hpcprof.profiles.timeline import Ints

_START, _END = "ncclGroupStart", "ncclGroupEnd"


def launching_calls(texts: Sequence[str], name: Ints, thread: Ints) -> Ints:
    """Return the row of the call that launches the work of each call, shape (n,).

    That is the call itself or, for a call in a group, the one that ends the outermost group. The calls are
    sorted by ``thread`` and start; ``name``, shape (n,), is the index of each call's name in ``texts``.
    """
    kinds = [(text == _START) - (text == _END) for text in texts]
    kind = np.array(kinds, np.int64)[name]
    result = np.arange(len(kind))
    for rows in np.split(result.copy(), np.flatnonzero(np.diff(thread)) + 1):
        depth = np.cumsum(kind[rows])
        # The profile may begin inside a group, whose end then closes nothing.
        depth -= np.minimum(np.minimum.accumulate(depth), 0) if len(depth) else depth
        closing = rows[(kind[rows] < 0) & (depth == 0)]
        inside = rows[depth > 0]
        next_one = np.searchsorted(closing, inside)
        closed = next_one < len(closing)
        result[inside[closed]] = closing[next_one[closed]]
    return result
