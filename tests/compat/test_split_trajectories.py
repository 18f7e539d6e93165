"""Episodes that were split into several outputs, through verl's own advantage step."""

import numpy as np
import pytest
import torch
from verl import DataProto
from verl.trainer.config import AlgoConfig

from verl_gui.compat import split_trajectories

OUTCOME_ESTIMATORS = [
    "grpo",
    "arpo",
    "arpo_batch_std",
    "rloo",
    "rloo_vectorized",
    "opo",
    "gpg",
    "grpo_vectorized",
    "reinforce_plus_plus_baseline",
]


def batch(keys, rewards, masks=None):
    """Rows of verl's trainer: the reward on the last token, the uid from the key."""
    levels = torch.zeros(len(keys), 4)
    levels[:, -1] = torch.tensor(rewards)
    tensors = {
        "token_level_rewards": levels,
        "response_mask": torch.ones(len(keys), 4)
        if masks is None
        else torch.tensor(masks, dtype=torch.float32),
        "attention_mask": torch.ones(len(keys), 8),
    }
    uids = np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object)
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids})


def advantages(module, keys, rewards, estimator, masks=None):
    config = AlgoConfig(adv_estimator=estimator)
    data = module.compute_advantage_for_multi_trajectories(
        batch(keys, rewards, masks), batch_keys=keys, adv_estimator=estimator, config=config
    )
    return data.batch["advantages"]


# Session 0 of u succeeded in three outputs; 1 and 2 failed in one and two. v was not split.
SPLIT = ["u_0_0", "v_0_0", "u_0_1", "u_1_0", "u_2_1", "v_1_0", "u_0_2", "u_2_0"]
SPLIT_REWARDS = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
WHOLE = ["v_0_0", "u_1_0", "u_2_0", "v_1_0", "u_0_0"]
WHOLE_REWARDS = [0.0, 0.0, 0.0, 1.0, 1.0]


def test_released_verl_counts_every_output_of_a_registered_estimator(released):
    module = released(split_trajectories.BRIDGE)
    whole = advantages(module, WHOLE, WHOLE_REWARDS, "arpo")
    split = advantages(module, SPLIT, SPLIT_REWARDS, "arpo")
    assert split[0, 0] != pytest.approx(whole[4, 0].item(), abs=1e-3)


def test_released_verl_loses_an_episode_whose_last_output_has_no_sampled_token(released):
    masks = [[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]]
    got = advantages(
        released(split_trajectories.BRIDGE), ["u_0_0", "u_0_1", "u_1_0"], [1.0, 1.0, 0.0], "grpo", masks
    )
    assert not got[0].any()


@pytest.mark.parametrize("estimator", OUTCOME_ESTIMATORS)
def test_an_episode_has_the_same_advantage_split_or_whole(repaired, estimator):
    module = repaired(split_trajectories.BRIDGE)
    whole = dict(zip(WHOLE, advantages(module, WHOLE, WHOLE_REWARDS, estimator), strict=True))
    split = dict(zip(SPLIT, advantages(module, SPLIT, SPLIT_REWARDS, estimator), strict=True))
    for key, got in split.items():
        session = key.rpartition("_")[0]
        torch.testing.assert_close(got, whole[f"{session}_0"], rtol=1e-5, atol=1e-6)
    assert split["u_0_0"].abs().sum() > 0


def test_grpo_stays_what_released_verl_made_it(released, repaired):
    expected = advantages(released(split_trajectories.BRIDGE), SPLIT, SPLIT_REWARDS, "grpo")
    assert torch.equal(
        advantages(repaired(split_trajectories.BRIDGE), SPLIT, SPLIT_REWARDS, "grpo"), expected
    )


def test_an_episode_whose_last_output_has_no_sampled_token_counts(repaired):
    masks = [[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]]
    keys, rewards = ["u_0_0", "u_0_1", "u_1_0", "padx_0_0"], [1.0, 1.0, 0.0, 0.0]
    got = advantages(repaired(split_trajectories.BRIDGE), keys, rewards, "arpo", masks)
    value = 0.5 / (0.5**0.5 + 1e-6)
    torch.testing.assert_close(got, torch.tensor(masks) * torch.tensor([[value], [value], [-value], [0.0]]))


def test_critics_and_whole_episodes_go_through_unchanged(repaired):
    module = repaired(split_trajectories.BRIDGE)
    expected = module.compute_advantage(
        batch(WHOLE, WHOLE_REWARDS), adv_estimator="rloo", config=AlgoConfig(adv_estimator="rloo")
    ).batch["advantages"]
    assert torch.equal(advantages(module, WHOLE, WHOLE_REWARDS, "rloo"), expected)
    data = batch(SPLIT, SPLIT_REWARDS)
    data.batch["values"] = torch.linspace(0, 1, 32).view(8, 4)
    copy = DataProto.from_dict(tensors=dict(data.batch), non_tensors=data.non_tensor_batch)
    config = AlgoConfig(adv_estimator="gae")
    got = module.compute_advantage_for_multi_trajectories(data, SPLIT, "gae", config=config)
    expected = module.compute_advantage(copy, adv_estimator="gae", config=config)
    assert torch.equal(got.batch["advantages"], expected.batch["advantages"])


def test_token_wise_advantages_of_split_episodes_are_refused(repaired):
    config = AlgoConfig(adv_estimator="reinforce_plus_plus", gamma=0.5)
    data = batch(SPLIT, SPLIT_REWARDS)
    with pytest.raises(ValueError, match=r"reinforce_plus_plus.*different advantages"):
        repaired(split_trajectories.BRIDGE).compute_advantage_for_multi_trajectories(
            data, SPLIT, "reinforce_plus_plus", config=config
        )


def test_keys_of_another_form_are_refused(repaired):
    with pytest.raises(ValueError, match="row 0 is called 'nonsense'"):
        advantages(repaired(split_trajectories.BRIDGE), ["nonsense"], [1.0], "arpo")


def test_verls_trainer_has_the_repaired_function():
    from verl.trainer.ppo.v1 import trainer_base

    assert "verl_gui" in trainer_base.compute_advantage_for_multi_trajectories.__module__
