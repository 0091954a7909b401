"""Names that are to stand for the hub's own files, metrics or markup, and errors that quote a token."""

from __future__ import annotations

import logging
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from hpcprof.report.page.blocks import block
from hpcprof.serve import api
from hpcprof.serve.grants import create_grant
from hpcprof.serve.guard import LOCAL_NAMES, Access, all_names
from hpcprof.serve.hub import make_hub
from hpcprof.serve.log import CauseLimit
from tests.attacks.packages import described, package, results

_FORGED = 'x"} 1\nhpcprof_run_ranks{program="train",site="s"} 77\n# EOF\n'
_LABELS = ["good", _FORGED, "a\\", 'a\\"', "a}\n", "\r\x85\N{LINE SEPARATOR}x", "a\0", '\\n"', "{", ',site="']
_IDS = [
    "CON",
    "hpcprof.db",
    "timeline",
    "grants.json",
    "é",
    "events",
    "pushed",
    "runs",
    "__proto__",
    "0" * 64,
]


def _push(client: TestClient, token: str, content: bytes) -> Any:
    sent = {"Upload-Offset": "0", "Upload-Length": str(len(content)), "Authorization": f"Bearer {token}"}
    return client.put(f"/api/push/{sha256(content).hexdigest()}", content=content, headers=sent)


def _named(run: str, **listed: Any) -> bytes:
    """Return a package of a run without profiles, with its program by its site."""
    program = [listed.get("site")]
    rows = results(runs={"id": [run], "path": [""], "program": program})
    return package(described(run=run, **listed), rows)


def test_names_stay_in_their_labels_and_ids_in_their_folders(tmp_path: Path) -> None:
    token = create_grant(tmp_path, "eve", "train", "push")
    hub = make_hub(tmp_path, None, Access(all_names(LOCAL_NAMES), port=8765))
    with TestClient(hub, base_url="http://127.0.0.1:8765") as client:
        for number, name in enumerate(_LABELS):
            assert _push(client, token, _named(f"r{number}", site=name, ranks=3)).status_code == 200
        before = {path: path.stat().st_size for path in tmp_path.rglob("*") if path.suffix != ".db"}
        for run in _IDS:
            assert _push(client, token, _named(run)).status_code == 200
        assert _push(client, token, _named("last")).status_code == 400
        shown = client.get("/metrics", headers={"Authorization": f"Bearer {token}"}).text
    families = text_string_to_metric_families(shown)  # type: ignore[no-untyped-call]
    samples = [one for family in families for one in family.samples if one.name == "hpcprof_run_ranks"]
    assert len(samples) == len(_LABELS) and {one.value for one in samples} == {3.0}
    new = {path for path in tmp_path.rglob("*") if path.suffix != ".db"} - before.keys()
    assert {path.parent.name for path in new} == {"collected"}
    assert all(path.name.startswith("run=") for path in new)
    assert all(path.stat().st_size == size for path, size in before.items() if path.is_file())


def test_an_internal_error_that_quotes_its_request_writes_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(request: Any) -> None:
        raise RuntimeError(f"{request.url} {dict(request.headers)}")

    monkeypatch.setitem(api.READS, "/api/runs", failing)
    token = create_grant(tmp_path, "eve", "train", "read")
    hub = make_hub(tmp_path, None, Access(all_names(LOCAL_NAMES), port=8765))
    address = f"http://localhost/runs?token={token}"
    sent = {"Authorization": f"Bearer {token}", "Referer": address, "Cookie": f"hpcprof_8765={token}"}
    caplog.handler.addFilter(limit := CauseLimit())
    try:
        with (
            TestClient(hub, base_url="http://127.0.0.1:8765") as client,
            pytest.raises(RuntimeError) as raised,
        ):
            client.get(f"/api/runs?token={token}", headers=sent)
        logging.getLogger("uvicorn.error").error("Exception in ASGI application\n", exc_info=raised.value)
        said = caplog.handler.format(caplog.records[-1])
    finally:
        caplog.handler.removeFilter(limit)
    assert "RuntimeError" in said and "Traceback" in said and token not in said


@pytest.mark.parametrize("name", ["<img src=x onerror=1>", "</script><script>1</script>", "<!--<script>"])
def test_no_name_ends_the_data_of_a_page(name: str) -> None:
    element = str(block("run", {"hosts": [name], name: name}))
    _, _, data = element.partition(">")
    assert not {"<", ">", "&", "!", '"'} & set(data.removesuffix("</script>"))
