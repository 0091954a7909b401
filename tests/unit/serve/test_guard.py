"""Requests that reach a page, and those that are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from hpcprof.serve.guard import LOCAL_NAMES, MAX_BODY_BYTES, Access, Guard, all_names, host_name

TOKEN = "t" * 43


async def answer(request: Request) -> PlainTextResponse:
    """Say how many bytes a request has."""
    return PlainTextResponse(str(len(await request.body())))


def client(token: str | None = None, addresses: bool = False) -> TestClient:
    """Return a browser before an application of one page."""
    access = Access(all_names([*LOCAL_NAMES, "Proxy.example.org"]), addresses, token, port=8765)
    route = Route("/{path:path}", answer, methods=["GET", "POST"])
    app = Starlette(routes=[route], middleware=[Middleware(Guard, access=access)])
    return TestClient(app, base_url="http://127.0.0.1:8765", follow_redirects=False)


@pytest.fixture
def open_to_all() -> Iterator[TestClient]:
    with client() as found:
        yield found


@pytest.fixture
def with_token() -> Iterator[TestClient]:
    with client(TOKEN) as found:
        yield found


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:9000", "LOCALHOST", "[::1]:8765", "proxy.example.org", "127.0.0.1:80"]
)
def test_the_names_of_the_server_are_served(open_to_all: TestClient, host: str) -> None:
    assert open_to_all.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8765", "", "10.0.0.1"),
        *("evil.example:80@127.0.0.1", "127.0.0.1, evil.example", "[::1].evil.example:1"),
    ],
)
def test_a_name_that_was_bound_to_this_address_later_is_refused(open_to_all: TestClient, host: str) -> None:
    # DNS rebinding: the page of evil.example asks evil.example, which now is 127.0.0.1.
    assert open_to_all.get("/", headers={"Host": host}).status_code == 400


def test_a_server_on_all_addresses_is_reached_by_any_of_them() -> None:
    with client(addresses=True) as found:
        assert found.get("/", headers={"Host": "10.0.0.1:8765"}).status_code == 200
        assert found.get("/", headers={"Host": "evil.example"}).status_code == 400


def test_a_host_is_named_without_its_port() -> None:
    assert [host_name(text) for text in ("a:1", "[::1]:1", "::1", "A", "[fe80::1]")] == [
        *("a", "::1", "::1", "a", "fe80::1")
    ]


def test_without_the_token_nothing_is_shown(with_token: TestClient) -> None:
    wrong = ("/", "/?token=", f"/?token={TOKEN[:-1]}", f"/?token={TOKEN}x", "/?token=é", f"/?Token={TOKEN}")
    for address in wrong:
        answered = with_token.get(address)
        assert answered.status_code == 401
        assert answered.headers["www-authenticate"] == "Bearer"
        assert "set-cookie" not in answered.headers
    assert with_token.post(f"/?token={TOKEN}").status_code == 401
    for name in ("hpcprof_8765", "hpcprof_1", "session"):
        assert with_token.get("/", headers={"Cookie": f"{name}={TOKEN}"}).status_code == 401
    assert with_token.get("/", headers={"Authorization": f"Bearer {TOKEN}x"}).status_code == 401


def test_the_token_becomes_a_cookie_and_leaves_the_address(with_token: TestClient) -> None:
    answered = with_token.get(f"/runs?site=a%26b&token={TOKEN}")
    assert (answered.status_code, answered.headers["location"]) == (303, "/runs?site=a%26b")
    flags = {part.strip().lower() for part in answered.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= flags
    assert TOKEN not in answered.headers["set-cookie"]
    assert with_token.get("/runs").status_code == 200


def test_the_redirect_of_the_token_stays_on_this_host(with_token: TestClient) -> None:
    answered = with_token.get(f"http://127.0.0.1:8765//evil.example/x?token={TOKEN}")
    assert answered.headers["location"] == "/evil.example/x"


def test_a_program_sends_the_token_as_a_header(with_token: TestClient) -> None:
    assert with_token.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:8765", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
    ],
)
def test_another_site_can_post_nothing(open_to_all: TestClient, headers: dict[str, str], status: int) -> None:
    assert open_to_all.post("/", headers=headers).status_code == status


def test_a_link_on_another_site_may_lead_here(open_to_all: TestClient) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert open_to_all.get("/", headers=link).status_code == 200
    image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert open_to_all.get("/", headers=image).status_code == 403


def test_the_size_of_a_request_is_limited(open_to_all: TestClient) -> None:
    assert open_to_all.post("/", content=b"x" * MAX_BODY_BYTES).text == str(MAX_BODY_BYTES)
    assert open_to_all.post("/", content=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
    # Without a length in advance.
    parts = (b"x" * 4096 for _ in range(MAX_BODY_BYTES // 4096 + 1))
    assert open_to_all.post("/", content=parts).status_code == 413
    assert open_to_all.get("/" + "x" * 9000).status_code == 414


def test_every_answer_has_the_headers_of_a_careful_server(with_token: TestClient) -> None:
    for answered in (with_token.get("/"), with_token.get(f"/?token={TOKEN}"), with_token.get("/")):
        policy = answered.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-inline" not in policy.partition("style-src")[0]
        assert answered.headers["x-content-type-options"] == "nosniff"
        assert answered.headers["referrer-policy"] == "same-origin"
        assert answered.headers["cache-control"] == "no-store"
