"""Copies a trace of unitrace, with only the events and fields that the reader knows.

Hosts are left out of the names of processes. Kernels, calls and ranges keep their names, without private
words in them.
"""

from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.errors import reading
from hpcprof.profiles.readers.unitrace.reader import (
    HOST_IN_NAME,
    is_read,
    known_arguments,
    other_files,
    whole_events,
)
from hpcprof.profiles.scrub.names import Names, hosts_and_users


def scrub(path: Path, target: Path, names: Names) -> list[str]:
    """Copy a trace to ``target``, and return the kinds of events that are left out."""
    with reading(path):
        events, _ = whole_events(path, path.read_bytes())
    named = {id(event): known_arguments(event).name for event in events if event.ph == "M"}
    hosts = {host for name in named.values() for host in HOST_IN_NAME.findall(name)}
    names.know(hosts_and_users([*hosts], []))
    left_out: dict[str, None] = {"counters": None} if other_files(path) else {}
    lines = []
    for event in events:
        if not is_read(event):
            left_out[f"events of {event.cat or 'no category'}"] = None
            continue
        fields: dict[str, Any] = {
            "ph": event.ph,
            "cat": event.cat or "",
            "name": names.cleaned(event.name or ""),
        }
        fields |= {key: value for key in ("ts", "dur", "pid", "tid") if bytes(value := getattr(event, key))}
        if event.ph == "M":
            fields["args"] = {"name": names.cleaned(HOST_IN_NAME.sub("", named[id(event)]))}
        elif number := known_arguments(event).id:
            fields["args"] = {"id": number}
        lines.append(msgspec.json.encode(fields))
    target.write_bytes(b'{ "traceEvents":[\n' + b",\n".join(lines) + b"\n]\n}\n")
    return [*left_out]
