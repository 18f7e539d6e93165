"""Where guests come from. Each starts clean, and is thrown away or reverted after one episode."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Protocol

from verl_gui.envs.base import EnvFailure

_REVERT_TIMEOUT_S = 300.0


class GuestSource(Protocol):
    """A place that has one guest at a time."""

    def fresh(self) -> str:
        """Address of a guest in its first state; the one before is gone. Raises EnvFailure."""
        ...

    def pause(self) -> None:
        """Stop the guest until :meth:`resume`. Raises EnvFailure."""
        ...

    def resume(self) -> None:
        """Let the guest go on. Raises EnvFailure."""
        ...

    def close(self) -> None:
        """Give back the guest. Safe to call again."""
        ...


class LocalGuests:
    """Our own sandboxed desktop, new for each episode."""

    def __init__(self, screen: tuple[int, int]) -> None:
        from verl_gui.envs.guest.machine import GuestMachine

        self._make, self._screen = GuestMachine, screen
        self._machine: GuestMachine | None = None

    def fresh(self) -> str:
        """Address of a new desktop."""
        self.close()
        self._machine = self._make(self._screen)
        return self._machine.url

    def pause(self) -> None:
        """Stop everything in the desktop."""
        if self._machine is not None:
            self._machine.pause()

    def resume(self) -> None:
        """Let the desktop go on."""
        if self._machine is not None:
            self._machine.resume()

    def close(self) -> None:
        """End the desktop."""
        machine, self._machine = self._machine, None
        if machine is not None:
            machine.close()


class FixedGuest:
    """A guest that somebody else keeps at an address, such as a virtual machine.

    Args:
        url: its address.
        revert_command: command that puts it back into its first state and returns when that has begun.
            Without one it can be used for a single episode, because the next would find what the last left.
    """

    def __init__(self, url: str, revert_command: Sequence[str] | None = None) -> None:
        self._url, self._revert, self._used = url, revert_command, False

    def fresh(self) -> str:
        """Its address, after reverting it unless this is the first time."""
        if self._used and not self._revert:
            why = f"{self._url} has been used and cannot be put back; set gui.env.options.revert_command"
            raise EnvFailure("reset", why)
        if self._used and self._revert:
            try:
                subprocess.run(list(self._revert), check=True, capture_output=True, timeout=_REVERT_TIMEOUT_S)
            except (OSError, subprocess.SubprocessError) as error:
                raise EnvFailure("reset", f"cannot revert {self._url}: {error}") from error
        self._used = True
        return self._url

    def pause(self) -> None:
        """Refused: nothing here is ours."""
        raise EnvFailure("step", "a guest at an address cannot be paused; set gui.env.pause=false")

    def resume(self) -> None:
        """Nothing was paused."""

    def close(self) -> None:
        """Nothing here is ours."""
