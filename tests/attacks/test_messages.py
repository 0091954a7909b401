"""Names in messages that are to be read as links or as another message, and targets that lead elsewhere."""

from __future__ import annotations

import email
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from hpcprof.node.notify import _mail, _slack, _teams, kind_of, send

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
        *("http://169.254.169.254/latest", "http://localhost@169.254.169.254/", "teams:http://10.0.0.1/"),
    ],
)
def test_a_target_is_an_address_of_the_web(target: str) -> None:
    with pytest.raises(ValueError, match=r"write|begins"):
        kind_of(target)


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


def test_no_redirect_of_a_target_is_followed() -> None:
    with HTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for code in (301, 302, 303, 307, 308):
            target = f"http://127.0.0.1:{server.server_port}/{code}"
            said = send(target, {"run": "r", "event": "ended", "text": "t"})
            assert said == f"the server answered {code}"
        server.shutdown()
    assert _Elsewhere.asked == ["/301", "/302", "/303", "/307", "/308"]
