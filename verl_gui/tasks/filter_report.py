"""What the task filter found: ``filter_report.json`` for programs, ``filter_report.html`` for people."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from verl_gui.evaluation.cost import cost
from verl_gui.evaluation.runs import Run, Tally
from verl_gui.evaluation.scores import score, scores_by, wilson
from verl_gui.evaluation.session import Session
from verl_gui.evaluation.text import align
from verl_gui.tasks.filter import Decision, Filtered, FilterRule
from verl_gui.tasks.sources import TaskInstance

BINS = 10
DECISIONS: tuple[Decision, ...] = ("kept", "too_hard", "too_easy", "unknown")


def histogram(tallies: Mapping[str, Tally], *, bins: int = BINS) -> list[dict[str, Any]]:
    """How many tasks have which success rate.

    A rate of exactly 0 and of exactly 1 have a bar of their own: there nothing is learnt.

    Returns:
        ``{"from", "to", "tasks"}`` with rising rates: 0, ``bins`` intervals (from, to], 1. Tasks without
        a valid run are in none.
    """
    edges = [i / bins for i in range(bins + 1)]
    counts = [0] * (bins + 2)
    for tally in tallies.values():
        if not tally.valid:
            continue
        if tally.successes == 0:
            counts[0] += 1
        elif tally.successes == tally.valid:
            counts[-1] += 1
        else:  # in whole numbers: ceil(rate * bins), without rounding errors
            counts[-(-tally.successes * bins // tally.valid)] += 1
    bounds = [(0.0, 0.0), *itertools.pairwise(edges), (1.0, 1.0)]
    return [{"from": low, "to": high, "tasks": n} for (low, high), n in zip(bounds, counts, strict=True)]


def report(
    instances: Sequence[TaskInstance],
    tallies: Mapping[str, Tally],
    filtered: Filtered,
    rule: FilterRule,
    runs: Sequence[Run],
    sessions: Sequence[Session],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything the filter found, ready for JSON."""
    names = set(tallies)
    tasks = []
    for instance in instances:
        tally = tallies[instance.name]
        low, high = wilson(tally.successes, tally.valid)
        tasks.append(
            {
                "name": instance.name,
                "domain": instance.task.domain,
                "instruction": instance.task.instruction,
                "decision": filtered.decisions[instance.name],
                "successes": tally.successes,
                "valid": tally.valid,
                "invalid": tally.invalid,
                "rate": tally.rate,
                "interval": [low, high],
                "mean_score": tally.score / tally.valid if tally.valid else None,
                "shortest_success": min(tally.lengths, default=None),
                "longest_success": max(tally.lengths, default=None),
            }
        )
    return {
        "rule": asdict(rule),
        "settings": dict(settings),
        "decisions": {decision: filtered.named(decision) for decision in DECISIONS},
        "overall": score(tallies.values()).to_json(),
        "domains": {name: s.to_json() for name, s in scores_by("domain", instances, tallies).items()},
        "histogram": histogram(tallies),
        "cost": cost([run for run in runs if run.instance in names], sessions),
        "tasks": tasks,
    }


def write_report(content: Mapping[str, Any], directory: Path) -> Path:
    """Write both files; returns the page's path."""
    for name, text in (
        ("filter_report.json", json.dumps(content, indent=1, ensure_ascii=False)),
        ("filter_report.html", page(content)),
    ):
        part = directory / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(directory / name)
    return directory / "filter_report.html"


_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #8884;vertical-align:top}
th{position:sticky;top:0;background:Canvas}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.bars{display:flex;align-items:flex-end;gap:4px;height:11rem;margin:1rem 0 2rem}
.bars div{flex:1;text-align:center;font-size:.8rem}
.bars i{display:block;background:#4878a8;margin:0 2px}
.kept{color:#2a7d46}.too_hard{color:#b0413e}.too_easy{color:#8a6d1c}.unknown{color:#777}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dd{margin:0}
"""


def page(content: Mapping[str, Any]) -> str:
    """The report as one HTML file that asks for nothing else; every text in it is escaped."""
    decided = content["decisions"]
    summary = ", ".join(f"{len(decided[d])} {d.replace('_', ' ')}" for d in DECISIONS)
    bars = content["histogram"]
    highest = max((bar["tasks"] for bar in bars), default=0) or 1
    columns = "".join(
        f"<div>{bar['tasks'] or ''}<i style=height:{9 * bar['tasks'] / highest:.2f}rem></i>{_bin(bar)}</div>"
        for bar in bars
    )
    facts = "".join(
        f"<dt>{escape(str(key).replace('_', ' '))}</dt><dd>{_value(value)}</dd>"
        for part in ("rule", "settings", "cost")
        for key, value in content[part].items()
    )
    rows = "".join(_row(task) for task in content["tasks"])
    head = "<th>task</th><th>domain</th><th>decision</th>" + "".join(
        f'<th class="n">{name}</th>'
        for name in ("successes", "valid", "invalid", "rate", "95 % interval", "steps of a success")
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Task filter</title>'
        f"<style>{_STYLE}</style></head><body><h1>Task filter</h1>"
        f"<p>{len(content['tasks'])} tasks: {escape(summary)}.</p>"
        f'<h2>Success rates</h2><div class="bars">{columns}</div>'
        f"<h2>Rule, settings, cost</h2><dl>{facts}</dl>"
        f"<h2>Tasks</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></body></html>\n"
    )


def _row(task: Mapping[str, Any]) -> str:
    rate = "–" if task["rate"] is None else f"{task['rate']:.0%}"
    low, high = task["interval"]
    lengths = [task["shortest_success"], task["longest_success"]]
    steps = "–" if lengths[0] is None else "–".join(str(n) for n in dict.fromkeys(lengths))
    numbers = (task["successes"], task["valid"], task["invalid"], rate, f"{low:.0%} to {high:.0%}", steps)
    cells = "".join(f'<td class="n">{escape(str(number))}</td>' for number in numbers)
    decision = task["decision"]
    return (
        f'<tr><td title="{escape(task["instruction"], quote=True)}">{escape(task["name"])}</td>'
        f"<td>{escape(task['domain'])}</td>"
        f'<td class="{decision}">{decision.replace("_", " ")}</td>{cells}</tr>'
    )


def _bin(bar: Mapping[str, Any]) -> str:
    if bar["from"] == bar["to"]:
        return f"{bar['from']:.0%}"
    return f"≤{bar['to']:.0%}" if bar["to"] < 1 else "&lt;100%"


def _value(value: Any) -> str:
    return escape(f"{value:,.4g}" if isinstance(value, float) else str(value))


def text(content: Mapping[str, Any]) -> str:
    """The table of tasks as aligned text, and a line for each decision."""
    lines = [["task", "decision", "successes", "valid", "invalid", "rate"]]
    for task in content["tasks"]:
        rate = "-" if task["rate"] is None else f"{task['rate']:.0%}"
        numbers = (task["successes"], task["valid"], task["invalid"])
        lines.append([task["name"], task["decision"].replace("_", " "), *map(str, numbers), rate])
    counts = (f"{len(content['decisions'][d])} {d.replace('_', ' ')}" for d in DECISIONS)
    return align(lines) + ", ".join(counts) + "\n"
