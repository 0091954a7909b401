"""Reports of Nsight Compute, read by its Python module or its command."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.ncu.reader import read
from tests.unit.profiles.readers.ncu.test_reader import DATA
from tests.unit.profiles.readers.ncu.test_reader import ncu as ncu


def test_a_report_is_read_by_ncus_python_module(ncu: Path, tmp_path: Path) -> None:
    path = tmp_path / "rank00002.ncu-rep"
    path.write_bytes((DATA / "module.json.gz").read_bytes())
    report = read(path)
    assert report.origin.rank == 2
    assert report.origin.device_names == ("NVIDIA H200",)
    printed = read(DATA / "module.raw.csv.gz").kernels
    assert [(k.id, k.grid, k.block) for k in report.kernels] == [(k.id, k.grid, k.block) for k in printed]
    # The module tells whole names, which are those of nsys; the raw page shortens them.
    assert report.kernels[5].name.startswith("void at::native::vectorized_elementwise_kernel<(int)4, ")
    assert printed[5].name.startswith("void at::vectorized_elementwise_kernel<4, ")
    assert report.kernels[0].metrics["sm__ops_path_tensor_src_bf16_dst_fp32.sum"] == 2 * 4096**3


def test_a_report_is_read_by_the_package_where_ncu_is_not_installed(
    ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site/ncu_report"
    package.mkdir(parents=True)
    (ncu / "extras/python/ncu_report.py").rename(package / "__init__.py")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(package.parent))
    path = tmp_path / "rank0.ncu-rep"
    path.write_bytes((DATA / "module.json.gz").read_bytes())
    assert len(read(path).kernels) == len(read(DATA / "module.raw.csv.gz").kernels)


@pytest.mark.parametrize("without", ["module", "working module"])
def test_a_report_is_read_by_the_command_where_the_module_cannot(
    without: str, ncu: Path, tmp_path: Path
) -> None:
    path = tmp_path / "rank0.ncu-repz"
    path.write_bytes(b"readable")
    if without == "module":
        (ncu / "extras/python/ncu_report.py").unlink()
    assert read(path).kernels == read(DATA / "module.raw.csv.gz").kernels


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"crash", "ncu cannot read .*rank0.ncu-rep: ncu says \"Failed to load report file 'x'\""),
        (b"", "rank0.ncu-rep is damaged, was written by a newer ncu than the one here, or holds no kernel"),
    ],
)
def test_a_report_that_ncu_cannot_read_is_one_sentence(
    content: bytes, says: str, ncu: Path, tmp_path: Path
) -> None:
    path = tmp_path / "rank0.ncu-rep"
    path.write_bytes(content)
    with pytest.raises(DamagedInput, match=says):
        read(path)
