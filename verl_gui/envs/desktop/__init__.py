"""The ``desktop`` backend: real programs on a private X display in a sandbox."""

from verl_gui.envs.desktop.env import DesktopEnv

__all__ = ["DesktopEnv"]
