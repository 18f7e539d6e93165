"""A picture of the success curve, for READMEs and notes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from verl_gui.report import metrics


def spread(runs: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float, float, float]]:
    """``(step, mean, least, most)`` over runs, at the steps that all of them have."""
    by_step = [dict(points) for points in runs]
    common = sorted(set(by_step[0]).intersection(*by_step[1:])) if by_step else []
    found = []
    for step in common:
        values = [points[step] for points in by_step]
        found.append((step, sum(values) / len(values), min(values), max(values)))
    return found


def build_plot(
    run_dir: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    seeds: Sequence[str | os.PathLike[str]] = (),
) -> Path:
    """Draw success over steps and return the path of the PNG.

    Args:
        run_dir: the run's directory.
        out: the file; ``report.png`` in ``run_dir`` by default.
        seeds: directories of the same run with other seeds. Then the lines are means, and a band reaches from
            the least to the most.

    Raises:
        ValueError: the runs hold no success rate to draw.
        ImportError: matplotlib is missing; it comes with ``pip install verl-gui[report]``.
    """
    from matplotlib.figure import Figure  # no pyplot: nothing global, no display
    from matplotlib.ticker import MaxNLocator

    runs = [metrics.read_metrics(directory) for directory in (run_dir, *seeds)]
    curves = {
        label: spread([metrics.series(steps, patterns) for steps in runs])
        for label, patterns in (
            ("validation", metrics.VALIDATION_SUCCESS),
            ("training rollouts", metrics.TRAIN_SUCCESS),
        )
    }
    if not any(curves.values()):
        named = ", ".join(str(directory) for directory in (run_dir, *seeds))
        raise ValueError(f"{named} holds no success rate: neither validation nor training metrics name one")
    figure = Figure(figsize=(7, 3.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for (label, points), style in zip(curves.items(), ("o-", "-"), strict=True):
        if not points:
            continue
        step, mean, least, most = zip(*points, strict=True)
        if seeds:
            label = f"{label}, mean and range of {len(runs)} seeds"
            axes.fill_between(step, least, most, alpha=0.2, linewidth=0)
        axes.plot(step, mean, style, label=label, markersize=4)
    axes.set(xlabel="training step", ylabel="success rate")
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), max(1.0, axes.get_ylim()[1]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    path = Path(out) if out is not None else Path(run_dir) / "report.png"
    figure.savefig(path)
    return path
