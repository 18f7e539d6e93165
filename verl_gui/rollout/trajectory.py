"""The record of one episode, and how it is kept on disk for people to look at.

Records are for looking (report, analysis); training takes token ids, not these. A directory of records
holds two files for each process that wrote: ``<host>-<pid>-<nonce>.jsonl`` with one trajectory a line, and a
file of the same name ending in ``.pngs`` with the screenshots end to end, each once, which the lines point
into by offset and length. A record's screenshots are written before its line, and a line in a single write,
so a crash can cost no more than the line being written.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1


@dataclass(frozen=True)
class TrajectoryStep:
    """One turn: what the model saw, what it answered, what that was taken to mean.

    Attributes:
        screenshot: the picture the model saw, PNG bytes; empty when it was not kept or not loaded.
        text: the answer as sampled, untouched.
        thought: the part of the answer that is reasoning.
        actions: the parsed actions in order, each with ``type`` and, where it has them, ``x, y, end_x,
            end_y`` (pixels of the real screen, not of ``screenshot``), ``text, keys, direction, amount``.
        error: why the answer could not be parsed, None when it could.
        log_prob_mean: mean log-probability of the sampled tokens under the policy that sampled them, in nats.
        seconds: wall-clock seconds by part, for example ``{"generate": 0.8, "env": 0.05}``.
    """

    screenshot: bytes
    text: str
    thought: str = ""
    actions: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    log_prob_mean: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Trajectory:
    """One episode from reset to evaluation.

    Attributes:
        task_id: which task; success rates are kept under it.
        instruction: what the agent was told.
        seed: the seed of the reset, None when the environment chose.
        uid: prompt instance; the members of one group share it.
        global_step: training step that sampled it.
        validate: whether it belongs to validation.
        score: the environment's verdict in [0, 1]; None when there is none (see ``env_failure``).
        format_penalty: what malformed answers cost, at most 0.
        reward: score and penalties together, as training sees it; None without a score.
        num_turns: number of answers the model gave.
        screen: width and height of the real screen in pixels.
        frame: width and height in pixels the model saw.
        steps: the turns in order.
        outcome: how it ended: ``finished`` (the agent said so), ``terminated`` (the task did),
            ``step_limit``, ``format_error``, ``env_failure`` ….
        env_failure: what broke in the environment, None when nothing did.
        final_screenshot: the screen that was evaluated, PNG bytes; empty when it was not kept or not loaded.
        session: which member of its group; None outside training.
    """

    task_id: str
    instruction: str
    seed: int | None
    uid: str
    global_step: int
    validate: bool
    score: float | None
    format_penalty: float
    reward: float | None
    num_turns: int
    screen: tuple[int, int]
    frame: tuple[int, int]
    steps: list[TrajectoryStep]
    outcome: str
    env_failure: str | None = None
    final_screenshot: bytes = b""
    session: int | None = None


class TrajectoryWriter:
    """Appends trajectories to a directory. Safe to share between threads; every process makes its own files.

    Example:
        >>> writer = TrajectoryWriter("outputs/run/trajectories")
        >>> writer.write(trajectory)
        >>> writer.close()
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._lock = threading.Lock()
        self._pid = 0  # of the process that opened the files; they are opened on the first write
        self._lines: BinaryIO | None = None
        self._pictures: BinaryIO | None = None
        self._spans: dict[bytes, tuple[int, int]] = {}  # digest of a picture -> offset and length in .pngs

    def write(self, trajectory: Trajectory) -> None:
        """Append one trajectory.

        Raises:
            TypeError: a field holds something that JSON cannot.
            OSError: the disk refused it; earlier trajectories are unharmed.
        """
        with self._lock:
            lines, _ = self._open()
            text = json.dumps(self._to_json(trajectory), default=_plain, separators=(",", ":"))
            line = text.encode("ascii") + b"\n"
            if lines.write(line) != len(line):
                self._close()  # the next record must not continue a torn line
                raise OSError(f"{self.directory}: a trajectory was written in part only; is the disk full?")

    def close(self) -> None:
        """Close the files; a later ``write`` opens new ones."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        for file in (self._lines, self._pictures):
            if file is not None:
                file.close()
        self._lines = self._pictures = None

    def _open(self) -> tuple[BinaryIO, BinaryIO]:
        if self._lines is None or self._pictures is None or self._pid != os.getpid():
            self.directory.mkdir(parents=True, exist_ok=True)
            name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
            self._pictures = open(self.directory / f"{name}.pngs", "xb", buffering=0)  # noqa: SIM115
            self._lines = open(self.directory / f"{name}.jsonl", "xb", buffering=0)  # noqa: SIM115
            self._pid = os.getpid()
            self._spans = {}
        return self._lines, self._pictures

    def _to_json(self, trajectory: Trajectory) -> dict[str, Any]:
        record = _shallow(trajectory)
        record["steps"] = [
            {**_shallow(step), "screenshot": self._keep(step.screenshot)} for step in trajectory.steps
        ]
        record["final_screenshot"] = self._keep(trajectory.final_screenshot)
        return {"version": FORMAT_VERSION, **record}

    def _keep(self, picture: bytes) -> tuple[int, int] | None:
        """Where ``picture`` lies in the picture file, after appending it if it was not there."""
        if not picture:
            return None
        digest = blake2b(picture, digest_size=16).digest()
        if digest not in self._spans:
            _, pictures = self._open()
            offset = pictures.seek(0, os.SEEK_END)
            if pictures.write(picture) != len(picture):
                raise OSError(f"{self.directory}: a screenshot was written in part only; is the disk full?")
            self._spans[digest] = (offset, len(picture))
        return self._spans[digest]


def read_trajectories(
    directory: str | os.PathLike[str], *, with_screenshots: Callable[[Trajectory], bool] = lambda _: True
) -> Iterator[Trajectory]:
    """Yield every trajectory of a directory, file by file; nothing when the directory does not exist.

    A line that cannot be read (the torn last line of a killed process, a foreign file) is left out with a
    warning.

    Args:
        directory: where :class:`TrajectoryWriter` wrote.
        with_screenshots: asked for each trajectory, still without pictures, whether to load them. Looking
            through a large run first and loading the pictures of a few keeps memory small.
    """
    for path in sorted(Path(directory).glob("*.jsonl")):
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    record = json.loads(line)
                    trajectory = _from_json(record)
                    if with_screenshots(trajectory):
                        trajectory = _load_screenshots(trajectory, record, path.with_suffix(".pngs"))
                except (ValueError, TypeError, KeyError, OSError) as error:
                    logger.warning(
                        "%s line %d is left out: %s: %s", path, number, type(error).__name__, error
                    )
                    continue
                yield trajectory


class TrajectoryFollower:
    """Reads a directory that is still being written to: every call gives what has come since the last one.

    Args:
        directory: where :class:`TrajectoryWriter` writes, in whatever process.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._read: dict[Path, int] = {}  # bytes of each file that are done with

    def new(self) -> list[tuple[Trajectory, Callable[[], Trajectory]]]:
        """The new trajectories without pictures, each with a function that gives it with them.

        A line that cannot be read is left out with a warning; one that is not complete yet waits.
        """
        found: list[tuple[Trajectory, Callable[[], Trajectory]]] = []
        for path in sorted(self.directory.glob("*.jsonl")):
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                complete, _, _ = file.read().rpartition(b"\n")
            if not complete:
                continue
            self._read[path] = self._read.get(path, 0) + len(complete) + 1
            for line in complete.splitlines():
                try:
                    record = json.loads(line)
                    trajectory = _from_json(record)
                except (ValueError, TypeError, KeyError) as error:
                    logger.warning("a line of %s is left out: %s: %s", path, type(error).__name__, error)
                    continue
                pictures = path.with_suffix(".pngs")
                found.append((trajectory, partial(_load_screenshots, trajectory, record, pictures)))
        return found


def _from_json(record: Any) -> Trajectory:
    if not isinstance(record, dict) or record.get("version") != FORMAT_VERSION:
        raise ValueError(f"not a trajectory record of version {FORMAT_VERSION}")
    known = {f.name for f in dataclasses.fields(Trajectory)}
    values = {name: value for name, value in record.items() if name in known}
    known = {f.name for f in dataclasses.fields(TrajectoryStep)}
    values["steps"] = [
        TrajectoryStep(**{**{name: step[name] for name in step if name in known}, "screenshot": b""})
        for step in record["steps"]
    ]
    values["final_screenshot"] = b""
    for name in ("screen", "frame"):
        width, height = record[name]
        values[name] = (int(width), int(height))
    return Trajectory(**values)


def _load_screenshots(trajectory: Trajectory, record: dict[str, Any], path: Path) -> Trajectory:
    spans = [step["screenshot"] for step in record["steps"]] + [record.get("final_screenshot")]
    if not any(spans):
        return trajectory
    pictures = []
    with open(path, "rb") as file:
        for span in spans:
            offset, length = span or (0, 0)
            file.seek(offset)
            picture = file.read(length)
            if len(picture) != length:
                raise ValueError(f"{path.name} ends inside a screenshot")
            pictures.append(picture)
    steps = [
        dataclasses.replace(step, screenshot=png)
        for step, png in zip(trajectory.steps, pictures[:-1], strict=True)
    ]
    return dataclasses.replace(trajectory, steps=steps, final_screenshot=pictures[-1])


def _shallow(record: Trajectory | TrajectoryStep) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}


def _plain(value: Any) -> Any:
    """JSON form of what the standard encoder does not know: enum members and NumPy or torch scalars."""
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a trajectory cannot hold {value!r} of type {type(value).__name__}")
