"""The JSON Schemas of site and job files, by which editors complete and check them."""

import ast
import inspect
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import msgspec

from hpcprof.submit.jobs import job_file
from hpcprof.submit.jobs.job_file import described_keys, job_file_model
from hpcprof.submit.schedulers.registry import BUILT_IN, find_scheduler, scheduler_names
from hpcprof.submit.sites import model as site_model
from hpcprof.submit.sites.model import Site

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def site_schema() -> dict[str, Any]:
    """Return the schema of a site file: each key described, without ``name`` and with ``extends``."""
    schema = _schema(Site, descriptions(site_model))
    # A site that extends another one may set any part of a mapping.
    for definition in schema["$defs"].values():
        definition.pop("required", None)
    site = schema["$defs"]["Site"]
    del site["properties"]["name"], site["properties"]["scheduler_keys"]
    site["properties"] = {
        "extends": {"type": "string", "description": "The site whose keys this one starts from."},
        **site["properties"],
    }
    site["properties"]["scheduler"]["enum"] = scheduler_names()
    for name in BUILT_IN:
        keys = find_scheduler(name).keys
        if keys.__struct_fields__:
            described = descriptions(import_module(keys.__module__))
            definitions = _schema(keys, described)["$defs"]
            site["properties"][name] = definitions.pop(keys.__name__)
            schema["$defs"].update(definitions)
    site["anyOf"] = [{"required": ["scheduler"]}, {"required": ["extends"]}]
    return {"$schema": _DIALECT, "title": "hpcprof site", **schema}


def job_schema() -> dict[str, Any]:
    """Return the schema of a job file, with a description of every key."""
    described = {**descriptions(job_file), "JobFile": described_keys()}
    return {"$schema": _DIALECT, "title": "hpcprof job", **_schema(job_file_model(), described)}


def _schema(model: type[msgspec.Struct], described: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    schema = msgspec.json.schema(model)
    for name, definition in schema["$defs"].items():
        for key, field in definition.get("properties", {}).items():
            field["description"] = described[name][key]
    return schema


def descriptions(module: ModuleType) -> dict[str, dict[str, str]]:
    """Return the text under each field of a module's models, by model and field."""
    tree = ast.parse(inspect.getsource(module))
    models = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {model.name: dict(_described_keys(model)) for model in models}


def _described_keys(model: ast.ClassDef) -> list[tuple[str, str]]:
    texts = []
    for field, after in zip(model.body, model.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            texts.append((field.target.id, str(after.value.value)))
    return texts
