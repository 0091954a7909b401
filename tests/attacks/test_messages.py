"""Names in messages that are to be read as links or as another message."""

from __future__ import annotations

import email
import json
import re

import pytest

from hpcprof.node.notify import _mail, _slack, _teams

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
