"""The successes of every task, bounded in number and in bytes (ARPO, arXiv 2505.16282, experience replay)."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from verl_gui.replay import file
from verl_gui.replay.packing import PackedRecord, pack, unpack

logger = logging.getLogger(__name__)


def fingerprint(record: Any) -> str:
    """What tells successes apart: the sampled tokens of a row (``responses`` under ``response_mask``), or
    the whole record where it has no such fields."""
    if isinstance(record, dict) and "responses" in record and "response_mask" in record:
        record = record["responses"][record["response_mask"].bool()].long()
    packed = pack(record)
    return hashlib.sha256(packed.tree.encode() + b"".join(packed.blobs)).hexdigest()


@dataclass(frozen=True)
class Stored:
    """One success: its packed row, the training step it was sampled in, its environment score."""

    packed: PackedRecord
    step: int
    score: float
    fingerprint: str

    @property
    def record(self) -> Any:
        """A fresh copy of the row."""
        return unpack(self.packed)


class SuccessBuffer:
    """Per task, the latest distinct successes; pure, deterministic, no clock and no random state of its own.

    Args:
        capacity_per_task: successes a task keeps; the oldest leaves first.
        min_score: only scores above it are stored (ARPO: 0.1).
        freshness_tau: training steps after which a success is drawn 1/e times as often (weight
            ``exp(-age / tau)``); ``None``: all alike.
        max_bytes: bytes of all tasks together; the oldest leaves first. ``None``: no bound.
    """

    def __init__(
        self,
        capacity_per_task: int = 8,
        *,
        min_score: float = 0.1,
        freshness_tau: float | None = None,
        max_bytes: int | None = None,
    ) -> None:
        if capacity_per_task < 1:
            raise ValueError(f"capacity_per_task={capacity_per_task}: expected at least 1")
        if freshness_tau is not None and not freshness_tau > 0:
            raise ValueError(f"freshness_tau={freshness_tau}: expected more than 0 steps, or null")
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes={max_bytes}: expected at least 1")
        self.capacity_per_task = capacity_per_task
        self.min_score = min_score
        self.freshness_tau = freshness_tau
        self.max_bytes = max_bytes
        self._tasks: dict[str, list[Stored]] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return sum(len(stored) for stored in self._tasks.values())

    @property
    def tasks(self) -> dict[str, tuple[Stored, ...]]:
        """Successes of every task that has some, oldest first."""
        return {task: tuple(stored) for task, stored in self._tasks.items()}

    def add(self, task_id: str, record: Any, *, step: int, score: float) -> bool:
        """Store a copy of a row; whether it is in the buffer now.

        The same actions again replace the older row: its log-probs are of a nearer policy.
        """
        if not (math.isfinite(score) and score > self.min_score):
            return False
        return self.put(str(task_id), Stored(pack(record), int(step), float(score), fingerprint(record)))

    def put(self, task_id: str, new: Stored) -> bool:
        """Store a success that is packed already; whether it is in the buffer now."""
        if self.max_bytes is not None and new.packed.nbytes > self.max_bytes:
            logger.warning(
                "a success of task %s has %d bytes, more than the whole buffer may have (%d): not stored",
                task_id, new.packed.nbytes, self.max_bytes,
            )  # fmt: skip
            return False
        same = [old for old in self._tasks.get(task_id, ()) if old.fingerprint == new.fingerprint]
        if same and same[0].step > new.step:
            return True
        for old in same:
            self._drop(task_id, old)
        kept = self._tasks.setdefault(task_id, [])
        kept.append(new)
        kept.sort(key=lambda stored: stored.step)
        self.nbytes += new.packed.nbytes
        while len(kept) > self.capacity_per_task:
            self._drop(task_id, kept[0])
        while self.max_bytes is not None and self.nbytes > self.max_bytes:
            oldest = min(self._tasks, key=lambda task: self._tasks[task][0].step)
            self._drop(oldest, self._tasks[oldest][0])
        return any(stored is new for stored in self._tasks.get(task_id, ()))

    def _drop(self, task_id: str, stored: Stored) -> None:
        self._tasks[task_id][:] = [other for other in self._tasks[task_id] if other is not stored]
        self.nbytes -= stored.packed.nbytes
        if not self._tasks[task_id]:
            del self._tasks[task_id]

    def draw(
        self, task_id: str, *, step: int, rng: np.random.Generator, exclude: Collection[str] = ()
    ) -> Stored | None:
        """A success of the task with its step and score, none whose fingerprint is in ``exclude``."""
        stored = [s for s in self._tasks.get(str(task_id), ()) if s.fingerprint not in exclude]
        if not stored:
            return None
        if self.freshness_tau is None:
            return stored[int(rng.integers(len(stored)))]
        ages = np.array([max(0, step - s.step) for s in stored], dtype=float)
        weights = np.exp(-(ages - ages.min()) / self.freshness_tau)  # the freshest weighs 1: no underflow
        return stored[int(rng.choice(len(stored), p=weights / weights.sum()))]

    def sample(self, task_id: str, *, step: int, rng: np.random.Generator) -> Any | None:
        """A fresh copy of a stored row of the task, or ``None``."""
        stored = self.draw(task_id, step=step, rng=rng)
        return None if stored is None else stored.record

    def merge(self, other: SuccessBuffer) -> None:
        """Add the successes of another buffer, under this one's bounds."""
        for task, stored in other.tasks.items():
            for success in stored:
                if success.score > self.min_score:
                    self.put(task, success)

    def state_dict(self) -> dict[str, Any]:
        """The successes, in order; settings are the configuration's and no part of it."""
        return {"tasks": self.tasks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the contents, under this buffer's own bounds."""
        self._tasks, self.nbytes = {}, 0
        for task, stored in state["tasks"].items():
            for success in stored:
                self.put(task, success)

    def save(self, path: str | Path) -> None:
        """Write the buffer to a file, all or nothing."""
        blobs: list[bytes] = []
        index = []
        for task, stored in self._tasks.items():
            for s in stored:
                index.append([task, s.step, s.score, s.fingerprint, s.packed.tree, len(s.packed.blobs)])
                blobs.extend(s.packed.blobs)
        file.write(path, index, blobs)

    def load(self, path: str | Path) -> None:
        """Replace the contents by a file's; a file that cannot be used changes nothing.

        Raises:
            FileNotFoundError: there is no such file.
            BufferFileError: it is damaged, no success buffer, or of another format version.
        """
        index, blobs = file.read(path)
        tasks: dict[str, list[Stored]] = {}
        start = 0
        for task, step, score, mark, tree, count in index:
            packed = PackedRecord(tree, tuple(blobs[start : start + count]))
            tasks.setdefault(task, []).append(Stored(packed, step, score, mark))
            start += count
        self.load_state_dict({"tasks": tasks})
