"""Metrics of GPUs and NICs that nsys samples (``--gpu-metrics-devices``, ``--nic-metrics``)."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcprof.profiles.columns.unique import numbered, numbered_rows
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.nsys.export import MISSING, NO_ID, REQUIRED, UNREADABLE, NsysExport
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import DeviceSamples, Ints, Mask, concatenate

_GPU_NUMBER = 0xFF
"""The bits of a type id that hold the number of the GPU, as the recipes of nsys read it."""

_UNIT = re.compile(r"(?P<name>.*\S)\s*\[(?P<unit>[^\[\]]+)\]")
_UNKNOWN_METRIC = ("", "")

MetricNames = dict[tuple[int, ...], tuple[str, str]]
"""The name and the unit of each metric, by its ids."""


class _Source(NamedTuple):
    """A table of samples: when each was taken, which device and metric it is of, and what names these."""

    table: str
    start: str
    end: str
    device: str
    metric: tuple[str, ...]
    devices: Callable[[NsysExport, Ints], list[str]]
    names: Callable[[NsysExport], MetricNames]


def read_device_samples(export: NsysExport, strings: StringTable) -> tuple[DeviceSamples, list[Loss]]:
    """Read the samples of GPUs and NICs, and say what is left out.

    A sample of a NIC is of an interval, one of a GPU of a moment. Samples whose metric has no name, or that
    have no integer as value, are left out.
    """
    tables = [_read(export, source, strings) for source in _SOURCES if export.table(source.table)]
    if not tables:
        return DeviceSamples.empty(), []
    return concatenate(DeviceSamples, [table for table, _ in tables]), [
        loss for _, lost in tables for loss in lost
    ]


def _read(export: NsysExport, source: _Source, strings: StringTable) -> tuple[DeviceSamples, list[Loss]]:
    table = export.table(source.table)
    assert table is not None
    times = dict.fromkeys((source.start, source.end), REQUIRED)
    columns = {**times, source.device: NO_ID, **dict.fromkeys(source.metric, NO_ID), "value": REQUIRED}
    if not table.columns >= columns.keys():
        (count,) = next(table.rows(["count(*)"]))
        return DeviceSamples.empty(), [Loss(LossKind.CATEGORY, Subject.SAMPLE, count, detail=source.table)]
    read = table.read_bulk(columns).integers
    names = source.names(export)
    metrics, metric = numbered_rows(*(read[name] for name in source.metric))
    names_and_units = [names.get(tuple(ids), _UNKNOWN_METRIC) for ids in metrics.tolist()]
    named = np.array([bool(name) for name, _ in names_and_units], bool)[metric]
    valued = (read["value"] != MISSING) & (read["value"] != UNREADABLE)
    wrong = {source.metric[-1]: np.count_nonzero(~named), "value": np.count_nonzero(named & ~valued)}
    lost = losses(LossKind.ROW, Subject.SAMPLE, wrong, len(named))
    is_valid: Mask = named & valued
    metric = metric[is_valid]
    devices, device = numbered(read[source.device][is_valid])
    return (
        DeviceSamples(
            start=read[source.start][is_valid],
            end=read[source.end][is_valid],
            source=strings.add_all(source.devices(export, devices))[device],
            metric=strings.add_all(name or None for name, _ in names_and_units)[metric],
            unit=strings.add_all(unit for _, unit in names_and_units)[metric],
            value=read["value"][is_valid].astype(float),
        ),
        lost,
    )


def _rows(export: NsysExport, table: str, columns: Sequence[str]) -> list[Any]:
    samples = export.table(table)
    return [*samples.rows(columns)] if samples is not None and samples.columns >= set(columns) else []


def _gpu_names(export: NsysExport) -> MetricNames:
    rows = _rows(export, "TARGET_INFO_GPU_METRICS", ("typeId", "metricId", "metricName"))
    metric_names: MetricNames = {}
    for kind, metric, name in rows:
        parts = _UNIT.fullmatch(str(name or ""))
        metric_names[kind, metric] = (parts["name"], parts["unit"]) if parts else (str(name or ""), "")
    return metric_names


def _nic_names(export: NsysExport) -> MetricNames:
    columns = ("metricsListId", "metricsIdx", "name", "unit")
    with_unit = _rows(export, "TARGET_INFO_NETWORK_METRICS", columns)
    rows = with_unit or [(*row, "") for row in _rows(export, "TARGET_INFO_NETWORK_METRICS", columns[:-1])]
    return {(among, metric): (str(name or ""), str(unit or "")) for among, metric, name, unit in rows}


def _gpus(_: NsysExport, kinds: Ints) -> list[str]:
    return [f"gpu{number}" for number in (kinds & _GPU_NUMBER).tolist()]


def _nics(export: NsysExport, ids: Ints) -> list[str]:
    numbers = dict(_rows(export, "NIC_ID_MAP", ("globalId", "nicId")))
    # Before there was a map, the NICs had the ids themselves.
    numbers |= dict(_rows(export, "TARGET_INFO_NIC_INFO", ("globalId", "nicId")))
    named = {nic: name for nic, name in _rows(export, "TARGET_INFO_NIC_INFO", ("nicId", "name")) if name}
    numbers_of_nics = [numbers.get(nic_id, place) for place, nic_id in enumerate(ids.tolist())]
    return [f"nic:{named.get(nic, nic)}" for nic in numbers_of_nics]


_SOURCES = (
    _Source("GPU_METRICS", "timestamp", "timestamp", "typeId", ("typeId", "metricId"), _gpus, _gpu_names),
    _Source("NET_NIC_METRIC", "start", "end", "globalId", ("metricsListId", "metricsIdx"), _nics, _nic_names),
)
