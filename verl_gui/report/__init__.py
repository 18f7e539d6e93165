"""What happened in a run: metrics, plots and the trajectory viewer."""

from verl_gui.report.build import build_report
from verl_gui.report.plot import build_plot

__all__ = ["build_plot", "build_report"]
