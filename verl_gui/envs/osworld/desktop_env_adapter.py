"""Runs in OSWorld's own Python: the unmodified ``desktop_env.DesktopEnv`` as a ``GuiEnv``.

``DesktopEnv(provider_name="docker")`` is used as released. What surrounds it is arranged through its own plug
for machines, ``create_vm_manager_and_provider``: ports from a block that is ours alone, containers with the
label of this process, a time limit on every request to docker, and virtualization only where it works.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from verl_gui.actions import Action, ActionType, to_pyautogui
from verl_gui.envs.base import EnvFailure, Observation, StepResult
from verl_gui.envs.docker.kvm import usable_kvm
from verl_gui.envs.docker.orphans import OWNER_LABEL, new_owner, remove_orphans
from verl_gui.envs.docker.ports import PortBlock
from verl_gui.tasks.task import Task

WRITTEN_FOR = "1.0.2"
_DOCKER_TIMEOUT_S = 60
_FIRST_PORTS = {
    8006: 0,
    5000: 1,
    9222: 2,
    8080: 3,
}  # what the provider starts looking from → place in our block
_FINAL = {ActionType.FINISHED: "DONE", ActionType.FAIL: "FAIL", ActionType.CALL_USER: "FAIL"}


class LabelledContainers:
    """``client.containers`` that labels whatever it runs; everything else goes through."""

    def __init__(self, containers: Any) -> None:
        self._containers = containers

    def run(self, image: str, **options: Any) -> Any:
        """As docker's own, with our label."""
        labels = {**options.pop("labels", {}), OWNER_LABEL: new_owner()}
        return self._containers.run(image, labels=labels, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._containers, name)


class LabelledDocker:
    """A docker client with :class:`LabelledContainers`."""

    def __init__(self, client: Any) -> None:
        self._client, self.containers = client, LabelledContainers(client.containers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def arrange(provider: Any, client: Any, ports: Sequence[int], *, kvm: bool) -> None:
    """Give a ``DockerProvider`` our ports, our label and the truth about virtualization."""
    provider.client = LabelledDocker(client)
    provider._get_available_port = lambda first: ports[_FIRST_PORTS[first]]
    if not kvm:
        provider.environment["KVM"] = "N"


class DesktopEnvAdapter:
    """``GuiEnv`` around one ``DesktopEnv``.

    Args:
        screen: width and height in pixels.
        path_to_vm: disk image of the machine; None lets OSWorld download its own.
        pause_s: OSWorld's wait after each step.
        cache: directory for OSWorld's files.

    Raises:
        EnvFailure: ``reset``; another release of OSWorld, or docker or the machine does not start.
    """

    def __init__(
        self,
        screen: tuple[int, int] = (1920, 1080),
        *,
        path_to_vm: str | None = None,
        pause_s: float = 2.0,
        cache: str | None = None,
    ) -> None:
        found = version("desktop-env")
        if found != WRITTEN_FOR:
            raise EnvFailure("reset", f"desktop-env {found}; this adapter was written for {WRITTEN_FOR}")
        self.screen = (int(screen[0]), int(screen[1]))
        self._pause_s = pause_s
        self._env: Any = None
        self._paused = self._closed = False
        self._terminated, self._dirty = True, False
        self._ports = PortBlock(len(_FIRST_PORTS))
        cache = cache or os.path.join(tempfile.gettempdir(), "verl-gui-osworld-cache", "desktop_env")
        try:
            self._start(path_to_vm, cache)
        except EnvFailure:
            self._ports.release()
            raise
        except Exception as error:  # docker's, requests' and OSWorld's own
            self._ports.release()
            raise EnvFailure("reset", f"OSWorld's machine does not start: {error!r}") from error

    def _start(self, path_to_vm: str | None, cache: str) -> None:
        import docker
        from desktop_env import desktop_env

        client = docker.from_env(timeout=_DOCKER_TIMEOUT_S)
        remove_orphans(client)
        original = desktop_env.create_vm_manager_and_provider

        def create(*args: Any, **options: Any) -> Any:
            manager, provider = original(*args, **options)
            arrange(provider, client, self._ports.ports, kvm=usable_kvm())
            return manager, provider

        desktop_env.create_vm_manager_and_provider = create
        try:
            self._env = desktop_env.DesktopEnv(
                provider_name="docker",
                action_space="pyautogui",
                screen_size=self.screen,
                headless=True,
                os_type="Ubuntu",
                require_a11y_tree=False,
                cache_dir=cache,
                path_to_vm=path_to_vm,
            )
        finally:
            desktop_env.create_vm_manager_and_provider = original

    def reset(self, task: Task, *, seed: int | None = None) -> Observation:
        """Prepare ``task`` on a fresh machine.

        Raises:
            EnvFailure: ``reset`` or ``screenshot``.
        """
        if self._closed:
            raise EnvFailure("dead", "the environment is closed")
        self._resume()
        self._terminated = True
        if self._dirty:  # OSWorld itself reverts only after a success, and goes on after five failures
            self._env.is_environment_used = True
        self._dirty = True
        try:
            found = self._env.reset(task.to_dict())
        except Exception as error:  # OSWorld raises plain exceptions for failed set-up
            raise EnvFailure("reset", f"OSWorld's reset: {error!r}") from error
        if task.config and not self._env.is_environment_used:
            raise EnvFailure("reset", "OSWorld's set-up failed five times; the machine is not prepared")
        self._terminated = False
        return Observation(_picture(found), {"instruction": task.instruction})

    def step(self, actions: Sequence[Action]) -> StepResult:
        """Carry out ``actions`` and look again.

        Raises:
            RuntimeError: the episode is over, or none was started.
            EnvFailure: ``step`` or ``screenshot``.
        """
        if self._terminated:
            raise RuntimeError("no episode is running; call reset() first")
        self._resume()
        terminal = next((action.type for action in actions if action.type.is_terminal), None)
        source = to_pyautogui(actions)
        try:
            if source:
                self._env.step(source, pause=0 if terminal else self._pause_s)
            if terminal:
                self._env.step(_FINAL[terminal], pause=0)
            found = self._env._get_obs()
        except Exception as error:  # requests' and OSWorld's own
            raise EnvFailure("step", f"OSWorld's step: {error!r}") from error
        self._terminated = terminal is not None
        info = {"ended_by": terminal.value if terminal else None}
        return StepResult(Observation(_picture(found)), self._terminated, info)

    def evaluate(self) -> float:
        """OSWorld's score.

        Raises:
            EnvFailure: ``evaluate``.
        """
        self._resume()
        try:
            return float(self._env.evaluate())
        except Exception as error:  # requests' and OSWorld's own
            raise EnvFailure("evaluate", f"OSWorld's evaluate: {error!r}") from error

    def pause(self) -> None:
        """Freeze the machine until the next call; ``DesktopEnv`` itself cannot."""
        if not self._paused:
            self._container().pause()
            self._paused = True

    def close(self) -> None:
        """Stop the machine and give back its ports. Safe to call again."""
        if self._closed:
            return
        self._closed = self._terminated = True
        try:
            self._resume()
            self._env.close()
        finally:
            self._ports.release()

    def _resume(self) -> None:
        if self._paused:  # or every call to the machine would wait for ever
            self._container().unpause()
            self._paused = False

    def _container(self) -> Any:
        container = self._env.provider.container
        if container is None:
            raise EnvFailure("dead", "the machine's container is gone")
        return container


def _picture(found: dict[str, Any]) -> bytes:
    picture = found.get("screenshot")
    if not isinstance(picture, bytes):
        when = time.strftime("%H:%M:%S")
        raise EnvFailure("screenshot", f"OSWorld gave no screenshot ({type(picture).__name__}) at {when}")
    return picture
