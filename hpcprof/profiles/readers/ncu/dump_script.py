"""Prints the kernels of a report of Nsight Compute as JSON, by ncu's own Python module.

It runs in a process of its own (``python dump_script.py FOLDER REPORT``; FOLDER holds ``ncu_report.py``): the
module is a binary of ncu's installation, and a damaged report may crash it.
"""

import json
import sys
from typing import Any


def main(folder: str, report: str) -> None:
    """Print a list of kernels: the name, the metrics as pairs of value and unit, and the results of rules."""
    sys.path.insert(0, folder)
    import ncu_report  # type: ignore[import-not-found, import-untyped, unused-ignore]

    context = ncu_report.load_report(report)
    ranges = [context.range_by_idx(i) for i in range(context.num_ranges())]
    actions = [each.action_by_idx(i) for each in ranges for i in range(each.num_actions())]
    print(json.dumps([_kernel(action) for action in actions]))


def _kernel(action: Any) -> dict[str, Any]:
    metrics = {name: action.metric_by_name(name) for name in action.metric_names()}
    return {
        "name": action.name(action.NameBase_DEMANGLED),
        "metrics": {name: (metric.value(), metric.unit()) for name, metric in metrics.items()},
        # Modules before 2024 have no results of rules.
        "rules": [_rule(result) for result in getattr(action, "rule_results_as_dicts", list)()],
    }


def _rule(result: dict[str, Any]) -> tuple[str, int, str, int, float | None]:
    """Return the rule, the type of its message (`MsgType`), the message, and the type of its estimate."""
    message, estimate = result.get("rule_message", {}), result.get("speedup_estimation") or {}
    kind, text = int(message.get("type", 0)), message.get("message", "")
    return result["rule_identifier"], kind, text, int(estimate.get("type", 0)), estimate.get("speedup")


if __name__ == "__main__":
    main(*sys.argv[1:])
