"""Containers of killed processes: found by their label and removed with their volumes."""

from __future__ import annotations

import logging
from typing import Any

from docker.errors import APIError, NotFound

from verl_gui.envs.leftovers import owned_name, owner_is_dead

logger = logging.getLogger(__name__)

OWNER_LABEL = "verl_gui.owner"


def new_owner() -> str:
    """A label value that names this process."""
    return owned_name("docker")


def remove_orphans(client: Any) -> int:
    """Remove the containers whose makers are dead; those of other running processes and of others stay.

    Args:
        client: a ``docker.DockerClient``.

    Returns:
        How many were removed.
    """
    removed = 0
    for container in client.containers.list(all=True, filters={"label": OWNER_LABEL}, ignore_removed=True):
        if not owner_is_dead(container.labels.get(OWNER_LABEL, "")):
            continue
        try:
            container.remove(force=True, v=True)
            removed += 1
        except NotFound:  # another process was faster
            continue
        except APIError as error:
            logger.warning("cannot remove the container %s of a dead process: %s", container.id, error)
    return removed
