"""Which rollouts of a run were replaced by stored successes, written down for the report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = Path("replay/injections.jsonl")
"""Beside the trajectories of a run."""


@dataclass(frozen=True)
class InjectionRecord:
    """One injection.

    Attributes:
        step: training step. uid: the group. session: the rollout of it that was replaced.
        task: key of the task. stored_step: step that the success was sampled in. score: of the success.
    """

    step: int
    uid: str
    session: int
    task: str
    stored_step: int
    score: float


def write_injections(directory: str | os.PathLike[str], records: Iterable[InjectionRecord]) -> None:
    """Append to the file of a run's directory of trajectories.

    Raises:
        OSError: the disk refused it.
    """
    path = Path(directory) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(asdict(record)) + "\n" for record in records))


def read_injections(directory: str | os.PathLike[str]) -> list[InjectionRecord]:
    """What was written; lines that a kill has torn, or somebody else wrote, are left out."""
    path = Path(directory) / FILE
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(InjectionRecord(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return records
