"""Fields are encoded as protobuf's own classes decode them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

from hpcprof.report.perfetto.encoding import fixed64, gathered, join, nested, nothing, stacked, texts, varints

NUMBERS = st.lists(st.integers(0, 2**64 - 1), max_size=20)


@settings(max_examples=30, deadline=None)
@given(NUMBERS)
def test_numbers_of_64_bits_come_back(values: list[int]) -> None:
    numbers = np.array(values, np.uint64)
    encoded = join(varints(11, numbers), fixed64(47, numbers))
    event = perfetto.TrackEvent()
    for value, end in zip(values, np.cumsum(encoded.length).tolist(), strict=True):
        event.ParseFromString(encoded.data[: int(end)].tobytes())
        assert event.track_uuid == value and event.flow_ids[-1] == value


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(max_size=40), max_size=5))
def test_texts_in_messages_come_back(values: list[str]) -> None:
    encoded = nested(2, join(varints(1, np.arange(len(values))), texts(2, values)))
    interned = perfetto.InternedData()
    interned.ParseFromString(encoded.data.tobytes())
    names = [value.encode("utf-8", "replace").decode() for value in values]
    assert [(one.iid, one.name) for one in interned.event_names] == list(enumerate(names))


def test_what_is_not_present_takes_no_bytes() -> None:
    present = np.array([True, False, True])
    numbers = varints(9, np.array([1, 2, 3]), present)
    assert numbers.length.tolist() == [2, 0, 2]
    messages = nested(11, varints(9, np.array([1, 2, 3])), present)
    assert messages.data.tobytes() == b"\x5a\x02\x48\x01\x5a\x02\x48\x03"
    assert messages.length.tolist() == [4, 0, 4]


def test_pieces_are_gathered_stacked_and_taken_in_order() -> None:
    part = varints(1, np.array([5, 6, 7]))
    owned = gathered(part, np.array([2, 0, 2]), 3)
    assert (owned.data.tolist(), owned.length.tolist()) == ([8, 6, 8, 5, 8, 7], [2, 0, 4])
    both = stacked(part, nothing(1), part).take(np.array([6, 3, 0]))
    assert (both.data.tolist(), both.length.tolist()) == ([8, 7, 8, 5], [2, 0, 2])
