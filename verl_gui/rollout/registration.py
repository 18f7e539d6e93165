"""Makes the agent loop known to verl under the name ``gui``."""

from __future__ import annotations

from types import ModuleType


def register_agent_loop(agent_loop: ModuleType) -> None:
    """Add ``gui`` to verl's agent loops.

    By name, as verl's own configuration files do (``agent_loop_config_path``): the class is imported when
    the first episode is played, not in every process that imports verl's agent loops.
    """
    agent_loop._agent_loop_registry["gui"] = {"_target_": "verl_gui.rollout.agent_loop.GuiAgentLoop"}
