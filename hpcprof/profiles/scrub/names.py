"""Names of kernels and ranges without the paths, hosts and users in them."""

import re
from collections.abc import Iterable, Mapping

from hpcprof.common.masking import masked

# An absolute path of two or more parts (one part is more often a label), a path below a home, or an address
# with a scheme. Text that looks like a placeholder is replaced too, so that no two names become equal.
_PATH = (
    r"\w+://[^\s\"'<>]+"
    r"|(?<![\w./)\]>~-])(?:~[\w.-]*/|/[\w.+@%=,~-]+/)[\w.+@%=,~-]+(?:/[\w.+@%=,~-]+)*/?"
    r"|<(?:path|host|user) \d+>"
)
_MIN_CHARACTERS = 3

_COMMON_WORDS = frozenset(
    {
        *("root", "user", "admin", "ubuntu", "debian", "ec2-user"),
        *("jovyan", "nobody", "runner", "vscode", "localhost"),
    }
)
"""Accounts and hosts that many machines have: they identify nobody, and programs use the words."""


class Names:
    """Replaces paths, secrets, and known hosts and users: by ``<path 1>``, ``<secret 1>``, and so on.

    A text has the same number in all files that share this object. Equal names stay equal and different names
    stay different, so no group of kernels or ranges changes.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {"path": {}, "host": {}, "user": {}}
        self._kinds: dict[str, str] = {}
        self._private = re.compile(_PATH)
        self._known: dict[str, str] = {}
        self.with_secrets: set[str] = set()
        """The texts in which secrets were replaced."""

    def know(self, words: Mapping[str, str]) -> None:
        """Add private words, each with its kind (host or user); words of one or two letters are no secret."""
        distinctive = {
            w: kind for w, kind in words.items() if len(w) >= _MIN_CHARACTERS and w not in _COMMON_WORDS
        }
        self._kinds = distinctive | self._kinds
        longest_first = sorted(self._kinds, key=len, reverse=True)
        words_only = rf"|(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, longest_first))})(?![A-Za-z0-9])"
        self._private = re.compile(_PATH + (words_only if self._kinds else ""))
        self._known.clear()

    def cleaned(self, text: str) -> str:
        """Return a name that may be shared."""
        if text not in self._known:
            plain = masked(text.replace("\0", ""), lambda secret: self.numbered("secret", secret))
            self._known[text] = self._private.sub(
                lambda match: self.numbered(self._kinds.get(match[0], "path"), match[0]), plain
            )
        if "<secret " in self._known[text]:
            self.with_secrets.add(text)
        return self._known[text]

    def private_in(self, text: str) -> list[str]:
        """Return the known hosts and users in a text."""
        return [match for match in self._private.findall(text) if match in self._kinds]

    def numbered(self, kind: str, text: str) -> str:
        """Return ``<kind N>`` for a text, the same for the same text."""
        numbers = self._numbers.setdefault(kind, {})
        return f"<{kind} {numbers.setdefault(text, len(numbers) + 1)}>"


_HOSTS = ("HOSTNAME", "HOST", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST", "PBS_O_HOST")
_USERS = ("USER", "LOGNAME", "USERNAME", "SLURM_JOB_USER", "PBS_O_LOGNAME", "SUDO_USER")


def names_in_environment(variables: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the hosts and the users that environment variables name."""
    home = variables.get("HOME", "").rstrip("/").rpartition("/")[2]
    return [variables.get(n, "") for n in _HOSTS], [*(variables.get(n, "") for n in _USERS), home]


def hosts_and_users(hosts: Iterable[str], users: Iterable[str]) -> dict[str, str]:
    """Return words for `Names.know`; a full host name also gives its first part."""
    words: dict[str, str] = {}
    for host in hosts:
        words |= {host: "host", host.partition(".")[0]: "host"}
    return words | dict.fromkeys(users, "user")
