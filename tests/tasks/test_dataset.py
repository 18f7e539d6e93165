import pytest
from omegaconf import OmegaConf

from verl_gui.tasks import Task
from verl_gui.tasks.dataset import GuiTaskDataset

TRAIN, VAL = ["miniwob:click-test@train:5"], ["miniwob:click-test@test:3"]
CONFIG = OmegaConf.create({"train_files": TRAIN, "val_files": VAL, "seed": 3})


def test_rows_hold_what_verl_and_the_agent_loop_read():
    dataset = GuiTaskDataset(TRAIN, config=CONFIG)
    row = dataset[4]
    assert len(dataset) == 5
    assert Task.from_dict(row["task"]).id == "miniwob:click-test"
    assert (row["seed"], row["index"], row["agent_name"], row["is_validation"]) == (4, 4, "gui", False)
    assert row["raw_prompt"] and row["data_source"] == "miniwob:click-test"


def test_validation_rows_know_that_they_are():
    assert GuiTaskDataset(VAL, config=CONFIG)[0]["is_validation"] is True


def test_training_on_the_validation_file_is_refused():
    config = OmegaConf.create({"train_files": [*TRAIN, *VAL], "val_files": VAL})
    with pytest.raises(ValueError, match="share 3 tasks, the first is 'miniwob:click-test#1000000000'"):
        GuiTaskDataset(VAL, config=config)


def test_max_samples_draws_the_same_instances_again():
    def draw():
        return [
            i.seed
            for i in GuiTaskDataset("miniwob:click-test@train:50", config=CONFIG, max_samples=5).instances
        ]

    assert len(draw()) == 5
    assert draw() == draw()
