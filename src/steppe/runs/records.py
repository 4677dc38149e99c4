"""The records of rounds: as lines of JSON, and as rows of a table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from steppe.core.metric import Metric

Record = dict[str, Any]


def restore_number(value: float | None) -> float:
    """Return a number of a record, which has null where it was not finite."""
    return math.nan if value is None else float(value)


def describe_score(summary: Record, metric: Metric) -> str:
    """Return the final model's metric in words. Without test data, a summary has no metrics."""
    if summary["last"] is None:
        return f"{metric.name} not finite" if summary.get("metrics") else "no test data"
    return metric.text(summary["last"])


def tabulate(records: Sequence[Record]) -> list[Record]:
    """Return the records as rows of a table: nested keys are joined by dots, and lists are left out.

    >>> tabulate([{"round": 1, "seconds": {"all": 2.0}, "participants": [3, 5]}])
    [{'round': 1, 'seconds.all': 2.0}]
    """
    return [{k: v for k, v in _flatten(replace_non_finite(r)).items() if not isinstance(v, list)} for r in records]


def format_line(record: Record) -> str:
    """Return a record as a line of rounds.jsonl."""
    return json.dumps(replace_non_finite(record), allow_nan=False) + "\n"


def replace_non_finite(content: Any) -> Any:
    """Replace every number that JSON cannot hold by None."""
    if isinstance(content, dict):
        return {k: replace_non_finite(v) for k, v in content.items()}
    if isinstance(content, list | tuple):
        return [replace_non_finite(v) for v in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _flatten(record: Record, prefix: str = "") -> Record:
    flat: Record = {}
    for key, value in record.items():
        flat.update(_flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return flat
