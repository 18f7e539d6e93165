"""A task: what the agent is asked to do, how the screen is prepared, how the result is scored.

The fields are those of OSWorld's task files, so an OSWorld JSON object is a task as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


class TaskFormatError(ValueError):
    """A task description that cannot be used.

    Attributes:
        file: where the description came from (a path, or ``"<memory>"``).
        field: the offending field, dotted for nested ones.
        why: what is wrong with it.
    """

    def __init__(self, file: str, field: str, why: str) -> None:
        super().__init__(f"{file}: field {field!r}: {why}")
        self.file, self.field, self.why = file, field, why


@dataclass(frozen=True)
class Task:
    """One task in OSWorld's form.

    Attributes:
        id: stable name, unique in a task set; statistics and stored successes are kept under it.
        instruction: what the agent is told. Empty when the environment words it at reset (MiniWoB++ does,
            from the seed); the observation then carries it in ``info["instruction"]``.
        domain: OSWorld's domain (``os``, ``chrome`` …) or the name of the task family (``miniwob``).
        config: set-up steps, each ``{"type": str, "parameters": {...}}``.
        evaluator: how the end state is scored, ``{"func": ..., ...}``.
        source: where the task comes from.
        snapshot: name of the machine state the task starts from.
        related_apps: programs the task is about.
    """

    id: str
    instruction: str = ""
    domain: str = ""
    config: tuple[dict[str, Any], ...] = ()
    evaluator: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    snapshot: str = ""
    related_apps: tuple[str, ...] = ()

    @property
    def infeasible(self) -> bool:
        """Whether the right answer is to say that the task cannot be done (OSWorld's rule)."""
        return self.evaluator.get("func") == "infeasible"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, file: str = "<memory>", domain: str = "") -> Task:
        """Build a task from an OSWorld JSON object; keys that are not OSWorld's are ignored.

        Raises:
            TaskFormatError: naming the file and the field.
        """
        if not isinstance(data, Mapping):
            raise TaskFormatError(file, "", f"expected a JSON object, got {type(data).__name__}")
        task_id = data.get("id")
        if not isinstance(task_id, str) or not task_id:
            raise TaskFormatError(file, "id", f"expected a non-empty string, got {task_id!r}")
        for name in ("instruction", "domain", "source", "snapshot"):
            if not isinstance(data.get(name) or "", str):
                raise TaskFormatError(file, name, f"expected a string, got {data[name]!r}")
        config = data.get("config") or []
        if not isinstance(config, list | tuple):
            raise TaskFormatError(file, "config", f"expected a list of set-up steps, got {config!r}")
        for i, step in enumerate(config):
            if not isinstance(step, Mapping) or not isinstance(step.get("type"), str):
                raise TaskFormatError(
                    file, f"config[{i}]", f'expected {{"type": ..., "parameters": ...}}, got {step!r}'
                )
            if not isinstance(step.get("parameters", {}), Mapping):
                raise TaskFormatError(
                    file, f"config[{i}].parameters", f"expected an object, got {step['parameters']!r}"
                )
        evaluator = data.get("evaluator") or {}
        if not isinstance(evaluator, Mapping) or (evaluator and "func" not in evaluator):
            raise TaskFormatError(file, "evaluator", f'expected an object with "func", got {evaluator!r}')
        func = evaluator.get("func", "")
        if not isinstance(func, str) and not _all_strings(func):
            raise TaskFormatError(file, "evaluator.func", f"expected a name or a list of names, got {func!r}")
        if evaluator.get("conj", "and") not in ("and", "or"):
            raise TaskFormatError(
                file, "evaluator.conj", f"expected 'and' or 'or', got {evaluator['conj']!r}"
            )
        apps = data.get("related_apps") or ()
        if apps and not _all_strings(apps):
            raise TaskFormatError(file, "related_apps", f"expected a list of strings, got {apps!r}")
        return cls(
            id=task_id,
            instruction=data.get("instruction") or "",
            domain=data.get("domain") or domain,
            config=tuple(dict(step) for step in config),
            evaluator=dict(evaluator),
            source=data.get("source") or "",
            snapshot=data.get("snapshot") or "",
            related_apps=tuple(apps),
        )

    def to_dict(self) -> dict[str, Any]:
        """The task as a JSON-ready object; ``Task.from_dict`` gives it back unchanged."""
        return json.loads(json.dumps(asdict(self)))


def _all_strings(value: Any) -> bool:
    """Whether ``value`` is a list of at least one string."""
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)
