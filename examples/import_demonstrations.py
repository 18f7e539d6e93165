"""Turn recorded successes into demonstrations for a warm start.

    verl-gui tasks record SOURCE… --out outputs/demos        # scripted experts, or any run's trajectories/
    python examples/import_demonstrations.py outputs/demos outputs/demos.pt

The file is read by ``verl_gui.warmstart.demonstrations.load_demonstrations``;
``recipes/quickstart/build_policy.py`` shows the behaviour cloning that takes it from there.
"""

from __future__ import annotations

import logging
import sys

from verl_gui.warmstart.demonstrations import from_trajectories, save_demonstrations


def main(directory: str, file: str) -> int:
    """Write the usable successes of ``directory`` to ``file``; how many there are."""
    demonstrations = from_trajectories(directory)
    if not demonstrations:
        raise SystemExit(f"{directory} holds no successful trajectory with screenshots of the model's size")
    save_demonstrations(demonstrations, file)
    return len(demonstrations)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.info("%d demonstrations in %s", main(*sys.argv[1:3]), sys.argv[2])
