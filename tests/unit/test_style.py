"""The English of the project: a subject first, one main clause, named quantities, and nouns for variables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "hpcprof").rglob("*.py"))
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])

_VAGUE = re.compile(r"\bso (?:many|much)\b|\bfrom which on\b", re.IGNORECASE)
_NO_SUBJECT = re.compile(r"(?:Of|What|Whatever|Whoever|Whose)\b.*[.:;]$", re.DOTALL)
_RELATIVE = re.compile(r"\bwhich\b|\bthat of\b|\bthose of\b", re.IGNORECASE)

_LINK = re.compile(r"\[[^\]]*\]\([^)]*\)")
_PARAGRAPH = re.compile(r"\n\s*\n|\n\s*[\w*, ]+ : [^\n]*\n|\n\s*(?:[-*|#]|\d+\.)\s|\|")
"""Between paragraphs, items, cells of a table, and the fields of a NumPy docstring."""
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\[])")

_NO_NOUN = re.compile(
    r"found|one|own|known|some|told|what|asked|there|of_\w+|said|kept|mine|shown|seen|given|rest|others|done"
)
"""Names of variables that say nothing of what they hold."""

_ADJECTIVES = re.compile(
    r"_(?:(?:"
    r"aligned|alike|allowed|alone|annotated|apart|around|assembled|balanced|before|begun|beside|best|"
    r"between|bound|built|captured|changed|chosen|cleaned|common|compared|computed|counted|covered|"
    r"damaged|decoded|described|different|distinct|drawn|during|each|earlier|earliest|empty|encoded|"
    r"ended|entered|every|exact|explained|exposed|few|first|fixed|flat|found|free|full|given|gone|grown|"
    r"held|here|hidden|idle|inside|joined|judged|kept|known|labelled|largest|last|late|later|latest|"
    r"least|left|listed|long|longest|looked|lost|lower|made|marked|matched|measured|merged|missing|more|"
    r"most|named|near|nearest|needed|next|none|noted|numbered|odd|old|on|one|open|other|others|outer|"
    r"outside|over|own|paired|parsed|placed|plain|possible|present|private|quick|raw|reached|recorded|"
    r"reduced|repeated|right|said|same|scaled|seen|sent|several|shared|shifted|short|shown|silent|slow|"
    r"slowest|small|spent|split|stored|taken|timed|told|together|typical|unique|unknown|unmatched|"
    r"unnamed|used|usual|wanted|whole|with|within|without|written|wrong"
    r")(?:_|$))+",
    re.IGNORECASE,
)
"""Names of functions and constants that have adjectives, participles and prepositions alone."""

_OLD_NAMES = {
    "results/api.py": 1,
    "submit/profilers/base.py": 1,
}
"""Modules of `hpcprof` with such names, and their maximum number: it may only fall."""

Text = tuple[int, str]
"""The line in which a text begins, and the text."""


def text_of(literal: ast.JoinedStr) -> str:
    """Return a formatted string with a word in the place of each value."""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in literal.values)


def comments(source: str) -> Iterator[Text]:
    """Yield the comments of a file that have lines of their own, neighbouring lines together."""
    for block in re.finditer(r"(?:^ *#.*\n)+", source, re.MULTILINE):
        lines = (line.strip().lstrip("#") for line in block.group().splitlines())
        yield source.count("\n", 0, block.start()) + 1, " ".join(lines)


def texts(path: Path) -> Iterator[Text]:
    """Yield the docstrings, messages and comments of a module, without single words."""
    source = path.read_text()
    yield from comments(source)
    parts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts.update(map(id, node.values))
            yield node.lineno, text_of(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value if " " in node.value else ""


def page_texts(path: Path) -> Iterator[Text]:
    """Yield the prose of a page, without its examples and its title; in the changelog the unreleased part."""
    prose = re.sub(r"```.*?```|^#[^#\n]* .*?$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    yield 1, prose.split("\n## 0.3.0")[0]


def fault(sentence: str) -> str:
    """Return the rule that a sentence breaks, empty for none."""
    if _VAGUE.search(sentence):
        return "name the quantity, its unit and its effect"
    if _NO_SUBJECT.match(sentence):
        return "begin with the subject"
    if len(_RELATIVE.findall(_LINK.sub("", sentence))) > 1 and not sentence.endswith("?"):
        return "repeat the noun: one 'which', 'that of' or 'those of' in a sentence"
    return ""


def faults(text: str) -> Iterator[str]:
    """Yield a line for each sentence of a text that breaks a rule."""
    for paragraph in _PARAGRAPH.split("\n" + text):
        for sentence in _SENTENCE.split(" ".join(paragraph.split())):
            if rule := fault(sentence):
                yield f"{rule}: {sentence}"


def names(path: Path) -> Iterator[Text]:
    """Yield what a module names: variables and arguments, but no fields of classes, and functions.

    Decorated functions and those that return truth values are left out: properties and predicates.
    """
    tree = ast.parse(path.read_text())
    fields: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields.update(id(line.target) for line in node.body if isinstance(line, ast.AnnAssign))
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            returned = node.returns.id if isinstance(node.returns, ast.Name) else ""
            if not node.decorator_list and returned not in ("bool", "Mask"):
                yield node.lineno, f"{node.name}()"


def module_name(path: Path) -> str:
    """Return the path of a module within the package."""
    return path.relative_to(ROOT / "hpcprof").as_posix()


@cache
def says_nothing(name: str) -> bool:
    """Return whether a name, with ``()`` if of a function, says nothing of what it stands for."""
    if name.startswith("_"):
        return _ADJECTIVES.fullmatch(name.rstrip("()")) is not None
    return _NO_NOUN.fullmatch(name) is not None


def test_names_are_nouns_and_verbs_of_the_domain() -> None:
    unnamed = {
        module_name(path): [f"{line}: {name}" for line, name in names(path) if says_nothing(name)]
        for path in SOURCES
    }
    assert {name: lines for name, lines in unnamed.items() if len(lines) > _OLD_NAMES.get(name, 0)} == {}


def test_docstrings_comments_and_messages_are_plain_sentences() -> None:
    assert not [
        f"{path.relative_to(ROOT)}:{line}: {broken}"
        for path in SOURCES
        for line, text in texts(path)
        for broken in faults(text)
    ]


def test_pages_are_plain_sentences() -> None:
    assert not [
        f"{path.relative_to(ROOT)}: {broken}"
        for path in PAGES
        for _, text in page_texts(path)
        for broken in faults(text)
    ]


def test_the_rules_find_what_has_to_be_decoded() -> None:
    assert [
        next(faults(text)).partition(":")[0]
        for text in (
            "So many ranks are replayed.",
            "Of two files the newer one counts.",
            "The length is that of the series which the profile has.",
        )
    ] == [
        "name the quantity, its unit and its effect",
        "begin with the subject",
        "repeat the noun",
    ]
    assert [name for name in ("said", "_kept()", "_USUAL", "kept_rows", "_keep()") if says_nothing(name)] == [
        "said",
        "_kept()",
        "_USUAL",
    ]
    assert not list(faults("What to do next"))
    assert not list(faults("Which rank waits, and in which call?"))
