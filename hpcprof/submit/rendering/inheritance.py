"""The templates that a template extends, found by parsing them; nothing is rendered."""

import msgspec
from jinja2 import Environment, TemplateNotFound, nodes

from hpcprof.common.errors import UsageError


class ParsedTemplate(msgspec.Struct, frozen=True):
    """A template: its name, its file and its syntax tree."""

    name: str
    file: str
    tree: nodes.Template

    @property
    def extends(self) -> nodes.Const | None:
        """The name of the template that this one extends; None if there is none, or if it is computed."""
        extends = next(self.tree.find_all(nodes.Extends), None)
        return extends.template if extends and isinstance(extends.template, nodes.Const) else None


def inheritance(environment: Environment, name: str) -> list[ParsedTemplate]:
    """Return a template and those that it extends, without missing ones; circles are refused."""
    assert environment.loader is not None
    chain: list[ParsedTemplate] = []
    while True:
        try:
            source, file, _ = environment.loader.get_source(environment, name)
        except TemplateNotFound:
            return chain
        chain.append(ParsedTemplate(name, file or name, environment.parse(source, name, file)))
        parent = chain[-1].extends
        if parent is None:
            return chain
        name = parent.value
        if name in [template.name for template in chain]:
            raise UsageError(
                f"template {chain[-1].file}, line {parent.lineno}: it extends {name!r}, which is "
                f"{'this file itself' if name == chain[-1].name else 'extended from this file'}; rename the "
                "file and use it with --template, or make it a full copy (hpcprof templates export)."
            )
