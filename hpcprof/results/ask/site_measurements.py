"""Measurements of sites by studies: ``sites/NAME.KIND.json`` in the user's configuration."""

from pathlib import Path
from typing import TypeVar

import msgspec

from hpcprof.common.atomic import write_atomically
from hpcprof.common.decode import from_json
from hpcprof.common.errors import HpcprofError
from hpcprof.common.paths import user_config

Measurement = TypeVar("Measurement", bound=msgspec.Struct)


def keep_measurement(site: str, kind: str, measured: msgspec.Struct) -> Path:
    """Write what was measured of a site, instead of an earlier measurement; return the file."""
    path = _file(site, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(measured)).decode() + "\n")
    return path


def kept_measurement(site: str, kind: str, type_: type[Measurement]) -> Measurement | None:
    """Return what was measured of a site; None if nothing was.

    Raises HpcprofError if its file cannot be read.
    """
    path = _file(site, kind)
    try:
        return from_json(path.read_bytes(), type_)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise HpcprofError(f"{path} cannot be read: {error}.") from None


def _file(site: str, kind: str) -> Path:
    return user_config() / "sites" / f"{Path(site).name}.{kind}.json"
