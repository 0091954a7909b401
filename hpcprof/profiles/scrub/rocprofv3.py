"""Copies the JSON results of rocprofv3, with only the fields that the reader knows.

Command lines, hosts, the environment of the tool and the arguments of calls are not among them. Kernels and
messages of ROCTx keep their names, without private words in them.
"""

import gzip
from pathlib import Path

import msgspec

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.gzip_file import content_of
from hpcprof.profiles.readers.rocprof.json_results import SECTIONS, Machine, parse_results
from hpcprof.profiles.scrub.names import Names, hosts_and_users


def scrub(path: Path, target: Path, names: Names) -> list[str]:
    """Copy results to ``target``, and return the sections that are left out."""
    results = parse_results(path, content_of(path))
    left_out: dict[str, None] = {}
    for process in results.processes:
        node = process.metadata.node
        names.know(hosts_and_users([node.hostname], []))
        process.metadata.node = Machine(system_name=node.system_name, release=node.release)
        for symbol in process.kernel_symbols:
            symbol.formatted_kernel_name = names.cleaned(symbol.formatted_kernel_name)
            symbol.kernel_name = names.cleaned(symbol.kernel_name)
        for message in process.strings.marker_api:
            message.value = names.cleaned(message.value)
        sections = process.buffer_records
        fields = {}
        for name, written in sections.items():
            if name not in SECTIONS:
                left_out |= {} if bytes(written) == b"[]" else {name: None}
                continue
            try:
                fields[name] = msgspec.Raw(
                    msgspec.json.encode(msgspec.json.decode(written, type=list[SECTIONS[name]]))  # type: ignore[valid-type]
                )
            except msgspec.ValidationError as error:
                raise DamagedInput(f"{path} cannot be copied: {error} in {name}.") from None
        process.buffer_records = fields
    text = msgspec.json.encode(results)
    target.write_bytes(gzip.compress(text) if path.name.lower().endswith(".gz") else text)
    return [*left_out]
