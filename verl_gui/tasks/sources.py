"""Where tasks come from: OSWorld's files, lists of tasks, MiniWoB++ pages.

A source is a string:

* ``miniwob:<page>@<split>:<count>``: ``count`` seeds of a MiniWoB++ page; the seeds of the splits ``train``,
  ``demo`` (for demonstrations) and ``test`` never overlap;
* ``desktop``: the built-in desktop tasks;
* a path, see :func:`load_tasks`;
* a path and ``@train`` or ``@test``: one of two parts of it that never overlap, see :class:`Split`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from verl_gui.tasks.task import Task, TaskFormatError

MINIWOB_SOURCE = re.compile(
    r"miniwob:(?P<page>[a-z0-9-]+)(?:@(?P<split>train|demo|test))?(?::(?P<count>\d+))?"
)
SPLIT_FIRST_SEED = {"train": 0, "demo": 500_000_000, "test": 1_000_000_000}
DEFAULT_COUNT = {"train": 1000, "demo": 500, "test": 32}

Skipped = list[TaskFormatError]
"""Takes the tasks that could not be used, each with file, field and reason."""


@dataclass(frozen=True)
class TaskInstance:
    """A task and the seed it is reset with. ``seed`` is None where the task has one start only."""

    task: Task
    seed: int | None = None

    @property
    def name(self) -> str:
        """Stable and unique in a task set: the task's id, and the seed where there is one."""
        return self.task.id if self.seed is None else f"{self.task.id}#{self.seed}"


@dataclass(frozen=True)
class Split:
    """How ``<path>@train`` and ``<path>@test`` divide the tasks of a path.

    Each task is put on its side by a hash of its name alone, so it stays there when others are added.

    Attributes:
        test_share: expected share of the test side.
        by: ``task`` keeps all seeds of a task on one side, ``seed`` divides the seeds of each task.
    """

    test_share: float = 0.1
    by: Literal["task", "seed"] = "task"

    def __post_init__(self) -> None:
        if not 0.0 < self.test_share < 1.0:
            raise ValueError(f"test_share={self.test_share}: expected a share between 0 and 1")
        if self.by not in ("task", "seed"):
            raise ValueError(f"by={self.by!r}: expected 'task' or 'seed'")

    def side(self, instance: TaskInstance) -> str:
        """``train`` or ``test``."""
        name = instance.task.id if self.by == "task" else instance.name
        number = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
        return "test" if number < self.test_share * 2**64 else "train"


def load_tasks(path: str | Path, *, skipped: Skipped | None = None) -> list[Task]:
    """Read tasks from an OSWorld list, a JSONL file, one task file or a directory of task files.

    * an OSWorld list, ``{"domain": ["id", ...]}``, with ``examples/<domain>/<id>.json`` beside it;
    * ``*.jsonl``: one task object a line;
    * any other JSON file: one task object, or an array of them;
    * a directory: every ``*.json`` under it that is a task, in order of their paths.

    Args:
        path: where to read.
        skipped: takes tasks that cannot be used; None refuses the first one.

    Raises:
        TaskFormatError: naming the file and the field. A ``path`` that is not there is always refused.
    """
    return list(
        {instance.task.id: instance.task for instance in load_instances(path, skipped=skipped)}.values()
    )


def load_instances(path: str | Path, *, skipped: Skipped | None = None) -> list[TaskInstance]:
    """As :func:`load_tasks`, with the seeds in the files (key ``seed``; the task filter writes them)."""
    path = Path(path)
    if path.is_dir():
        found = [i for file in sorted(path.rglob("*.json")) for i in _read(file, skipped, lists=False)]
    elif path.exists():
        found = _read(path, skipped, lists=True)
    else:
        raise TaskFormatError(str(path), "", "no such file or directory")
    tasks: dict[str, Task] = {}
    instances: dict[str, TaskInstance] = {}
    for instance in found:
        if tasks.setdefault(instance.task.id, instance.task) != instance.task:
            why = f"two different tasks are called {instance.task.id!r}"
            _refuse(TaskFormatError(str(path), "id", why), skipped)
            continue
        instances.setdefault(instance.name, instance)
    return list(instances.values())


def expand_source(
    source: str, *, split: Split | None = None, skipped: Skipped | None = None
) -> list[TaskInstance]:
    """The task instances of one source, in a fixed order.

    Args:
        source: see the module.
        split: how ``@train`` and ``@test`` divide a path.
        skipped: see :func:`load_tasks`.

    Raises:
        TaskFormatError: the source is no file and no MiniWoB++ page, or its file is malformed.
    """
    if source.startswith("miniwob:"):
        return _pages(source)
    if source == "desktop" and not Path(source).exists():
        source = str(Path(__file__).parent / "desktop")
    path, _, side = source.rpartition("@")
    if side not in ("train", "test") or not path or Path(source).exists():
        return load_instances(source, skipped=skipped)
    rule = split or Split()
    return [i for i in load_instances(path, skipped=skipped) if rule.side(i) == side]


def expand_sources(
    sources: str | Sequence[str], *, split: Split | None = None, skipped: Skipped | None = None
) -> list[TaskInstance]:
    """The instances of all sources, one source after the other, each instance once."""
    if isinstance(sources, str):
        sources = [sources]
    found = (i for source in sources for i in expand_source(source, split=split, skipped=skipped))
    return list({instance.name: instance for instance in found}.values())


def overlap(one: Iterable[TaskInstance], other: Iterable[TaskInstance]) -> list[str]:
    """Names of the instances in both, in the order of ``one``.

    An instance without a seed overlaps with every instance of its task.
    """
    others = list(other)
    names = {instance.name for instance in others}
    ids = {instance.task.id for instance in others}
    whole = {instance.task.id for instance in others if instance.seed is None}
    return [
        i.name for i in one if i.name in names or i.task.id in whole or (i.seed is None and i.task.id in ids)
    ]


def _pages(source: str) -> list[TaskInstance]:
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


def _refuse(error: TaskFormatError, skipped: Skipped | None) -> None:
    if skipped is None:
        raise error
    skipped.append(error)


def _parse(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TaskFormatError(str(file), "", "no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise TaskFormatError(str(file), "", f"cannot be read as JSON: {error}") from error


def _is_osworld_list(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and bool(data)
        and all(isinstance(ids, list) and all(isinstance(i, str) for i in ids) for ids in data.values())
    )


def _read(file: Path, skipped: Skipped | None, *, lists: bool) -> list[TaskInstance]:
    """The instances of one file; of an OSWorld list only where ``lists`` says so."""
    try:
        if file.suffix == ".jsonl":
            return _read_lines(file, skipped)
        data = _parse(file)
    except TaskFormatError as error:
        _refuse(error, skipped)
        return []
    if _is_osworld_list(data):
        return _read_list(file, data, skipped) if lists else []
    found = []
    for item in data if isinstance(data, list) else [data]:
        try:
            found.append(_instance(item, str(file), file.parent.name))
        except TaskFormatError as error:
            _refuse(error, skipped)
    return found


def _read_list(file: Path, listing: dict[str, list[str]], skipped: Skipped | None) -> list[TaskInstance]:
    found = []
    for domain, names in listing.items():
        for name in names:
            example = file.parent / "examples" / domain / f"{name}.json"
            try:
                found.append(_instance(_parse(example), str(example), domain))
            except TaskFormatError as error:
                _refuse(error, skipped)
    return found


def _read_lines(file: Path, skipped: Skipped | None) -> list[TaskInstance]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskFormatError(str(file), "", f"cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(_instance(_json_line(line, f"{file}:{number}"), f"{file}:{number}", ""))
        except TaskFormatError as error:
            _refuse(error, skipped)
    return found


def _json_line(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TaskFormatError(place, "", f"not JSON: {error}") from error


def _instance(data: Any, file: str, domain: str) -> TaskInstance:
    task = Task.from_dict(data, file=file, domain=domain)
    if not task.instruction and task.domain != "miniwob":
        raise TaskFormatError(file, "instruction", "is missing or empty: the agent would not know what to do")
    seed = data.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
        raise TaskFormatError(file, "seed", f"expected a whole number of at least 0, got {seed!r}")
    return TaskInstance(task, seed)
