"""A private X server in memory (Xvfb), its input and its pixels."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from Xlib import XK, X

from verl_gui.actions.errors import DisplayGoneError
from verl_gui.actions.x11_display import deadline, open_display
from verl_gui.envs import processes
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.display_number import DisplayNumber
from verl_gui.envs.leftovers import private_directory
from verl_gui.envs.screen import Framebuffer

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 20.0
_ANSWER_TIMEOUT_S = 10.0
_FAMILY_WILD = 65535
_COOKIE_NAME = b"MIT-MAGIC-COOKIE-1"


def _authority_entry(family: int, address: bytes, display: bytes, cookie: bytes) -> bytes:
    parts = (address, display, _COOKIE_NAME, cookie)
    return family.to_bytes(2, "big") + b"".join(len(part).to_bytes(2, "big") + part for part in parts)


class XServer:
    """One Xvfb with one screen; only holders of its cookie can connect.

    Args:
        screen: width and height in pixels.
        show_cursor: draw the pointer into the screen.
        dpi: dots per inch that programs are told.

    Attributes:
        display: its name, such as ``":7"``.
        authority: the Xauthority file with its cookie.
        process: the server.

    Raises:
        EnvFailure: ``reset``; Xvfb is missing or does not start.
    """

    def __init__(self, screen: tuple[int, int], *, show_cursor: bool = True, dpi: int = 96) -> None:
        self.screen = screen
        self._framebuffer: Framebuffer | None = None
        self._connection: Any = None
        self.directory = private_directory("x")
        self.authority = self.directory / "Xauthority"
        cookie = secrets.token_bytes(16)
        # Any host name, any display: the sandbox has a host name of its own.
        self.authority.touch(mode=0o600)
        self.authority.write_bytes(_authority_entry(_FAMILY_WILD, b"", b"", cookie))
        self._number = DisplayNumber()
        command = [
            "Xvfb",
            f":{self._number.number}",
            *("-screen", "0", f"{screen[0]}x{screen[1]}x24", "-dpi", str(dpi)),
            *("-nolisten", "tcp", "-nolisten", "local", "-noreset", "-auth", str(self.authority)),
            *("-fbdir", str(self.directory), "-s", "0", "-dpms"),
            *(() if show_cursor else ("-nocursor",)),
        ]
        reader, writer = os.pipe()
        log = open(self.directory / "log", "wb")  # noqa: SIM115  # the child writes it; closed below
        try:
            self.process = processes.start(
                [*command, "-displayfd", str(writer)],
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"},
                pass_fds=[writer],
                stdout=log,
                death_signal="TERM",  # on SIGTERM the server removes its socket and lock file
            )
        except OSError as error:
            shutil.rmtree(self.directory, ignore_errors=True)
            self._number.release()
            os.close(reader)
            raise EnvFailure("reset", f"cannot start Xvfb ({error}); install the xvfb package") from error
        finally:
            os.close(writer)
            log.close()
        try:
            # Up to the newline: the server dies when the pipe closes under it.
            number = processes.read_until(reader, b"\n", _START_TIMEOUT_S).strip()
            self.display = f":{number.decode()}"
            self._framebuffer = Framebuffer(self.directory / "Xvfb_screen0")
        except (OSError, EOFError, ValueError) as error:
            log_tail = (self.directory / "log").read_bytes()[-500:].decode(errors="replace")
            self.close()
            raise EnvFailure("reset", f"Xvfb did not start: {error}; its log: {log_tail!r}") from error
        finally:
            os.close(reader)

    @property
    def socket_path(self) -> Path:
        """The Unix socket that clients connect to."""
        return Path(f"/tmp/.X11-unix/X{self.display[1:]}")

    def alive(self) -> bool:
        """Whether the server process runs (it may still hang)."""
        return self.process.poll() is None

    @property
    def framebuffer(self) -> Framebuffer:
        """The pixels.

        Raises:
            EnvFailure: ``dead``; the server is gone, and the pixels are old.
        """
        if self._framebuffer is None or not self.alive():
            raise EnvFailure("dead", f"Xvfb ended with exit code {self.process.poll()}")
        return self._framebuffer

    def neutral_input(self) -> None:
        """Release all keys and buttons and park the pointer in the bottom right corner.

        Raises:
            EnvFailure: ``dead``; the server is gone or does not answer.
        """
        with self._conversation("releasing keys") as display:
            pressed = display.query_keymap()
            for code in range(8, 256):
                if pressed[code // 8] & 1 << code % 8:
                    display.xtest_fake_input(X.KeyRelease, code)
            mask = display.screen().root.query_pointer().mask
            for button in range(1, 6):
                if mask & X.Button1Mask << button - 1:
                    display.xtest_fake_input(X.ButtonRelease, button)
            display.xtest_fake_input(X.MotionNotify, x=self.screen[0] - 1, y=self.screen[1] - 1)
            display.sync()

    def tap(self, key: str) -> None:
        """Press and release the key with the keysym name ``key``.

        Raises:
            EnvFailure: ``dead``; the server is gone or does not answer.
        """
        with self._conversation(f"pressing {key}") as display:
            code = display.keysym_to_keycode(XK.string_to_keysym(key))
            display.xtest_fake_input(X.KeyPress, code)
            display.xtest_fake_input(X.KeyRelease, code)
            display.sync()

    @contextlib.contextmanager
    def _conversation(self, doing: str) -> Iterator[Any]:
        """Our own connection (opened at the first use), for a bounded time."""
        try:
            if self._connection is None:
                self._connection = open_display(self.display, str(self.authority))
            with deadline(self._connection, _ANSWER_TIMEOUT_S, doing):
                yield self._connection
        except DisplayGoneError as gone:
            raise EnvFailure("dead", str(gone)) from gone

    def close(self) -> None:
        """Stop the server and remove its files. Safe to call again."""
        if self._connection is not None:
            with contextlib.suppress(DisplayGoneError), deadline(self._connection, 1.0, "closing"):
                self._connection.close()
            self._connection = None
        processes.stop(self.process)
        if self._framebuffer is not None:
            self._framebuffer.close()
            self._framebuffer = None
        if hasattr(self, "display") and self.process.returncode != 0:
            self._remove_leftovers()
        self._number.release()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """Remove the socket and lock of a killed server, unless another one has taken the number since."""
        probe = socket.socket(socket.AF_UNIX)
        try:
            probe.settimeout(1.0)
            probe.connect(str(self.socket_path))
        except ConnectionRefusedError:  # a socket file that nobody listens on
            self.socket_path.unlink(missing_ok=True)
            Path(f"/tmp/.X{self.display[1:]}-lock").unlink(missing_ok=True)
        except OSError as error:
            logger.debug("%s stays: %s", self.socket_path, error)
        finally:
            probe.close()
