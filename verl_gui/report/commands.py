"""``verl-gui report``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_commands(subparsers: Any) -> None:
    """Declare the commands of this room."""
    report = subparsers.add_parser(
        "report", help="write one HTML file with the curves and trajectories of a run"
    )
    report.add_argument("dir", type=Path, metavar="DIR", help="directory of the run")
    report.add_argument("--out", type=Path, help="the HTML file (DIR/report.html)")
    report.add_argument("--plot", action="store_true", help="also draw the success curve to DIR/report.png")
    report.add_argument(
        "--seeds",
        type=Path,
        metavar="OTHER",
        nargs="+",
        default=(),
        help="with --plot: the same run with other seeds; draws means and ranges",
    )
    report.add_argument(
        "--compare", type=Path, metavar="OTHER", help="draw the curves of another run as well"
    )
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from verl_gui.report import build_plot, build_report

    if options.seeds and not options.plot:
        sys.stderr.write("--seeds is for the picture: add --plot\n")
        return 2
    for directory in (options.dir, options.compare, *options.seeds):
        if directory is not None and not directory.is_dir():
            sys.stderr.write(f"{directory} is not a directory; give the --dir of a run\n")
            return 2
    sys.stdout.write(f"{build_report(options.dir, options.out, compare=options.compare)}\n")
    if options.plot:
        sys.stdout.write(f"{build_plot(options.dir, seeds=options.seeds)}\n")
    return 0
