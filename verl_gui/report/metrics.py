"""The metrics of a run, as verl's ``file`` logger writes them, and what they mean.

Metric names differ with the recipe (data source, reward fields) and with what is switched on, so a question
such as "what is the validation success rate" has a list of names, best first; the first one present
answers.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"

_VALIDATION = r"val-(?:core|aux)/.+/{}/mean@\d+"  # verl: section/data source/reward field/statistic

VALIDATION_SUCCESS = (
    r"success/val(?:idation)?(?:/mean)?",
    _VALIDATION.format("acc"),
    _VALIDATION.format("success"),
    _VALIDATION.format("score"),
    _VALIDATION.format("reward"),
)
TRAIN_SUCCESS = (r"success/(?:train|mean)(?:/mean)?", r"reward/score(?:/mean)?", r"critic/score/mean")


def parse_line(line: str | bytes) -> tuple[int, dict[str, float]] | None:
    """Step and metrics of one line, None when it is not one. Values that are not numbers are left out."""
    try:
        record = json.loads(line)
        step, data = int(record["step"]), record["data"]
        items = data.items()
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    return step, {str(name): float(value) for name, value in items if isinstance(value, int | float)}


def read_metrics(run_dir: str | os.PathLike[str]) -> dict[int, dict[str, float]]:
    """Metrics by step, in order of step; empty when the run wrote none.

    A run that was resumed has older parts (``metrics-1.jsonl``, ``metrics-2.jsonl``, …): a later part
    replaces what the earlier ones said about the steps from its first one on.
    """
    directory = Path(run_dir)
    parts = sorted(directory.glob("metrics-*.jsonl"), key=lambda path: (len(path.name), path.name))
    steps: dict[int, dict[str, float]] = {}
    for path in [*parts, directory / METRICS_FILE]:
        if not path.is_file():
            continue
        fresh: dict[int, dict[str, float]] = {}
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            parsed = parse_line(line)
            if parsed is None:
                logger.warning("%s line %d is left out: not a metrics record", path, number)
            else:
                fresh.setdefault(parsed[0], {}).update(parsed[1])
        if fresh:
            steps = {step: data for step, data in steps.items() if step < min(fresh)}
            steps.update(fresh)
    return dict(sorted(steps.items()))


def value(data: Mapping[str, float], patterns: Sequence[str]) -> float | None:
    """The first of ``patterns`` (whole-name regular expressions) that ``data`` answers.

    Several matches of one pattern (one for each data source) are averaged; infinities and NaN do not count.
    """
    for pattern in patterns:
        found = [
            number for name, number in data.items() if re.fullmatch(pattern, name) and math.isfinite(number)
        ]
        if found:
            return sum(found) / len(found)
    return None


def series(steps: Mapping[int, Mapping[str, float]], patterns: Sequence[str]) -> list[tuple[int, float]]:
    """``(step, value)`` wherever one of ``patterns`` has an answer.

    One pattern answers for the whole run: the first that answers anywhere.
    """
    for pattern in patterns:
        points = [
            (step, number) for step, data in steps.items() if (number := value(data, [pattern])) is not None
        ]
        if points:
            return points
    return []
