"""Turn JSON values into dataclasses, and say in one sentence where they do not fit."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

# Every consumer (numpy, SQL) stores whole numbers in 64 bits.
_INT64 = range(-(2**63), 2**63)

_WORDS = {int: "a whole number of 64 bits", float: "a number", str: "text", bool: "true or false"}


def decode(value: object, kind: Any, where: str = "") -> Any:
    """Return ``value`` as ``kind``.

    Parameters
    ----------
    value : object
        What ``json.loads`` returned.
    kind : type
        A dataclass, ``int``, ``float``, ``str``, ``bool``, ``list[X]``, ``dict[str, X]`` or a union of
        them. ``null`` is NaN where a float is wanted.
    where : str
        The key of ``value``, for the sentence.

    Raises
    ------
    ValueError
        A key is missing or a value has another type.
    """
    if is_dataclass(kind):
        return _decode_dataclass(_expect(value, dict, where, "an object"), kind, where)
    origin = get_origin(kind)
    if origin is list:
        (item,) = get_args(kind)
        values = _expect(value, list, where, "a list")
        return [decode(v, item, f"{where}[{i}]") for i, v in enumerate(values)]
    if origin is dict:
        _, item = get_args(kind)
        mapping = _expect(value, dict, where, "an object")
        return {key: decode(v, item, _join(where, key)) for key, v in mapping.items()}
    if origin in (Union, UnionType):
        return _decode_union(value, get_args(kind), where)
    return _decode_scalar(value, kind, where)


def _decode_dataclass(mapping: Any, kind: Any, where: str) -> Any:
    hints = get_type_hints(kind)
    missing = [f.name for f in fields(kind) if f.name not in mapping]
    if missing:
        raise ValueError(f"the key {_join(where, missing[0])!r} is missing")
    return kind(
        **{f.name: decode(mapping[f.name], hints[f.name], _join(where, f.name)) for f in fields(kind)}
    )


def _decode_union(value: object, kinds: tuple[Any, ...], where: str) -> Any:
    if value is None and NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not NoneType]
    for kind in others[:-1]:
        try:
            return decode(value, kind, where)
        except ValueError:
            continue
    return decode(value, others[-1], where)


def _decode_scalar(value: object, kind: Any, where: str) -> Any:
    if kind is float:
        if value is None:
            return math.nan
        if type(value) in (int, float):
            return float(_expect(value, (int, float), where, _WORDS[float]))
    # In Python True is an int; in a results file it is a mistake.
    if type(value) is not kind or (kind is int and value not in _INT64):
        raise _wrong(value, where, _WORDS[kind])
    return value


def _expect(value: object, kind: Any, where: str, words: str) -> Any:
    if not isinstance(value, kind):
        raise _wrong(value, where, words)
    return value


def _wrong(value: object, where: str, words: str) -> ValueError:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return ValueError(f"{where or 'the document'} must be {words}, not {shown}")


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
