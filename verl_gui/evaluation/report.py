"""The outcome of ``verl-gui eval``: a table for people, ``evaluation.json`` for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_gui.evaluation.cost import cost
from verl_gui.evaluation.runs import Run, tally
from verl_gui.evaluation.scores import Score, score, scores_by
from verl_gui.evaluation.session import Session
from verl_gui.evaluation.text import align
from verl_gui.tasks.sources import TaskInstance


def summarize(
    instances: Sequence[TaskInstance],
    runs: Sequence[Run],
    sessions: Sequence[Session],
    settings: Mapping[str, Any],
    *,
    ks: Sequence[int],
) -> tuple[dict[str, Any], str]:
    """Scores of everything, of each domain and of each task.

    Args:
        instances: what was evaluated. runs: all results. sessions: the sittings.
        settings: what the results depend on.
        ks: the k of the pass@k wanted.

    Returns:
        The content of ``evaluation.json``, and the table.
    """
    tallies = tally(runs, instances)
    overall = score(tallies.values(), ks=ks)
    domains = scores_by("domain", instances, tallies, ks=ks)
    tasks = scores_by("task", instances, tallies, ks=ks)
    content = {
        "settings": dict(settings),
        "overall": overall.to_json(),
        "domains": {name: s.to_json() for name, s in domains.items()},
        "tasks": {name: s.to_json() for name, s in tasks.items()},
        "instances": {
            name: {"successes": t.successes, "valid": t.valid, "invalid": t.invalid, "rate": t.rate}
            for name, t in tallies.items()
        },
        "cost": cost([run for run in runs if run.instance in tallies], sessions),
    }
    rows = {**(tasks if len(tasks) <= 50 else {}), **domains, "all": overall}
    return content, table(rows, ks)


def table(rows: Mapping[str, Score], ks: Sequence[int]) -> str:
    """Rows of scores as aligned text."""
    shown = [k for k in ks if any(k in s.pass_k for s in rows.values())]
    head = ["", "tasks", "runs", "invalid", "pass@1", "95 % interval", *(f"pass@{k}" for k in shown), "steps"]
    lines = [head]
    for name, s in rows.items():
        lines.append(
            [
                name,
                str(s.instances),
                str(s.runs),
                str(s.invalid),
                _percent(s.pass_1),
                f"{_percent(s.interval[0])} to {_percent(s.interval[1])}" if s.runs else "-",
                *(_percent(s.pass_k.get(k)) for k in shown),
                "-" if s.steps is None else f"{s.steps:.1f}",
            ]
        )
    return align(lines)


def write_evaluation(content: Mapping[str, Any], directory: Path) -> Path:
    """Write ``evaluation.json`` and return its path."""
    file = directory / "evaluation.json"
    part = file.with_name(f"{file.name}.part")
    part.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    part.replace(file)
    return file


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f} %"
