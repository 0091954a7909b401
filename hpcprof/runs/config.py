"""Personal defaults, from the user's settings and ``hpcprof.yaml`` here; a site's come after them."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import msgspec

from hpcprof.common.decode import decode
from hpcprof.common.errors import UsageError, unknown
from hpcprof.common.masking import MASK, TARGET_NAME, masked
from hpcprof.common.paths import user_config
from hpcprof.common.yaml_file import read_mapping

RUNS_VARIABLE = "HPCPROF_RUNS"
DATABASE_VARIABLE = "HPCPROF_DB"

_TARGET_KEY = re.compile(rf"notify\.{TARGET_NAME.pattern}")
_SITE_KEY = re.compile(
    r"sites\.(?P<site>.+)\.(?:(?P<field>account|queue|host|user|runs_dir)|options\.(?P<option>[^.]+))"
)


class _Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Engine(Enum):
    """The container engines, in the order of preference."""

    DOCKER = "docker"
    PODMAN_HPC = "podman-hpc"
    PODMAN = "podman"
    APPTAINER = "apptainer"
    ENROOT = "enroot"


class SiteSection(_Model, frozen=True):
    """The defaults of one site."""

    account: str = ""
    """The account or project that is charged."""
    queue: str = ""
    """The queue, partition or QOS."""
    options: dict[str, str] = {}
    """Options of the site."""
    host: str = ""
    """The login node that ssh reaches; only in the user's own file, as the next two."""
    user: str = ""
    """The account on the host, if it differs from ssh's configuration."""
    runs_dir: str = ""
    """The folder of runs there."""


class ConfigFile(_Model, frozen=True):
    """The keys of a file with personal defaults; all are optional."""

    site: str = ""
    """The site to submit to."""
    account: str = ""
    """The account of sites without one of their own below."""
    queue: str = ""
    """The queue of sites without one of their own below."""
    runs_dir: str = ""
    """The folder of runs."""
    db: str = ""
    """The results database: a path or an SQLAlchemy URL."""
    container_engine: str = ""
    """docker, podman or apptainer."""
    access: str = ""
    """owner, or group: who may read new runs and databases."""
    notify: dict[str, str] = {}
    """Targets of messages (--notify) by name. They are secrets, and in the user's own file only."""
    sites: dict[str, SiteSection] = {}
    """Defaults by the name of the site."""


OWNER, GROUP = ACCESS = ("owner", "group")
"""Readers of new runs and databases."""

HOST_KEYS = ("host", "user", "runs_dir")
"""The keys of a site that say how it is reached from another machine."""

SITE_KEYS = ("account", "queue", *HOST_KEYS)
GENERAL_KEYS = tuple(key for key in ConfigFile.__struct_fields__ if key not in ("notify", "sites"))


@dataclass(frozen=True)
class ConfigValue:
    """A value and where it comes from; ``key`` has dots, as in ``sites.polaris.options.filesystems``."""

    key: str
    value: str
    source: str


def user_file() -> Path:
    """Return the file with the user's defaults."""
    return user_config() / "config.yaml"


def local_file() -> Path:
    """Return the file with the defaults of the current folder, which come before the user's."""
    return Path("hpcprof.yaml")


def shown_path(path: Path) -> str:
    """Return the path of a file with personal defaults as people write it."""
    if not path.is_absolute():
        return f"./{path}"
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def read_settings() -> dict[str, ConfigValue]:
    """Return the personal defaults by key, those of the current folder before the user's."""
    settings: dict[str, ConfigValue] = {}
    for path in (user_file(), local_file()):
        if path.is_file():
            source = shown_path(path)
            config = check_config(read_mapping(path, "configuration", may_be_empty=True), source)
            if config.notify and path == local_file():
                sentence = f"{source}: notify belongs into {shown_path(user_file())}, which is yours alone."
                raise UsageError(sentence)
            values = setting_lines(config)
            new = {key: ConfigValue(key, value, source) for key, value in values}
            if path == local_file():
                check_no_host(new, source)
            # Settings of this folder for all sites also come before the user's for one.
            for key in new.keys() & {"account", "queue"}:
                settings = {
                    k: s for k, s in settings.items() if not k.endswith(f".{key}") or ".options." in k
                }
            settings.update(new)
    return settings


def named_targets() -> dict[str, str]:
    """Return the targets of messages by name."""
    prefix = "notify."
    settings = read_settings().items()
    return {key.removeprefix(prefix): setting.value for key, setting in settings if key.startswith(prefix)}


def check_no_host(keys: Iterable[str], where: str) -> None:
    """Refuse a host in a file of the current folder, which may be part of downloaded code."""
    for key in keys:
        if key.startswith("sites.") and key.rpartition(".")[2] in HOST_KEYS and ".options." not in key:
            raise UsageError(
                f"{where}: {key}: a folder's file cannot name a host; set it in {shown_path(user_file())}."
            )


def shown_settings() -> list[ConfigValue]:
    """Return the defaults that apply here, hpcprof's own among them, with passwords masked."""
    built_in = {
        "site": "local",
        "runs_dir": "runs",
        "db": "hpcprof.db among the runs",
        "container_engine": "the first that is installed",
        "access": OWNER,
    }
    settings = {key: ConfigValue(key, value, "built in") for key, value in built_in.items()} | read_settings()
    for key, variable in (("runs_dir", RUNS_VARIABLE), ("db", DATABASE_VARIABLE)):
        if text := os.environ.get(variable):
            settings[key] = ConfigValue(key, masked(text), f"${variable}")
    for key, setting in settings.items():
        if key.startswith("notify."):
            settings[key] = replace(setting, value=MASK)
    return sorted(settings.values(), key=lambda setting: setting.key.startswith("sites."))


def check_config(data: Mapping[str, object], where: str) -> ConfigFile:
    """Return the content of a file with personal defaults; ``where`` names it in errors."""
    config = decode(ConfigFile, data, where)
    if config.container_engine:
        engines = [engine.value for engine in Engine]
        if config.container_engine not in engines:
            raise unknown("value", config.container_engine, engines, f" in {where}, container_engine")
    if config.access and config.access not in ACCESS:
        raise unknown("value", config.access, ACCESS, f" in {where}, access")
    if masked(config.db) != config.db:
        raise UsageError(f"{where}: db holds a password: leave it out, and put it into ~/.pgpass.")
    return config


def setting_lines(config: ConfigFile) -> Iterator[tuple[str, str]]:
    """Yield the keys that have a value, with dots, and their values."""
    for key in GENERAL_KEYS:
        if value := getattr(config, key):
            yield key, value
    yield from ((f"notify.{name}", target) for name, target in config.notify.items())
    for site, section in config.sites.items():
        fields = {name: getattr(section, name) for name in SITE_KEYS}
        options = {f"options.{key}": value for key, value in section.options.items()}
        for key, value in {**fields, **options}.items():
            if value:
                yield f"sites.{site}.{key}", value


def split_key(key: str) -> list[str]:
    """Return the keys of the mappings that lead to a value: ``sites.polaris.queue`` has three."""
    if key in GENERAL_KEYS:
        return [key]
    if _TARGET_KEY.fullmatch(key):
        return key.split(".")
    match = _SITE_KEY.fullmatch(key)
    if match is None:
        below = (*SITE_KEYS, "options.KEY")
        raise unknown("key", key, [*GENERAL_KEYS, "notify.NAME", *(f"sites.SITE.{name}" for name in below)])
    last = [match["field"]] if match["field"] else ["options", match["option"]]
    return ["sites", match["site"], *last]


def default_site() -> str:
    """Return the site to use if none is named."""
    return _default("site") or "local"


def default_engine() -> str | None:
    """Return the container engine to use if none is named, None for the first that is installed."""
    return _default("container_engine")


def group_may_read() -> bool:
    """Return whether new runs and databases are for the user's group too, not for their owner alone."""
    return _default("access") == GROUP


def default_runs_dir() -> Path:
    """Return the folder of runs to use if none is named."""
    return Path(_location("runs_dir", RUNS_VARIABLE) or "runs")


def default_database() -> str | None:
    """Return the default results database; None for the one in the folder of runs."""
    return _location("db", DATABASE_VARIABLE)


def database_file(address: str | None, runs_dir: Path) -> Path | None:
    """Return the SQLite file of results, by default among the runs, None for a URL; its folder must exist."""
    if not address:
        return runs_dir / "hpcprof.db"
    if "://" in address:
        return None
    file = Path(address)
    if not file.parent.is_dir():
        raise UsageError(f"--db {address}: there is no folder {file.parent}.")
    return file


def _location(key: str, variable: str) -> str | None:
    # It may be a URL.
    return os.environ.get(variable) or os.path.expanduser(_default(key) or "") or None  # noqa: PTH111


def _default(key: str) -> str | None:
    setting = read_settings().get(key)
    return setting.value if setting else None
