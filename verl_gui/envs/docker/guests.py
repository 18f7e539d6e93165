"""Guests in containers: our desktop's image, or any other that speaks OSWorld's guest interface."""

from __future__ import annotations

import logging
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from requests.exceptions import RequestException

from verl_gui.envs.base import EnvFailure, FailureKind
from verl_gui.envs.docker.orphans import OWNER_LABEL, new_owner, remove_orphans

logger = logging.getLogger(__name__)

GUEST_PORT = "5000/tcp"
IMAGE = "verl-gui-desktop"
_TIMEOUT_S = 60  # of each request to the docker daemon
_START_TRIES = 3


class DockerGuests:
    """One container at a time, a new one for each episode.

    The daemon chooses the port (so two starts cannot collide) and publishes it on the loopback address only.
    Containers carry the label of this process; those of dead processes are removed at start-up.

    Args:
        screen: width and height in pixels.
        image: name of the image.
        memory_mb: limit on the container's memory, in MiB.
        processes: limit on its processes.
        client: a docker client; None takes the one of the environment (``DOCKER_HOST``).

    Raises:
        EnvFailure: ``reset``; docker cannot be reached.
    """

    def __init__(
        self,
        screen: tuple[int, int],
        *,
        image: str = IMAGE,
        memory_mb: int = 2048,
        processes: int = 512,
        client: Any = None,
    ) -> None:
        self._screen, self._image = screen, image
        self._limits = {"mem_limit": f"{memory_mb}m", "pids_limit": processes, "shm_size": "256m"}
        self._container: Any = None
        try:
            self._client = client or docker.from_env(timeout=_TIMEOUT_S)
            remove_orphans(self._client)
        except (DockerException, RequestException) as error:
            raise EnvFailure("reset", f"docker cannot be used: {error}") from error

    def fresh(self) -> str:
        """Address of a new container's guest server.

        Raises:
            EnvFailure: ``reset``; no container could be started.
        """
        self.close()
        for attempt in range(1, _START_TRIES + 1):
            try:
                return self._start()
            except ImageNotFound as error:
                why = f"no image {self._image!r}; build it with verl_gui/envs/docker/build_image.sh"
                raise EnvFailure("reset", why) from error
            except (APIError, RequestException) as error:
                self.close()
                if attempt == _START_TRIES or "allocated" not in str(error):
                    raise EnvFailure("reset", f"cannot start a container: {error}") from error
        raise AssertionError("unreachable")

    def pause(self) -> None:
        """Freeze the container until :meth:`resume`; calls to it wait meanwhile."""
        self._control("pause", "step")

    def resume(self) -> None:
        """Let the container go on."""
        self._control("unpause", "step")

    def close(self) -> None:
        """Remove the container with its volumes. Safe to call again."""
        container, self._container = self._container, None
        if container is None:
            return
        try:
            container.remove(force=True, v=True)
        except NotFound:  # somebody else removed it
            return
        except (APIError, RequestException) as error:
            logger.warning("cannot remove the container %s; a later start does: %s", container.id, error)

    def _start(self) -> str:
        # Created first and started then: one that does not start is known and can be removed.
        self._container = self._client.containers.create(
            self._image,
            environment={"SCREEN": f"{self._screen[0]}x{self._screen[1]}"},
            labels={OWNER_LABEL: new_owner()},
            ports={GUEST_PORT: ("127.0.0.1", None)},
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            **self._limits,
        )
        self._container.start()
        self._container.reload()
        published = self._container.attrs["NetworkSettings"]["Ports"].get(GUEST_PORT)
        if not published:
            raise EnvFailure(
                "reset", f"the container {self._container.id} ended at once or publishes no port"
            )
        return f"http://127.0.0.1:{published[0]['HostPort']}"

    def _control(self, call: str, kind: FailureKind) -> None:
        if self._container is None:
            raise EnvFailure("dead", "no container runs")
        try:
            getattr(self._container, call)()
        except NotFound as error:
            raise EnvFailure("dead", "the container was removed") from error
        except (APIError, RequestException) as error:
            raise EnvFailure(kind, f"cannot {call} the container: {error}") from error
