"""The reader of what Nsight Compute measured."""

from __future__ import annotations

import csv
import gzip
import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.hardware.kernel_counters import ncu_kernels
from hpcprof.common.errors import DamagedInput
from hpcprof.common.processes import Completed
from hpcprof.profiles.kernel_report import Advice, KernelReport
from hpcprof.profiles.readers.declaration import rank_from_name
from hpcprof.profiles.readers.discovery import file_to_read, find_profiles
from hpcprof.profiles.readers.ncu import reader as ncu_reader
from hpcprof.profiles.readers.ncu.csv_table import factor, number, parse, uses_decimal_comma
from hpcprof.profiles.readers.ncu.reader import read
from hpcprof.profiles.timeline import Origin

DATA = Path(__file__).parents[4] / "data/ncu"


DURATION = "gpu__time_duration.sum"


def text(name: str) -> str:
    return gzip.decompress((DATA / name).read_bytes()).decode()


def test_the_raw_page_is_read_in_base_units() -> None:
    report = read(DATA / "ddp.raw.csv.gz")
    assert report.origin.kind == "ncu"
    assert report.origin.device_names == ("NVIDIA H200",)
    assert [kernel.id for kernel in report.kernels] == list(range(12))
    kernel = report.kernels[6]
    assert (kernel.grid, kernel.block) == ("1536 1 1", "128 1 1")
    assert kernel.metrics[DURATION] == 6400
    assert kernel.metrics["dram__bytes_read.sum"] == 12_588_544
    assert kernel.metrics["dram__bytes.sum.per_second"] == pytest.approx(1.9674e12)
    assert kernel.metrics["dram__bytes.sum.peak_sustained"] == 1504
    assert kernel.metrics["launch__shared_mem_per_block_driver"] == 1024
    assert kernel.metrics["device__attribute_clock_rate"] == 1_980_000


def test_the_raw_page_agrees_with_the_details_page_of_the_same_report() -> None:
    raw, details = read(DATA / "ddp.raw.csv.gz"), read(DATA / "ddp.details.csv.gz")
    compared = 0
    for exact, printed in zip(raw.kernels, details.kernels, strict=True):
        assert (printed.id, printed.name, printed.grid, printed.block) == (
            exact.id,
            exact.name,
            exact.grid,
            exact.block,
        )
        assert len(printed.metrics) == 16
        for name, value in printed.metrics.items():
            # The details page has two decimals of the printed unit.
            assert exact.metrics[name] == pytest.approx(value, rel=0.006, abs=0.0051), name
            compared += 1
    assert compared == 192


def test_the_details_page_is_turned_into_one_row_a_kernel() -> None:
    report = read(DATA / "sp.details.csv.gz")
    assert len(report.kernels) == 12
    kernel = report.kernels[0]
    assert kernel.name == "nvjet_sm90_tst_192x192_64x3_1x2_h_bz_coopB_NNN"
    assert (kernel.grid, kernel.block) == ("2 66 1", "384 1 1")
    assert kernel.metrics == {
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 81.43,
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 20.52,
        DURATION: 2_750_000.0,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 96.05,
        "launch__sm_count": 132,
        "sm__maximum_warps_per_active_cycle_pct": 18.75,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 14.82,
        "launch__waves_per_multiprocessor": 1,
        "launch__occupancy_limit_barriers": 21,
        "launch__occupancy_limit_blocks": 32,
        "launch__occupancy_limit_registers": 1,
        "launch__occupancy_limit_shared_mem": 1,
        "launch__occupancy_limit_warps": 5,
    }
    assert [advice.rule for advice in kernel.advice] == ["LaunchConfiguration", "TheoreticalOccupancy"]
    assert all("@" not in advice.text for one in report.kernels for advice in one.advice)
    # The estimate of 81.25 % is "local": of the occupancy, not of the kernel's time.
    assert {advice.speedup_pct for advice in kernel.advice} == {None}


@pytest.mark.parametrize("estimate", ["26.57", "26,57"])
def test_an_estimate_of_a_rule_is_a_percentage(estimate: str) -> None:
    page = text("sp.details.csv.gz").replace('"local","81.25"', f'"global","{estimate}"')
    advice = [one for kernel in parse(page, DATA).kernels for one in kernel.advice]
    assert {one.speedup_pct for one in advice if one.rule == "TheoreticalOccupancy"} == {26.57}


def test_the_results_of_rules_are_read_from_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "It has 50 blocks. See the @url:Hardware Model:https://docs.nvidia.com/x.html@ for more."
    rules = [("Small", 3, text, 2, 26.5), ("Local", 2, "a", 1, 9.0), ("Balanced", 1, "b", 0, None)]
    launch = {"name": "k", "metrics": {"launch__grid_dim_x": (50, "")}, "rules": rules}
    output = Completed((), 0, json.dumps([launch]), "", 0.1)
    monkeypatch.setattr(ncu_reader, "run_command", lambda *_, **__: output)
    monkeypatch.setattr(ncu_reader, "_modules", lambda: iter([Path("modules")]))
    (kernel,) = read(DATA / "README.md").kernels
    assert kernel.advice == (
        Advice("Small", "It has 50 blocks. See the Hardware Model for more.", 26.5),
        Advice("Local", "a", None),
    )


def test_the_raw_page_agrees_with_the_values_of_ncus_python_module() -> None:
    report = read(DATA / "module.raw.csv.gz")
    compared = 0
    for kernel, exact in zip(report.kernels, json.loads(text("module.json.gz")), strict=True):
        for name, value in kernel.metrics.items():
            if name in exact["metrics"]:
                reference, unit = exact["metrics"][name]
                # Six decimals of a unit of a thousand million base units at most; two where there is no unit.
                assert value == pytest.approx(reference * factor(unit), rel=1e-5, abs=1e-2), name
                compared += 1
    assert compared > 3000


@pytest.mark.parametrize(
    ("unit", "scale"),
    [
        ("ns", 1),
        ("us", 1e3),
        ("usecond", 1e3),
        ("ms", 1e6),
        ("s", 1e9),
        ("second", 1e9),
        ("byte", 1),
        ("Kbyte", 1e3),
        ("Mbyte", 1e6),
        ("Gbyte", 1e9),
        ("Tbyte/s", 1e12),
        ("byte/second", 1),
        ("Kbyte/block", 1e3),
        ("%/Kbyte", 1e-3),
        ("hz", 1),
        ("Ghz", 1e9),
        ("cycle/nsecond", 1e9),
        ("sector/ns", 1e9),
        ("%", 1),
        ("cycle", 1),
        ("inst/cycle", 1),
        ("register/thread", 1),
        ("", 1),
    ],
)
def test_every_unit_has_its_factor_to_the_base_unit(unit: str, scale: float) -> None:
    assert factor(unit) == pytest.approx(scale)


@given(
    st.integers(0, 10**15), st.sampled_from([(",", "."), (".", ","), ("\u202f", ","), ("'", "."), ("", ",")])
)
def test_a_number_reads_the_same_in_every_locale(millionths: int, marks: tuple[str, str]) -> None:
    group, decimal = marks
    value = f"{millionths / 1e6:,.6f}"
    printed = value.translate({ord(","): group, ord("."): decimal})
    assert number(printed, uses_decimal_comma([printed])) == pytest.approx(float(value.replace(",", "")))


@pytest.mark.parametrize("missing", ["", "nan", "-nan", "n/a", "inf", "no data", "PolicySpread", "(!) nan"])
def test_what_is_no_number_is_missing(missing: str) -> None:
    assert number(missing) is None


def test_a_file_with_decimal_commas_is_read_like_the_original(tmp_path: Path) -> None:
    rows = list(csv.reader(text("ddp.raw.csv.gz").splitlines()))
    swap = str.maketrans(",.", ".,")
    for row in rows[2:]:
        row[11:] = [value.translate(swap) for value in row[11:]]
    path = tmp_path / "rank00003.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    found = read(path)
    assert found.kernels == read(DATA / "ddp.raw.csv.gz").kernels
    assert found.origin.rank == 3


def test_messages_and_the_programs_output_around_the_table_are_passed_over(tmp_path: Path) -> None:
    noise = '==PROF== Connected to process 7\n12,"a comma and a number first"\n"ID" of the job: 3\n'
    path = tmp_path / "rank0.csv"
    path.write_text(f"\ufeff{noise}{text('sp.details.csv.gz')}done\n==PROF== bye\n".replace("\n", "\r\n"))
    assert read(path).kernels == read(DATA / "sp.details.csv.gz").kernels


def test_a_table_that_a_spreadsheet_saved_again_without_quotes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows(csv.reader(text("sp.details.csv.gz").splitlines()))
    assert find_profiles(tmp_path) == [path]
    assert read(path).kernels == read(DATA / "sp.details.csv.gz").kernels


def test_a_metric_without_a_value_is_absent() -> None:
    header, units, *_, row = text("ddp.raw.csv.gz").splitlines()
    for nothing in ("nan", "n/a", ""):
        cells = next(csv.reader([row]))
        cells[next(csv.reader([header])).index(DURATION)] = nothing
        quoted = ",".join(f'"{cell}"' for cell in cells)
        (kernel,) = parse(f"{header}\n{units}\n{quoted}\n", Path("a.csv")).kernels
        assert DURATION not in kernel.metrics
        assert "dram__bytes_read.sum" in kernel.metrics


def same_beginning(found: KernelReport, whole: KernelReport) -> bool:
    """Tell whether a report says nothing but what another one begins with."""
    return all(
        (a.id, a.name, a.grid, a.block) == (b.id, b.name, b.grid, b.block)
        and a.metrics.items() <= b.metrics.items()
        for a, b in zip(found.kernels, whole.kernels, strict=False)
    ) and len(found.kernels) <= len(whole.kernels)


@pytest.mark.parametrize("name", ["sp.details.csv.gz", "roofline.raw.csv.gz", "ddp.raw.csv.gz"])
def test_a_table_cut_anywhere_gives_a_sentence_or_a_correct_rest(name: str, tmp_path: Path) -> None:
    whole, original = read(DATA / name), text(name).encode()
    path = tmp_path / "rank0.csv"
    lines = [at for at, byte in enumerate(original) if byte == ord("\n")]
    every_byte = range(lines[3] - 300, lines[3] + 2)
    tried = sorted({*lines[::60], *every_byte[::17], *range(0, len(original), 39_919)})
    for size in tried:
        path.write_bytes(original[:size])
        try:
            found = read(path)
        except DamagedInput as error:
            assert str(path) in str(error)
        else:
            assert same_beginning(found, whole), size


@pytest.mark.parametrize("page", ["sp.details.csv.gz", "ddp.raw.csv.gz"])
@pytest.mark.parametrize("place", ["within the last value", "between two values"])
def test_a_row_that_is_cut_off_is_left_out_and_said(page: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.csv"
    *whole, last = text(page).splitlines(keepends=True)[:6]
    last = last.rstrip(",\n")
    path.write_text(
        "".join(whole) + (last[:-1] if place == "within the last value" else last[: last.rindex(",")])
    )
    cut = read(path)
    assert [loss.sentence for loss in cut.origin.losses] == [
        "1 row of metrics has no valid form and is left out"
    ]
    path.write_text("".join(whole))
    assert read(path).origin.losses == ()
    assert read(path).kernels == cut.kernels


@pytest.mark.parametrize("page", ["sp.details.csv.gz", "ddp.raw.csv.gz"])
def test_a_list_of_numbers_is_not_taken_for_a_decimal_comma(page: str, tmp_path: Path) -> None:
    original = text(page)
    assert '"PolicySpread"' in original
    path = tmp_path / "rank0.csv"
    path.write_text(original.replace('"PolicySpread"', '"0,12"'))
    found = [kernel.metrics[DURATION] for kernel in read(path).kernels]
    assert found == [kernel.metrics[DURATION] for kernel in read(DATA / page).kernels]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no table of Nsight Compute, and no operations: these need rank, "),
        (b"name,time\nkernel,3\n", "holds no table of Nsight Compute, and no operations: these need rank, "),
        (
            b"==PROF== \n==ERROR== No metrics to collect found in sections.\n",
            "ncu says 'No metrics to collect",
        ),
        (b"==ERROR== ERR_NVGPUCTRPERM - The user does not\n", "keeps hardware counters to administrators"),
        (b'"ID","Process ID","Kernel Name"\n', "has no row of units"),
    ],
)
def test_a_file_without_a_table_is_one_sentence(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.csv"
    path.write_bytes(content)
    with pytest.raises(DamagedInput, match=says):
        read(path)


def test_a_raw_page_without_units_is_refused(tmp_path: Path) -> None:
    header, _, *rows = text("ddp.raw.csv.gz").splitlines()
    path = tmp_path / "rank0.csv"
    path.write_text("\n".join([header, *rows]))
    with pytest.raises(DamagedInput, match="has no row of units"):
        read(path)


def test_only_tables_of_ncu_among_csv_files_are_profiles(tmp_path: Path) -> None:
    for name in ("rank0.csv", "rank1.csv.gz"):
        content = text("sp.details.csv.gz").encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (tmp_path / "cuda_gpu_kern_sum.csv").write_text("Time (%),Total Time (ns)\n")
    (tmp_path / "broken.csv.gz").write_bytes(b"\x1f\x8b nothing")
    (tmp_path / "rank2.ncu-repz").touch()
    assert [path.name for path in find_profiles(tmp_path)] == ["rank0.csv", "rank1.csv.gz", "rank2.ncu-repz"]


@pytest.mark.parametrize(
    "name", ["rank00003.ncu-rep", "rank3.ncu-repz", "a.3.csv", "a.3.details.csv.gz", "a.3.raw.csv"]
)
def test_the_names_of_ncus_files_tell_the_rank(name: str) -> None:
    assert rank_from_name(Path(name)) == 3


MODULE = """
import gzip, json
class Metric:
    def __init__(self, value, unit): self._value, self._unit = value, unit
    def value(self): return self._value
    def unit(self): return self._unit
class Action:
    NameBase_DEMANGLED = 2
    def __init__(self, kernel): self._kernel = kernel
    def name(self, base): return self._kernel["name"] if base == 2 else "short"
    def metric_names(self): return list(self._kernel["metrics"])
    def metric_by_name(self, name): return Metric(*self._kernel["metrics"][name])
class Range:
    def __init__(self, kernels): self._kernels = kernels
    def num_actions(self): return len(self._kernels)
    def action_by_idx(self, i): return Action(self._kernels[i])
class Context:
    def __init__(self, kernels): self._kernels = kernels
    def num_ranges(self): return 1 if self._kernels else 0
    def range_by_idx(self, i): return Range(self._kernels)
def load_report(path):
    with open(path, "rb") as file:
        data = file.read()
    if data == b"crash":
        import os
        os.abort()
    return Context(json.loads(gzip.decompress(data)) if data else [])
"""


COMMAND = """#!{python}
import pathlib, sys
option, report, *rest = sys.argv[1:]
assert (option, rest) == ("--import", ["--csv", "--page", "raw"]), sys.argv
if pathlib.Path(report).read_bytes() != b"readable":
    sys.exit("==ERROR== Failed to load report file 'x'.")
print("==PROF== hello")
print(pathlib.Path({table!r}).read_text())
"""


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for an installation of ncu; its command reads one report, its module another."""
    package = tmp_path / "nsight-compute"
    (package / "extras/python").mkdir(parents=True)
    (package / "extras/python/ncu_report.py").write_text(MODULE)
    table = tmp_path / "table.csv"
    table.write_text(text("module.raw.csv.gz"))
    command = package / "ncu"
    command.write_text(COMMAND.format(python=sys.executable, table=str(table)))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{package}{os.pathsep}{os.environ['PATH']}")
    return package


def test_a_report_without_ncu_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ncu_reader, "_candidates", lambda: ())
    path = tmp_path / "rank0.ncu-rep"
    path.touch()
    with pytest.raises(DamagedInput, match=r"run ncu --import rank0\.ncu-rep --csv --page raw > rank0\.csv"):
        read(path)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_without_ncu_the_table_beside_a_report_is_read_unless_it_is_older(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    report, table = folder / "rank00003.ncu-rep", folder / f"rank00003{suffix}"
    report.write_bytes(b"what only ncu reads")
    packed = (DATA / "module.raw.csv.gz").read_bytes()
    table.write_bytes(packed if suffix == ".csv.gz" else gzip.decompress(packed))
    assert find_profiles(folder) == [report]
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ncu_reader, "_candidates", lambda: ())
    assert file_to_read(report) == table
    assert read(file_to_read(report)).origin.rank == 3
    os.utime(report, ns=(table.stat().st_mtime_ns + 1,) * 2)
    with pytest.raises(DamagedInput, match="beside it is older, and ncu is not on the PATH"):
        file_to_read(report)


def test_where_ncu_is_a_report_is_read_itself(ncu: Path, tmp_path: Path) -> None:
    report = tmp_path / "rank0.ncu-rep"
    report.write_bytes(b"readable")
    (tmp_path / "rank0.csv").write_bytes(gzip.decompress((DATA / "module.raw.csv.gz").read_bytes()))
    assert file_to_read(report) == report


def test_metrics_that_were_asked_for_by_name_and_labels_of_old_versions_are_read() -> None:
    head = (
        '"ID","Process ID","Process Name","Kernel Name","Block Size","Grid Size","Section Name",'
        '"Metric Name","Metric Unit","Metric Value"\n'
    )
    rows = [
        ("Command line profiler metrics", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", "61.25"),
        ("Command line profiler metrics", "gpu__time_duration.sum", "us", "12.45"),
        ("GPU Speed Of Light", "SM [%]", "%", "35.5"),
        ("GPU Speed Of Light", "Memory Throughput", "%", "48"),
    ]
    lines = [
        ",".join(f'"{cell}"' for cell in ("0", "1", "a", "k", "(1, 1, 1)", "(1, 1, 1)", *row)) for row in rows
    ]
    (kernel,) = parse(head + "\n".join(lines), Path("a.csv")).kernels
    row = ncu_kernels(KernelReport(Origin(Path("a.csv"), "ncu"), (kernel,))).rows.iloc[0]
    assert (row["duration_ns"], row["dram_throughput_pct"]) == (12450, 61.25)
    assert (row["compute_throughput_pct"], row["memory_throughput_pct"]) == (35.5, 48)
    # ncu before 2021 printed no sizes.
    older = (head + "\n".join(lines)).replace('"Block Size","Grid Size",', "").replace('"(1, 1, 1)",', "")
    assert parse(older, Path("a.csv")).kernels == [replace(kernel, grid="", block="")]
