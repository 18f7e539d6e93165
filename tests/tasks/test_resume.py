"""A resumed run trains on the same batches as one that was never interrupted: verl's loader and sampler."""

import io

import pytest
import torch
from omegaconf import OmegaConf
from task_cases import shared_cases
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler
from verl.utils.dataset.rl_dataset import collate_fn

from verl_gui.tasks import statistics
from verl_gui.tasks.dataset import GuiTaskDataset
from verl_gui.tasks.stats_view import stats_of_checkpoint, table_of

BATCH = 2
SOURCE, OTHER = "miniwob:click-test@train:{}", "miniwob:click-color@train:{}"


class Loader:
    """verl's ``_init_dataloader`` and ``_fetch_one_gen_batch`` (verl.trainer.ppo.v1.trainer_base), no more.

    Args:
        per_epoch: batches of an epoch.
        tasks: the node ``gui.tasks``.
    """

    def __init__(self, monkeypatch, per_epoch, **tasks):
        monkeypatch.setattr(statistics, "_TRAINING", statistics.TaskStats())
        count = per_epoch * BATCH
        half = count // 2
        config = OmegaConf.create(
            {
                "data": {
                    "train_files": [SOURCE.format(half), OTHER.format(count - half)],
                    "val_files": ["miniwob:click-test@test:1"],
                    "train_batch_size": BATCH,
                    "seed": 1,
                },
                "gui": {"env": {"backend": "miniwob"}, "tasks": tasks},
                "actor_rollout_ref": {"rollout": {"n": 4}},
            }
        )
        self.dataset = GuiTaskDataset(config.data.train_files, config=config.data)
        generator = torch.Generator()
        generator.manual_seed(1)
        self.loader = StatefulDataLoader(
            dataset=self.dataset,
            batch_size=BATCH,
            num_workers=0,
            drop_last=True,
            collate_fn=collate_fn,
            sampler=RandomSampler(data_source=self.dataset, generator=generator),
        )
        self.iterator = None

    def step(self):
        """The instances of the next batch; then the episodes of it come back, half of the tasks solved."""
        try:
            if self.iterator is None:
                self.iterator = iter(self.loader)
            batch = next(self.iterator)
        except StopIteration:
            self.iterator = iter(self.loader)
            batch = next(self.iterator)
        stats = self.dataset.stats
        for task in batch["task"]:
            stats.ended(task["id"], [("color" in task["id"], 2)] * 4, step=stats.step + 1)
        stats.settle()
        return [f"{t['id']}#{seed}" for t, seed in zip(batch["task"], batch["seed"], strict=True)]

    def saved(self):
        """What verl writes to ``data.pt``."""
        file = io.BytesIO()
        torch.save(self.loader.state_dict(), file)
        file.seek(0)
        return file

    def restore(self, file):
        self.loader.load_state_dict(torch.load(file, weights_only=False))


WAYS = [
    {},
    {"weights": [3.0, 1.0]},
    {"cooldown": {"failures": 8, "steps": 5}},
]


@pytest.mark.parametrize("tasks", WAYS, ids=["plain", "mixture", "cool-down"])
@shared_cases("resume_steps")
def test_shared_case(case, tasks, monkeypatch):
    whole = Loader(monkeypatch, case["per_epoch"], **tasks)
    expected = [whole.step() for _ in range(case["total"])]
    first = Loader(monkeypatch, case["per_epoch"], **tasks)
    begun = [first.step() for _ in range(case["at"])]
    file = first.saved()

    second = Loader(monkeypatch, case["per_epoch"], **tasks)
    second.restore(file)
    rest = [second.step() for _ in range(case["total"] - case["at"])]
    assert len(begun) + 1 == case["next"]
    assert begun + rest == expected
    assert second.dataset.stats.state_dict() == whole.dataset.stats.state_dict()


def test_epochs_see_every_task_once_without_a_curriculum(monkeypatch):
    loader = Loader(monkeypatch, 6)
    epochs = [[name for _ in range(6) for name in loader.step()] for _ in range(2)]
    assert all(len(set(epoch)) == 12 for epoch in epochs) and epochs[0] != epochs[1]


def test_statistics_are_in_the_checkpoint_and_can_be_shown(monkeypatch, tmp_path):
    loader = Loader(monkeypatch, 6)
    for _ in range(6):
        loader.step()
    (tmp_path / "data.pt").write_bytes(loader.saved().read())
    assert stats_of_checkpoint(tmp_path / "data.pt").state_dict() == loader.dataset.stats.state_dict()
    assert "miniwob:click-color" in table_of(tmp_path) and "100%" in table_of(tmp_path)


def test_a_checkpoint_of_other_tasks_is_refused(monkeypatch):
    file = Loader(monkeypatch, 6)
    file.step()
    other = Loader(monkeypatch, 8)
    other.restore(file.saved())
    with pytest.raises(ValueError, match="made with other tasks"):
        other.step()


def test_failing_tasks_have_a_rest(monkeypatch):
    loader = Loader(monkeypatch, 20, cooldown={"failures": 8, "steps": 10})
    seen = [sum("click-test" in name for name in loader.step()) for _ in range(60)]
    rests = "".join("x" if n else "." for n in seen)
    assert "....." in rests and rests.rstrip(".").endswith("x") and rests.count("x") > 6
