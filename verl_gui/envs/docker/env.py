"""The ``docker`` backend: OSWorld's tasks on our desktop in a container."""

from __future__ import annotations

from typing import Any

from verl_gui.envs.docker.guests import IMAGE, DockerGuests
from verl_gui.envs.osworld.env import OsworldEnv


def docker_env(
    screen: tuple[int, int] = (1920, 1080),
    *,
    image: str = IMAGE,
    memory_mb: int = 2048,
    processes: int = 512,
    **options: Any,
) -> OsworldEnv:
    """An :class:`OsworldEnv` whose guests are containers.

    Args:
        screen: width and height in pixels.
        image, memory_mb, processes: see :class:`.guests.DockerGuests`.
        options: further arguments of :class:`OsworldEnv`.

    Raises:
        EnvFailure: ``reset``; docker cannot be reached.
    """
    size = (int(screen[0]), int(screen[1]))
    guests = DockerGuests(size, image=image, memory_mb=memory_mb, processes=processes)
    return OsworldEnv(size, guest=guests, **options)
