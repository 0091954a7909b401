"""Decodes a trace with the classes of PyPI's package perfetto, as a viewer does."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto


@dataclass
class Slice:
    """A slice on a track of a process."""

    process: str
    track: str
    category: str
    name: str
    start: int
    notes: dict[str, Any]
    end: int = -1

    def key(self) -> tuple[str, str, int, int]:
        """Return what identifies the slice on its rank."""
        return self.category, self.name, self.start, self.end


@dataclass
class Decoded:
    """The content of a trace; ``arrows`` lead from one slice to the next, ``together`` by id."""

    slices: list[Slice] = field(default_factory=list)
    arrows: list[tuple[Slice, Slice]] = field(default_factory=list)
    together: dict[int, list[Slice]] = field(default_factory=dict)
    counters: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    tracks: dict[str, list[str]] = field(default_factory=dict)
    units: dict[str, int] = field(default_factory=dict)
    utc: int | None = None


def decode(data: bytes) -> Decoded:
    """Decode a trace; a slice that ends without a begin, or never, is an error."""
    trace = perfetto.Trace()
    trace.ParseFromString(data)
    found = Decoded()
    tracks: dict[int, Any] = {}
    texts: dict[int, dict[str, dict[int, str]]] = {}
    for packet in trace.packet:
        if packet.HasField("clock_snapshot"):
            clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
            assert clocks[1] == clocks[6] and packet.clock_snapshot.primary_trace_clock == 6
            found.utc = clocks[1]
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in tracks
            tracks[track.uuid] = track
            if track.HasField("process"):
                found.tracks[track.process.process_name] = []
            else:
                found.tracks[tracks[track.parent_uuid].process.process_name].append(track.name)
            if track.HasField("counter"):
                found.units[track.name] = track.counter.unit
        if packet.HasField("interned_data"):
            assert packet.sequence_flags == 1
            data_of = packet.interned_data
            texts[packet.trusted_packet_sequence_id] = {
                "category": {one.iid: one.name for one in data_of.event_categories},
                "name": {one.iid: one.name for one in data_of.event_names},
                "note": {one.iid: one.name for one in data_of.debug_annotation_names},
                "value": {one.iid: one.str.decode() for one in data_of.debug_annotation_string_values},
            }
    flows: dict[int, list[tuple[bool, Slice]]] = defaultdict(list)
    inside: dict[int, list[Slice]] = defaultdict(list)
    # Viewers sort packets by time and keep the order of those at the same time.
    events = [packet for packet in trace.packet if packet.HasField("track_event")]
    for packet in sorted(events, key=lambda packet: int(packet.timestamp)):
        event, own = packet.track_event, texts[packet.trusted_packet_sequence_id]
        track = tracks[event.track_uuid]
        process = tracks[track.parent_uuid].process.process_name
        if event.type == 4:
            values = found.counters.setdefault((process, track.name), [])
            values.append((packet.timestamp, event.counter_value))
        elif event.type == 2:
            inside[event.track_uuid].pop().end = packet.timestamp
        else:
            (category,) = event.category_iids
            notes = {own["note"][note.name_iid]: _value(note, own) for note in event.debug_annotations}
            name = own["name"][event.name_iid]
            one = Slice(process, track.name, own["category"][category], name, packet.timestamp, notes)
            inside[event.track_uuid].append(one)
            found.slices.append(one)
            for flow in event.flow_ids:
                flows[flow].append((False, one))
            for flow in event.terminating_flow_ids:
                flows[flow].append((True, one))
    assert not any(inside.values())
    for flow, ends in flows.items():
        if flow >> 63:
            found.together[flow] = [one for _, one in ends]
        else:
            # One end goes on, the other is the last; which comes first in time is for the viewer.
            (begin,) = (one for last, one in ends if not last)
            (end,) = (one for last, one in ends if last)
            found.arrows.append((begin, end))
    return found


def _value(note: Any, own: dict[str, dict[int, str]]) -> Any:
    return own["value"][note.string_value_iid] if note.HasField("string_value_iid") else note.uint_value
