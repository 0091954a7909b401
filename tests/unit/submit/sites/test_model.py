"""The JSON Schema of site files, and the page that documents their keys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from hpcprof.cli.sites import command
from hpcprof.common.paths import packaged_folder
from hpcprof.submit.sites import model as site_model
from hpcprof.submit.sites.model import Affinity, Launcher, Node, Queue, Site, SiteOption
from hpcprof.submit.sites.schema import descriptions, job_schema, site_schema

ROOT = Path(__file__).parents[4]
TITLES: dict[type[Any], str] = {
    Site: "The keys",
    Launcher: "`launcher`",
    Node: "`node`",
    Affinity: "`affinity`",
    Queue: "`queues`",
    SiteOption: "`options`",
}
MODELS = tuple(TITLES)
FILES = sorted(packaged_folder("site_configs").glob("*.yaml"))


def validate(data: Any) -> None:
    jsonschema.Draft202012Validator(site_schema()).validate(data)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_packaged_site_file_follows_the_schema(path: Path) -> None:
    # JSON knows only text as keys, as an editor that checks YAML by a JSON Schema does.
    validate(json.loads(json.dumps(yaml.safe_load(path.read_text(encoding="utf-8")))))


@pytest.mark.parametrize(
    "data",
    [
        {"description": "neither a scheduler nor a site to extend"},
        {"scheduler": "sge"},
        {"scheduler": "pbs", "worktime": 5},
        {"scheduler": "pbs", "name": "a site is named by its file"},
        {"scheduler": "pbs", "queues": {"debug": {"nodes": 2}}},
        {"scheduler": "pbs", "environment": {"A B": "x"}},
    ],
)
def test_what_hpcprof_refuses_the_schema_refuses_too(data: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate(data)


def test_the_command_prints_the_schema_as_json() -> None:
    printed = CliRunner().invoke(command, ["schema"])
    schema = json.loads(printed.output)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema == site_schema()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_key_has_a_description(model: type[Any]) -> None:
    described = descriptions(site_model)[model.__name__]
    assert set(described) == set(model.__struct_fields__)
    assert all(described.values())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_key_stands_in_the_documentation(model: type[Any]) -> None:
    text = (ROOT / "docs/reference/sites.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {TITLES[model]}\n")[1].split("\n## ")[0]
    rows = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert rows - {"extends"} == set(model.__struct_fields__) - (
        {"name", "scheduler_keys"} if model is Site else set()
    )


def test_a_job_file_has_a_schema_too_that_describes_every_key() -> None:
    printed = CliRunner().invoke(command, ["schema", "--job"])
    schema = json.loads(printed.output)
    assert schema == json.loads(json.dumps(job_schema()))
    jsonschema.Draft202012Validator(schema).validate(
        yaml.safe_load((ROOT / "examples/polaris-workshop/workshop.yaml").read_text())
    )
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({"node": 2})
    assert all(field["description"] for field in schema["$defs"]["JobFile"]["properties"].values())
