"""Class, family and operation of a kernel by its name: a table that users and plug-ins extend.

Families of communication, and the keys of an entry, are in ``communication_families.yaml`` beside this file,
and those of compute in ``compute_families.yaml``.
The user's table, ``~/.config/hpcprof/kernel_classes.yaml``, is tried before, and then the families of
plug-ins (the group of entry points ``hpcprof.kernel_families``).
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import yaml
from numpy.typing import NDArray

from hpcprof.common.decode import decode
from hpcprof.common.errors import UsageError
from hpcprof.common.paths import user_config
from hpcprof.common.plugins import KERNEL_FAMILIES, has_plugins, load_plugin, plugin_names
from hpcprof.common.yaml_file import read_document
from hpcprof.profiles.collective_operations import NCCL, operation
from hpcprof.profiles.columns.unique import numbered
from hpcprof.profiles.timeline import NO_NAME, Category, Ints

_TABLE = Path(__file__).with_name("communication_families.yaml")


class Rule(NamedTuple):
    """The class of kernels whose names match a pattern."""

    pattern: re.Pattern[str]
    category: Category
    family: str = ""
    kind: str = ""
    """The operation of communication; empty if the kernel's name contains it."""
    waits: bool = True
    """True if a rank that comes early waits in the kernel for the others."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    pattern: str
    category: str = msgspec.field(name="class")
    family: str = ""
    kind: str = ""
    waits: bool = True
    source: str = ""


# The kernels by which HIP copies and sets memory.
_MEMORY = Rule(re.compile(r"^__amd_rocclr_(copy|fill|stream)"), Category.MEM)


@cache
def built_in_rules() -> tuple[Rule, ...]:
    """Return the rules of hpcprof."""
    return (*_rules_of(_TABLE), _MEMORY)


def load(path: Path | None = None) -> tuple[Rule, ...]:
    """Return the rules in the order in which they are tried: the user's, the plug-ins', then hpcprof's.

    ``path`` is the user's file. By default ``kernel_classes.yaml`` in the user's folder is read if it exists.
    Raises UsageError if the user's file or a plug-in's table is wrong.
    """
    file = path or user_config() / "kernel_classes.yaml"
    user_rules = _rules_of(file) if path is not None or file.is_file() else ()
    return (*user_rules, *_added_rules(), *built_in_rules())


def _added_rules() -> tuple[Rule, ...]:
    """Return the rules of plug-ins, each a list of entries as in the user's table."""
    if not has_plugins(KERNEL_FAMILIES):
        return ()
    tables = ((name, load_plugin(KERNEL_FAMILIES, name)) for name in plugin_names(KERNEL_FAMILIES))
    return tuple(rule for name, entries in tables for rule in _rules(entries, f"the plug-in {name!r}"))


def _rules_of(file: Path) -> tuple[Rule, ...]:
    try:
        entries = read_document(file) or []
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{file} cannot be read: {' '.join(str(error).split())}.") from None
    return _rules(entries, str(file))


def _rules(entries: object, where: str) -> tuple[Rule, ...]:
    if not isinstance(entries, list):
        raise UsageError(f"{where}: expected a list of entries with the keys pattern and class.")
    return tuple(_rule(entry, f"{where}, entry {i}") for i, entry in enumerate(entries, 1))


def _rule(entry: object, where: str) -> Rule:
    rule = decode(_Entry, entry, where)
    classes = {category.name.lower(): category for category in Category}
    if rule.category not in classes:
        raise UsageError(f"{where}: class {rule.category!r} is not one of {', '.join(classes)}.")
    try:
        pattern = re.compile(rule.pattern)
    except re.error as error:
        raise UsageError(f"{where}: pattern {rule.pattern!r} is not a regular expression: {error}.") from None
    return Rule(pattern, classes[rule.category], rule.family, rule.kind, rule.waits)


class KernelOperation(NamedTuple):
    """The operation of a communication kernel."""

    operation: str
    waits: bool
    recorded: bool
    """True if profilers record the calls of its library."""


def kernel_operation(name: str, rules: Sequence[Rule]) -> KernelOperation | None:
    """Return the operation that a communication kernel carries out; None if its name does not say."""
    rule = next((rule for rule in rules if rule.pattern.search(name)), None)
    kind = rule and (rule.kind or operation(name))
    if rule is None or not kind:
        return None
    recorded = any(rule.pattern.search(name) for rule in built_in_rules() if rule.family == NCCL)
    return KernelOperation(kind, rule.waits, recorded)


def classify(names: Iterable[str | None], rules: Sequence[Rule] | None = None) -> Ints:
    """Return the `Category` of each kernel name; compute if no rule matches or there is no name."""
    rules = built_in_rules() if rules is None else rules
    matched = (next((rule for rule in rules if rule.pattern.search(name or "")), None) for name in names)
    return np.array([rule.category if rule else Category.COMP for rule in matched], np.int64)


def classes_of(names: Ints, texts: NDArray[np.object_]) -> Ints:
    """Return the `Category` of each kernel, decided once for each name by the rules of `load`.

    Parameters
    ----------
    names : ndarray of int64, shape (n,)
        The numbers of the names in ``texts``, or `NO_NAME`.
    """
    rules = load()
    used, row = numbered(names)
    return classify((None if n == NO_NAME else texts[n] for n in used.tolist()), rules)[row]


OTHER = "other"

_FAMILIES = tuple(
    (entry["family"], re.compile(entry["pattern"], re.IGNORECASE))
    for entry in read_document(Path(__file__).with_name("compute_families.yaml"))
)
FAMILIES = (*(family for family, _ in _FAMILIES), OTHER)


def family(name: str | None) -> str:
    """Return the family of a compute kernel by its name, one of `FAMILIES`; "other" if no pattern matches."""
    return next((family for family, pattern in _FAMILIES if pattern.search(name or "")), OTHER)
