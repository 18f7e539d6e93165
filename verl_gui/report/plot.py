"""A picture of the success curve, for READMEs and notes."""

from __future__ import annotations

import os
from pathlib import Path

from verl_gui.report import metrics


def build_plot(run_dir: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Draw success over steps and return the path of the PNG.

    Args:
        run_dir: the run's directory.
        out: the file; ``report.png`` in ``run_dir`` by default.

    Raises:
        ValueError: the run holds no success rate to draw.
        ImportError: matplotlib is missing; it comes with ``pip install verl-gui[report]``.
    """
    from matplotlib.figure import Figure  # no pyplot: nothing global, no display
    from matplotlib.ticker import MaxNLocator

    steps = metrics.read_metrics(run_dir)
    curves = {
        "validation": metrics.series(steps, metrics.VALIDATION_SUCCESS),
        "training rollouts": metrics.series(steps, metrics.TRAIN_SUCCESS),
    }
    if not any(curves.values()):
        raise ValueError(f"{run_dir} holds no success rate: neither validation nor training metrics name one")
    figure = Figure(figsize=(7, 3.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for (label, points), style in zip(curves.items(), ("o-", "-"), strict=True):
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, markersize=4)
    axes.set(xlabel="training step", ylabel="success rate")
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), max(1.0, axes.get_ylim()[1]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    path = Path(out) if out is not None else Path(run_dir) / "report.png"
    figure.savefig(path)
    return path
