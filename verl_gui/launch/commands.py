"""``verl-gui run``, ``verl-gui doctor`` and ``verl-gui version``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_commands(subparsers: Any) -> None:
    """Declare the commands of this room."""
    run = subparsers.add_parser(
        "run",
        help="run a training command with a progress bar, a report, and nothing left behind",
        description="Run a training command: show how it goes, end it cleanly, write its report.",
        epilog="example: verl-gui run --dir outputs/first -- python -m verl.trainer.main_ppo …",
    )
    run.add_argument("--dir", type=Path, required=True, help="directory of the run: log, metrics, report")
    run.add_argument(
        "--total-steps", type=_positive, metavar="N", help="steps to expect, for the progress bar"
    )
    run.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="metric to show in the bar; may be repeated",
    )
    run.add_argument("--verbose", action="store_true", help="show the log as well")
    run.add_argument(
        "--grace", type=float, default=30.0, metavar="SECONDS", help="time to end by itself after Ctrl-C (30)"
    )
    run.add_argument("command", nargs="+", metavar="COMMAND", help="what to run, after --")
    run.set_defaults(run=_run)

    doctor = subparsers.add_parser("doctor", help="check this machine and say how to fix what is wrong")
    doctor.add_argument(
        "--recipe", type=Path, metavar="FILE", help="also check a recipe against this machine"
    )
    doctor.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="overrides of the recipe, after --")
    doctor.set_defaults(run=_doctor)

    version = subparsers.add_parser("version", help="versions of verl-gui and of what it stands on")
    version.set_defaults(run=_version)


def _run(options: argparse.Namespace) -> int:
    from verl_gui.launch.supervisor import run

    return run(
        options.command,
        options.dir,
        total_steps=options.total_steps,
        show=options.metric,
        verbose=options.verbose,
        grace_seconds=options.grace,
    )


def _doctor(options: argparse.Namespace) -> int:
    from verl_gui.launch.doctor import check_all, render

    if options.overrides and options.recipe is None:
        sys.stderr.write("overrides belong to a recipe; give --recipe FILE as well\n")
        return 2
    findings = check_all(options.recipe, options.overrides)
    sys.stdout.write(render(findings))
    return int(any(finding.failed for finding in findings))


def _version(_: argparse.Namespace) -> int:
    from verl_gui import __version__
    from verl_gui.launch.versions import installed

    for package, version in {**installed(), "verl-gui": __version__}.items():
        sys.stdout.write(f"{package} {version}\n")
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return number
