"""What an evaluation cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_gui.evaluation.runs import Run
from verl_gui.evaluation.session import Session


def cost(runs: Sequence[Run], sessions: Sequence[Session]) -> dict[str, Any]:
    """What the runs cost: tokens, seconds, and how busy the environments were.

    Utilisation is averaged over the sittings by their length; a sitting that was killed is not in it.
    """
    seconds = sum(s.seconds for s in sessions)

    def mean(name: str) -> float | None:
        return sum(getattr(s, name) * s.seconds for s in sessions) / seconds if seconds else None

    return {
        "runs": len(runs),
        "invalid_runs": sum(not run.valid for run in runs),
        "steps": sum(run.steps for run in runs),
        "prompt_tokens": sum(run.prompt_tokens for run in runs),
        "sampled_tokens": sum(run.sampled_tokens for run in runs),
        "env_s": round(sum(run.env_s for run in runs), 1),
        "generate_s": round(sum(run.generate_s for run in runs), 1),
        "wall_s": round(seconds, 1),
        "start_s": round(sum(s.start_s for s in sessions), 1),
        "sittings": len(sessions),
        "num_envs": max((s.num_envs for s in sessions), default=None),
        "env_utilisation": mean("utilisation"),
        "env_working": mean("working"),
    }
