"""The job file: the options of a job in YAML, under the names of `JobSpec`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.decode import decode
from hpcprof.common.errors import UsageError
from hpcprof.common.yaml_file import key_lines, read_mapping
from hpcprof.submit.jobs.job import OPTION_TYPES, OPTIONS, JobSpec, Option, ValueOrigin
from hpcprof.submit.profilers.base import NONE
from hpcprof.submit.profilers.torch_profiler import TORCH

_GIGL_DEFAULTS = {"wait": "5", "warmup": "2", "active": "2", "repeat": "1", "profile_memory": "true"}
_PROGRAM = "The command of each rank, or the arguments of the workload."
_GIGL = "The PyTorch profiler in the form of GiGL's configuration, instead of profiler and profiler_options."


class ProfilerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The ``profilerConfig`` of GiGL's trainers: the PyTorch profiler with that project's defaults."""

    should_enable_profiler: bool = False
    """True if the PyTorch profiler runs."""
    profiler_log_dir: str = ""
    """A folder that receives a copy of the traces; the run keeps its own."""
    profiler_args: dict[str, str | int | bool] = {}
    """Options of the torch profiler; wait 5, warmup 2, active 2, repeat 1, profile_memory true by default."""


def described_keys() -> dict[str, str]:
    """Return the keys of a job file, each with its description."""
    options = {name: option.described for name, option in _keys().items()}
    return {"program": _PROGRAM, **options, "profilerConfig": _GIGL}


@cache
def job_file_model() -> type[msgspec.Struct]:
    """Return the model of a job file, by which `decode` checks it."""
    types = {"program": tuple[str, ...], **OPTION_TYPES, "profilerConfig": ProfilerConfig | None}
    empty: dict[Any, Any] = {tuple[str, ...]: (), Mapping[str, str]: msgspec.field(default_factory=dict)}
    keys = [(key, types[key], empty.get(types[key])) for key in described_keys()]
    return msgspec.defstruct("JobFile", keys, forbid_unknown_fields=True)


def load_job_file(path: Path) -> JobSpec:
    """Load a job file."""
    texts = [name for name, type_ in OPTION_TYPES.items() if type_ in (str | None, Mapping[str, str])]
    data = read_mapping(path, "job file", text_keys=["program", *texts])
    lines = key_lines(path)
    spec = read_spec(data, str(path), lines)
    places = {key: line for key, line in lines.items() if key.partition(".")[0] in OPTIONS}
    return replace(
        spec, origins={key: ValueOrigin(f"{path}, line {line}", key) for key, line in places.items()}
    )


def read_spec(data: Mapping[str, object], where: str, lines: Mapping[str, int] | None = None) -> JobSpec:
    """Return the request that a mapping describes by the keys of a job file; ``where`` names it in errors."""
    values: Any = decode(job_file_model(), data, where, lines)
    spec = JobSpec(**{name: getattr(values, name) for name in ("program", *_keys())})
    return spec if values.profilerConfig is None else _with_profiler(spec, values.profilerConfig, where)


def dump_job_file(spec: JobSpec) -> str:
    """Return the text of a job file for a merged request, with hpcprof's defaults but not the site's."""
    values = {"site": "local", **{name: option.default_value for name, option in _keys().items()}}
    values |= {name: getattr(spec, name) for name in ("program", *_keys()) if not spec.lacks(name)}
    return msgspec.yaml.encode(
        {name: value for name, value in values.items() if value or value == 0}
    ).decode()


def _keys() -> dict[str, Option]:
    return {name: option for name, option in OPTIONS.items() if option.in_job_file}


def _with_profiler(spec: JobSpec, config: ProfilerConfig, where: str) -> JobSpec:
    if spec.profiler is not None or spec.profiler_options:
        raise UsageError(f"{where}: profilerConfig replaces profiler and profiler_options: give one of them.")
    if not config.should_enable_profiler:
        return replace(spec, profiler=NONE.name)
    # YAML has booleans and numbers where options are text.
    arguments = {key: str(value) for key, value in config.profiler_args.items()}
    arguments = {key: text.lower() if text in ("True", "False") else text for key, text in arguments.items()}
    options = {
        **_GIGL_DEFAULTS,
        **arguments,
        **({"log_dir": log} if (log := config.profiler_log_dir) else {}),
    }
    return replace(spec, profiler=TORCH.name, profiler_options=options)
