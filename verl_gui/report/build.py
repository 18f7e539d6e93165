"""Writes the report of a run: one HTML file that needs nothing else.

The page consists of a fixed frame, style and scripts (``page/``) and one block of JSON. The scripts put every
text of the run into the page as text, never as markup, and a content security policy lets no other script
run, because answers of a model and names of tasks may hold anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from verl_gui import __version__
from verl_gui.report import metrics
from verl_gui.report.charts import Steps, charts, compared
from verl_gui.report.episodes import Survey, TaskStatistics, shown, survey
from verl_gui.report.pictures import PictureBook

_SCRIPTS = ("text.js", "chart.js", "tasks.js", "viewer.js", "page.js")
_SECRET = re.compile(r"(?i)((?:api_?key|token|password|secret)\w*\s*[=:]\s*)\S+")
_MAX_CONFIG_CHARACTERS = 200_000


def build_report(
    run_dir: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    max_trajectories: int = 80,
    max_picture_bytes: int = 25_000_000,
    compare: str | os.PathLike[str] | None = None,
) -> Path:
    """Write the report of a run and return its path. Missing parts of a run are missing in its report.

    Args:
        run_dir: holds ``metrics.jsonl`` (verl's ``file`` logger), ``trajectories/`` and ``run.json``.
        out: the HTML file; ``report.html`` in ``run_dir`` by default.
        max_trajectories: number of trajectories to show.
        max_picture_bytes: size of all screenshots together.
        compare: directory of another run, whose curves are drawn into the same charts.

    Raises:
        OSError: the report cannot be written.
    """
    run_dir = Path(run_dir).absolute()
    path = Path(out) if out is not None else run_dir / "report.html"
    page = _page(run_dir.name, _content(run_dir, max_trajectories, max_picture_bytes, compare))
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(page, encoding="utf-8")
    temporary.replace(path)
    return path


def _content(
    run_dir: Path, max_trajectories: int, max_picture_bytes: int, compare: str | os.PathLike[str] | None
) -> dict[str, Any]:
    """Everything that the page shows, ready for JSON."""
    steps = metrics.read_metrics(run_dir)
    trajectories = run_dir / "trajectories"
    look = survey(trajectories, max_trajectories)
    book = PictureBook()
    other = None if compare is None else Path(compare).absolute()
    theirs = None if other is None else survey(other / "trajectories", 0)
    return {
        "name": run_dir.name,
        "generator": f"verl-gui {__version__}",
        "run": _run_facts(run_dir),
        "config": _config(run_dir),
        "summary": _summary(steps, look.total),
        "charts": _charts(steps, look.failures, other, theirs),
        "metrics": _table(steps),
        "tasks": _tasks(look, theirs),
        "compared": None if other is None else other.name,
        "episodes": shown(trajectories, look.chosen, book, max_picture_bytes),
        "recorded": look.total,
        "pictures": book.urls,
    }


def _charts(
    steps: Steps, failures: Mapping[int, int], other: Path | None, theirs: Survey | None
) -> list[dict[str, Any]]:
    ours = charts(steps, failures)
    if other is None or theirs is None:
        return ours
    return compared(ours, charts(metrics.read_metrics(other), theirs.failures), other.name)


def _tasks(ours: Survey, theirs: Survey | None) -> list[dict[str, Any]]:
    """Rows of the task table; under ``other`` the same task in the other run."""
    if theirs is None:
        return [statistics.to_json() for _, statistics in sorted(ours.tasks.items())]
    rows = []
    for task in sorted({*ours.tasks, *theirs.tasks}):
        own, other = (run.tasks.get(task, TaskStatistics(task)) for run in (ours, theirs))
        row = own.to_json()
        rows.append({**row, "instruction": row["instruction"] or other.instruction, "other": other.to_json()})
    return rows


def _run_facts(run_dir: Path) -> dict[str, Any]:
    try:
        facts = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(facts, dict):
        return {}
    if isinstance(facts.get("command"), list):
        facts["command"] = [_SECRET.sub(r"\1…", str(argument)) for argument in facts["command"]]
    return facts


def _config(run_dir: Path) -> str:
    """The run's resolved configuration when Hydra left it in the run's directory."""
    for path in sorted(run_dir.glob("**/.hydra/config.yaml")):
        text = path.read_text(encoding="utf-8", errors="replace")
        return _SECRET.sub(r"\1…", text[:_MAX_CONFIG_CHARACTERS])
    return ""


def _summary(steps: Steps, recorded: int) -> dict[str, Any]:
    validation = metrics.series(steps, metrics.VALIDATION_SUCCESS)
    train = metrics.series(steps, metrics.TRAIN_SUCCESS)
    seconds = [data["timing_s/step"] for data in steps.values() if "timing_s/step" in data]
    difference = metrics.series(steps, ["training/rollout_probs_diff_mean"])
    return {
        "steps": max(steps, default=0),
        "validation": [validation[0][1], validation[-1][1]] if validation else None,
        "train": [train[0][1], train[-1][1]] if train else None,
        "seconds_per_step": sorted(seconds)[len(seconds) // 2] if seconds else None,
        "difference": difference[-1][1] if difference else None,
        "recorded": recorded,
    }


def _table(steps: Steps) -> dict[str, Any]:
    """All metrics, as one column of steps and one column for each name."""
    names = sorted({name for data in steps.values() for name in data})
    columns = {name: [_short(data.get(name)) for data in steps.values()] for name in names}
    return {"steps": list(steps), "columns": columns}


def _short(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else float(f"{number:.6g}")


def _page(title: str, content: Mapping[str, Any]) -> str:
    files = resources.files("verl_gui.report") / "page"
    script = "\n".join((files / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    parts = {
        "TITLE": _escape(title),
        "STYLE": (files / "page.css").read_text(encoding="utf-8"),
        "SCRIPT": script,
        "SCRIPT_HASH": base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
        "DATA": _json(content),
    }
    frame = (files / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{([A-Z_]+)\}\}", lambda hole: parts[hole[1]], frame)


def _json(content: Mapping[str, Any]) -> str:
    """ASCII JSON that cannot end the element it stands in; numbers that JSON has no form for become null."""
    text = json.dumps(_finite(content), separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def _escape(text: str) -> str:
    from html import escape

    return escape(text.encode("utf-8", "replace").decode("utf-8"))
