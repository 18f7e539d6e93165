"""Runs in OSWorld's own Python: the adapter with a docker whose containers are a guest that runs already."""

import contextlib
import socket
import threading

import docker

from verl_gui.envs.osworld.desktop_env_adapter import DesktopEnvAdapter


class Container:
    """Forwards a port to the guest while it runs and is not paused."""

    def __init__(self, port, guest_port):
        self.guest_port, self.open = guest_port, threading.Event()
        self.open.set()
        self.listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._serve, daemon=True).start()

    def pause(self):
        self.open.clear()

    def unpause(self):
        self.open.set()

    def stop(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def remove(self):
        pass

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                one, _ = self.listener.accept()
                self.open.wait()
                other = socket.create_connection(("127.0.0.1", self.guest_port))
                for source, target in ((one, other), (other, one)):
                    threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


class Containers:
    def __init__(self, guest_port):
        self.guest_port = guest_port

    def run(self, image, *, ports, labels, **_):
        assert labels["verl_gui.owner"]
        return Container(ports[5000], self.guest_port)

    def list(self, **_):
        return []


class Client:
    def __init__(self, guest_port):
        self.containers = Containers(guest_port)


def adapter(*, guest_port, **options):
    """The adapter over the guest at ``guest_port``."""
    docker.from_env = lambda **_: Client(guest_port)
    return DesktopEnvAdapter(**options)
