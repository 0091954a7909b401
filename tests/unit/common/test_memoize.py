"""Results that are computed once for each input."""

from __future__ import annotations

import gc
import weakref

from hpcprof.common.memoize import computed_once


class Numbers:
    """An input that cannot be hashed, like a DataFrame."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, *values: int) -> None:
        self.values = values


def test_a_result_is_computed_once_and_freed_with_its_input() -> None:
    calls = []

    @computed_once
    def largest(numbers: Numbers) -> int:
        calls.append(1)
        return max(numbers.values)

    numbers = Numbers(3, 5)
    assert [largest(numbers), largest(numbers)] == [5, 5]
    assert len(calls) == 1
    alive = weakref.ref(numbers)
    del numbers
    gc.collect()
    assert alive() is None


def test_a_result_of_two_inputs_belongs_to_both_in_their_order() -> None:
    inputs = [Numbers(i) for i in range(3)]
    calls = []

    @computed_once
    def weighted(left: Numbers, right: Numbers) -> int:
        calls.append(1)
        return left.values[0] + 2 * right.values[0]

    assert [weighted(inputs[0], inputs[1]), weighted(inputs[0], inputs[1])] == [2, 2]
    assert len(calls) == 1
    assert [weighted(inputs[1], inputs[0]), weighted(inputs[0], inputs[2])] == [1, 4]
    assert len(calls) == 3
    # A new input may get the address of one that was freed.
    for number in range(50):
        assert weighted(inputs[0], Numbers(number)) == 2 * number
