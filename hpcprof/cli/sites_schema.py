"""The JSON Schema of a site file, by which editors complete and check it."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import msgspec

from hpcprof import site_model
from hpcprof.site_model import Site

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def site_schema() -> dict[str, Any]:
    """Return the schema of a site file, with a description of every key.

    A file has no ``name`` (that is the file's own), and may have ``extends``.
    """
    schema = msgspec.json.schema(Site)
    definitions = schema["$defs"]
    described = descriptions()
    for name, definition in definitions.items():
        for key, field in definition.get("properties", {}).items():
            field["description"] = described[name][key]
        # Part of what an extended site says can be changed without saying all of it again.
        definition.pop("required", None)
    site = definitions["Site"]
    del site["properties"]["name"]
    site["properties"] = {
        "extends": {"type": "string", "description": "The site whose keys this one starts from."},
        **site["properties"],
    }
    site["anyOf"] = [{"required": ["scheduler"]}, {"required": ["extends"]}]
    return {"$schema": _DIALECT, "title": "hpcprof site", **schema}


def descriptions() -> dict[str, dict[str, str]]:
    """Return the text under each field of the models, by model and field."""
    tree = ast.parse(inspect.getsource(site_model))
    models = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {model.name: dict(_described(model)) for model in models}


def _described(model: ast.ClassDef) -> list[tuple[str, str]]:
    found = []
    for field, after in zip(model.body, model.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found.append((field.target.id, str(after.value.value)))
    return found
