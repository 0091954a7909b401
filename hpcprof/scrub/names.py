"""Names of kernels and ranges without the paths, hosts and users that stand in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# An absolute path of two parts or more, or an address with a scheme. One part is more often a label.
_PATH = re.compile(r"\w+://[^\s\"'<>]+|(?<![\w./)\]>~-])~?(?:/[\w.+@%=,~-]+){2,}/?")
_SHORTEST = 3


class Names:
    """Replaces paths by ``<path 1>``, and known hosts and users by ``<host 1>``, ``<user 1>``.

    One text has one number in all files that share this object, so names that were equal stay equal, and
    names that differed stay different: no group of kernels or ranges changes.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {"path": {}, "host": {}, "user": {}}
        self._words: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._known: dict[str, str] = {}

    def know(self, words: Mapping[str, str]) -> None:
        """Add words, each with its kind, host or user; those of one or two letters are too common."""
        for word, kind in words.items():
            if len(word) >= _SHORTEST:
                self._words.setdefault(word, kind)
        longest_first = sorted(self._words, key=len, reverse=True)
        joined = "|".join(map(re.escape, longest_first))
        self._pattern = re.compile(rf"(?<![A-Za-z0-9])(?:{joined})(?![A-Za-z0-9])") if joined else None
        self._known.clear()

    def cleaned(self, text: str) -> str:
        """Return a name as it may be shared."""
        found = self._known.get(text)
        if found is None:
            found = _PATH.sub(lambda match: self._placeholder("path", match[0]), text.replace("\0", ""))
            if self._pattern:
                found = self._pattern.sub(
                    lambda match: self._placeholder(self._words[match[0]], match[0]), found
                )
            self._known[text] = found
        return found

    def private_in(self, text: str) -> list[str]:
        """Return the known hosts and users that stand in a text."""
        return sorted(set(self._pattern.findall(text))) if self._pattern else []

    def _placeholder(self, kind: str, text: str) -> str:
        numbers = self._numbers[kind]
        return f"<{kind} {numbers.setdefault(text, len(numbers) + 1)}>"


def hosts_and_users(hosts: Iterable[str], users: Iterable[str]) -> dict[str, str]:
    """Return words for `Names.know`; of a full host name also its first part."""
    words: dict[str, str] = {}
    for host in hosts:
        words |= {host: "host", host.partition(".")[0]: "host"}
    return words | dict.fromkeys(users, "user")
