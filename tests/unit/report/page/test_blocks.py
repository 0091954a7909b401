"""The blocks of a page beside its text."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode, b64encode
from hashlib import sha256

from hpcprof.report.page.blocks import DIST, block, bundle

MAX_BYTES = 1_500_000


def test_a_block_holds_its_value_and_no_text_of_it_ends_the_element() -> None:
    value = {"name": "</script><script>", "times": [1, 2, 2**60]}
    made = block("charts-data", value)
    (name, packed) = re.findall(
        r'^<script type="application/x-hpcprof" id="(.*?)">([\w+/=]*)</script>$', made
    )[0]
    assert name == "charts-data"
    assert json.loads(gzip.decompress(b64decode(packed))) == value


def test_the_same_value_makes_the_same_block() -> None:
    assert block("a", [1]) == block("a", [1])


def test_the_policy_allows_the_shipped_script_and_no_connection() -> None:
    made = bundle()
    digest = b64encode(sha256(str(made.script).encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in made.policy
    assert made.policy.startswith("default-src 'none';")
    assert "http" not in made.policy


def test_the_script_cannot_end_its_element_and_the_bundle_is_small() -> None:
    script = bundle().script.lower()
    assert "</script" not in script and "<!--" not in script
    assert "</style" not in bundle().style.lower()
    assert sum(path.stat().st_size for path in DIST.iterdir()) < MAX_BYTES
