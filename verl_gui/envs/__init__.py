"""Environments: desktops and browsers behind one small protocol."""

from verl_gui.envs.base import EnvFailure, GuiEnv, Observation, StepResult

__all__ = ["EnvFailure", "GuiEnv", "Observation", "StepResult"]
