"""Messages about a run: that it started, stalled or ended, and that one became slower.

job.sh starts it in the background. Addresses and commands are secrets: they are neither in the run nor in
what is printed.

A target is a text: ``slack:URL``, ``teams:URL``, ``mail:ADDRESS``, a URL that gets the JSON document by POST,
or a command that gets it on its standard input.
"""

import email.message
import errno
import html
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple
from urllib.parse import urlsplit

EVENTS = ("started", "stalled", "ended", "regression")
SECONDS = 5.0
"""The longest time that sending one message takes."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LOOK_S = 0.5

Document = Dict[str, Any]


def kind_of(target: str) -> Tuple[str, str]:
    """Return the kind of a target and the rest; ValueError, whose text repeats no target, if it is none."""
    kind, _, value = target.partition(":")
    if kind == "mail":
        if not re.match(r"[^@\s<>,\x00-\x1f\x7f-][^@\s<>,\x00-\x1f\x7f]*@[^@\s<>,\x00-\x1f\x7f]+$", value):
            raise ValueError("write an address of e-mail after mail:, as in mail:me@example.org")
        return kind, value
    if kind in ("slack", "teams", "http", "https"):
        address = value if kind in ("slack", "teams") else target
        try:
            parts = urlsplit(address)
        except ValueError:  # whose message repeats the address
            parts = urlsplit("")
        secure = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
        host = re.match(r"(\[[\da-fA-F:.]+\]|[^@:\[\]]+)(:\d{1,5})?$", parts.netloc)
        if not secure or not host or re.search(r"[\s\x00-\x1f\x7f]", address):
            raise ValueError("an address begins with https://HOST; http:// is for this machine only")
        return (kind if kind in ("slack", "teams") else "url"), address
    words = shlex.split(target)
    if not words or not os.path.isabs(os.path.expanduser(words[0])):
        raise ValueError(
            "write slack:URL, teams:URL, mail:ADDRESS, a URL, or a command with the path of its program"
        )
    return "command", target


def send(target: str, document: Document) -> str:
    """Send a message, each step within `SECONDS`; return why it failed, without the target, or nothing."""
    try:
        kind, address = kind_of(target)
        if kind == "mail":
            return _run(_sendmail(), _mail(address, document))
        if kind == "command":
            words = shlex.split(address)
            return _run([os.path.expanduser(words[0]), *words[1:]], json.dumps(document).encode())
        return _post(address, {"slack": _slack, "teams": _teams}.get(kind, dict)(document))
    except urllib.error.HTTPError as error:
        return "the server answered %d" % error.code
    except urllib.error.URLError as error:
        return "the server cannot be reached (%s)" % type(error.reason).__name__
    except (OSError, ValueError, http.client.HTTPException, subprocess.SubprocessError) as error:
        return getattr(error, "strerror", None) or type(error).__name__


def _post(address: str, document: Document) -> str:
    request = urllib.request.Request(
        address, json.dumps(document).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    context = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    # A redirect leads to another server than the user named.
    opener = urllib.request.build_opener(_NoRedirect, context)
    with opener.open(request, timeout=SECONDS):
        return ""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None


def _run(command: List[str], text: bytes) -> str:
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=pipe, stdout=null, stderr=null, start_new_session=True)
    try:
        process.communicate(text, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "its command took more than %d s" % SECONDS
    return "its command ended with exit code %d" % process.returncode if process.returncode else ""


def _sendmail() -> List[str]:
    program = shutil.which("sendmail", path="/usr/sbin:/usr/lib:/usr/bin:" + os.environ.get("PATH", ""))
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "the node has no sendmail")
    return [program, "-t", "-i"]


def _mail(address: str, document: Document) -> bytes:
    message = email.message.EmailMessage()
    message["To"] = address
    message["Subject"] = "hpcprof: %s %s" % (_line(document.get("run", "")), document["event"])
    facts = ["%s: %s" % (key, _line(value)) for key, value in _facts(document)]
    message.set_content("\n".join([_line(document["text"]), "", *facts]) + "\n")
    return message.as_bytes()


def _slack(document: Document) -> Document:
    # In Slack's own markup &, < and > have a meaning; the names of programs and people must not.
    return {"text": html.escape(document["text"], quote=False), "mrkdwn": False}


def _teams(document: Document) -> Document:
    facts = [
        {"title": key, "value": _escape_markdown(value)} for key, value in _facts(document) if key != "event"
    ]
    text = {"type": "TextBlock", "text": _escape_markdown(document["text"]), "wrap": True}
    body = [text, {"type": "FactSet", "facts": facts}]
    card = {"type": "AdaptiveCard", "version": "1.4", "body": body}
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


def _escape_markdown(text: str) -> str:
    """Return a text that a card of Teams shows as it is: names in it may be Markdown, such as links."""
    text = re.sub(r"([\\`*_\[\](){}~|<>#!])", r"\\\1", _line(text))
    return re.sub(r"^(\s*)(?:(\d+)([.])|([-+]))", r"\1\2\\\3\4", text)


def _facts(document: Document) -> List[Tuple[str, str]]:
    """Return the facts that people read beside the text; what is not known is left out."""
    return [
        (key, ", ".join(value) if isinstance(value, list) else str(value))
        for key, value in document.items()
        if key != "text" and value is not None
    ]


def _line(text: str) -> str:
    """Return a text without controls, separators of lines and halves of letters."""
    return re.sub("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+", " ", str(text))


def _number(text: str) -> Optional[int]:
    return int(text) if re.match(r"\d{1,9}$", text) else None


class ReportedJob:
    """The job that is told about: what its folder says of it."""

    def __init__(self, run_dir: str) -> None:
        self._state = os.path.join(run_dir, "state")
        with open(os.path.join(run_dir, "run.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        job = manifest["job"]
        self._about = {
            "run": manifest["id"],
            "site": job["site"],
            "program": job["workload"] or job["name"],
            "ranks": job["nodes"] * job["ranks_per_node"],
        }

    def has(self, name: str) -> bool:
        """Return whether the job noted a fact."""
        return os.path.exists(os.path.join(self._state, name))

    def note(self, name: str, text: str) -> None:
        """Note a fact, as job.sh does."""
        hidden = os.path.join(self._state, ".%s.%d" % (name, os.getpid()))
        with open(hidden, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(hidden, os.path.join(self._state, name))

    def document(self, event: str) -> Document:
        """Return the message of an event."""
        facts = self._about
        event_text = {"started": "started", "stalled": "makes no progress"}.get(event) or self._end()
        text = "hpcprof: %s %s on %s" % (facts["run"], event_text, facts["site"])
        if event == "stalled":
            text += "; hpcprof status %s says which ranks hold it up" % facts["run"]
        document = dict(facts, event=event, time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        if event == "ended":
            code = self._read("finished")
            document["exit_code"] = _number(code)
            document["first_failed_rank"] = self._first_failed()
        return dict(document, text=_line(text))

    def _read(self, name: str) -> str:
        try:
            with open(os.path.join(self._state, name), encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return ""

    def _first_failed(self) -> Optional[int]:
        return _number(self._read("failed." + self._read("started")).partition(" ")[0])

    def _end(self) -> str:
        code = self._read("finished")
        if code in ("", "0"):
            return "succeeded" if code else "was ended by the scheduler"
        if self.has("stall_stop"):
            return "stalled and was ended"
        rank = self._first_failed()
        return "failed with exit code %s%s" % (code, "" if rank is None else ", rank %d first" % rank)


def watch(run_dir: str, folder: str, names: List[str]) -> None:
    """Send the state of a job to the targets in files of a folder, until its job.sh ends; note failures."""
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ending.set())
    parent = os.getppid()
    job = ReportedJob(run_dir)
    tell(job, "started", folder, names)
    stalled = False
    while not job.has("finished") and os.getppid() == parent and not ending.wait(_LOOK_S):
        if job.has("stalled") and not stalled:
            tell(job, "stalled", folder, names)
        stalled = job.has("stalled")
    tell(job, "ended", folder, names)


def tell(job: ReportedJob, event: str, folder: str, names: List[str]) -> None:
    """Send the message of an event to all targets at once."""
    document = job.document(event)

    def send_to(name: str) -> str:
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                return send(file.read().strip(), document)
        except OSError:
            return "the node cannot read its file in %s" % folder

    failed = sorted(send_at_once(names, send_to).items())
    if failed:
        job.note("not_told", "; ".join("%s (%s): %s" % (name, event, reason) for name, reason in failed))


def send_at_once(names: Iterable[str], send_to: Callable[[str], str]) -> Dict[str, str]:
    """Send to all targets at the same time; return why some were not told within `SECONDS`, by name."""
    reason_text = dict.fromkeys(names, "it took more than %d s" % SECONDS)

    def note(name: str) -> None:
        reason_text[name] = send_to(name)

    threads = [threading.Thread(target=note, args=(name,), daemon=True) for name in reason_text]
    for thread in threads:
        thread.start()
    # A server that sends a byte now and then keeps a connection for ever.
    deadline = time.monotonic() + SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {name: reason for name, reason in list(reason_text.items()) if reason}


if __name__ == "__main__":
    watch(sys.argv[1], sys.argv[2], sys.argv[3:])
