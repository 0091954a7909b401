"""Contents of a page beside its text: blocks of data, scripts and style.

A page is one file that asks for nothing from any network. Its Content-Security-Policy allows exactly the
script that hpcprof ships, by its hash, so that no name in a profile can run,
even if it were written unescaped.
"""

import gzip
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec
from markupsafe import Markup

DIST = Path(__file__).parents[1] / "web" / "dist"
"""The bundle that ``npm run build`` makes in the folder above."""


class Bundle(msgspec.Struct, frozen=True):
    """The script and the style of the pages, and the policy that allows them and nothing else."""

    script: Markup
    style: Markup
    policy: str


def block(name: str, value: object) -> Markup:
    """Return a value as a script element of data, which ``readBlock(name)`` reads in the page.

    The value is JSON, compressed by gzip and written in base64, whose characters end no element.
    """
    # Without a time, so that the same data make the same page.
    packed = gzip.compress(msgspec.json.encode(value), compresslevel=9, mtime=0)
    return Markup('<script type="application/x-hpcprof" id="{}">{}</script>').format(
        name, b64encode(packed).decode("ascii")
    )


@cache
def bundle() -> Bundle:
    """Return the script and the style that hpcprof ships."""
    script = (DIST / "page.js").read_text(encoding="utf-8")
    digest = b64encode(sha256(script.encode("utf-8")).digest()).decode("ascii")
    # Charts set styles of their own; a style can load nothing here.
    allowed = {
        "default-src": "'none'",
        "script-src": f"'sha256-{digest}'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    policy = "; ".join(f"{name} {value}" for name, value in allowed.items())
    style = (DIST / "page.css").read_text(encoding="utf-8")
    return Bundle(Markup(script), Markup(style), policy)
