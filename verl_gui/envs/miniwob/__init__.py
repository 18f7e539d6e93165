"""The ``miniwob`` backend: MiniWoB++ pages in Chromium, and scripted experts for them."""

from verl_gui.envs.miniwob.env import PREFIX, MiniwobEnv
from verl_gui.envs.miniwob.oracles import ORACLES, OracleError, elements, oracle
from verl_gui.envs.miniwob.page import task_names

__all__ = ["ORACLES", "PREFIX", "MiniwobEnv", "OracleError", "elements", "oracle", "task_names"]
