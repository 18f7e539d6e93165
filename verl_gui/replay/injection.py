"""Which failed groups get a stored success, and in place of which row (ARPO, experience replay)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from verl_gui.replay.buffer import Stored, SuccessBuffer

MAX_STD = 0.05
Replaced = Literal["first", "random", "worst_format"]


@dataclass(frozen=True)
class Row:
    """One rollout: environment score (no penalty in it), format reward, whether it counts, its actions."""

    score: float
    format_reward: float = 0.0
    valid: bool = True
    fingerprint: str = ""


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt instance (``uid``); two instances of a task are two groups."""

    uid: str
    task_id: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Injection:
    """Row number ``row`` of group ``uid`` becomes ``stored``; size, uid and place stay."""

    uid: str
    row: int
    stored: Stored


def inject(
    groups: Sequence[Group],
    buffer: SuccessBuffer,
    *,
    step: int,
    rng: np.random.Generator,
    inject_below: float = 0.2,
    replaced: Replaced = "first",
) -> list[Injection]:
    """Plan at most one injection a group; changes neither groups nor buffer.

    A group takes part when it has at least two valid rows, every one of their scores is below
    ``inject_below`` and their standard deviation is below :data:`MAX_STD`.
    """
    plan = []
    for group in groups:
        valid = [i for i, row in enumerate(group.rows) if row.valid]
        scores = np.array([group.rows[i].score for i in valid], dtype=float)
        if len(valid) < 2 or not (scores < inject_below).all() or not scores.std(ddof=1) < MAX_STD:
            continue
        present = {row.fingerprint for row in group.rows if row.fingerprint}
        stored = buffer.draw(group.task_id, step=step, rng=rng, exclude=present)
        if stored is None:
            continue
        if replaced == "first":
            row = valid[0]
        elif replaced == "random":
            row = valid[int(rng.integers(len(valid)))]
        elif replaced == "worst_format":
            row = min(valid, key=lambda i: group.rows[i].format_reward)
        else:
            raise ValueError(f"replaced={replaced!r}: expected first, random or worst_format")
        plan.append(Injection(group.uid, row, stored))
    return plan
