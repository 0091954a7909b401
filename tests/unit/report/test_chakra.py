"""Execution traces of Chakra tell who waits for whom, and read again they replay the same."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from hpcprof.analysis.predict.operation_causes import what_if_operations
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.discovery import find_profiles, identify_rank
from hpcprof.profiles.readers.operations.table import read_table, read_tables
from hpcprof.report.chakra import export_chakra

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def job() -> pd.DataFrame:
    """Return five steps of a pipeline with replicas."""
    table = read_tables([DATA / "pipeline_job.parquet"])
    few: pd.DataFrame = table[table["step"].isin(sorted(table["step"].unique())[:5])]
    return few


@pytest.mark.parametrize("names", [False, True])
def test_a_trace_is_read_again_with_the_same_replay(job: pd.DataFrame, tmp_path: Path, names: bool) -> None:
    written = export_chakra(job, tmp_path, lambda path: None, names=names).written
    assert find_profiles(tmp_path) == sorted(written)
    assert [identify_rank(path) for path in written] == list(range(8))
    again = read_tables(written)
    assert ("forward-compute" in set(again["name"])) is names
    before, after = what_if_operations(job, []), what_if_operations(again, [])
    assert after.elapsed_ns == pytest.approx(before.elapsed_ns, rel=1e-3)
    assert after.measured_elapsed_ns == pytest.approx(before.measured_elapsed_ns, rel=1e-6)


def test_a_damaged_trace_is_one_sentence(job: pd.DataFrame, tmp_path: Path) -> None:
    path = export_chakra(job, tmp_path, lambda path: None, names=True).written[0]
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DamagedInput, match="not a Chakra execution trace, or is cut off"):
        read_table(path)
    path.write_bytes(b"")
    with pytest.raises(DamagedInput, match="no operations with times"):
        read_table(path)


def _nested(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def test_metadata_and_calls_of_the_host_are_no_operations(tmp_path: Path) -> None:
    # As chakra_converter writes them (mlcommons/chakra, tests/data/feeder_tests_trace.tar.gz).
    text = _nested(1, b"schema") + bytes([0xEA, 0x01, 5]) + b"1.0.1"
    metadata = _nested(2, text)
    metadata = bytes([len(metadata)]) + metadata

    def node(name: bytes, on_host: int, start: int) -> bytes:
        content = _nested(2, name) + bytes([3 << 3, 7, 6 << 3, start, 7 << 3, 9])
        content += _nested(10, _nested(1, b"is_cpu_op") + bytes([0xD8, 0x01, on_host]))
        return bytes([len(content)]) + content

    path = tmp_path / "llama.0.et"
    path.write_bytes(metadata + node(b"c10d::broadcast_", 1, 0) + node(b"ncclKernel_Broadcast", 0, 3))
    assert read_tables([path])["kind"].tolist() == ["host", "collective"]
    path.write_bytes(metadata + node(b"c10d::broadcast_", 1, 0) + node(b"ncclKernel_Broadcast", 0, 0))
    with pytest.raises(DamagedInput, match="no time at which one starts"):
        read_table(path)


@pytest.mark.skipif(not find_spec("chakra"), reason="mlc-chakra is not installed (pip install --no-deps)")
def test_its_own_library_parses_it(job: pd.DataFrame, tmp_path: Path) -> None:
    schema = import_module("chakra.schema.protobuf.et_def_pb2")
    decode = import_module("chakra.src.third_party.utils.protolib").decodeMessage
    path = export_chakra(job, tmp_path, lambda path: None, names=True).written[0]
    nodes = []
    with path.open("rb") as file:
        assert decode(file, schema.GlobalMetadata())
        while file.tell() < path.stat().st_size:
            nodes.append(schema.Node())
            assert decode(file, nodes[-1])
    assert len(nodes) == int((job["rank"] == 0).sum())
    assert {one.id for one in nodes} == set(range(len(nodes)))
    waits = {other for node in nodes for other in (*node.ctrl_deps, *node.data_deps)}
    assert waits < {node.id for node in nodes}
    collectives = [node for node in nodes if node.type == schema.COMM_COLL_NODE]
    assert {attr.name for attr in collectives[0].attr} >= {"pg_name", "comm_type", "comm_size", "start_ns"}
