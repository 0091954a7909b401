"""Mask secrets in commands and their output before they are logged.

A value is a secret if the name of its option or variable says so (token, password, key, …), if it is a
password in a URL or an authorization header, or if it begins as the tokens of well-known services do.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import PurePath

from hpcprof.common.units import visible

MASK = "***"

TARGET_NAME = re.compile(r"[A-Za-z][\w-]{0,40}")
"""Names of notification targets; any other value of ``--notify`` is a secret address or command."""

_SECRET_WORD = re.compile(
    r"passwords|passphrase|passcode|pwd|secrets|key|credentials?|creds|apikeys|authorization|cookie|bearer|jwt"
    r"|sig|signature|webhook|.*(?:token|password|passwd|secret|apikey|accesskey|secretkey)"
)
_SECRET_OPTIONS = {"--pass", "--pw", "--pat", "--otp", "--auth"}
# A match begins where a name begins: from each of its characters, a line of 20,000 takes 7 s.
_NAME = r"""(?<![\w.-])(?P<name>[\w.-]+)"""
# Two colons are a C++ scope, not an assignment.
_ASSIGNMENT = re.compile(_NAME + r"""\\*["']?[ \t]*(?:=|:(?!:))[ \t]*""")
# An option or a name in capitals, with its value after a space or on the next line of a shell command.
_OPTION_WITH_VALUE = re.compile(
    r"(?<![\w.-])(?P<name>--?[A-Za-z][\w.-]*|[A-Z][A-Z0-9_]*)[ \t]+(?:\\\n[ \t]*)?(?=[^\s=:-])"
)
# A quoted text, a list or a word. A comma belongs to a value unless a name or a space follows.
_VALUE = re.compile(
    r""""(?:[^"\\]|\\.)*"|'[^']*'|\\+(?P<quote>["'])[^"']*(?P=quote)|\[[^]\n]*"""
    r"""|(?:[^\s,;"'}&]|[,;](?!\s|$|[\w.-]+["']?\s*[=:]))+"""
)
# An environment variable of a container in a Kubernetes object.
_NAMED_VALUE = re.compile(r'"name":\s*"(?P<name>[^"]*)",\s*"value":\s*')
_URL_PASSWORD = re.compile(r"(://[^\s:/@]*:)([^\s/]+)(?=@)")
_WEBHOOK = re.compile(r"(://[\w.-]+/(?:services|api/webhooks|webhookb2)/)([\w/@-]+)")
_COOKIES = re.compile(r"(\b(?:set-)?cookie[\"']?:[ \t]*[\"']?)([^\s\"'][^\"'\r\n]*)", re.I)
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)([^-]+)")
_URL_TOKEN = re.compile(r"(://)([^\s:/@]{16,})(?=@)")
_AUTHORIZATION = re.compile(
    r"\b((?:Bearer|Basic|Authorization[\"']?[ \t]*[=:][ \t]*[\"']?\w+)\s+)([\w.~+/=-]{8,})", re.I
)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])()(gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}"
    r"|sk-[\w-]{16,}|[rs]k_(?:live|test)_\w{16,}|xox[abprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{35}"
    r"|ya29\.[\w-]{20,}|pypi-[\w-]{30,}|npm_\w{30,}|nvapi-[\w-]{30,}|dop_v1_\w{40,}|SG\.[\w-]{16,}\.[\w-]{30,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
"""Tokens of GitHub, GitLab, Hugging Face, OpenAI, Stripe, Slack, AWS, Google, PyPI, npm, NVIDIA, DigitalOcean
and SendGrid, and JSON Web Tokens."""

_SECRETS_BY_FORM = (_URL_PASSWORD, _URL_TOKEN, _WEBHOOK, _AUTHORIZATION, _COOKIES, _PRIVATE_KEY, _TOKEN)

_MASKED_TEXT = re.compile(r"\*\*\*|<secret \d+>|(?i:bearer|basic|token)")
_BARE_NAME = re.compile(r"[A-Za-z_]\w*")
_PASSWORD_FLAGS = {
    **dict.fromkeys(("sshpass", "mysql", "mysqldump", "mariadb", "mongosh", "docker", "podman"), ("-p",)),
    "curl": ("-u", "--user", "-U", "-b", "--cookie"),
    "redis-cli": ("-a",),
    "wandb": ("login", "--relogin"),
    "openssl": ("-passin", "-passout", "-pass"),
}
"""Options for a password, by program."""
_PASSWORDS = {
    program: re.compile(
        rf"(?<![\w.-])({program}\b[^|;&\n]{{0,200}}?\s(?:{'|'.join(flags)})[ =]?)(?!-)"
        r"""([^\s'"]+|'[^']*'|"[^"]*")"""
    )
    for program, flags in _PASSWORD_FLAGS.items()
}

_WORD_BREAK = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])")


def masked_command(command: Sequence[str]) -> str:
    """Return a command as a shell would take it, on one line and with its secrets masked."""
    return visible(shlex.join(masked_words(command)))


def masked_words(command: Sequence[str]) -> list[str]:
    """Return the words of a command with its secrets masked."""
    words: list[str] = []
    flags: tuple[str, ...] = ()
    for word in masked_targets(command):
        previous = words[-1] if words else ""
        flags = _PASSWORD_FLAGS.get(PurePath(word).name, flags)
        name, equals, _ = word.partition("=")
        if not word.startswith("-") and (previous in flags or _precedes_secret(previous)):
            words.append(MASK)
        elif equals and not re.search(r"[\s:/]", name) and is_secret(name):
            words.append(f"{name}={MASK}")
        elif flag := next((flag for flag in flags if word.startswith(flag) and word not in flags), ""):
            words.append(flag + ("=" if word[len(flag)] == "=" else "") + MASK)
        else:
            words.append(masked(word))
    return words


def _precedes_secret(word: str) -> bool:
    named = (word.startswith("-") and "=" not in word) or _BARE_NAME.fullmatch(word) is not None
    return named and is_secret(word)


def masked_targets(command: Sequence[str]) -> list[str]:
    """Return the words of a command with its notification targets masked, unless they are names."""
    words: list[str] = []
    for word in command:
        flag, equals, value = word.partition("=")
        if words and words[-1] == "--notify" and not TARGET_NAME.fullmatch(word):
            word = MASK
        elif flag == "--notify" and equals and not TARGET_NAME.fullmatch(value):
            word = f"--notify={MASK}"
        words.append(word)
    return words


def masked(text: str, mask: Callable[[str], str] = lambda secret: MASK) -> str:
    """Replace the values of secret names, passwords and tokens in a text by ``mask`` of them, or ``***``."""
    for pattern in (*_SECRETS_BY_FORM, *(_PASSWORDS[program] for program in _PASSWORDS if program in text)):
        text = pattern.sub(lambda match: match[1] + mask(match[2]), text)
    for name_pattern in (_NAMED_VALUE, _ASSIGNMENT, _OPTION_WITH_VALUE):
        text = _masked_values(text, name_pattern, mask)
    return text


def _masked_values(text: str, name_pattern: re.Pattern[str], mask: Callable[[str], str]) -> str:
    """Mask the values of secret names; the value of another name may itself contain a secret."""
    parts: list[str] = []
    end = 0
    while match := name_pattern.search(text, end):
        parts.append(text[end : match.end()])
        end = match.end()
        if is_secret(match["name"]) and (value := _VALUE.match(text, end)):
            parts.append(value[0] if _MASKED_TEXT.fullmatch(value[0]) else mask(value[0]))
            end = value.end()
    return "".join((*parts, text[end:]))


def is_secret(name: str) -> bool:
    """Return whether the name of a variable or an option says that its value is a secret."""
    if name.lower() in _SECRET_OPTIONS:
        return True
    words = [word.lower() for word in _WORD_BREAK.split(name) if word]
    if not words or words[-1] == "error":  # KeyError: 'x'
        return False
    return any(map(_SECRET_WORD.fullmatch, words))
