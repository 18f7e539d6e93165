"""Play an episode in an environment on another machine.

There:  verl-gui env serve miniwob --host 0.0.0.0 --token-file token --options '{"screen": [168, 224]}'
Here:   export VERL_GUI_TOKEN=$(cat token)
        python examples/use_env_server.py http://there:8600 miniwob:click-test@test:1

Training does the same with ``gui.env.backend=remote`` and ``gui.env.options={urls: [...]}``.
"""

from __future__ import annotations

import logging
import sys

from verl_gui.actions import Action, ActionType
from verl_gui.envs.registry import make_env
from verl_gui.tasks.sources import expand_source


def main(url: str, source: str) -> float:
    """Look, click in the middle, and be scored; the score."""
    instance = expand_source(source)[0]
    env = make_env("remote", urls=[url])
    try:
        observation = env.reset(instance.task, seed=instance.seed)
        logging.info("%s, %s pixels", observation.info["instruction"], observation.size)
        width, height = env.screen
        result = env.step([Action(ActionType.CLICK, x=width / 2, y=height / 2)])
        logging.info("the page is %s", "done" if result.terminated else "still open")
        return env.evaluate()
    finally:
        env.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.info("score %s", main(sys.argv[1], sys.argv[2]))
