"""Make the quickstart's policy: record an expert, clone its behaviour, write a Hugging Face checkpoint.

It is trained in three parts (``PARTS``). In the first the expert's hand shakes, and the policy learns to
recognise what is to be clicked. In the two others the expert gives up half of the time, and its hand grows
calmer. What comes out aims well and succeeds in less than half of its attempts; the rest is left to
reinforcement learning.

    python recipes/quickstart/build_policy.py [--out DIR] [--episodes N] [--seed N]

The weights in `recipes/quickstart/policy` were made by this script with its defaults. Recording takes about
0.05 s an episode and is used again; training takes 0.6 s a step on two cores (25 minutes). Grounding comes
suddenly, at a few hundred steps for places and at a thousand for words: do not stop on the plateau. With
`--begin-at aim --checkpoint DIR` only the last part is done anew (three minutes).
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from verl_gui.envs import EnvFailure
from verl_gui.envs.miniwob import MiniwobEnv
from verl_gui.tasks import expand_source
from verl_gui.warmstart.behaviour_cloning import (
    CloningConfig,
    Demonstration,
    Example,
    agreement,
    clone_behaviour,
    encode,
    name_index,
)
from verl_gui.warmstart.clumsy_expert import give_up, shake
from verl_gui.warmstart.demonstrations import demonstrate, load_demonstrations, save_demonstrations
from verl_gui.warmstart.tiny_model import build_tiny_policy, save_policy

logger = logging.getLogger("verl_gui.build_policy")

PAGES = (
    "click-test",
    "click-test-2",
    "click-dialog",
    "click-dialog-2",
    "click-tab",
    "focus-text",
    "focus-text-2",
    "click-button-sequence",
)
SCREEN = (168, 224)
SYSTEM_PROMPT = "Act."
GRID = 7  # pixels between the coordinates that the expert uses
HELD_OUT = 25  # episodes a page that are not trained on; never more than a quarter


@dataclass(frozen=True)
class Part:
    """A part of the training.

    Attributes:
        steps: optimiser steps. lr: peak learning rate. warmup_steps: until the learning rate is there.
        sigma: how far the expert misses, in pixels. give_up: how often it gives up at a turn.
    """

    steps: int
    lr: float
    warmup_steps: int
    sigma: float
    give_up: float


PARTS = {
    "ground": Part(steps=1600, lr=1e-3, warmup_steps=100, sigma=12.0, give_up=0.0),
    "habit": Part(steps=200, lr=3e-4, warmup_steps=20, sigma=4.0, give_up=0.5),
    "aim": Part(steps=300, lr=3e-4, warmup_steps=20, sigma=2.0, give_up=0.5),
}


def record(folder: Path, episodes: int) -> dict[str, list[Demonstration]]:
    """Demonstrations of every page, recorded now or read from ``folder`` (one file a page)."""
    demos: dict[str, list[Demonstration]] = {}
    env: MiniwobEnv | None = None
    try:
        for page in PAGES:
            file = folder / f"{page}-{episodes}.pt"
            if not file.exists():
                env = env or MiniwobEnv(screen=SCREEN)
                save_demonstrations(list(play(env, page, episodes)), file)
            demos[page] = load_demonstrations(file)
    finally:
        if env is not None:
            env.close()
    return demos


def play(env: MiniwobEnv, page: str, episodes: int) -> Iterator[Demonstration]:
    """The expert's successes on one page. An episode whose environment fails is left out."""
    for instance in tqdm(expand_source(f"miniwob:{page}@demo:{episodes}"), desc=page, mininterval=2):
        try:
            demo = demonstrate(env, instance, grid=GRID)
        except EnvFailure as failure:
            logger.warning("%s seed %s left out: %s", page, instance.seed, failure)
            continue
        if demo is not None:
            yield demo


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "policy")
    parser.add_argument("--recording", type=Path, default=Path("outputs/warmstart"))
    parser.add_argument("--episodes", type=int, default=400, help="demonstrations of each page")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--begin-at", choices=PARTS, default="ground", help="skip the parts before")
    parser.add_argument("--checkpoint", type=Path, help="where the skipped parts have led")
    parser.add_argument("--steps", type=int, help="steps of every part, for a trial")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if (args.begin_at == "ground") != (args.checkpoint is None):
        parser.error("--begin-at and --checkpoint belong together")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("verl_gui").setLevel(logging.INFO)
    torch.set_num_threads(2)

    recorded = record(args.recording, args.episodes)
    demos = [demo for page in PAGES for demo in recorded[page]]
    texts = [text for demo in demos for text in (demo.instruction, *demo.answers)]
    # Any coordinate may come up when the hand shakes: each gets a token of its own.
    coordinates = [str(number) for number in range(0, max(SCREEN), GRID)] * 100
    model, processor = build_tiny_policy([*texts, *coordinates, SYSTEM_PROMPT], seed=args.seed)
    names = name_index(demos)
    apart = min(HELD_OUT, args.episodes // 4)
    held_out = {
        page: [encode(demo, processor, SYSTEM_PROMPT, names) for demo in recorded[page][:apart]]
        for page in PAGES
    }
    training = [demo for page in PAGES for demo in recorded[page][apart:]]

    def examples(rng: random.Random, sigma: float, quitting: float) -> list[Example]:
        """The expert is clumsy in another way every epoch, so that its slips can't be learnt by heart."""
        clumsy = (
            give_up(shake(demo, rng, sigma=sigma, grid=GRID), rng, probability=quitting) for demo in training
        )
        return [encode(demo, processor, SYSTEM_PROMPT, names) for demo in clumsy]

    history: list[dict[str, Any]] = []

    def log(part: str, last: int, step: int, losses: dict[str, float]) -> None:
        entry: dict[str, Any] = {"part": part, "step": step, **losses}
        if step % 200 == 0 or step == last:
            for page in PAGES:
                found = agreement(model, processor, held_out[page])
                logger.info("  %-24s %s", page, found)
                entry |= {f"{page}/{name}": value for name, value in found.items()}
            save_policy(model, processor, args.out)
        history.append(entry)

    if args.checkpoint is not None:
        model = type(model).from_pretrained(args.checkpoint, dtype=torch.float32, attn_implementation="sdpa")
    chosen = {name: PARTS[name] for name in list(PARTS)[list(PARTS).index(args.begin_at) :]}
    for name, part in chosen.items():
        steps = args.steps or part.steps
        config = CloningConfig(
            steps=steps,
            batch_size=args.batch_size,
            lr=part.lr,
            warmup_steps=part.warmup_steps,
            seed=args.seed,
        )
        shown = functools.partial(examples, random.Random(args.seed), part.sigma, part.give_up)
        clone_behaviour(
            model, processor, shown, config, names=len(names) + 1, on_log=functools.partial(log, name, steps)
        )
    save_policy(model, processor, args.out)
    settings = {name: value for name, value in vars(args).items() if name not in ("out", "recording")}
    (args.out / "training.json").write_text(
        json.dumps(
            {
                "arguments": settings,
                "parts": {name: asdict(part) for name, part in chosen.items()},
                "log": history,
            },
            default=str,
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
