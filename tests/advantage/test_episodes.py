import pytest
import torch

from verl_gui.advantage import AdvantageError
from verl_gui.advantage.episodes import share_advantages, speaking_rows


def test_the_last_output_with_a_sampled_token_stands_for_its_episode():
    keys = ["u_0_0", "u_1_0", "u_0_2", "u_0_1", "a_b_0_0", "a_b_0_1", "pad_0_0"]
    mask = torch.tensor([[1, 0], [1, 1], [0, 0], [0, 1], [1, 0], [1, 0], [0, 0]])
    assert speaking_rows(keys, mask) == [3, 1, 3, 3, 5, 5, 6]


def test_outputs_are_ordered_as_numbers():
    keys = ["u_0_10", "u_0_9"]
    assert speaking_rows(keys, torch.ones(2, 1)) == [0, 0]


def test_an_episode_without_sampled_tokens_is_its_last_output():
    assert speaking_rows(["u_0_0", "u_0_1"], torch.zeros(2, 1)) == [1, 1]


@pytest.mark.parametrize("key", ["u_0", "u_0_x", "u", "", "_"])
def test_keys_of_another_form_are_refused(key):
    with pytest.raises(AdvantageError, match="row 1 is called"):
        speaking_rows(["u_0_0", key], torch.ones(2, 1))


def test_every_row_takes_over_one_number_on_its_own_sampled_tokens():
    spoken = torch.tensor([[0.0, 2.0, 2.0], [-1.0, 0.0, -1.0]])
    spoken_mask = torch.tensor([[0, 1, 1], [1, 0, 1]])
    mask = torch.tensor([[1, 0, 0], [0, 1, 1], [1, 0, 1]])
    got = share_advantages(spoken, spoken_mask, [0, 0, 1], mask, estimator="arpo")
    assert got.tolist() == [[2, 0, 0], [0, 2, 2], [-1, 0, -1]]


def test_token_wise_advantages_cannot_be_shared():
    with pytest.raises(AdvantageError, match=r"adv_estimator=token_wise.*history_images"):
        share_advantages(
            torch.tensor([[1.0, 2.0]]), torch.ones(1, 2), [0], torch.ones(1, 2), estimator="token_wise"
        )
