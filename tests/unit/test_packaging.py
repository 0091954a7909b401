"""The metadata for indices and other package managers agree with setup.cfg."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest
import yaml

from hpcprof.common import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture
def settings() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


@pytest.fixture
def required(settings: configparser.ConfigParser) -> dict[str, str]:
    """The oldest version of each dependency, by its name in lower case."""
    lines = settings["options"]["install_requires"].split()
    versions = {name.lower(): version for name, version in (line.split(">=") for line in lines)}
    return {**versions, "python": settings["options"]["python_requires"].removeprefix(">=")}


def test_the_spack_package_names_the_dependencies(required: dict[str, str]) -> None:
    tree = ast.parse((ROOT / "packaging/spack/package.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    specs = [
        str(call.args[0].value)
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "depends_on"
        and isinstance(call.args[0], ast.Constant)
    ]
    names = [re.fullmatch(r"(?:py-)?([\w-]+)@([\d.]+):", spec) for spec in specs]
    named = {name[1]: name[2] for name in names if name is not None}
    assert named.pop("setuptools") == "64"
    assert named == required


def test_the_conda_recipe_names_the_dependencies_and_the_version(required: dict[str, str]) -> None:
    recipe = yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text())
    assert dict(line.split(" >=") for line in recipe["requirements"]["run"]) == required
    assert recipe["package"] == {"name": "hpcprof", "version": __version__}


def test_the_citation_and_the_metadata_are_complete(settings: configparser.ConfigParser) -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["title"]) == (__version__, "hpcprof")
    metadata = settings["metadata"]
    assert metadata["author"] == citation["authors"][0]["name"]
    assert {"description", "keywords", "license", "classifiers", "long_description"} <= {*metadata}


@pytest.mark.parametrize("file", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_examples_for_ci_install_from_the_repository(file: str) -> None:
    text = (ROOT / "examples/ci" / file).read_text()
    assert 'pip install "hpcprof @ git+$HPCPROF_SOURCE"' in text and "pip install hpcprof" not in text
