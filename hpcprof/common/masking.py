"""Mask secrets in commands and their output, before they are logged.

A value is a secret if the name of its option or variable says so (token, password, key, …), or if it is a
password in a URL or an authorization header.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hpcprof.common.units import visible

MASK = "***"

TARGET_NAME = re.compile(r"[A-Za-z][\w-]{0,40}")
"""Names of targets of messages; whatever else follows ``--notify`` is a secret address or command."""

_SECRET_WORDS = frozenset(
    {
        "token",
        "password",
        "passwd",
        "passphrase",
        "pwd",
        "secret",
        "secrets",
        "key",
        "credential",
        "credentials",
    }
)
_SECRET_ENDINGS = ("token", "password", "passwd", "secret", "apikey", "accesskey", "secretkey")
# A name is tried from its beginning only: from each of its characters takes 7 s for a line of 20,000.
_ASSIGNED = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]+)["']?[ \t]*[=:][ \t]*""")
_VALUE = re.compile(r""""(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;"'}&]+""")
# A container's environment, as in the objects of Kubernetes.
_NAMED_VALUE = re.compile(r'"name":\s*"(?P<name>[^"]*)",\s*"value":\s*')
_URL_PASSWORD = re.compile(r"(://[^\s:/@]*:)[^\s/@]+(?=@)")
_AUTHORIZATION = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE)
_WORD_BREAK = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])")


def masked_command(command: Sequence[str]) -> str:
    """Return a command as a shell would take it, on one line and with its secrets masked."""
    words: list[str] = []
    for word in without_targets(command):
        after = words[-1] if words else ""
        if after.startswith("-") and "=" not in after and is_secret(after) and not word.startswith("-"):
            words.append(MASK)
        else:
            words.append(masked(word))
    return visible(shlex.join(words))


def without_targets(command: Sequence[str]) -> list[str]:
    """Return the words of a command, in which targets of messages are masked; their names stay."""
    words: list[str] = []
    for word in command:
        flag, equals, value = word.partition("=")
        if words and words[-1] == "--notify" and not TARGET_NAME.fullmatch(word):
            word = MASK
        elif flag == "--notify" and equals and not TARGET_NAME.fullmatch(value):
            word = f"--notify={MASK}"
        words.append(word)
    return words


def masked(text: str) -> str:
    """Return a text with the values of secret names, and passwords in URLs, replaced by ``***``."""
    text = _URL_PASSWORD.sub(rf"\1{MASK}", text)
    text = _AUTHORIZATION.sub(rf"\1 {MASK}", text)
    return _masked_values(_masked_values(text, _NAMED_VALUE), _ASSIGNED)


def _masked_values(text: str, names: re.Pattern[str]) -> str:
    """Mask the values of secret names; the value of another name may itself contain a secret."""
    parts: list[str] = []
    end = 0
    while found := names.search(text, end):
        parts.append(text[end : found.end()])
        end = found.end()
        if is_secret(found["name"]) and (value := _VALUE.match(text, end)):
            parts.append(MASK)
            end = value.end()
    return "".join((*parts, text[end:]))


def is_secret(name: str) -> bool:
    """Return whether the name of a variable or an option says that its value is a secret."""
    words = [word.lower() for word in _WORD_BREAK.split(name) if word]
    if not words or words[-1] == "error":  # KeyError: 'x'
        return False
    return any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS) for word in words)
