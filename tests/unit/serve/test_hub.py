"""Addresses of databases and of pages that a hub is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import make_url
from starlette.testclient import TestClient

from hpcprof.serve.grants import create_grant
from hpcprof.serve.guard import LOCAL_NAMES, Access, all_names
from hpcprof.serve.hub import _in_schema, _requested_page, make_hub


def test_the_schema_of_a_project_joins_the_options_of_the_url() -> None:
    db = "postgresql+psycopg://me:s%40x@host/db?options=-csearch_path%3Dpublic%20-cwork_mem%3D64MB&sslmode=require"
    url = make_url(_in_schema(db, "hpcprof_train"))
    assert url.query["options"] == "-csearch_path=public -cwork_mem=64MB -csearch_path=hpcprof_train"
    assert url.query["sslmode"] == "require" and url.password == "s@x"
    assert make_url(_in_schema("postgresql://h/db", "a")).query["options"] == "-csearch_path=a"


def test_the_page_that_a_reader_wants_has_no_token_in_its_address() -> None:
    scope = {"raw_path": b"/compare", "query_string": b"a=1&token=x&b=%2F"}
    assert _requested_page(scope) == "/compare?a=1&b=%2F"
    assert _requested_page({"raw_path": b"/runs/" + b"x" * 4000, "query_string": b""}) == "/runs"


def test_where_the_database_is_concerns_no_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = create_grant(tmp_path, "ci", "train", "push")
    hub = make_hub(tmp_path, None, Access(all_names(LOCAL_NAMES), port=8765))
    client = TestClient(hub, base_url="http://127.0.0.1:8765", headers={"Authorization": f"Bearer {token}"})
    database = tmp_path / "train" / "hpcprof.db"
    database.parent.mkdir()
    pages = [f"/api/push/{'0' * 64}", "/runs", "/runs/x", "/api/runs"]
    said = []
    for asked in (pages[:1], pages):  # before the project is known, and when it is
        database.write_bytes(b"no database " * 100)
        said += [client.get(path) for path in asked]
        database.unlink()
        client.get(pages[0])
    for one in said:
        assert one.status_code == 503 and "database cannot be used now." in one.text
        assert str(tmp_path) not in one.text
    assert said[2].text.startswith("<!DOCTYPE") and [*said[4].json()] == ["error"]
    assert str(database) in capsys.readouterr().err


def test_a_program_learns_whether_its_token_or_any_is_missing(tmp_path: Path) -> None:
    hub = make_hub(tmp_path, None, Access(all_names(LOCAL_NAMES), port=8765))
    client = TestClient(hub, base_url="http://127.0.0.1:8765")
    assert "a token is needed" in client.get("/api/runs").json()["error"]
    expired = client.get("/api/runs", headers={"Authorization": "Bearer " + "x" * 43})
    assert expired.status_code == 401 and "has expired" in expired.json()["error"]
