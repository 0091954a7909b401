"""Addresses of databases and of pages that a hub is asked for."""

from __future__ import annotations

from sqlalchemy.engine import make_url

from hpcprof.serve.hub import _in_schema, _wanted


def test_the_schema_of_a_project_joins_the_options_of_the_url() -> None:
    db = "postgresql+psycopg://me:s%40x@host/db?options=-csearch_path%3Dpublic%20-cwork_mem%3D64MB&sslmode=require"
    url = make_url(_in_schema(db, "hpcprof_train"))
    assert url.query["options"] == "-csearch_path=public -cwork_mem=64MB -csearch_path=hpcprof_train"
    assert url.query["sslmode"] == "require" and url.password == "s@x"
    assert make_url(_in_schema("postgresql://h/db", "a")).query["options"] == "-csearch_path=a"


def test_the_page_that_a_reader_wants_has_no_token_in_its_address() -> None:
    scope = {"raw_path": b"/compare", "query_string": b"a=1&token=x&b=%2F"}
    assert _wanted(scope) == "/compare?a=1&b=%2F"
    assert _wanted({"raw_path": b"/runs/" + b"x" * 4000, "query_string": b""}) == "/runs"
