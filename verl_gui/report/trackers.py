"""Episodes as pictures in the trackers of a run: TensorBoard and Weights & Biases, beside verl's numbers.

Lives in the trainer's process, where verl has opened its own loggers; reads the records that the agent loops
write (``gui.report.dir``), so it needs them on a disk that this process sees.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from PIL import Image

from verl_gui.config import ReportConfig
from verl_gui.report.filmstrip import filmstrip
from verl_gui.rollout.trajectory import Trajectory, TrajectoryFollower

logger = logging.getLogger(__name__)

TAG = "trajectories"


class Board(Protocol):
    """Takes pictures."""

    def add(self, tag: str, picture: Image.Image, step: int) -> None:
        """Show ``picture`` as ``tag`` at training step ``step``."""
        ...


class TensorBoard:
    """Writes beside verl's event file (its rule: ``TENSORBOARD_DIR``, or a folder by project and name)."""

    def __init__(self, project: str, experiment: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        default = os.path.join("tensorboard_log", project, experiment)
        self._writer = SummaryWriter(os.environ.get("TENSORBOARD_DIR", default))

    def add(self, tag: str, picture: Image.Image, step: int) -> None:
        """See :class:`Board`."""
        import numpy as np

        self._writer.add_image(tag, np.asarray(picture), step, dataformats="HWC")
        self._writer.flush()


class WeightsAndBiases:
    """Adds to the run that verl has opened in this process."""

    def add(self, tag: str, picture: Image.Image, step: int) -> None:
        """See :class:`Board`. Without an open run the picture is dropped, with a warning."""
        import wandb

        if wandb.run is None:
            logger.warning("no W&B run is open in this process: %s of step %d is not shown", tag, step)
            return
        wandb.log({tag: wandb.Image(picture)}, step=step)


class EpisodeTracker:
    """Shows some of the newest recorded episodes.

    Args:
        records: directory of the records. per_step: episodes of each kind (train, val) a call.
        boards: where to.
    """

    def __init__(self, records: str, per_step: int, boards: Iterable[Board]) -> None:
        self._follower = TrajectoryFollower(records)
        self._per_step, self._boards = per_step, list(boards)

    def track(self, step: int) -> None:
        """Show what was recorded since the last call."""
        new = self._follower.new()
        for kind, validate in (("train", False), ("val", True)):
            for place, load in enumerate(
                chosen([entry for entry in new if entry[0].validate is validate], self._per_step)
            ):
                try:
                    picture = filmstrip(load())
                except (ValueError, OSError) as error:
                    logger.warning("an episode of step %d is not shown: %s", step, error)
                    continue
                for board in self._boards:
                    board.add(f"{TAG}/{kind}/{place}", picture, step)


def chosen(
    entries: list[tuple[Trajectory, Callable[[], Trajectory]]], count: int
) -> list[Callable[[], Trajectory]]:
    """At most ``count`` of the scored episodes; successes and failures take turns."""
    kinds: tuple[list[Any], list[Any]] = ([], [])
    for trajectory, load in entries:
        if trajectory.score is not None:
            kinds[trajectory.score < 1.0].append(load)
    turns = [kind[i] for i in range(max(map(len, kinds))) for kind in kinds if i < len(kind)]
    return turns[:count]


_TRACKER: EpisodeTracker | None = None


def follow_run(report: ReportConfig, trainer: Any) -> None:
    """Track the run of this process as ``gui.report`` and verl's ``trainer`` node say."""
    global _TRACKER
    names = trainer.get("logger") or []
    names = [names] if isinstance(names, str) else list(names)
    boards: list[Board] = []
    if report.track and report.dir is not None:
        if "tensorboard" in names:
            boards.append(TensorBoard(str(trainer.project_name), str(trainer.experiment_name)))
        if "wandb" in names:
            boards.append(WeightsAndBiases())
    _TRACKER = EpisodeTracker(str(report.dir), report.track, boards) if boards else None


def track_episodes(step: int) -> None:
    """Show what was recorded since the last call, if the run of this process is tracked."""
    if _TRACKER is not None:
        _TRACKER.track(step)
