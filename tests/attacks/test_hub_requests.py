"""Requests to a hub that are to fail inside it, to reach another project, or to tell where it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import pytest
from starlette.testclient import TestClient

from hpcprof.profiles.readers.flight_recorder import plain_values
from hpcprof.serve.grants import create_grant
from hpcprof.serve.guard import LOCAL_NAMES, Access, all_names
from hpcprof.serve.hub import make_hub
from tests.attacks.packages import RUN, described, package, profiles, results

_HOSTILE = '<img src=x onerror=1>"\n\\'
_DIGITS = "9" * 5000
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_FORM_TYPE = {"Content_Type": _FORM["Content-Type"], "Authorization": ""}


class Reader:
    """A client of a hub with a token."""

    def __init__(self, client: TestClient, token: str) -> None:
        self._client, self.token = client, token
        self._sent = {"Authorization": f"Bearer {token}"}

    def ask(self, path: str, method: str = "GET", content: bytes = b"", **headers: str) -> Any:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._client.request(
            method, path, content=content, headers={**self._sent, **sent}, follow_redirects=False
        )

    def push(self, content: bytes) -> Any:
        length = str(len(content))
        address = f"/api/push/{sha256(content).hexdigest()}"
        return self.ask(address, "PUT", content, Upload_Offset="0", Upload_Length=length)


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[tuple[Reader, Reader]]:
    """One who pushes to a project that has a run with extreme values, and one of another project."""
    tokens = [create_grant(tmp_path, name, name, "push") for name in ("train", "other")]
    hub = make_hub(tmp_path, None, Access(all_names(LOCAL_NAMES), port=8765))
    with TestClient(hub, base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as client:
        train, other = (Reader(client, token) for token in tokens)
        kernels = {
            "run_id": [RUN],
            "rank": [9_999_999],
            "position": [2**31 - 1],
            "name": [_HOSTILE],
            "instances": [2**63 - 1],
            "total_ns": [-(2**63)],
            "time_pct": [1e308],
        }
        rows = results(profiles=profiles([0, 9_999_999], file=[_HOSTILE] * 2), kernels=kernels)
        run = described(
            command=_HOSTILE * 100,
            site=_HOSTILE,
            profiler=_HOSTILE,
            nodes=10_000_000,
            ranks=10_000_000,
            step_ns=9e18,
            step_p50_ns=9e18,
            duration_s=9e9,
            started="2199-01-01T00:00:00+00:00",
        )
        more = [
            ("origins/0.jsonl", b"[" * 100_000),
            ("communication/description.json", b'{"version": 3, "size": 9223372036854775807}'),
        ]
        answer = train.push(package(run=run, rows=rows, more=more))
        assert answer.status_code == 200, answer.text
        yield train, other


@pytest.mark.parametrize(
    "path",
    [
        *("/runs", "/api/runs", "/metrics", f"/runs/{RUN}", f"/api/runs/{RUN}", f"/api/runs/{RUN}/live"),
        *(f"/api/runs/{RUN}/live?rank={_DIGITS}", f"/api/runs/{RUN}/timeline"),
        *(f"/api/runs/{RUN}/timeline/{_DIGITS}/0", f"/api/runs/{RUN}/timeline/0/{_DIGITS}"),
        *(
            f"/api/runs/{RUN}/timeline/0/0?ranks={_DIGITS}",
            f"/api/runs/{RUN}/timeline/0/0?ranks=0-{'9' * 15}",
        ),
        *(f"/runs?page={_DIGITS}", "/runs?page=-1", f"/runs?since={_DIGITS}d", "/runs?since=99999999d"),
        *("/history?metric=x&program=%00", "/api/history?metric=%ff", "/sql?sql=" + "x" * 7000),
        f"/compare?{'&'.join([f'baseline={RUN}'] * 300)}&candidate={RUN}",
        *("/static/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/runs/..%2f..%2fetc", "/runs/%00", "/runs/last"),
        *(f"/runs/{RUN}/tables/kernels", f"/runs/{RUN}/tables/kernels?page={_DIGITS}"),
        *(f"/api/runs/{RUN}/tables/kernels?format=csv", "/api/runs/x/tables/.."),
    ],
)
def test_no_address_fails_inside_the_hub_and_no_error_tells_where_it_is(
    path: str, readers: tuple[Reader, Reader], tmp_path: Path
) -> None:
    answer = readers[0].ask(path)
    assert answer.status_code < 500
    assert "root:" not in answer.text
    assert "html" not in answer.headers["content-type"] or "<img" not in answer.text
    assert answer.status_code < 400 or str(tmp_path) not in answer.text
    assert readers[1].ask(path).text.count(RUN) <= path.count(RUN) + 1


@pytest.mark.parametrize("path", ["/api/push/" + 64 * "0", "/api/sql", "/runs/last/note", "/sign-in"])
def test_a_client_that_is_gone_leaves_no_traceback_in_the_log(path: str, tmp_path: Path) -> None:
    token = create_grant(tmp_path, "train", "train", "push")
    hub = make_hub(tmp_path, None, Access(all_names(LOCAL_NAMES), port=8765))
    headers = {
        "Host": "127.0.0.1:8765",
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Upload-Offset": "0",
        "Upload-Length": "1000",
    }
    scope = {
        "type": "http",
        "method": "PUT" if "push" in path else "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }

    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def sent(_message: Any) -> None:
        pass

    anyio.run(hub, scope, gone, sent)


@pytest.mark.parametrize(
    "wanted",
    [
        *(
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "///evil.example",
            "/\tevil",
            "/..//evil.example",
        ),
        *(
            "javascript:alert(1)",
            "http:evil",
            "/%2f/evil.example",
            "\\\\evil",
            "/x\r\nSet-Cookie: a=b",
            "@evil.example",
        ),
    ],
)
def test_signing_in_leads_to_a_page_of_the_hub(wanted: str, readers: tuple[Reader, Reader]) -> None:
    token = readers[0].token.encode()
    address = f"/sign-in?{urlencode({'next': wanted})}"
    answer = readers[0].ask(address, "POST", b"token=" + token, **_FORM_TYPE)
    assert answer.status_code == 303
    assert re.match(r"/(?![/\\\s])[^\r\n]*$", answer.headers["Location"])


def test_a_form_beyond_its_limits_is_a_sentence(readers: tuple[Reader, Reader]) -> None:
    train, _ = readers
    many = "+".join(f"a{number}" for number in range(200))
    for form in (b"a=1&" * 20, f"tags={many}".encode(), b"tags=%3Cb%3E"):
        answer = train.ask(f"/runs/{RUN}/note", "POST", form, **_FORM)
        assert answer.status_code == 400 and [*answer.json()] == ["error"]
    assert train.ask(f"/runs/{RUN}/note", "POST", b"note=" + b"x" * 70_000, **_FORM).status_code == 413


def test_a_session_or_token_reaches_no_other_project(readers: tuple[Reader, Reader]) -> None:
    train, other = readers
    assert other.ask(f"/runs/{RUN}").status_code == 404
    other.ask(f"/runs/{RUN}/note", "POST", b"note=of+eve", **_FORM)
    assert "of eve" not in train.ask("/runs").text
    assert train.ask("/runs", Cookie="hpcprof_8765=" + "x" * 43, Authorization="Bearer x").status_code != 200


@pytest.mark.parametrize("run", ["last", "-x", ".", "..", "a/b", "x\n", "%2e", "", "a" * 201])
def test_names_with_a_meaning_are_no_runs(run: str, readers: tuple[Reader, Reader]) -> None:
    rows = results(runs={"id": [run], "path": [""]})
    assert readers[0].push(package(run=described(run=run), rows=rows)).status_code == 400


@pytest.mark.parametrize(
    "body",
    [b"[", b"[" * 60_000, b'{"sql": 1}', b"\xff", json.dumps({"sql": "SELECT 1", "runs": ["../x"]}).encode()],
)
def test_a_query_that_is_none_is_a_sentence(body: bytes, readers: tuple[Reader, Reader]) -> None:
    answer = readers[0].ask("/api/sql", "POST", body, Content_Type="application/json")
    assert answer.status_code in (400, 404) and [*answer.json()] == ["error"]


def test_a_dump_of_many_values_is_refused_before_they_are_made() -> None:
    with pytest.raises(ValueError, match="too many values"):
        plain_values(b'{"entries":[' + b"[]," * 5_000_000 + b"[]]}")
