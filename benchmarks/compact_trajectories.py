"""What a trajectory of screenshots weighs: encoded, as verl_gui ships it, beside the pixels that verl ships.

Screenshots are those of a real desktop (an editor in which something is typed at every step), 1920x1080, 15 a
trajectory, laid out as in the ARPO recipe for OSWorld. Every line is measured in a process of its own:

* bytes of one trajectory between processes (pickled, as TransferQueue sends it),
* peak memory of the process that makes the rows of a batch and holds them,
* time to make those rows,
* peak memory and time of a training process that turns the rows into pixels, one at a time, in two passes
  (old log-probs and update); the pictures it keeps are bounded by VERL_GUI_PICTURE_CACHE_MB,
* bytes that an agent loop sends to the inference engine at a turn.

    python benchmarks/compact_trajectories.py [--trajectories 16] [--turns 15] [--screenshots DIR]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SETTINGS = {"min_pixels": 78400, "max_pixels": 2116800}  # of recipes/arpo
FULL_HD = (1920, 1080)


# -- screenshots -------------------------------------------------------------------------------------------


def record(folder: Path, turns: int) -> None:
    """Screenshots of an editor on a real desktop, one after each typed word."""
    from verl_gui.actions import Action, ActionType
    from verl_gui.envs.desktop import DesktopEnv
    from verl_gui.tasks.task import Task

    setup = (
        {"type": "write_file", "parameters": {"path": "~/note.txt", "text": "A note.\n" * 30}},
        {"type": "open", "parameters": {"path": "~/note.txt"}},
    )
    task = Task(id="editor", instruction="Write.", config=setup, evaluator={"func": "infeasible"})

    env = DesktopEnv(screen=FULL_HD)
    try:
        observation = env.reset(task)
        for turn in range(turns):
            (folder / f"{turn:03}.png").write_bytes(observation.screenshot)
            observation = env.step([Action(ActionType.TYPE, text=f"Line {turn}.\n")]).observation
    finally:
        env.close()


def varied(png: bytes, trajectory: int) -> bytes:
    """The screenshot with a mark, so that no two trajectories share a picture."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as picture:
        rgb = picture.convert("RGB")
    rgb.putpixel((5, 5), (trajectory, 0, 0))
    out = io.BytesIO()
    rgb.save(out, "PNG", compress_level=1)
    return out.getvalue()


def trajectory(folder: Path, number: int, turns: int) -> list[bytes]:
    """Screenshots of one trajectory."""
    return [varied((folder / f"{turn:03}.png").read_bytes(), number) for turn in range(turns)]


# -- rows --------------------------------------------------------------------------------------------------


def processor() -> Any:
    """As much of a Qwen2.5-VL processor as pictures need."""
    from transformers import Qwen2VLImageProcessor

    return SimpleNamespace(image_processor=Qwen2VLImageProcessor())


def stock_row(screenshots: list[bytes], owner: Any) -> dict[str, Any]:
    """What verl 0.9.1 stores."""
    from PIL import Image

    pictures = [Image.open(io.BytesIO(png)).convert("RGB") for png in screenshots]
    return dict(owner.image_processor(images=pictures, return_tensors="pt", **SETTINGS))


def compact_row(screenshots: list[bytes], owner: Any) -> dict[str, Any]:
    """What verl_gui stores."""
    from verl_gui.models.encoded_images import encode
    from verl_gui.models.screenshot import Screenshot

    shots = [Screenshot(png) for png in screenshots]
    return encode([s.encoded for s in shots], [s.size for s in shots], owner, SETTINGS)


ROW = {"stock": stock_row, "compact": compact_row}


def peak_mb() -> float:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def hold(kind: str, folder: Path, trajectories: int, turns: int) -> dict[str, float]:
    """Make the rows of a batch and hold them all."""
    owner = processor()
    ROW[kind](trajectory(folder, 0, 1), owner)  # what is imported on first use belongs to nobody
    before = peak_mb()
    seconds, rows = 0.0, []
    for number in range(trajectories):
        shots = trajectory(folder, number, turns)
        began = time.perf_counter()
        rows.append(ROW[kind](shots, owner))
        seconds += time.perf_counter() - began
    peak = peak_mb()
    size = len(pickle.dumps(rows[0], protocol=5))
    return {"bytes": size, "peak_mb": peak - before, "seconds": seconds}


def train(folder: Path, trajectories: int, turns: int) -> dict[str, float]:
    """Turn the rows into pixels, one micro-batch of one row after the other, twice."""
    from verl_gui.models import encoded_images

    owner = processor()
    rows = [compact_row(trajectory(folder, number, turns), owner) for number in range(trajectories)]
    encoded_images.with_pixels([compact_row(trajectory(folder, 255, 1), owner)])
    before, made = peak_mb(), encoded_images._CACHE.made
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        for row in rows:
            encoded_images.with_pixels([row])
        seconds.append(time.perf_counter() - began)
    return {
        "peak_mb": peak_mb() - before,
        "first_s": seconds[0],
        "second_s": seconds[1],
        "resized": encoded_images._CACHE.made - made,
    }


def turn_bytes(folder: Path, turns: int) -> list[tuple[int, int, int]]:
    """Turn, and the bytes sent to the engine then: pictures as verl's agent loop sends them, and ours."""
    import ray
    from PIL import Image

    from verl_gui.models.screenshot import Screenshot

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    stock: list[Any] = []
    compact: list[Any] = []
    table, new = [], 0
    for turn, png in enumerate(trajectory(folder, 0, turns), 1):
        stock.append(Image.open(io.BytesIO(png)).convert("RGB"))
        compact.append(Screenshot(png))
        compact[-1].publish()
        new = len(png)
        table.append((turn, len(ray.cloudpickle.dumps(stock)), len(ray.cloudpickle.dumps(compact)) + new))
    ray.shutdown()
    return table


# -- command line ------------------------------------------------------------------------------------------


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=16)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--screenshots", type=Path, help="PNG files 000.png …; recorded if missing")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        kind, folder = args.part, args.screenshots
        if kind in ROW:
            print(json.dumps(hold(kind, folder, args.trajectories, args.turns)))
        elif kind == "train":
            print(json.dumps(train(folder, args.trajectories, args.turns)))
        else:
            print(json.dumps(turn_bytes(folder, args.turns)))
        return

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.screenshots or Path(temporary)
        if not (folder / f"{args.turns - 1:03}.png").exists():
            record(folder, args.turns)

        def part(kind: str, **environment: str) -> Any:
            command = [sys.executable, __file__, "--part", kind, "--screenshots", str(folder)]
            command += ["--trajectories", str(args.trajectories), "--turns", str(args.turns)]
            out = subprocess.run(
                command, env={**os.environ, **environment}, check=True, stdout=subprocess.PIPE, timeout=1800
            )
            return json.loads(out.stdout.decode().splitlines()[-1])

        stock, compact = part("stock"), part("compact")
        print(f"{args.trajectories} trajectories of {args.turns} screenshots, {FULL_HD[0]}x{FULL_HD[1]}\n")
        print(f"{'':46}{'verl':>10}{'verl_gui':>10}{'ratio':>8}")
        for name, key, scale in (
            ("one trajectory between processes, MB", "bytes", 1e6),
            ("peak memory of the process with the batch, MB", "peak_mb", 1.0),
            ("time to make the rows, s", "seconds", 1.0),
        ):
            one, other = stock[key] / scale, compact[key] / scale
            print(f"{name:46}{one:10.2f}{other:10.2f}{one / max(other, 1e-9):8.0f}")
        print("\ntraining process, rows of one trajectory each, two passes")
        print(f"{'pictures kept, MB':>20}{'peak, MB':>12}{'1st pass, s':>14}{'2nd, s':>10}{'resized':>10}")
        for cache in ("0", "2048"):
            row = part("train", VERL_GUI_PICTURE_CACHE_MB=cache)
            print(
                f"{cache:>20}{row['peak_mb']:12.0f}{row['first_s']:14.1f}{row['second_s']:10.1f}"
                f"{row['resized']:10.0f}"
            )
        print("\nsent to the engine at a turn, MB")
        print(f"{'turn':>6}{'verl':>10}{'verl_gui':>10}")
        for turn, one, other in part("turns"):
            if turn in (1, 5, 10, 15, args.turns):
                print(f"{turn:6}{one / 1e6:10.2f}{other / 1e6:10.2f}")


if __name__ == "__main__":
    main()
