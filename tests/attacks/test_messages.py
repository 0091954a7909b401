"""Names in messages that are to be read as links or as another message, and targets that lead elsewhere."""

from __future__ import annotations

import email
import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from hpcprof.node import notify
from hpcprof.node.notify import _mail, _slack, _teams, kind_of, send

_DOCUMENT = {"run": "r", "event": "ended", "text": "t"}
_NAMES = [
    "[click](https://evil.example)",
    "![x](https://evil.example/x.png)",
    "**bold** _it_ ~~gone~~ `code`",
    "# heading",
    "- item",
    "1. item",
    "<at>everyone</at>",
    "<https://evil.example|here> <!channel>",
    "a\r\nBcc: all@example.org\r\n\r\nbody",
    "a\u2028Bcc: all@example.org\x85Cc: all@example.org",
    "a\ud800b",
]


@pytest.mark.parametrize("name", _NAMES)
def test_a_name_in_a_message_is_text(name: str) -> None:
    document = {"run": name, "program": name, "site": name, "event": "ended", "text": name}
    card = json.dumps(_teams(document)["attachments"][0]["content"])
    body = _teams(document)["attachments"][0]["content"]["body"]
    shown = [body[0]["text"], *(fact["value"] for fact in body[1]["facts"])]
    for text in shown:
        assert not re.search(r"(?<!\\)[]\[()*_~`<>#!]", text)
        assert not text.startswith(("- ", "1. ")) and "\n" not in text
    assert "](" not in card
    slack = _slack(document)
    assert not {"<", ">"} & set(slack["text"]) and slack["mrkdwn"] is False
    mail = email.message_from_bytes(_mail("me@example.org", document))
    assert {*mail.keys()} == {"To", "Subject", "Content-Type", "Content-Transfer-Encoding", "MIME-Version"}
    assert mail["Bcc"] is None


@pytest.mark.parametrize(
    "target",
    [
        *("file:///etc/passwd", "slack:file:///etc/passwd", "FILE:///etc/passwd", "http:file:///etc/passwd"),
        *("ftp://127.0.0.1/x", "data:text/plain,x", "gopher://127.0.0.1:1/", "https:////etc/passwd"),
        *(
            "https://user:pw@chat.example/x",
            "https://user@chat.example/",
            "teams:https://u:p@h/",
            "https://@h/",
        ),
        *(
            "https://h:pw/",
            "https://[::1",
            "https://\u2100.example/",
            "https://h/\x7f",
            "mail:a@b\0c",
            "mail:a@b\nc",
        ),
        *("http://127.0.0.1@evil.example/", "http://evil.example#@localhost/", "http://[::ffff:7f00:1]/"),
        *("http://169.254.169.254/latest", "http://localhost@169.254.169.254/", "teams:http://10.0.0.1/"),
    ],
)
def test_a_target_is_an_address_of_the_web(target: str) -> None:
    with pytest.raises(ValueError, match=r"write|begins") as raised:
        kind_of(target)
    assert "pw" not in str(raised.value)


class _Elsewhere(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.send_response(int(self.path[1:]))
        self.send_header("Location", "/secret")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Say nothing."""


_ANSWERS = {
    b"": "RemoteDisconnected",
    b"220 mail.example ESMTP\r\n": "BadStatusLine",
    b"HTTP/1.1 20": "BadStatusLine",
    b"HTTP/9.9 200 OK\r\n\r\n": "UnknownProtocol",
    b"HTTP/1.1 200 OK\r\nA: " + 70_000 * b"a": "LineTooLong",
    b"HTTP/1.1 200 OK\r\n" + 200 * b"A: b\r\n": "HTTPException",
}


def test_a_server_that_answers_no_http_was_not_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for sent, why in _ANSWERS.items():
            answering = threading.Thread(target=_answer, args=(server, sent))
            answering.start()
            said = send(f"http://127.0.0.1:{server.getsockname()[1]}/secret", _DOCUMENT)
            answering.join()
            assert said == why


def _answer(server: socket.socket, sent: bytes) -> None:
    with server.accept()[0] as connection:
        while b"}" not in connection.recv(4096):
            pass
        connection.sendall(sent)


def test_a_server_that_sends_a_byte_now_and_then_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "SECONDS", 0.2)
    held = threading.Event()
    said = notify.send_at_once(["slow", "quick"], lambda name: "" if name == "quick" else str(held.wait(60)))
    held.set()
    assert said == {"slow": "it took more than 0 s"}


def test_no_redirect_of_a_target_is_followed() -> None:
    with HTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for code in (301, 302, 303, 307, 308):
            target = f"http://127.0.0.1:{server.server_port}/{code}"
            said = send(target, _DOCUMENT)
            assert said == f"the server answered {code}"
        server.shutdown()
    assert _Elsewhere.asked == ["/301", "/302", "/303", "/307", "/308"]
