"""``verl-gui eval``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from verl_gui.evaluation.options import Refused, add_run_options, run_all


def add_commands(subparsers: Any) -> None:
    """Declare the command."""
    evaluate = subparsers.add_parser(
        "eval",
        help="run a policy on tasks and say how many it solves",
        description="Run a policy k times on each task. Interrupted, it goes on where it was.",
        epilog="example: verl-gui eval miniwob:click-test-2@test:32 --policy recipes/quickstart/policy "
        "--config recipes/quickstart/quickstart.yaml --runs 4 --out outputs/eval",
    )
    add_run_options(evaluate, runs=1)
    evaluate.set_defaults(run=_eval)


def _eval(options: argparse.Namespace) -> int:
    from verl_gui.evaluation.report import summarize, write_evaluation
    from verl_gui.evaluation.runs import read_settings
    from verl_gui.evaluation.session import read_sessions

    try:
        instances, runs = run_all(options, "eval")
    except Refused as error:
        sys.stderr.write(f"{error}\n")
        return error.status
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if 1 < k <= options.runs]
    content, table = summarize(instances, runs, read_sessions(options.out), read_settings(options.out), ks=ks)
    sys.stdout.write(f"{table}{write_evaluation(content, options.out)}\n")
    return 0
