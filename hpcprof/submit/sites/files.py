"""Site files: one YAML file per site, found on a search path and merged with the sites that it extends."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Formatter
from typing import Any

import msgspec

from hpcprof.common.decode import decode
from hpcprof.common.errors import UsageError, unknown
from hpcprof.common.paths import packaged_folder, user_config
from hpcprof.common.units import parse_memory
from hpcprof.common.yaml_file import read_mapping
from hpcprof.runs.config import HOST_KEYS
from hpcprof.submit.jobs.walltime import parse_walltime
from hpcprof.submit.launchers import STARTERS, core_numbers
from hpcprof.submit.profilers import PROFILERS, profiler_names
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import Scheduler
from hpcprof.submit.sites.environment import has_other_expansions
from hpcprof.submit.sites.model import OBSOLETE_KEYS, Site, SiteOption, Vendor

# Profilers make sockets in a rank's own folder below TMPDIR. The path of a socket has at most 107 characters
# (sockaddr_un); this leaves room for that folder and for the name.
_TMPDIR_LENGTH = 48
_SPAN = re.compile(r"(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?")


MPS = "mps"
"""The option of sites with NVIDIA's GPUs by which jobs start its Multi-Process Service."""

_MPS_OPTION = SiteOption(
    "true starts NVIDIA's MPS on each node, for ranks that share GPUs", valid=["true", "false"]
)


def site_files() -> dict[str, Path]:
    """Return the file of each site by name; a file whose name begins with ``_`` is for others to extend."""
    return {name: path for name, path in _all_files().items() if not name.startswith("_")}


def load_site(name: str) -> Site:
    """Load the site called ``name`` from the search path."""
    files = site_files()
    if name not in files:
        raise unknown("site", name, files)
    return load_site_file(files[name])


def load_site_file(path: Path) -> Site:
    """Load one site file. The site that it ``extends`` is searched beside it, then on the search path."""
    chain = list(_chain(path))
    name = next((str(data["scheduler"]) for data in chain if "scheduler" in data), "")
    scheduler = find_scheduler(name, f" in {path}") if name else None
    merged: dict[str, Any] = {}
    for data in reversed(chain):
        for key in OBSOLETE_KEYS & data.keys():
            del data[key]
        if scheduler:
            data["scheduler_keys"] = _take_keys(data, scheduler, str(path))
        merged = _merge(merged, data)
    site = decode(Site, {**merged, "name": path.stem}, str(path))
    for key, problem in _problems(site):
        raise UsageError(f"{path}: {key}: {problem}.")
    if site.node.vendor is Vendor.NVIDIA and scheduler is not None and not scheduler.runs_in_image:
        site = msgspec.structs.replace(
            site, options={**site.options, MPS: site.options.get(MPS, _MPS_OPTION)}
        )
    return site


def _take_keys(data: dict[str, Any], scheduler: Scheduler, where: str) -> dict[str, Any]:
    """Take the scheduler's own keys out of a site file, checked; 0.3 had them beside the others."""
    fields = scheduler.keys.__struct_fields__
    former = {key: data.pop(key) for key in fields if key in data}
    scheduler_keys = data.pop(scheduler.name, {})
    if not isinstance(scheduler_keys, dict):
        raise UsageError(f"{where}: {scheduler.name}: write a mapping of {', '.join(fields) or 'no keys'}.")
    decode(scheduler.keys, scheduler_keys, f"{where}, {scheduler.name}")
    decode(scheduler.keys, former, where)
    return {**former, **scheduler_keys}


def _all_files() -> dict[str, Path]:
    files: dict[str, Path] = {}
    for folder in (Path("site_configs"), user_config() / "sites", packaged_folder("site_configs")):
        for path in sorted(folder.glob("*.yaml")):
            files.setdefault(path.stem, path)
    return files


def _chain(path: Path) -> Iterator[dict[str, Any]]:
    ancestors: list[Path] = []
    while True:
        if path in ancestors:
            raise UsageError(f"{path}: 'extends' leads back to itself: {' -> '.join(map(str, ancestors))}.")
        ancestors.append(path)
        data = read_mapping(path, "site file")
        if "name" in data:
            raise UsageError(
                f"{path}: name = {data['name']!r}: the file's name is the name of the site; remove the key."
            )
        parent = data.pop("extends", None)
        home = user_config() / "sites"
        if path.parent != home and (key := next((key for key in HOST_KEYS if key in data), "")):
            raise UsageError(
                f"{path}: {key}: only a site file in {home} can name a host, since others may have come with "
                f"somebody's code; use hpcprof config set sites.{path.stem}.{key}."
            )
        yield data
        if parent is None:
            return
        beside = path.with_name(f"{parent}.yaml")
        files = _all_files()
        if not beside.is_file() and parent not in files:
            raise unknown("site", str(parent), files, f" in {path}, under extends")
        path = beside if beside.is_file() else files[parent]


def _merge(parent: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(parent)
    for key, value in child.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _problems(site: Site) -> Iterator[tuple[str, str]]:
    """Yield a key and the end of a sentence for each mistake that the types of the keys do not show."""
    yield from _launcher_problems(site)
    for key, text in _walltimes(site):
        try:
            parse_walltime(text)
        except UsageError as error:
            yield key, str(error).rstrip(".")
    yield from _queue_problems(site)
    if site.node.memory:
        try:
            parse_memory(site.node.memory, "node.memory")
        except UsageError as error:
            yield f"node.memory = {site.node.memory!r}", str(error).rstrip(".").partition(": ")[2]
    for name in site.profilers:
        if name not in PROFILERS and name not in profiler_names():
            yield f"profilers = {name!r}", f"there is no such profiler; valid: {', '.join(profiler_names())}"
    if has_other_expansions(site.tmpdir):
        yield f"tmpdir = {site.tmpdir!r}", "the node replaces $NAME and ${NAME}; write no other $ and no `"
    elif site.tmpdir and (not site.tmpdir.startswith(("/", "$")) or len(site.tmpdir) > _TMPDIR_LENGTH):
        yield (
            f"tmpdir = {site.tmpdir!r}",
            f"write an absolute path of at most {_TMPDIR_LENGTH} characters: profilers make sockets below "
            "it, and the path of a socket must be short",
        )
    if problem := _logs_problem(site.darshan_logs):
        yield f"darshan_logs = {site.darshan_logs!r}", problem
    yield from _option_problems(site)


def _option_problems(site: Site) -> Iterator[tuple[str, str]]:
    for name, option in site.options.items():
        for value in option.default.split(":") if option.default and option.valid else ():
            if value not in option.valid:
                valid = ", ".join(option.valid)
                yield f"options.{name}.default = {option.default!r}", f"valid: {valid}"
        for value in option.limits:
            if option.valid and value not in option.valid:
                yield f"options.{name}.limits.{value}", f"valid: {', '.join(option.valid)}"


def _logs_problem(pattern: str) -> str:
    valid = ("year", "month", "day", "user", "job")
    try:
        used = [name for _, name, _, _ in Formatter().parse(pattern) if name is not None]
        pattern.format(**dict.fromkeys(valid, 1))
    except (ValueError, KeyError, IndexError, AttributeError):
        return f"it can have {', '.join(f'{{{name}}}' for name in valid)} in braces, and nothing else"
    if pattern and "job" not in used:
        return "without {job} it matches the logs of other jobs"
    return ""


def _launcher_problems(site: Site) -> Iterator[tuple[str, str]]:
    for index, cores in enumerate(site.launcher.cpu_bind):
        problem = _core_problem(site, cores)
        if problem:
            yield f"launcher.cpu_bind[{index}] = {cores!r}", problem
    starter = site.launcher.starter
    if starter not in STARTERS:
        valid = ", ".join(launcher.value for launcher in STARTERS)
        yield (
            f"launcher.starter = {starter.value!r}",
            f"it cannot start one process on each node; valid: {valid}",
        )


def _queue_problems(site: Site) -> Iterator[tuple[str, str]]:
    if site.queues and site.queue and site.queue not in site.queues:
        yield f"queue = {site.queue!r}", f"it is not one of queues: {', '.join(site.queues)}"
    for name, queue in site.queues.items():
        for route in queue.routes:
            if route not in site.queues:
                yield f"queues.{name}.routes", f"{route!r} is not one of queues: {', '.join(site.queues)}"


def _walltimes(site: Site) -> Iterator[tuple[str, str]]:
    yield "walltime", site.walltime
    limits = {f"queues.{name}": queue for name, queue in site.queues.items()}
    for name, option in site.options.items():
        limits |= {f"options.{name}.limits.{value}": limit for value, limit in option.limits.items()}
    for place, queue in limits.items():
        for key in ("min_walltime", "max_walltime", "max_node_time"):
            if getattr(queue, key):
                yield f"{place}.{key}", getattr(queue, key)
        for nodes, text in queue.walltime_by_nodes.items():
            yield f"{place}.walltime_by_nodes[{nodes}]", text


def _core_problem(site: Site, cores: str) -> str:
    spans = [_SPAN.fullmatch(part) for part in cores.split(",")]
    if not all(spans):
        return "write core numbers and spans, as in 0-7,32-39"
    numbers = core_numbers(cores)
    reserved = numbers & set(site.node.reserved_cores)
    if reserved:
        return f"core {min(reserved)} is one of node.reserved_cores"
    if site.node.cores is not None:
        threads = (site.node.cores + len(site.node.reserved_cores)) * site.node.threads
        if max(numbers) >= threads:
            return f"a node has hardware threads 0 to {threads - 1} (node.cores, reserved_cores, threads)"
    return ""
