"""Make the quickstart's policy: record an expert, clone its behaviour, write a Hugging Face checkpoint.

The expert is clumsy: its hand shakes (``--sigma``), and in a second, short part of the training it gives up
half of the time (``--give-up``). So the policy recognises what to click and succeeds about a third of the
time; the rest is left to reinforcement learning.

    python recipes/quickstart/build_policy.py [--out DIR] [--steps N] [--episodes N] [--seed N]

The weights in `recipes/quickstart/policy` were made by this script with its defaults. Recording takes about
0.05 s an episode and is used again; training takes 0.6 s a step on two cores (20 minutes). Grounding comes
suddenly, at a few hundred steps for places and at a thousand for words: do not stop on the plateau. With
`--grounded CHECKPOINT` only the second part is done anew (two minutes).
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path

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
HELD_OUT = 25  # episodes a page that are not trained on


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
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--sigma", type=float, default=12.0, help="how far the expert misses, in pixels")
    parser.add_argument("--habit-steps", type=int, default=200, help="steps with the expert that gives up")
    parser.add_argument("--habit-lr", type=float, default=3e-4)
    parser.add_argument("--habit-sigma", type=float, default=4.0, help="how far it misses in these steps")
    parser.add_argument("--give-up", type=float, default=0.5, help="how often it gives up at a turn")
    parser.add_argument("--grounded", type=Path, help="skip the first part and begin with this checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
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
    held_out = {
        page: [encode(demo, processor, SYSTEM_PROMPT, names) for demo in recorded[page][:HELD_OUT]]
        for page in PAGES
    }
    training = [demo for page in PAGES for demo in recorded[page][HELD_OUT:]]

    def examples(rng: random.Random, sigma: float, quitting: float) -> list[Example]:
        """The expert is clumsy in another way every epoch, so that its slips can't be learnt by heart."""
        clumsy = (
            give_up(shake(demo, rng, sigma=sigma, grid=GRID), rng, probability=quitting) for demo in training
        )
        return [encode(demo, processor, SYSTEM_PROMPT, names) for demo in clumsy]

    history: list[dict[str, float]] = []

    def log(step: int, losses: dict[str, float]) -> None:
        entry = {"step": step, **losses}
        if step % 200 == 0 or step == args.steps:
            for page in PAGES:
                found = agreement(model, processor, held_out[page])
                logger.info("  %-24s %s", page, found)
                entry |= {f"{page}/{name}": value for name, value in found.items()}
            save_policy(model, processor, args.out)
        history.append(entry)

    if args.grounded:
        model = type(model).from_pretrained(args.grounded, dtype=torch.float32, attn_implementation="sdpa")
    else:
        config = CloningConfig(steps=args.steps, batch_size=args.batch_size, lr=args.lr, seed=args.seed)
        persistent = functools.partial(examples, random.Random(args.seed), args.sigma, 0.0)
        clone_behaviour(model, processor, persistent, config, names=len(names) + 1, on_log=log)
    config = CloningConfig(
        steps=args.habit_steps, batch_size=args.batch_size, lr=args.habit_lr, warmup_steps=20, seed=args.seed
    )
    quitting = functools.partial(examples, random.Random(args.seed), args.habit_sigma, args.give_up)
    clone_behaviour(model, processor, quitting, config, names=len(names) + 1, on_log=log)
    save_policy(model, processor, args.out)
    settings = {name: value for name, value in vars(args).items() if name not in ("out", "recording")}
    (args.out / "training.json").write_text(
        json.dumps({"arguments": settings, "log": history}, default=str, indent=1)
    )


if __name__ == "__main__":
    main()
