"""What the sampler does with rows as TransferQueue gives them, and with a checkpoint."""

import logging

import pytest
import torch
from tensordict.tensorclass import NonTensorData, NonTensorStack

from verl_gui.config import ConfigError, ReplayConfig
from verl_gui.replay import SuccessBuffer, pack
from verl_gui.replay.run import TrainingReplay
from verl_gui.replay.sampler import column, in_place_of, task_key


def test_columns_lose_their_wrappers():
    jagged = torch.nested.as_nested_tensor([torch.arange(2), torch.arange(3)], layout=torch.jagged)
    assert [row.tolist() for row in column(jagged)] == [[0, 1], [0, 1, 2]]
    stack = NonTensorStack(NonTensorData({"a": [1]}), NonTensorData({"a": [2, 3]}))
    rows = column(stack)
    assert rows == [{"a": [1]}, {"a": [2, 3]}]
    pack(rows)


@pytest.mark.parametrize(("seed", "name"), [(3, "page#3"), (-1, "page"), (torch.tensor(0), "page#0")])
def test_a_task_is_its_id_and_seed(seed, name):
    assert task_key({"seed": seed, "extra_fields": {"task_id": "page"}}) == name


def test_a_stored_row_takes_the_name_of_the_replaced_one():
    record = {
        "prompts": torch.ones(4), "responses": torch.ones(3),
        "uid": "old", "session_id": 0, "global_steps": 1,
    }  # fmt: skip
    row, tag = in_place_of(record, "new_2_0", {"status": "success", "global_steps": 9, "seq_len": 99})
    assert (row["uid"], row["session_id"], row["global_steps"]) == ("new", 2, 9)
    assert (tag["prompt_len"], tag["response_len"], tag["seq_len"], tag["status"]) == (4, 3, 7, "success")


def test_a_checkpoint_brings_the_buffer_back(tmp_path, caplog):
    run = TrainingReplay()
    run.configure(ReplayConfig(enable=True))
    run.buffer.add("page#3", {"x": torch.arange(5)}, step=2, score=1.0)
    torch.save(run.state_dict(), tmp_path / "data.pt")
    resumed = TrainingReplay()
    resumed.configure(ReplayConfig(enable=True))
    resumed.load_state_dict(torch.load(tmp_path / "data.pt", weights_only=True))
    assert resumed.buffer.tasks == run.buffer.tasks
    with caplog.at_level(logging.WARNING):
        resumed.load_state_dict(None)
    assert len(resumed.buffer) == 0 and "no replay buffer" in caplog.text


def test_a_resumed_run_gets_the_files_successes_too(tmp_path):
    recorded = SuccessBuffer()
    recorded.add("page#1", {"x": torch.arange(3)}, step=0, score=1.0)
    recorded.add("page#2", {"x": torch.arange(4)}, step=0, score=1.0)
    recorded.save(tmp_path / "recorded")
    first = TrainingReplay()
    first.configure(ReplayConfig(enable=True))
    first.buffer.add("page#2", {"x": torch.arange(4)}, step=5, score=1.0)
    state = first.state_dict()

    resumed = TrainingReplay()
    resumed.configure(ReplayConfig(enable=True, path=str(tmp_path / "recorded")))
    resumed.load_state_dict(state)
    steps = {task: [s.step for s in stored] for task, stored in resumed.buffer.tasks.items()}
    assert steps == {"page#1": [0], "page#2": [5]}  # the same actions: the newer row stays
    resumed.load_state_dict(None)
    assert {task: len(stored) for task, stored in resumed.buffer.tasks.items()} == {"page#1": 1, "page#2": 1}


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match="freshness_tau=0"):
        ReplayConfig(freshness_tau=0)
