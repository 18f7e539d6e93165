"""``verl-gui replay import``, ``show`` and ``merge``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_commands(subparsers: Any) -> None:
    """Declare the commands of this room."""
    replay = subparsers.add_parser("replay", help="make, look at and merge files of stored successes")
    commands = replay.add_subparsers(title="commands", metavar="COMMAND", required=True)

    imports = commands.add_parser(
        "import",
        help="make a success buffer of recorded trajectories",
        description="Make a success buffer (gui.replay.path) of what was recorded by `verl-gui tasks "
        "record`, by a run, or by `verl-gui eval --record`.",
    )
    imports.add_argument("dirs", nargs="+", type=Path, metavar="DIR", help="directories of trajectories")
    imports.add_argument("--recipe", required=True, type=Path, help="the recipe that will replay them")
    imports.add_argument("--policy", help="checkpoint whose processor is used (the recipe's)")
    imports.add_argument("--out", required=True, type=Path, help="file to write")
    imports.add_argument("--min-score", type=float, help="keep scores above it (gui.replay.min_score)")
    imports.add_argument(
        "--skip-unusable", action="store_true", help="leave out what cannot be a row, with a warning"
    )
    imports.set_defaults(run=_import)

    show = commands.add_parser("show", help="what is in a file of successes or a checkpoint's data.pt")
    show.add_argument("file", type=Path, metavar="FILE")
    show.add_argument("--html", type=Path, help="also write a page with the screenshots")
    show.add_argument("--policy", help="checkpoint whose tokenizer decodes the answers on the page")
    show.set_defaults(run=_show)

    merge = commands.add_parser("merge", help="merge files of successes; equal action sequences count once")
    merge.add_argument("files", nargs="+", type=Path, metavar="FILE")
    merge.add_argument("--out", required=True, type=Path, help="file to write")
    merge.add_argument("--capacity-per-task", type=int, default=8, help="the oldest leave first (8)")
    merge.set_defaults(run=_merge)


def _refuse(message: object) -> int:
    sys.stderr.write(f"{message}\n")
    return 2


def _import(options: argparse.Namespace) -> int:
    from tqdm import tqdm
    from verl.utils import hf_processor

    from verl_gui.launch.recipe_check import RecipeError, compose_recipe
    from verl_gui.replay.buffer import SuccessBuffer
    from verl_gui.replay.demonstrations import DemonstrationError, training_rows
    from verl_gui.rollout.trajectory import Trajectory, read_trajectories

    missing = [folder for folder in options.dirs if not folder.is_dir()]
    if missing:
        return _refuse(f"{missing[0]} is not a directory of trajectories")
    try:
        config = compose_recipe(options.recipe)
    except RecipeError as error:
        return _refuse(error)
    settings = config["gui"]["replay"] if "replay" in config.get("gui", {}) else {}
    least = options.min_score if options.min_score is not None else settings.get("min_score", 0.1)
    processor = hf_processor(options.policy or config["actor_rollout_ref"]["model"]["path"])

    def good(trajectory: Trajectory) -> bool:
        return trajectory.score is not None and trajectory.score > least

    buffer = SuccessBuffer(settings.get("capacity_per_task", 8), min_score=least)
    read = left_out = 0
    for folder in options.dirs:
        for trajectory in tqdm(
            read_trajectories(folder, with_screenshots=good), desc=folder.name, mininterval=2
        ):
            read += 1
            if not good(trajectory):
                continue
            try:
                for row in training_rows([trajectory], config, processor):
                    buffer.add(row.task, row.record, step=0, score=row.score)
            except DemonstrationError as error:
                if not options.skip_unusable:
                    return _refuse(f"{error}\n(--skip-unusable leaves such trajectories out)")
                sys.stderr.write(f"left out: {error}\n")
                left_out += 1
    if not len(buffer):
        return _refuse(
            f"none of {read} trajectories could be stored ({left_out} unusable); nothing was written"
        )
    buffer.save(options.out)
    sys.stdout.write(
        f"{options.out}: {len(buffer)} successes of {len(buffer.tasks)} tasks, {buffer.nbytes / 1e6:.2f} MB, "
        f"of {read} trajectories ({left_out} unusable)\n"
    )
    return 0


def _show(options: argparse.Namespace) -> int:
    from verl_gui.replay.file import BufferFileError
    from verl_gui.replay.view import open_buffer, page, table

    try:
        buffer = open_buffer(options.file)
    except (FileNotFoundError, BufferFileError) as error:
        return _refuse(error)
    sys.stdout.write(table(buffer) + "\n")
    if options.html is not None:
        decode = None
        if options.policy is not None:
            from verl.utils import hf_tokenizer

            decode = hf_tokenizer(options.policy).decode
        options.html.parent.mkdir(parents=True, exist_ok=True)
        options.html.write_text(page(buffer, decode), encoding="utf-8")
        sys.stdout.write(f"{options.html}\n")
    return 0


def _merge(options: argparse.Namespace) -> int:
    from verl_gui.replay.buffer import SuccessBuffer
    from verl_gui.replay.file import BufferFileError
    from verl_gui.replay.view import open_buffer

    if options.capacity_per_task < 1:
        return _refuse(f"--capacity-per-task {options.capacity_per_task}: expected at least 1")
    merged = SuccessBuffer(options.capacity_per_task, min_score=-1.0)
    try:
        for file in options.files:
            merged.merge(open_buffer(file))
    except (FileNotFoundError, BufferFileError) as error:
        return _refuse(f"{error}\nnothing was written")
    merged.save(options.out)
    sys.stdout.write(f"{options.out}: {len(merged)} successes of {len(merged.tasks)} tasks\n")
    return 0
