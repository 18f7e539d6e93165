"""What was run and what is left to run: an append-only list of results that survives ``kill -9``.

A *slot* is one of the k runs that a task instance needs. It is done once it holds a valid result; a run
whose environment (or endpoint) failed leaves it open, until ``1 + retries`` runs of it have failed. So the
list alone says where an interrupted evaluation goes on.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from verl_gui.tasks.sources import TaskInstance

logger = logging.getLogger(__name__)


class ResultsError(RuntimeError):
    """The results directory cannot be used: it belongs to another evaluation, or to a running one."""


@dataclass(frozen=True)
class Run:
    """One run of one task instance.

    Attributes:
        instance: name of the task instance, see :attr:`verl_gui.tasks.sources.TaskInstance.name`.
        task_id: its task. domain: the task's domain.
        slot: which of the k runs, from 0.
        score: the environment's verdict in [0, 1]; None when the run is invalid.
        failure: what broke (not the agent), None when nothing did.
        outcome: how the episode ended, see :class:`verl_gui.rollout.trajectory.Trajectory`.
        steps: answers given. malformed: those that could not be parsed.
        prompt_tokens: tokens read by the model over all steps. sampled_tokens: tokens it wrote.
        env_s: seconds inside the environment. generate_s: seconds spent waiting for answers.
        wall_s: seconds from lease to verdict.
    """

    instance: str
    task_id: str
    domain: str
    slot: int
    score: float | None
    failure: str | None = None
    outcome: str = ""
    steps: int = 0
    malformed: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    env_s: float = 0.0
    generate_s: float = 0.0
    wall_s: float = 0.0

    @property
    def valid(self) -> bool:
        """Whether the run says anything about the agent."""
        return self.score is not None

    @property
    def success(self) -> bool:
        """A valid run with full score."""
        return self.score is not None and self.score >= 1.0


@dataclass
class Tally:
    """The runs of one task instance, counted.

    Attributes:
        successes: runs with full score. valid: runs with a verdict. invalid: runs that something else broke.
        score: sum of the verdicts.
        lengths: steps of the successes.
    """

    successes: int = 0
    valid: int = 0
    invalid: int = 0
    score: float = 0.0
    lengths: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float | None:
        """Share of successes among the valid runs; None without any."""
        return self.successes / self.valid if self.valid else None

    def add(self, run: Run) -> None:
        """Count one more run."""
        if run.score is None:
            self.invalid += 1
            return
        self.valid += 1
        self.score += run.score
        if run.success:
            self.successes += 1
            self.lengths.append(run.steps)


def tally(runs: Iterable[Run], instances: Sequence[TaskInstance]) -> dict[str, Tally]:
    """Counts of every instance, in the order of ``instances``; runs of other instances are left out."""
    counts = {instance.name: Tally() for instance in instances}
    for run in runs:
        if run.instance in counts:
            counts[run.instance].add(run)
    return counts


class OpenSlot(NamedTuple):
    """A run that is still wanted, and how many attempts at it are left."""

    instance: TaskInstance
    slot: int
    attempts: int


def open_slots(
    instances: Sequence[TaskInstance], runs: Iterable[Run], *, k: int, retries: int
) -> list[OpenSlot]:
    """The slots that still need a run, in a fixed order: slot 0 of every instance, then slot 1 …

    So an evaluation that is stopped early has tried every task about equally often.
    """
    done: set[tuple[str, int]] = set()
    failed: dict[tuple[str, int], int] = defaultdict(int)
    for run in runs:
        if run.valid:
            done.add((run.instance, run.slot))
        else:
            failed[run.instance, run.slot] += 1
    return [
        OpenSlot(instance, slot, left)
        for slot in range(k)
        for instance in instances
        if (left := 1 + retries - failed[instance.name, slot]) > 0 and (instance.name, slot) not in done
    ]


class RunLog:
    """The results of one evaluation on disk: ``settings.json`` and ``runs.jsonl`` in a directory.

    A result is one line, written in one piece when the run ends. What a killed process left half written is
    cut off when the list is opened again. Only one process at a time may have it open.

    Args:
        directory: made if missing.
        settings: what the runs depend on (policy, temperature, …); a list made with other ones is refused.

    Raises:
        ResultsError: another process has it open, or it was made with other settings.
    """

    def __init__(self, directory: str | os.PathLike[str], settings: dict[str, Any]) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.directory / "runs.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock()
            self._check(settings)
            self.runs = self._recover()
        except BaseException:
            os.close(self._fd)
            raise

    def append(self, run: Run) -> None:
        """Add a result.

        Raises:
            OSError: the disk refused it; earlier results are unharmed.
        """
        line = (json.dumps(asdict(run), separators=(",", ":")) + "\n").encode("ascii")
        if os.write(self._fd, line) != len(line):
            raise OSError(f"{self.directory}: a result was written in part only; is the disk full?")
        self.runs.append(run)

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._fd)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultsError(
                f"{self.directory} is being written by another evaluation; wait for it or give another --out"
            ) from None

    def _check(self, settings: dict[str, Any]) -> None:
        file = self.directory / "settings.json"
        if file.exists():
            before = read_settings(self.directory)
            for key in sorted({*before, *settings}):
                if before.get(key) != settings.get(key):
                    raise ResultsError(
                        f"{self.directory} was begun with {key}={before.get(key)!r}, now it is "
                        f"{settings.get(key)!r}; results of both cannot be mixed: give another --out"
                    )
            return
        part = file.with_name("settings.json.part")
        part.write_text(json.dumps(settings, indent=1), encoding="utf-8")
        part.replace(file)

    def _recover(self) -> list[Run]:
        runs, kept = read_runs(self.directory / "runs.jsonl")
        os.truncate(self._fd, kept)
        return runs


def read_runs(file: Path) -> tuple[list[Run], int]:
    """The results in a file, and the number of its bytes before a torn last line.

    A complete line that is no result (a foreign one) is left out with a warning; its run is done again.
    """
    data = file.read_bytes() if file.exists() else b""
    kept = data.rfind(b"\n") + 1
    if kept < len(data):
        logger.warning("%s: the last line is torn (a killed process); that run is done again", file)
    known = {f.name for f in fields(Run)}
    runs = []
    for number, line in enumerate(data[:kept].splitlines(), 1):
        try:
            record = json.loads(line)
            runs.append(Run(**{name: value for name, value in record.items() if name in known}))
        except (ValueError, TypeError, AttributeError) as error:
            logger.warning("%s line %d is left out: %s", file, number, error)
    return runs, kept


def read_settings(directory: Path) -> dict[str, Any]:
    """What the results in a directory depend on; empty for a directory without."""
    file = directory / "settings.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
