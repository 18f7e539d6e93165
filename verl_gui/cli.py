"""The ``verl-gui`` command.

Every room brings its own subcommands: a module with ``add_commands(subparsers)``, which declares the
arguments and sets ``run=<function of the parsed arguments, returning the exit status>``. Such a module must
import fast, so it leaves its heavy imports to that function. To add one, name it in ``COMMAND_MODULES``.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence

from verl_gui import __version__

COMMAND_MODULES = (
    "verl_gui.launch.commands",
    "verl_gui.report.commands",
    "verl_gui.tasks.commands",
    "verl_gui.evaluation.commands",
    "verl_gui.replay.commands",
    "verl_gui.envs.server.commands",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; 2 for a wrong command line."""
    parser = build_parser()
    options = parser.parse_args(argv)
    logging.basicConfig(
        format="%(levelname)s %(message)s", level=logging.INFO if options.log_info else logging.WARNING
    )
    if options.run is None:
        parser.print_help()
        return 2
    return int(options.run(options))


def build_parser() -> argparse.ArgumentParser:
    """The parser with the subcommands of every room."""
    parser = argparse.ArgumentParser(
        prog="verl-gui", description="Train vision-language GUI agents with reinforcement learning on verl."
    )
    parser.set_defaults(run=None)
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--log-info", action="store_true", help="log more about what verl-gui itself does")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMAND_MODULES:
        importlib.import_module(name).add_commands(subparsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
