"""A sandboxed desktop of this machine that speaks OSWorld's guest interface on a loopback port."""

from __future__ import annotations

import importlib.util
import logging
import shutil
import socket
import time
from importlib import resources
from pathlib import Path

from verl_gui.envs.base import EnvFailure
from verl_gui.envs.cgroups import ControlGroup
from verl_gui.envs.desktop.windows import WindowManager
from verl_gui.envs.leftovers import private_directory
from verl_gui.envs.remote.http import HttpCallError, call
from verl_gui.envs.sandbox import SandboxedProcess, SandboxSpec, choose_mode
from verl_gui.envs.xserver import XServer

logger = logging.getLogger(__name__)

_MIB = 1 << 20
_START_TIMEOUT_S = 30.0
_HOST_NAME = b"desktop"  # as the sandbox calls itself
_FAMILY_LOCAL = 256
_SITE = "/opt/guest/site"
_BIN = "/opt/guest/bin"
_CONFIG = "/opt/guest/openbox.xml"

# What OSWorld's tasks import inside the guest, found in our own environment and shown read-only.
_PACKAGES = ("pyautogui", "pymsgbox", "pytweening", "pyscreeze", "mouseinfo", "pyperclip", "Xlib", "six")

# Programs that OSWorld's guests have and our desktop has under another name. Nobody is root in the sandbox,
# and nobody needs to be: everything that a task may change belongs to its user.
_SHIMS = {
    "python": 'exec /usr/bin/python3 "$@"\n',
    "sudo": 'case "$1" in -S) shift; read -r _ ;; esac\nexec "$@"\n',
    "google-chrome": 'exec chromium --no-sandbox --test-type --no-first-run --password-store=basic "$@"\n',
}


class GuestMachine:
    """Xvfb, a sandbox, and in it openbox and the guest server. A new one is a clean one.

    The server's socket is made out here and handed in, so it can be reached while nothing inside has a
    network.

    Args:
        screen: width and height in pixels.
        memory_mb: limit on the memory of everything inside, in MiB.
        processes: limit on the processes and threads inside.
        home_mb: size of the home directory, in MiB.

    Attributes:
        url: where it listens, on the loopback address.

    Raises:
        EnvFailure: ``reset``; it does not start, or bubblewrap does not work here. There is no way without:
            the server executes what it is told.
    """

    def __init__(
        self,
        screen: tuple[int, int] = (1920, 1080),
        *,
        memory_mb: int = 2048,
        processes: int = 512,
        home_mb: int = 512,
    ) -> None:
        self.screen = screen
        self._xserver: XServer | None = None
        self._process: SandboxedProcess | None = None
        self._cgroup: ControlGroup | None = None
        self._directory: Path | None = None
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        try:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            choose_mode("bwrap")
            self._start(listener, memory_mb * _MIB, processes, home_mb * _MIB)
        except BaseException:
            self.close()
            raise
        finally:
            listener.close()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.url.rpartition(":")[2])

    def alive(self) -> bool:
        """Whether the X server and the sandbox run."""
        xserver, process = self._xserver, self._process
        return xserver is not None and xserver.alive() and process is not None and process.poll() is None

    def pause(self) -> None:
        """Stop everything inside until :meth:`resume`; calls to it wait meanwhile."""
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        """Let everything inside go on."""
        if self._process is not None:
            self._process.resume()

    def close(self) -> None:
        """End everything inside and remove its files. Safe to call again."""
        for name in ("_process", "_cgroup", "_xserver"):
            part = getattr(self, name)
            setattr(self, name, None)
            if part is not None:
                part.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self, listener: socket.socket, memory: int, processes: int, home: int) -> None:
        xserver = self._xserver = XServer(self.screen)
        self._directory = private_directory("guest")
        self._cgroup = ControlGroup.create(memory_bytes=memory, processes=processes)
        rules = resources.files("verl_gui.envs.desktop").joinpath("rc.xml").read_bytes()
        framebuffer = str(xserver.directory / "Xvfb_screen0")
        spec = SandboxSpec(
            read_only={
                str(xserver.socket_path): str(xserver.socket_path),
                framebuffer: "/run/framebuffer",
                str(_write_shims(self._directory / "bin")): _BIN,
                str(Path(__file__).parent / "inside"): f"{_SITE}/guest_server",
                **_packages(),
            },
            files={"/run/Xauthority": _authority(xserver), _CONFIG: rules},
            home_bytes=home,
            cgroup=self._cgroup,
            limits={"nofile": 4096} | ({} if self._cgroup else {"data": memory}),
            env={
                "PATH": f"{_BIN}:/usr/bin:/bin:/usr/games",
                "PYTHONPATH": _SITE,
                "PYTHONDONTWRITEBYTECODE": "1",
                "DISPLAY": xserver.display,
                "XAUTHORITY": "/run/Xauthority",
                "GUEST_FRAMEBUFFER": "/run/framebuffer",
                "XDG_SESSION_TYPE": "x11",
                "GSETTINGS_BACKEND": "memory",
                "GIO_USE_VFS": "local",
                "NO_AT_BRIDGE": "1",
                "DBUS_SESSION_BUS_ADDRESS": "disabled:",
                "DBUS_SYSTEM_BUS_ADDRESS": "disabled:",
            },
        )
        server = ["/usr/bin/python3", "-m", "guest_server", "--fd", str(listener.fileno())]
        command = [*server, "--openbox-config", _CONFIG]
        self._process = SandboxedProcess(command, spec, mode="bwrap", pass_fds=[listener.fileno()])
        self._wait(xserver)

    def _wait(self, xserver: XServer) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self.alive():
            try:
                if call("GET", f"{self.url}/screenshot", timeout_s=_START_TIMEOUT_S).status == 200:
                    break
            except HttpCallError as error:
                logger.debug("the guest does not answer yet: %s", error)
            if time.monotonic() > deadline:
                raise EnvFailure("reset", f"the guest did not answer within {_START_TIMEOUT_S:g} s")
            time.sleep(0.02)
        else:
            raise EnvFailure("reset", "the guest server ended at once; is python3 in /usr/bin?")
        # A window that opens before the window manager runs is placed and drawn in another way.
        manager = WindowManager(xserver.display, xserver.authority)
        try:
            manager.wait_until_managed()
        finally:
            manager.close()


def _authority(xserver: XServer) -> bytes:
    """The server's cookie, also for python-xlib, which knows no entry for any host."""
    found = xserver.authority.read_bytes()
    fields = (_HOST_NAME, xserver.display[1:].encode(), b"MIT-MAGIC-COOKIE-1", found[-16:])
    entry = b"".join(len(field).to_bytes(2, "big") + field for field in fields)
    return found + _FAMILY_LOCAL.to_bytes(2, "big") + entry


def _packages() -> dict[str, str]:
    """Host path → path inside of the Python packages."""
    places = {}
    for name in _PACKAGES:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise EnvFailure("reset", f"the Python package {name} is missing; OSWorld's tasks import it")
        path = Path(found.origin)
        path = path.parent if path.name == "__init__.py" else path
        places[str(path)] = f"{_SITE}/{path.name}"
    return places


def _write_shims(directory: Path) -> Path:
    directory.mkdir()
    for name, script in _SHIMS.items():
        path = directory / name
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o755)
    return directory
