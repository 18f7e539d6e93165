"""``verl-gui tasks stats``: success rates of tasks, from results or from a checkpoint."""

from __future__ import annotations

from pathlib import Path

from verl_gui.evaluation.runs import Tally, read_runs
from verl_gui.evaluation.text import align
from verl_gui.tasks.statistics import TaskStats


def table_of(path: Path) -> str:
    """The statistics in ``path`` as a table.

    Args:
        path: a directory with ``runs.jsonl`` (of a filter or an evaluation) or with ``data.pt`` (a checkpoint
            of a training run, ``global_step_<n>``).

    Raises:
        ValueError: there is neither.
    """
    if (path / "runs.jsonl").is_file():
        return _of_results(path / "runs.jsonl")
    if (path / "data.pt").is_file():
        return _of_checkpoint(path / "data.pt")
    raise ValueError(f"{path} holds neither runs.jsonl (filter, evaluation) nor data.pt (checkpoint)")


def _of_results(file: Path) -> str:
    tallies: dict[str, Tally] = {}
    for run in read_runs(file)[0]:
        tallies.setdefault(run.instance, Tally()).add(run)
    lines = [["task", "successes", "valid", "invalid", "rate", "longest success"]]
    for name, tally in tallies.items():
        longest = str(max(tally.lengths)) if tally.lengths else "-"
        counts = (tally.successes, tally.valid, tally.invalid)
        lines.append([name, *map(str, counts), _percent(tally.rate), longest])
    return align(lines)


def _of_checkpoint(file: Path) -> str:
    stats = stats_of_checkpoint(file)
    lines = [["task", "successes", "attempts", "invalid", "recent rate", "longest success", "last step"]]
    for task_id, record in stats.items():
        counts = (record.successes, record.attempts, record.invalid)
        longest = str(record.longest_success or "-")
        lines.append([task_id, *map(str, counts), _percent(record.rate), longest, str(record.last_step)])
    return align(lines)


def stats_of_checkpoint(file: Path) -> TaskStats:
    """The statistics in a ``data.pt``.

    Raises:
        ValueError: it holds none.
    """
    import torch

    # weights_only: nothing in the file is executed.
    state = torch.load(file, weights_only=True)
    found = _find(state)
    if found is None:
        raise ValueError(f"{file} holds no task statistics; was GuiTaskDataset the data set?")
    stats = TaskStats()
    stats.load_state_dict(found)
    return stats


def _find(state: object) -> dict[str, object] | None:
    """The data set's own state, wherever the loader put it."""
    if not isinstance(state, dict):
        return None
    if {"tasks", "stats", "curriculum"} <= state.keys():
        return state["stats"]
    return next((found for value in state.values() if (found := _find(value)) is not None), None)


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"
