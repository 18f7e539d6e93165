"""verl shares an episode's advantage between the outputs of one agent loop for its built-in GRPO only.

Every other estimator sees each output of a split episode as a rollout of its own: an episode that was split
into five weighs five times in its group's baseline, and episodes split differently get different shares.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from verl_gui.compat._guard import VERL, Bridge
from verl_gui.compat._imports import replace_imported


def _one_advantage_per_episode(utils: ModuleType) -> None:
    def compute_advantage_for_multi_trajectories(
        data: Any,
        batch_keys: Sequence[str],
        adv_estimator: Any,
        gamma: float = 1.0,
        lam: float = 1.0,
        num_repeat: int = 1,
        norm_adv_by_std_in_grpo: bool = True,
        config: Any = None,
    ) -> Any:
        from verl_gui.advantage.episodes import share_advantages, speaking_rows

        options = {
            "adv_estimator": adv_estimator,
            "gamma": gamma,
            "lam": lam,
            "num_repeat": num_repeat,
            "norm_adv_by_std_in_grpo": norm_adv_by_std_in_grpo,
            "config": config,
        }
        speaker = speaking_rows(batch_keys, data.batch["response_mask"])
        chosen = sorted(set(speaker))
        # A critic values every token by itself.
        if adv_estimator == "gae" or len(chosen) == len(batch_keys):
            return utils.compute_advantage(data, **options)
        spoken = utils.compute_advantage(data.select_idxs(chosen), **options).batch
        place = {row: number for number, row in enumerate(chosen)}
        of_row = [place[row] for row in speaker]
        mask = data.batch["response_mask"]
        for field in ("advantages", "returns"):
            data.batch[field] = share_advantages(
                spoken[field], spoken["response_mask"], of_row, mask, estimator=adv_estimator
            )
        return data

    replace_imported(
        utils, "compute_advantage_for_multi_trajectories", compute_advantage_for_multi_trajectories
    )


BRIDGE = Bridge(
    name="split-trajectories",
    module="verl.trainer.ppo.v1.utils",
    requires={"verl": VERL},
    twin="patches/verl/0011-advantage-share-it-between-the-outputs-of-an-episode.patch",
    apply=_one_advantage_per_episode,
)
