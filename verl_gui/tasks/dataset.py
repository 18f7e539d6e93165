"""verl's view of a task set: one row a task instance.

Chosen by ``data.custom_cls.path=pkg://verl_gui.tasks.dataset`` and ``data.custom_cls.name=GuiTaskDataset``;
``data.train_files`` and ``data.val_files`` then hold sources (see :mod:`verl_gui.tasks.sources`), and
``gui.tasks`` says how they are used.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from verl_gui.config import GuiConfig, TasksConfig
from verl_gui.replay.run import training_replay
from verl_gui.report.trackers import follow_run
from verl_gui.tasks.allocation import make_allocator, within
from verl_gui.tasks.curriculum import Curriculum, digest, rests
from verl_gui.tasks.sources import Skipped, Split, TaskInstance, expand_source, expand_sources, overlap
from verl_gui.tasks.statistics import TaskStats, training_stats
from verl_gui.tasks.step_limit import step_limit

logger = logging.getLogger(__name__)


class GuiTaskDataset(Dataset):
    """Task instances as rows for verl's data loader and agent loops.

    The rows of a batch are made together, when the loader asks for them, because some of what they hold
    depends on the training run so far: which tasks have a rest, how many rollouts and steps a task gets. All
    that is off by default. Its state is part of the loader's (``data.pt`` in a checkpoint).

    Args:
        data_files: sources, see :func:`verl_gui.tasks.sources.expand_source`.
        tokenizer: unused; verl passes it.
        processor: unused; the picture of a task only exists once an environment has been reset.
        config: verl's ``data`` node. The nodes ``gui`` and ``actor_rollout_ref`` beside it are read too.
        max_samples: keep a random choice of so many instances (drawn with ``data.seed``); -1 keeps all.

    Attributes:
        instances: what the rows are made of.
        skipped: tasks that could not be used and why; empty unless ``gui.tasks.bad_tasks=skip``.
        stats: statistics of this run's tasks.

    Raises:
        TaskFormatError: a task cannot be used.
        ValueError: no tasks, less than one batch of them, or tasks that are trained and validated on.
    """

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: Any = None,
        processor: Any = None,
        config: Any = None,
        max_samples: int = -1,
    ) -> None:
        files = _listed(data_files)
        self._gui, self._n = _surroundings(config)
        self._tasks: TasksConfig = self._gui.tasks if self._gui is not None else TasksConfig()
        self._split = Split(self._tasks.test_share, self._tasks.split_by)
        self.skipped: Skipped = []
        self.stats: TaskStats = training_stats()
        self.instances: list[TaskInstance] = self._read(files, self.skipped)
        self._report_skipped(files)
        self.is_validation = self._is_validation(data_files, files, config)
        self._seed: int = (config.get("seed") if config is not None else None) or 0
        if 0 < max_samples < len(self.instances):
            self.instances = random.Random(self._seed).sample(self.instances, max_samples)
        if not self.instances:
            raise ValueError(f"no tasks in {files}")
        self._curriculum: Curriculum | None = None
        self._batch_size: int | None = None
        if not self.is_validation:
            self._check_batches(config)
            self._prepare(files, config)
            if self._gui is not None:
                training_replay().configure(self._gui.replay, self._gui.report.dir)
                follow_run(self._gui.report, config._get_root().get("trainer") or {})

    # -- what verl's loader asks for --------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.instances)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One row; see :meth:`__getitems__`."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The rows of a batch: the tasks, their seeds, and the fields that verl's trainer reads of every row.

        Under a curriculum only the number of ``indices`` matters.
        """
        if self._curriculum is not None:
            indices = [self._curriculum.draw() for _ in indices]
        rows = [self._row(index) for index in indices]
        if self.is_validation or self._gui is None:
            return rows
        ids = [self.instances[index].task.id for index in indices]
        rollouts = self._allocate(ids)
        for row, task_id, n in zip(rows, ids, rollouts, strict=True):
            if self._tasks.allocation.name != "fixed":
                row["__rollout_n__"] = n
            if self._tasks.step_limit.slack is not None:
                row["max_steps"] = step_limit(
                    self.stats[task_id], self._tasks.step_limit, self._gui.rollout.max_steps
                )
            self.stats.started(task_id, n)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to go on with the next task: statistics, order, and the tasks' names."""
        return {
            "tasks": digest([instance.name for instance in self.instances]),
            "stats": self.stats.state_dict(),
            "curriculum": None if self._curriculum is None else self._curriculum.state_dict(),
            "replay": training_replay().state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken.

        Raises:
            ValueError: it was taken with other tasks.
        """
        if state["tasks"] != digest([instance.name for instance in self.instances]):
            raise ValueError(
                "the checkpoint was made with other tasks than data.train_files names now; give the same "
                "ones, or delete data.pt in the checkpoint to start with these from the beginning"
            )
        self.stats.load_state_dict(state["stats"])
        training_replay().load_state_dict(state.get("replay"))
        if self._curriculum is not None and state["curriculum"] is not None:
            self._curriculum.load_state_dict(state["curriculum"])

    # -- inside -----------------------------------------------------------------------------------------

    def _row(self, index: int) -> dict[str, Any]:
        instance = self.instances[index]
        task = instance.task
        return {
            "raw_prompt": [{"role": "user", "content": task.instruction or task.id}],
            "data_source": task.id if task.domain == "miniwob" else (task.domain or "tasks"),
            "agent_name": "gui",
            "reward_model": {"style": "environment", "ground_truth": ""},
            "index": index,
            "task": task.to_dict(),
            "seed": -1 if instance.seed is None else instance.seed,
            "is_validation": self.is_validation,
        }

    def _allocate(self, task_ids: Sequence[str]) -> list[int]:
        """Rollouts of each prompt, within the bounds; a part of a batch has its share of them."""
        allocation, count = self._tasks.allocation, len(task_ids)
        if allocation.name == "fixed":
            return [self._n] * count
        most = allocation.n_max or self._n
        batch = self._batch_size or count
        upper = (allocation.total_max or self._n * batch) * count // batch
        lower = (allocation.total_min or 0) * count // batch
        wanted = make_allocator(allocation, self._n).allocate(task_ids, self.stats)
        return within(wanted, least=allocation.n_min, most=most, total_min=lower, total_max=upper)

    def _prepare(self, files: Sequence[str], config: Any) -> None:
        """Set up what depends on the training run so far, and refuse what cannot work."""
        adaptive = (
            bool(self._tasks.weights)
            or self._tasks.cooldown.failures > 0
            or self._tasks.allocation.name != "fixed"
            or self._tasks.step_limit.slack is not None
        )
        if config is not None and config.get("dataloader_num_workers", 0):
            if adaptive:
                raise ValueError(
                    "gui.tasks (weights, allocation, step_limit, cooldown) needs "
                    "data.dataloader_num_workers=0: in a process of its own the data set does not hear how "
                    "training goes"
                )
            logger.warning(
                "data.dataloader_num_workers is not 0: task statistics are not saved in checkpoints"
            )
        if self._tasks.allocation.name != "fixed":
            self._allocate([self.instances[0].task.id] * (self._batch_size or 1))  # refuses bad bounds now
        if not self._tasks.weights and not self._tasks.cooldown.failures:
            return
        if self._tasks.weights and len(self._tasks.weights) != len(files):
            raise ValueError(
                f"gui.tasks.weights has {len(self._tasks.weights)} weights for {len(files)} data.train_files"
            )
        self._curriculum = Curriculum(
            [instance.name for instance in self.instances],
            self._pools(files),
            resting=self._rests,
            seed=self._seed,
        )

    def _pools(self, files: Sequence[str]) -> list[tuple[list[int], float]]:
        """The instances of each source and its weight; one in two sources belongs to the first."""
        if not self._tasks.weights:
            return [(list(range(len(self.instances))), 1.0)]
        position = {instance.name: i for i, instance in enumerate(self.instances)}
        pools = []
        for file, weight in zip(files, self._tasks.weights, strict=True):
            found = expand_source(file, split=self._split, skipped=[])
            members = [position.pop(instance.name) for instance in found if instance.name in position]
            if not members:
                raise ValueError(f"data.train_files: {file!r} brings no task that an earlier source has not")
            pools.append((members, float(weight)))
        return pools

    def _rests(self, index: int) -> bool:
        cooldown = self._tasks.cooldown
        record = self.stats[self.instances[index].task.id]
        return rests(record, step=self.stats.step, failures=cooldown.failures, cooldown_steps=cooldown.steps)

    def _read(self, files: Sequence[str], skipped: Skipped) -> list[TaskInstance]:
        skip = skipped if self._tasks.bad_tasks == "skip" else None
        return expand_sources(files, split=self._split, skipped=skip)

    def _report_skipped(self, files: Sequence[str]) -> None:
        for error in self.skipped:
            logger.warning("task left out: %s", error)
        if self.skipped:
            logger.warning(
                "%d tasks of %s are left out, %d are used", len(self.skipped), files, len(self.instances)
            )

    def _is_validation(self, data_files: Any, files: list[str], config: Any) -> bool:
        """Whether these are the validation files; verl does not say.

        Raises:
            ValueError: tasks are both trained and validated on.
        """
        if config is None or config.get("val_files") is None or config.get("train_files") is None:
            return False
        train, val = _listed(config.train_files), _listed(config.val_files)
        if not self._tasks.validate_on_training_tasks:
            both = overlap(self._read(val, []), self._read(train, []))
            if both:
                raise ValueError(
                    f"data.train_files and data.val_files share {len(both)} tasks, the first is {both[0]!r}: "
                    "validate on other tasks or seeds (PATH@train and PATH@test divide a path), or allow it "
                    "with gui.tasks.validate_on_training_tasks=true"
                )
        if train == val:  # then only the very object tells them apart
            return data_files is config.val_files and data_files is not config.train_files
        return files == val

    def _check_batches(self, config: Any) -> None:
        """Refuse fewer tasks than one batch; say what an incomplete last batch leaves out."""
        self._batch_size = config.get("train_batch_size") if config is not None else None
        if self._batch_size is None:
            return
        if len(self.instances) < self._batch_size:
            raise ValueError(
                f"{len(self.instances)} tasks are less than one batch (data.train_batch_size="
                f"{self._batch_size}): verl would do no step. Give more tasks or seeds, or a smaller batch"
            )
        left = len(self.instances) % self._batch_size
        if left:
            logger.warning(
                "%d tasks in batches of %d: %d of them are not trained on in an epoch",
                len(self.instances),
                self._batch_size,
                left,
            )


def _listed(files: Any) -> list[str]:
    return [files] if isinstance(files, str) else [str(file) for file in files]


def _surroundings(config: Any) -> tuple[GuiConfig | None, int]:
    """The ``gui`` node beside verl's ``data`` node, and ``rollout.n``; (None, 1) for a node of its own."""
    root = config._get_root() if hasattr(config, "_get_root") else None
    if root is None or root.get("gui") is None:
        return None, 1
    return GuiConfig.from_config(root), int(root.actor_rollout_ref.rollout.n)
