"""Where tasks come from: OSWorld's files, lists of tasks, MiniWoB++ pages.

A source is a string: a path, or ``miniwob:<page>@<split>:<count>`` for ``count`` seeds of a MiniWoB++ page.
The seeds of the splits ``train``, ``demo`` (for demonstrations) and ``test`` never overlap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_gui.tasks.task import Task, TaskFormatError

MINIWOB_SOURCE = re.compile(
    r"miniwob:(?P<page>[a-z0-9-]+)(?:@(?P<split>train|demo|test))?(?::(?P<count>\d+))?"
)
SPLIT_FIRST_SEED = {"train": 0, "demo": 500_000_000, "test": 1_000_000_000}
DEFAULT_COUNT = {"train": 1000, "demo": 500, "test": 32}


@dataclass(frozen=True)
class TaskInstance:
    """A task and the seed it is reset with. ``seed`` is None where the task has one start only."""

    task: Task
    seed: int | None = None


def load_tasks(path: str | Path) -> list[Task]:
    """Read tasks from an OSWorld list, a JSONL file, one task file or a directory of task files.

    * an OSWorld list, ``{"domain": ["id", ...]}``, with ``examples/<domain>/<id>.json`` beside it;
    * ``*.jsonl``: one task object a line;
    * any other JSON file: one task object, or an array of them;
    * a directory: every ``*.json`` under it that is a task, in order of their paths.

    Raises:
        TaskFormatError: naming the file and the field.
    """
    path = Path(path)
    if path.is_dir():
        tasks = [
            task
            for file in sorted(path.rglob("*.json"))
            for task in _read(file)
            if not _is_osworld_list(_parse(file))
        ]
    else:
        tasks = _read(path)
    seen: dict[str, Task] = {}
    for task in tasks:
        if seen.setdefault(task.id, task) != task:
            raise TaskFormatError(str(path), "id", f"two different tasks are called {task.id!r}")
    return list(seen.values())


def expand_source(source: str) -> list[TaskInstance]:
    """The task instances of one source, in a fixed order.

    Raises:
        TaskFormatError: the source is no file and no MiniWoB++ page, or its file is malformed.
    """
    if source.startswith("miniwob:"):
        match = MINIWOB_SOURCE.fullmatch(source)
        if match is None:
            raise TaskFormatError(source, "source", "expected miniwob:<page>[@train|@demo|@test][:<count>]")
        split = match["split"] or "train"
        count = int(match["count"]) if match["count"] else DEFAULT_COUNT[split]
        if count < 1:
            raise TaskFormatError(source, "source", f"count {count}: expected at least 1")
        page = match["page"]
        task = Task(id=f"miniwob:{page}", domain="miniwob", source="miniwob", evaluator={"func": "miniwob"})
        first = SPLIT_FIRST_SEED[split]
        return [TaskInstance(task, first + i) for i in range(count)]
    return [TaskInstance(task) for task in load_tasks(source)]


def expand_sources(sources: str | Sequence[str]) -> list[TaskInstance]:
    """The instances of all sources, one source after the other."""
    if isinstance(sources, str):
        sources = [sources]
    return [instance for source in sources for instance in expand_source(source)]


def _parse(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TaskFormatError(str(file), "", "no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TaskFormatError(str(file), "", f"cannot be read as JSON: {error}") from error


def _is_osworld_list(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and bool(data)
        and all(isinstance(ids, list) and all(isinstance(i, str) for i in ids) for ids in data.values())
    )


def _read(file: Path) -> list[Task]:
    if file.suffix == ".jsonl":
        return _read_lines(file)
    data = _parse(file)
    if _is_osworld_list(data):
        return [
            Task.from_dict(_parse(example), file=str(example), domain=domain)
            for domain, ids in data.items()
            for example in (file.parent / "examples" / domain / f"{task_id}.json" for task_id in ids)
        ]
    objects = data if isinstance(data, list) else [data]
    return [Task.from_dict(item, file=str(file), domain=file.parent.name) for item in objects]


def _read_lines(file: Path) -> list[Task]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskFormatError(str(file), "", f"cannot be read: {error}") from error
    tasks = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except json.JSONDecodeError as error:
            raise TaskFormatError(f"{file}:{number}", "", f"not JSON: {error}") from error
        tasks.append(Task.from_dict(data, file=f"{file}:{number}"))
    return tasks
