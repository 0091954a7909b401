"""The data inside a page, as its script reads them."""

from __future__ import annotations

import gzip
import re
from base64 import b64decode

_BLOCK = re.compile(r'<script type="application/x-hpcprof" id="([^"]+)">([^<]*)</script>')


def blocks(page: str) -> dict[str, str]:
    """Return the JSON of each block of a page by its id."""
    return {name: gzip.decompress(b64decode(packed)).decode() for name, packed in _BLOCK.findall(page)}
