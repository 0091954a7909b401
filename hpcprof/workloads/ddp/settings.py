"""The folder of ``--input``: define_model.py and two JSON files with settings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcprof.common.errors import UsageError, unknown

MODEL_FILE = "define_model.py"
LOCAL, GLOBAL = "local_config.json", "global_config.json"

_COUNTS = {"world_size": 1, "epochs": 1, "batchsize": 1, "warmup_epochs": 0}
_PATHS = ("ncu_path", "nsys_path", "python_path")
_TEXTS = ("cuda_visible_devices", "cuda_version_check", *_PATHS)
_REQUIRED = ("cap_size", "epochs", "batchsize")
_KEYS = ("cap_size", *_COUNTS, *_TEXTS)
# The names of these settings in the options of the workload; the others are for the launch.
_PARAMETERS = {
    "cap_size": "bucket_cap_mb",
    "epochs": "epochs",
    "batchsize": "batch_size",
    "warmup_epochs": "warmup_epochs",
    "world_size": "world_size",
    "cuda_visible_devices": "cuda_visible_devices",
    "cuda_version_check": "cuda_version",
}


@dataclass(frozen=True)
class Settings:
    """The settings of both files.

    ``parameters`` has the names of `hpcprof.workloads.ddp.options.Parameters`. ``tools`` holds those of the
    paths of ``python``, ``nsys`` and ``ncu`` that are given.
    """

    model: Path
    parameters: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)


def read_settings(folder: Path) -> Settings:
    """Read the settings in ``folder``; if both files have a key, global_config.json takes precedence.

    Raises
    ------
    UsageError
        A file, a key or a path is missing, a key is unknown, or a value has the wrong type.
    """
    if not folder.is_dir():
        raise UsageError(f"--input {folder}: the folder does not exist.")
    values: dict[str, Any] = {}
    source: dict[str, Path] = {}
    for path in (folder / LOCAL, folder / GLOBAL):
        for key, value in _read(path).items():
            if key not in _KEYS:
                raise unknown("key", key, _KEYS, f" in {path}")
            _check(path, key, value)
            values[key], source[key] = value, path
    for key in _REQUIRED:
        if key not in values:
            raise UsageError(f"the key {key} is missing: add it to {folder / LOCAL}.")
    for key in _PATHS:
        if key in values and not Path(values[key]).is_file():
            raise UsageError(f"{source[key]}: {key} is {values[key]}, which does not exist.")
    return Settings(
        model=(folder / MODEL_FILE).absolute(),
        parameters={name: values[key] for key, name in _PARAMETERS.items() if key in values},
        tools={key.removesuffix("_path"): values[key] for key in _PATHS if key in values},
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno}: not JSON: {error.msg}.") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON in UTF-8.") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} must contain a JSON object.")
    return data


def _check(path: Path, key: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key in _TEXTS:
        valid, wanted = isinstance(value, str) and value != "", "a text"
    elif key == "cap_size":
        valid, wanted = number and 0 < value < float("inf"), "a number of MB above 0"  # type: ignore[operator]
    else:
        least = _COUNTS[key]
        valid = number and isinstance(value, int) and value >= least
        wanted = f"a whole number from {least}"
    if not valid:
        raise UsageError(f"{path}: {key} is {json.dumps(value)}: it must be {wanted}.")
