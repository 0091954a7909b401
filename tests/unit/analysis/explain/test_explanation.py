"""The text and the JSON of an explanation."""

from __future__ import annotations

import json
from dataclasses import replace

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explanation import Explanation
from tests.unit.explanations import MS, STEP, explained, finding


def test_findings_below_the_bar_are_not_shown() -> None:
    shown, small, uncertain = finding(3, 1), finding(2.9, 2.9), finding(5, 0.9)
    assert explained(small, uncertain, shown).shown() == (shown,)


def test_findings_are_shown_in_their_order_and_one_without_an_estimate_last() -> None:
    unknown, five, nine = finding(None), finding(5), finding(9)
    assert explained(unknown, five, nine).shown() == (five, nine, unknown)
    assert explained(unknown, nine, five).in_short().findings == (nine, five, unknown)


def test_an_explanation_in_a_prompt_is_one_line_with_its_causes() -> None:
    assert repr(explained(finding(5))) == f"<hpcprof explanation: {finding(5).cause}>"
    assert repr(explained()) == "<hpcprof explanation: no finding>"


def test_without_steps_no_saving_is_claimed() -> None:
    unknown = finding(None, cause=Cause.CAPTURE_INCOMPLETE)
    assert explained(finding(50), unknown, step=replace(STEP, wall_p50_ns=None)).shown() == (unknown,)


def test_json_has_the_keys_of_the_contract() -> None:
    found = explained(finding(13)).as_json()
    assert set(found) == {"findings", "hidden", "not_judged", "step", "stall", "failure", "slower"}
    assert found["findings"] == [
        {
            "cause": "host_work",
            "ranks": [0, 1],
            "where": "data",
            "saving_ns": 13 * MS,
            "saving_low_ns": 13 * MS,
            "saving_high_ns": 13 * MS,
            "share_pct": 13,
            "evidence": [{"analysis": "idle_causes", "rank": 0, "key": "idle_ns_per_step", "value": 13 * MS}],
            "remedy": "Prefetch.",
            "confidence": "high",
            "evidence_text": ["rank 0: the GPU is idle for 13.00 ms of a step while the host is in data"],
            "steps": [],
            "alternatives": [],
            "together": [],
            "source": None,
            "kind": None,
            "culprit": None,
        }
    ]
    assert found["hidden"][0]["cost_ns"] == 20 * MS
    assert found["hidden"][0]["limits_after"] is None
    assert found["not_judged"] == [{"what": "contention", "reason": "one rank was profiled"}]
    assert {"wall_p50_ns", "elapsed_ns", "kinds", "steps", "ranks", "source"} <= set(found["step"])


def test_a_kept_explanation_is_written_as_it_was() -> None:
    values = explained(finding(13)).as_json()
    assert Explanation.from_json(values).as_json() == values


def test_the_bar_is_a_share_of_elapsed_time() -> None:
    # 2.5 ms are 2.5 % of the median step of 100 ms, and 3.1 % of 80 ms.
    small = finding(2.5)
    assert not explained(small).shown()
    assert explained(small, step=replace(STEP, elapsed_ns=80 * MS)).shown() == (small,)


def test_an_explanation_survives_json() -> None:
    found = explained(finding(13), finding(None))
    assert Explanation.from_json(json.loads(json.dumps(found.as_json()))) == found
