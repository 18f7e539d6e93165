"""Tasks: what to do and how it is scored. Environments look and act; tasks decide."""

from verl_gui.tasks.sources import TaskInstance, expand_source, expand_sources, load_tasks
from verl_gui.tasks.task import Task, TaskFormatError

__all__ = ["Task", "TaskFormatError", "TaskInstance", "expand_source", "expand_sources", "load_tasks"]
