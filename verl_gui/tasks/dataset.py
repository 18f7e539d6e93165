"""verl's view of a task set: one row a task instance.

Chosen by ``data.custom_cls.path=pkg://verl_gui.tasks.dataset`` and ``data.custom_cls.name=GuiTaskDataset``;
``data.train_files`` and ``data.val_files`` then hold sources (see :mod:`verl_gui.tasks.sources`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from verl_gui.tasks.sources import TaskInstance, expand_sources


class GuiTaskDataset(Dataset):
    """Task instances as rows for verl's data loader and agent loops.

    Args:
        data_files: sources, see :func:`verl_gui.tasks.sources.expand_source`.
        tokenizer: unused; verl passes it.
        processor: unused; the picture of a task only exists once an environment has been reset.
        config: verl's ``data`` node.
        max_samples: keep a random choice of so many instances (drawn with ``data.seed``); -1 keeps all.
    """

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: Any = None,
        processor: Any = None,
        config: Any = None,
        max_samples: int = -1,
    ) -> None:
        files = [data_files] if isinstance(data_files, str) else [str(file) for file in data_files]
        self.instances: list[TaskInstance] = expand_sources(files)
        self.is_validation = self._is_validation(files, config)
        if not self.instances:
            raise ValueError(f"no tasks in {files}")
        if 0 < max_samples < len(self.instances):
            seed = (config.get("seed") if config is not None else None) or 0
            self.instances = random.Random(seed).sample(self.instances, max_samples)

    @staticmethod
    def _is_validation(files: list[str], config: Any) -> bool:
        """Whether these are the validation files; verl does not say.

        Raises:
            ValueError: the same source is trained and validated on.
        """
        if config is None or config.get("val_files") is None or config.get("train_files") is None:
            return False
        train, val = (
            [value] if isinstance(value, str) else list(value)
            for value in (config.train_files, config.val_files)
        )
        both = sorted(set(train) & set(val))
        if both:
            raise ValueError(
                f"data.train_files and data.val_files share {both[0]!r}: validate on other tasks or seeds"
            )
        return files == val

    def __len__(self) -> int:
        return len(self.instances)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One row: the task, its seed, and the fields that verl's trainer reads of every row."""
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
