"""Tasks: what to do and how it is scored. Environments look and act; tasks decide."""

from verl_gui.tasks.task import Task, TaskFormatError

__all__ = ["Task", "TaskFormatError"]
