import json

import pytest
from omegaconf import OmegaConf

from verl_gui.config import ConfigError
from verl_gui.tasks import Task, TaskFormatError, statistics
from verl_gui.tasks.dataset import GuiTaskDataset

TRAIN, VAL = ["miniwob:click-test@train:5"], ["miniwob:click-test@test:3"]
CONFIG = OmegaConf.create({"train_files": TRAIN, "val_files": VAL, "seed": 3})


@pytest.fixture(autouse=True)
def stats(monkeypatch):
    fresh = statistics.TaskStats()
    monkeypatch.setattr(statistics, "_TRAINING", fresh)
    return fresh


def run_config(train=TRAIN, val=VAL, data=(), **tasks):
    data = {
        "train_files": list(train),
        "val_files": list(val),
        "train_batch_size": 2,
        "seed": 3,
        **dict(data),
    }
    node = {"env": {"backend": "miniwob"}, "rollout": {"max_steps": 15}, "tasks": tasks}
    return OmegaConf.create({"data": data, "gui": node, "actor_rollout_ref": {"rollout": {"n": 8}}}).data


def training(**tasks):
    config = run_config(**tasks)
    return GuiTaskDataset(config.train_files, config=config)


def test_rows_hold_what_verl_and_the_agent_loop_read():
    dataset = GuiTaskDataset(TRAIN, config=CONFIG)
    row = dataset[4]
    assert len(dataset) == 5
    assert Task.from_dict(row["task"]).id == "miniwob:click-test"
    assert (row["seed"], row["index"], row["agent_name"], row["is_validation"]) == (4, 4, "gui", False)
    assert row["raw_prompt"] and row["data_source"] == "miniwob:click-test"
    assert "__rollout_n__" not in row and "max_steps" not in row


def test_nothing_of_it_is_on_by_default():
    row = training()[0]
    assert "__rollout_n__" not in row and "max_steps" not in row


def test_validation_rows_know_that_they_are():
    assert GuiTaskDataset(VAL, config=CONFIG)[0]["is_validation"] is True


def test_validation_on_training_tasks_is_refused_unless_told_to():
    same = {"train": [*TRAIN, "miniwob:click-test@train:3"], "val": ["miniwob:click-test@train:3"]}
    with pytest.raises(
        ValueError, match=r"share 3 tasks, the first is 'miniwob:click-test#0'.*validate_on_tr"
    ):
        training(**same)
    config = run_config(**same, validate_on_training_tasks=True)
    assert GuiTaskDataset(config.train_files, config=config).is_validation is False
    assert GuiTaskDataset(config.val_files, config=config).is_validation is True


def test_equal_files_are_told_apart_when_allowed():
    config = run_config(TRAIN, TRAIN, validate_on_training_tasks=True)
    assert GuiTaskDataset(config.train_files, config=config).is_validation is False
    assert GuiTaskDataset(config.val_files, config=config).is_validation is True


def test_max_samples_draws_the_same_instances_again():
    def draw():
        return [
            i.seed
            for i in GuiTaskDataset("miniwob:click-test@train:50", config=CONFIG, max_samples=5).instances
        ]

    assert len(draw()) == 5
    assert draw() == draw()


def test_less_than_a_batch_is_refused_and_the_rest_of_an_epoch_named(caplog):
    with pytest.raises(ValueError, match=r"5 tasks are less than one batch .*=8"):
        training(data={"train_batch_size": 8})
    training()
    assert "5 tasks in batches of 2: 1 of them" in caplog.text


def write_tasks(folder, count, bad=()):
    tasks = [
        {"id": f"t{i}", "instruction": "" if i in bad else "do it", "evaluator": {"func": "f"}}
        for i in range(count)
    ]
    file = folder / "tasks.jsonl"
    file.write_text("\n".join(json.dumps(task) for task in tasks))
    return str(file)


def test_bad_tasks_are_refused_or_skipped_with_a_report(tmp_path, caplog):
    file = write_tasks(tmp_path, 6, bad={2, 4})
    with pytest.raises(TaskFormatError, match=r"tasks.jsonl:3: field 'instruction'"):
        training(train=[file])
    dataset = training(train=[file], bad_tasks="skip")
    assert [i.name for i in dataset.instances] == ["t0", "t1", "t3", "t5"]
    assert [error.file.rpartition(":")[2] for error in dataset.skipped] == ["3", "5"]
    assert "2 tasks of" in caplog.text and "tasks.jsonl:5" in caplog.text


def test_a_split_of_one_file_never_overlaps(tmp_path):
    file = write_tasks(tmp_path, 200)
    config = run_config([f"{file}@train"], [f"{file}@test"], test_share=0.2)
    sides = [
        {i.name for i in GuiTaskDataset(f, config=config).instances}
        for f in (config.train_files, config.val_files)
    ]
    assert not sides[0] & sides[1] and len(sides[0] | sides[1]) == 200
    assert 20 <= len(sides[1]) <= 60
    with pytest.raises(ValueError, match="share"):
        training(train=[file], val=[f"{file}@test"])


def test_mixture_by_weights():
    small, large = "miniwob:click-color@train:2", "miniwob:click-test@train:40"
    dataset = training(train=[large, small], weights=[1.0, 3.0])
    names = [row["task"]["id"] for _ in range(20) for row in dataset.__getitems__([0, 0])]
    assert names.count("miniwob:click-color") == 30
    with pytest.raises(ValueError, match="1 weights for 2"):
        training(train=[large, small], weights=[1.0])
    with pytest.raises(ConfigError, match="weights"):
        training(train=[large, small], weights=[1.0, 0])


def test_a_source_that_adds_nothing_to_a_mixture_is_refused():
    with pytest.raises(ValueError, match="brings no task"):
        training(train=[*TRAIN, "miniwob:click-test@train:4"], weights=[2.0, 1.0])


EASY = {"train": ["miniwob:click-test@train:4", "miniwob:click-color@train:4"]}


def test_rollouts_of_a_batch(stats):
    stats.ended("miniwob:click-test", [(True, 3)] * 16, step=1)
    dataset = training(**EASY, allocation={"name": "success_rate", "n_min": 2})
    rows = dataset.__getitems__([0, 4])
    assert [row["__rollout_n__"] for row in rows] == [2, 8]
    assert stats["miniwob:click-test"].running == 2 and stats["miniwob:click-color"].running == 8


def test_the_total_of_a_batch_stays_within_bounds(stats):
    stats.ended("miniwob:click-test", [(True, 3)] * 16, step=1)
    floor = training(**EASY, allocation={"name": "success_rate", "total_min": 12})
    assert [row["__rollout_n__"] for row in floor.__getitems__([0, 4])] == [4, 8]
    ceiling = training(**EASY, allocation={"name": "success_rate", "total_max": 10})
    assert [row["__rollout_n__"] for row in ceiling.__getitems__([4, 5])] == [5, 5]
    assert [row["__rollout_n__"] for row in ceiling.__getitems__([4])] == [5]  # half a batch, half the bound
    with pytest.raises(ValueError, match="cannot have"):
        training(**EASY, allocation={"name": "success_rate", "n_min": 4, "total_max": 5})


def test_step_limit_of_a_task(stats):
    stats.ended("miniwob:click-test", [(True, 4)] * 3, step=1)
    dataset = training(**EASY, step_limit={"slack": 1.5})
    assert [row["max_steps"] for row in dataset.__getitems__([0, 4])] == [6, 15]


def test_validation_is_left_alone(stats):
    stats.ended("miniwob:click-test", [(True, 4)] * 16, step=1)
    config = run_config(allocation={"name": "success_rate"}, step_limit={"slack": 1.5})
    row = GuiTaskDataset(config.val_files, config=config)[0]
    assert "__rollout_n__" not in row and "max_steps" not in row and stats["miniwob:click-test"].running == 0


def test_what_learns_from_training_needs_the_trainers_process():
    with pytest.raises(ValueError, match="dataloader_num_workers=0"):
        training(data={"dataloader_num_workers": 4}, cooldown={"failures": 3})
    training(data={"dataloader_num_workers": 4})
