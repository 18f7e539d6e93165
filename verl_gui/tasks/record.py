"""Demonstrations: the successes of the scripted expert or a person, as trajectories.

A directory of them is read by :func:`verl_gui.rollout.trajectory.read_trajectories`, as a run's own
trajectories are, so the viewer shows them, ``replay import`` takes them, and
:func:`verl_gui.warmstart.demonstrations.from_trajectories` turns them into a warm start.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from verl_gui.rollout.trajectory import TrajectoryWriter, read_trajectories


def keep_successes(recorded: Path, out: Path) -> int:
    """Copy the trajectories with full score to ``out``, each run once; returns how many there are.

    ``out`` is written anew, in a place beside it first.
    """
    part = out.with_name(f"{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    writer = TrajectoryWriter(part)
    seen: set[str] = set()

    def full(trajectory: object) -> bool:
        return getattr(trajectory, "score", None) == 1.0

    for trajectory in read_trajectories(recorded, with_screenshots=full):
        if full(trajectory) and trajectory.uid not in seen:
            seen.add(trajectory.uid)
            writer.write(trajectory)
    writer.close()
    shutil.rmtree(out, ignore_errors=True)
    part.rename(out)
    return len(seen)
